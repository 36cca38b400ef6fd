"""Output that nobody takes, that has no room, or that the terminal has no letters for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge_agent.cli.apps import APP, plan_app
from tests.edge_agent.cli.processes import ROOT, started


def test_closed_streams_are_no_reason_for_a_traceback(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(plan_app("plan.source('s', [(1, 1)]).sink('k')"))
    command = f"{sys.executable} -m edge_agent.cli run {app} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(app: Callable[[str], str], command: str, unbuffered: str) -> None:
    # Either way it has more to say than a pipe holds.
    text = plan_app(
        "stream = plan.source('s', lambda: ((n, n) for n in range(10**9)))\n"
        "    for n in range(1000): stream.filter(lambda _: True).sink(f'sink-with-a-long-name-{n}')"
    )
    with started(command, app(text), PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=30)
    assert (process.returncode, err) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_in_one_line(app: Callable[[str], str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "edge_agent.cli", "run", app(APP)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == "threadline-agent: the output cannot be written: No space left on device\n"


def test_any_text_fits_any_terminal(app: Callable[[str], str]) -> None:
    path = app(plan_app("plan.source('s', [(1, '\\u8eca\\ud800')]).sink('\\u00fc')"))
    for form in ("text", "json"):
        with started("run", path, "--format", form, PYTHONIOENCODING="ascii") as process:
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert "\\u8eca" in out
        assert "\\ud800" in out

"""Output that nobody takes, that has no room, or that the terminal has no letters for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge_agent.cli.apps import APP, plan_app
from tests.edge_agent.cli.processes import in_shell, started

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
FULL = "threadline-agent: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("text", [APP, plan_app("plan.source('s', []).sink('k')")], ids=["deliveries", "none"])
def test_a_closed_output_is_said_in_one_line(app: Callable[[str], str], command: str, text: str) -> None:
    done = in_shell('"$@" >&-', command, app(text))
    assert done.returncode == 1
    assert done.stderr == "threadline-agent: the output cannot be written: the standard output is closed\n"
    assert in_shell('"$@" >&- 2>&-', command, app(text)).returncode == 1


def test_a_plan_in_a_file_needs_no_output(app: Callable[[str], str], tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    done = in_shell('"$@" >&-', "plan", app(f"print('loaded')\n{APP}"), "--output", str(picture))
    assert (done.returncode, done.stderr) == (0, "")
    assert picture.read_text().startswith("<svg")


def results(output: str) -> list[str]:
    """What was printed of each result. Those of one sink come before those of another if they are read together."""
    return sorted(output.split("\n\n"))


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("where", ["2>&-", pytest.param("2>/dev/full", marks=needs_full)])
def test_what_cannot_be_said_changes_nothing(app: Callable[[str], str], where: str, unbuffered: str) -> None:
    path = app(APP)
    expected = in_shell('"$@"', "run", path)
    done = in_shell(f'"$@" {where}', "run", path, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, results(done.stdout), done.stderr) == (0, results(expected.stdout), "")
    assert in_shell(f'"$@" {where}', "run", path, "--sink", "x", PYTHONUNBUFFERED=unbuffered).returncode == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nobody_has_to_listen(app: Callable[[str], str], unbuffered: str) -> None:
    with started("run", app(APP), PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.close()
        process.stdout.read()
    assert process.returncode == 0


def test_an_app_that_warns_does_not_warn_in_the_output(app: Callable[[str], str]) -> None:
    path = app(f"import sys\nprint('\\ud800', file=sys.stderr)\n{APP}")
    done = in_shell('"$@" 2>&-', "run", path, "--sink", "stops")
    assert done.returncode == 0
    assert done.stdout.startswith("local/stops@0:")


def test_what_the_app_prints_stays_in_its_place(app: Callable[[str], str]) -> None:
    path = app(plan_app("plan.source('s', [(5, 0)]).filter(lambda _: not print('looking')).sink('k')"))
    done = in_shell('"$@"', "run", path, "--provenance", "none", PYTHONUNBUFFERED="")
    assert done.stdout == "looking\nlocal/k@0:0  at 5\n  0\n\n"


@needs_full
def test_what_the_app_prints_needs_room_too(app: Callable[[str], str]) -> None:
    path = app(plan_app("plan.source('s', [(5, 0)]).filter(lambda _: bool(print('looking'))).sink('k')"))
    done = in_shell('"$@" >/dev/full', "run", path, PYTHONUNBUFFERED="")
    assert done.returncode == 1
    assert done.stderr == f"threadline-agent: taken 1, delivered 0, late 0, skipped 0\n{FULL}"


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


@needs_full
def test_a_full_disk_is_said_in_one_line(app: Callable[[str], str]) -> None:
    done = in_shell('"$@" >/dev/full', "run", app(APP))
    assert (done.returncode, done.stderr) == (1, FULL)


def test_any_text_fits_any_terminal(app: Callable[[str], str]) -> None:
    path = app(plan_app("plan.source('s', [(1, '\\u8eca\\ud800')]).sink('\\u00fc')"))
    for form in ("text", "json"):
        with started("run", path, "--format", form, PYTHONIOENCODING="ascii") as process:
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert "\\u8eca" in out
        assert "\\ud800" in out

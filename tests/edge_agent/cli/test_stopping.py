"""Stopped by a signal: at once, with the counts, and never in the middle of a line."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge_agent.cli.apps import plan_app
from tests.edge_agent.cli.processes import started, wait_until_it_waits
from tests.support.waiting import wait_until

# Waits for an item that never comes.
SLOW = plan_app(
    "def items():\n"
    "        for n in range(10**9):\n"
    "            yield n, n\n"
    "            if n >= 3: time.sleep(3600)\n"
    "    plan.source('s', items, live={live}).sink('k')"
)
BUSY = plan_app("plan.source('s', lambda: ((n, n) for n in range(10**9))).filter(lambda n: n < 4).sink('k')")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("text", [SLOW.format(live=True), BUSY], ids=["waiting", "busy"])
def test_a_signal_stops_cleanly(app: Callable[[str], str], number: signal.Signals, code: int, text: str) -> None:
    with started("run", app(text), "--format", "json") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert [json.loads(line)["payload"] for line in lines] == [0, 1, 2, 3]
    assert out == ""
    assert process.returncode == code
    assert re.fullmatch(
        rf"threadline-agent: stopped by {number.name}: taken \d+, delivered 4, late 0, skipped 0\n", err
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_signal_cuts_no_line(app: Callable[[str], str], unbuffered: str) -> None:
    text = plan_app("plan.source('s', lambda: ((n, 'x' * 9000) for n in range(10**9))).sink('k')")
    with started("run", app(text), "--format", "json", PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until_it_waits(process)  # in the middle of a line
        process.send_signal(signal.SIGTERM)
        wait_until_it_waits(process)
        out = process.stdout.read()
    assert process.returncode == 143
    assert out.endswith("}\n")
    for line in out.splitlines():
        json.loads(line)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_second_signal_does_not_wait_for_the_reader(app: Callable[[str], str], unbuffered: str) -> None:
    text = plan_app("plan.source('s', lambda: ((n, 'x' * 900) for n in range(10**9))).sink('k')")
    with started("run", app(text), PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(2):
            wait_until_it_waits(process)
            process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
    assert process.returncode == 130


def test_a_signal_while_the_app_is_loaded_is_no_traceback(app: Callable[[str], str], tmp_path: Path) -> None:
    text = f"import pathlib, time\npathlib.Path({str(tmp_path / 'loading')!r}).touch()\ntime.sleep(3600)\n"
    with started("plan", app(text)) as process:
        wait_until((tmp_path / "loading").exists, "the app is being loaded", 30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")

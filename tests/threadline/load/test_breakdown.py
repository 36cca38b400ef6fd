"""What is said of something that has broken down."""

from __future__ import annotations

import signal

import pytest

from threadline.load.breakdown import Breakdown


@pytest.mark.parametrize(
    ("code", "how"),
    [(-signal.SIGKILL, "killed by SIGKILL"), (3, "exit code 3"), (-(signal.SIGRTMIN + 1), "killed by signal 35")],
)
def test_it_is_told_when_and_how(code: int, how: str) -> None:
    error = Breakdown.died("translator", code, [])
    assert str(error) == f"translator died: {how}"
    assert error.told(11.4) == f"translator died at 11 s: {how}"


def test_the_last_lines_of_the_log_follow() -> None:
    error = Breakdown.died("translator", 1, [f"line {number}" for number in range(40)])
    first, *log = str(error).splitlines()
    assert first == "translator died: exit code 1; its log ends with"
    assert log[0] == "line 25"
    assert log[-1] == "line 39"

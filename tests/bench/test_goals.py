"""A goal says what was measured, what was wanted, and whether it was met; a missed one is printed as missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench._goals import Goal, Report


@pytest.mark.parametrize(
    ("goal", "line"),
    [
        (Goal("ratio", 0.8, "<=", 1, "x"), "goal ratio measured 0.8x wanted <= 1x met"),
        (Goal("ratio", 1.2, "<=", 1, "x"), "goal ratio measured 1.2x wanted <= 1x missed"),
        (Goal("held", 5000, ">=", 5000), "goal held measured 5000 wanted >= 5000 met"),
        (Goal("memory", 60, "<", 60, "MB"), "goal memory measured 60MB wanted < 60MB missed"),
        (Goal("rate", 123_456.7, ">=", 100_000), "goal rate measured 123500 wanted >= 100000 met"),
        (Goal("time", 2 / 3, "<=", 0.5, " s"), "goal time measured 0.6667 s wanted <= 0.5 s missed"),
    ],
)
def test_a_goal_is_one_line(goal: Goal, line: str) -> None:
    assert goal.line() == line


@pytest.mark.parametrize(
    ("measured", "op", "wanted", "line"),
    [
        (0.99996, "==", 1, "measured 0.99996 wanted == 1 missed"),
        (1 - 1e-9, "==", 1, "measured 0.999999999 wanted == 1 missed"),
        (1 + 2**-52, "<=", 1, "measured 1.0000000000000002 wanted <= 1 missed"),
        (9_999.6, ">=", 10_000, "measured 9999.6 wanted >= 10000 missed"),
        (99_999.96, ">=", 100_000, "measured 99999.96 wanted >= 100000 missed"),
        (1.1004, "<=", 1.1, "measured 1.1004 wanted <= 1.1 missed"),
        (1.100371, "<=", 1.1, "measured 1.1004 wanted <= 1.1 missed"),
        (59.9996, "<", 60, "measured 59.9996 wanted < 60 met"),
        (1.10004, "<=", 1.2, "measured 1.1 wanted <= 1.2 met"),
    ],
)
def test_what_is_near_is_judged_as_it_was_measured_and_told_apart(
    measured: float, op: str, wanted: float, line: str
) -> None:
    report = Report("some", quick=True, json_file=None)
    report.goal("near", measured, op, wanted)
    (goal,) = report.goals
    assert goal.measured == measured
    assert goal.line() == f"goal near {line}"


def test_the_json_file_has_the_figures_and_whether_each_goal_was_met(tmp_path: Path) -> None:
    report = Report("some", quick=True, json_file=tmp_path / "out.json")
    report.figures.append({"clients": 8})
    report.goal("slow", 3.0, "<=", 2.0)
    report.finish()
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["quick"] is True
    assert written["figures"] == [{"clients": 8}]
    assert written["goals"] == [{"name": "slow", "measured": 3.0, "op": "<=", "wanted": 2.0, "unit": "", "met": False}]


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    """NaN is no JSON, though Python writes it and reads it."""
    report = Report("some", quick=True, json_file=tmp_path / "out.json")
    report.figures.append({"rates": [1.0, float("inf")]})
    report.goal("all parts", float("nan"), "==", 1)
    report.finish()
    written = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert written["figures"] == [{"rates": [1.0, None]}]
    assert (written["goals"][0]["measured"], written["goals"][0]["met"]) == (None, False)

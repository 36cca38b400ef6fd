"""The report of the laboratory, and how long it is asked to run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tests.faults.chain.run import Outcome
from tests.faults.chaos import main, parse_duration_s
from tests.faults.report import Report


@pytest.mark.parametrize(
    ("text", "duration_s"), [("90s", 90.0), ("10m", 600.0), ("2h", 7200.0), ("1.5m", 90.0), ("90", 90.0)]
)
def test_a_duration(text: str, duration_s: float) -> None:
    assert parse_duration_s(text) == duration_s


@pytest.mark.parametrize("text", ["", "m", "10 minutes", "-1s", "0s", "0"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        parse_duration_s(text)


def test_runs_faults_and_how_to_see_what_was_wrong_again(tmp_path: Path) -> None:
    report = Report(tmp_path / "chaos")
    report.add(Outcome(7, 61.2, {"kill -9": {"gateway": 2, "mill": 1}, "loss": {"mill": 1}}, events=900, dropped=5))
    assert report.is_good
    report.add(Outcome(8, 70.0, {"kill -9": {"gateway": 1}}, findings=["a block is missing"]))
    report.add_simulated(9, None, {"lost": 3})
    report.add_simulated(10, "AssertionError: two labels\nsee it again")
    assert not report.is_good
    assert report.summary() == "1 of 2 runs of the whole chain are good; 1 of 2 simulated runs are good"
    report.write()
    text = (tmp_path / "chaos" / "report.md").read_text()
    assert "| 7 | 61 | 3 kill -9, loss | 900 |" in text
    assert "| kill -9 | 4 | gateway 3, mill 1 |" in text and "| all | 5 | besides, 5 datagrams were lost |" in text
    assert "`.venv/bin/python -m tests.faults.chaos --layer chain --seed 8`:\n\n    a block is missing" in text
    assert "--layer simulation --seed 10`:\n\n    AssertionError: two labels\n    see it again" in text
    told = json.loads((tmp_path / "chaos" / "report.json").read_text())
    assert [each["findings"] for each in told["runs"]] == [[], ["a block is missing"]]
    assert told["runs"][1]["replay"] == ".venv/bin/python -m tests.faults.chaos --layer chain --seed 8"
    assert told["simulated"] == {
        "runs": 2,
        "faults": {"lost": 3},
        "bad": {"10": "AssertionError: two labels\nsee it again"},
    }


def test_simulated_seeds_that_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--layer", "simulation", "--seed", "1", "--seed", "2", "--report", str(tmp_path)]) == 0
    assert "2 of 2 simulated runs are good" in capsys.readouterr().out
    assert "2 of 2" in (tmp_path / "report.md").read_text()

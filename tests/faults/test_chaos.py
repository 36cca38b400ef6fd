"""The commands of the laboratory, when they are asked for something that makes no sense."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.faults import chaos
from tests.faults.simulation.__main__ import parse_seeds


@pytest.mark.parametrize(("text", "seeds"), [("7", range(7, 8)), ("0-99", range(100)), ("5-5", range(5, 6))])
def test_seeds(text: str, seeds: range) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a-b", "9-1", "-3", "1-", "1-2-3"])
def test_what_are_no_seeds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not like 0-99"):
        parse_seeds(text)


def test_a_report_that_cannot_be_written_is_known_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stopped:
        chaos.main(["--report", str(tmp_path / "file"), "--layer", "simulation", "--duration", "1s"])
    assert stopped.value.code == 2
    assert "--report" in capsys.readouterr().err


def test_each_report_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert chaos.main(["--layer", "simulation", "--seed", "3"]) == 0
    [report] = (tmp_path / "build" / "chaos").glob("*/report.md")
    assert "1 of 1 simulated runs are good" in report.read_text()

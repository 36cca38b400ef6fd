"""A run of which the stage itself is broken has a verdict like any other."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest

from tests.faults.chain import run as runs
from tests.faults.chain.schedule import Fault, Kind, Schedule

FAULTS = [Fault(kind, "quarry", 0.0, 1.0, 0.5) for kind in (Kind.LOSS, Kind.KILL, Kind.SLEEP)]


@pytest.mark.parametrize("broken", ["__enter__", "__exit__"])
def test_a_stage_that_cannot_be_put_up_or_taken_down_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    stage = MagicMock()
    getattr(stage, broken).side_effect = TimeoutError("gateway is not ready")
    monkeypatch.setattr(runs, "Stage", Mock(return_value=stage))
    monkeypatch.setattr(runs, "Player", Mock(return_value=Mock(played=[])))
    monkeypatch.setattr(runs, "_judge", Mock(return_value=[]))
    outcome = runs.run(3, tmp_path)
    assert not outcome.is_good
    [finding] = outcome.findings
    assert "gateway is not ready" in finding


@pytest.mark.parametrize(("planned", "played", "is_good"), [(3, 3, True), (3, 2, False), (3, 0, False), (2, 1, True)])
def test_a_run_in_which_hardly_anything_was_played_is_not_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: int, played: int, is_good: bool
) -> None:
    plan, stage = Schedule(3, 1.0, FAULTS[:planned]), MagicMock()
    stage.__enter__.return_value.schedule = plan
    monkeypatch.setattr(runs, "Stage", Mock(return_value=stage))
    monkeypatch.setattr(runs, "Player", Mock(return_value=Mock(played=FAULTS[:played])))
    monkeypatch.setattr(runs, "_judge", Mock(return_value=[]))
    assert runs.run(3, tmp_path, plan=plan).is_good == is_good

"""A run of which the stage itself is broken has a verdict like any other."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest

from tests.faults.chain import run as runs


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

"""What a process with devices tells of their ends."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from edge_agent.agent import Agent
from threadline.load.worker import Crew


def test_what_could_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full: one record stays in memory, and two had no room there."""
    settings = {"gateway": "127.0.0.1:1"}
    order = {"profile": "light", "folder": str(tmp_path), "settings": settings, "phase": 0.5, "devices": [[0, "a"]]}
    close, status = Agent.close, Agent.status

    def full(agent: Agent, timeout: float) -> int:
        left = close(agent, 0.1)
        agent.unwritten = 1
        return left

    def given_up(agent: Agent) -> dict[str, Any]:
        return {**status(agent), "dropped": 2}

    monkeypatch.setattr(Agent, "close", full)
    monkeypatch.setattr(Agent, "status", given_up)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"stop": 0}) + "\n"))
    out = io.StringIO()
    Crew(order, out).run()
    (end,) = json.loads(out.getvalue().splitlines()[-1])["ended"]
    assert (end["agent"], end["unwritten"], end["dropped"]) == ("a", 1, 2)

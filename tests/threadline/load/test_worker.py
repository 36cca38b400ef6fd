"""What a process with devices tells of their ends."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edge_agent.agent import Agent
from tests.support.waiting import wait_until
from threadline.load.worker import Crew


def test_devices_that_wait_for_room_come_to_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes anything from them, so there is no room until they are let go."""
    settings = {"gateway": "127.0.0.1:1", "when_full": "block", "spool_bytes": 64 << 10, "memory_bytes": 64 << 10}
    order = {"profile": "query", "folder": str(tmp_path), "settings": settings, "phase": 0.5, "devices": [[0, "a"]]}
    reading, writing = os.pipe()
    out = io.StringIO()
    with os.fdopen(reading) as wishes, os.fdopen(writing, "w", buffering=1) as wish:
        monkeypatch.setattr("sys.stdin", wishes)
        crew = Crew(order, out)
        running = threading.Thread(target=crew.run)
        running.start()
        wish.write(json.dumps({"rate": 1_000}) + "\n")
        agent = crew._members[0].agent
        wait_until(lambda: agent.status()["trouble"], "its spool is full")
        said = -1
        while said != (said := crew._members[0].device.said.results):
            time.sleep(0.5)
        wish.write(json.dumps({"stop": 0.1}) + "\n")
        running.join(20.0)
    assert not running.is_alive()
    assert "ended" in json.loads(out.getvalue().splitlines()[-1])


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

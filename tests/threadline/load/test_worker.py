"""What a process with devices tells of their ends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
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


def test_nothing_older_is_told_after_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that tells it every second is slow, and the devices come to their ends meanwhile."""
    settings = {"gateway": "127.0.0.1:1"}
    order = {"profile": "light", "folder": str(tmp_path), "settings": settings, "phase": 0.5, "devices": [[0, "a"]]}
    looked = threading.Event()
    now = Crew._now

    def slow(crew: Crew) -> dict[str, Any]:
        found = now(crew)
        if threading.current_thread() is not running:
            looked.set()
            time.sleep(1.0)
        return found

    monkeypatch.setattr(Crew, "_now", slow)
    reading, writing = os.pipe()
    out = io.StringIO()
    with os.fdopen(reading) as wishes, os.fdopen(writing, "w", buffering=1) as wish:
        monkeypatch.setattr("sys.stdin", wishes)
        running = threading.Thread(target=Crew(order, out).run)
        running.start()
        assert looked.wait(20.0)
        wish.write(json.dumps({"stop": 0.1}) + "\n")
        running.join(20.0)
    wait_until(lambda: out.getvalue().count('"now"') == 2, "both have told it")
    told = [news["now"]["at"] for news in map(json.loads, out.getvalue().splitlines()) if "now" in news]
    assert told == sorted(told)


def test_threads_of_light_devices_rarely_ask_for_pythons_lock(tmp_path: Path) -> None:
    """Hundreds of them wait for it at the same time on a busy machine: each woke up 200 times a second to ask. Those of
    devices that say much have to ask, as the one that speaks for them hardly ever lets go by itself."""
    intervals = {}
    for profile in ("light", "query"):
        order: dict[str, Any] = {
            "profile": profile,
            "folder": str(tmp_path),
            "settings": {},
            "phase": 0.5,
            "devices": [],
        }
        shown = "import sys, threadline.load.worker as worker\n"
        shown += "worker.Crew = lambda *_: print(sys.getswitchinterval()) or sys.exit()\nworker.main()"
        done = subprocess.run(
            [sys.executable, "-c", shown], input=json.dumps(order) + "\n", capture_output=True, text=True, check=True
        )
        intervals[profile] = float(done.stdout)
    assert intervals == pytest.approx({"light": 0.2, "query": 0.005})

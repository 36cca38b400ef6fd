"""How an agent is, read from its folder by another process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from edge_agent.agent import Agent
from edge_agent.agent_status import StatusError, read_status, status_text
from edge_agent.config import Settings
from edge_agent.status_file import NAME
from edge_agent.stream import Plan
from edge_agent.transport import Client
from tests.edge_agent.spooled import NOWHERE, batches
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def no_long_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody to say it to."""
    close = Client.close
    monkeypatch.setattr(Client, "close", lambda client, timeout: close(client, timeout=0.0))


def settings(folder: Path) -> Settings:
    return Settings(name="hub", gateway=NOWHERE, spool=str(folder), fsync="never")


def plan() -> Plan:
    made = Plan("relay")
    made.receive("numbers", "car-7").send("squares", to=["lab"])
    return made


def test_a_running_agent_and_one_that_has_ended(tmp_path: Path) -> None:
    with Agent(settings(tmp_path), plan().document()) as agent:
        wait_until((tmp_path / NAME).exists, "a status")
        running = read_status(settings(tmp_path))
        agent.close(0.0)
    ended = read_status(settings(tmp_path))
    assert (running["running"], ended["running"]) == (True, False)
    assert running["pid"] and ended["pid"] is None
    count = len(batches(tmp_path))
    assert (ended["agent"], ended["epoch"], ended["batches"], ended["unacknowledged"]) == ("hub", 1, count, count)
    assert ended["sends"] == {
        "squares": {"not_taken": 0, "bytes": ended["sends"]["squares"]["bytes"], "given_up": 0, "trouble": ""}
    }
    assert ended["receives"] == {"car-7/numbers": 0}
    assert ended["in_vain"] == {"duplicates": 0, "early_dropped": 0}
    assert (ended["unreadable"], ended["link"]["duplicates"]) == (0, 0)
    text = status_text(running, as_json=False)
    assert text.startswith(f"agent hub, epoch 1: running, pid {running['pid']}\n")
    assert "  sends           squares: 0 messages not taken yet, 0 tuples given up\n" in text
    assert "  receives        car-7/numbers: 0 messages taken\n" in text
    assert "agent hub, epoch 1: not running\n" in status_text(ended, as_json=False)
    assert json.loads(status_text(ended, as_json=True)) == ended


def test_batches_that_the_disk_has_lost_are_counted(tmp_path: Path) -> None:
    for _ in range(2):
        with Agent(settings(tmp_path)) as agent:
            agent.close(0.0)
        assert read_status(settings(tmp_path))["unreadable"] == 0
    segment = min((tmp_path / "up").glob("*.v1"))
    count = len(batches(tmp_path))
    segment.write_bytes(bytes(segment.stat().st_size))
    with Agent(settings(tmp_path)) as agent:
        agent.close(0.0)
    assert 0 < read_status(settings(tmp_path))["unreadable"] <= count


def test_an_agent_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "threadline" / "hub"
    with Agent(settings(folder)) as agent:
        agent.close(0.0)
    assert read_status(Settings(name="hub"))["agent"] == "hub"
    with pytest.raises(StatusError, match=r"no agent has its spool in .*threadline/other"):
        read_status(Settings(name="other"))


def test_a_file_that_is_no_status_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"agent": "hu')
    with pytest.raises(StatusError, match="cannot be read"):
        read_status(settings(tmp_path))


def shown(**changes: Any) -> list[str]:
    status = {
        "agent": "hub",
        "pid": 17,
        "running": True,
        "epoch": 3,
        "batches": 12,
        "acknowledged": 10,
        "unacknowledged": 2,
        "spool_bytes": 4_000,
        "spool_most_bytes": 65_536,
        "dropped": 5,
        "replaced": 1,
        "resent_batches": 4,
        "duplicate_agent": False,
        "trouble": "",
        "sends": {},
        "receives": {},
        "link": {
            "state": "connected",
            "round_trip_s": 0.0123,
            "sent": 40,
            "resent": 2,
            "duplicates": 3,
            "reconnects": 1,
        },
        "at_ms": (time.time() - 1) * 1_000,
    }
    return status_text(status | changes, as_json=False).splitlines()


def test_what_people_read() -> None:
    assert shown() == [
        "agent hub, epoch 3: running, pid 17",
        "  as of           1 s ago",
        "  spool           4000 of 65536 bytes",
        "  batches         10 acknowledged since it started, 2 not yet, 4 sent again",
        "  dropped         5 records",
        "  not captured    1 values were replaced by placeholders",
        "  link            connected, round trip 12 ms, 40 packets sent, 2 again, 3 received twice, 1 reconnects",
    ]


def test_trouble_is_said() -> None:
    lines = shown(
        trouble="the disk is full",
        duplicate_agent=True,
        ignored=1_601,
        unreadable=12,
        in_vain={"duplicates": 9, "early_dropped": 2},
        sends={"sums": {"not_taken": 7, "given_up": 30, "trouble": "the spool is full"}},
        link={"state": "waiting", "round_trip_s": None, "sent": 0, "resent": 0, "reconnects": 0},
    )
    assert "  sends           sums: 7 messages not taken yet, 30 tuples given up" in lines
    assert (
        "  link            waiting, round trip unknown, 0 packets sent, 0 again, 0 received twice, 0 reconnects"
        in lines
    )
    assert "  came in vain    9 messages twice, 2 too early: these come again" in lines
    assert lines[-5:] == [
        "  trouble         the disk is full",
        "  trouble         the spool is full",
        "  unreadable      12 batches: the spool was damaged",
        "  ignored         1601 messages that mean nothing came on its topics",
        "  trouble         another agent uses the same name",
    ]


def test_a_status_that_should_be_newer_is_said_to_be_old() -> None:
    def as_of(**changes: Any) -> str:
        return shown(**changes)[1]

    hour_ago = (time.time() - 3_600) * 1_000
    assert as_of(at_ms=hour_ago).startswith("  as of           60 min ago, and it should be newer")
    assert as_of(at_ms=hour_ago, running=False) == "  as of           60 min ago"

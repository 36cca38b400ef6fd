"""Spools of processes that ran at the same time: whose they are, and how what is left in them gets away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from edge_agent.agent import Agent, default_agent
from edge_agent.config import Settings
from edge_agent.siblings import NoSpool, is_open, send_left, spools
from edge_agent.spool import Spool, SpoolFull
from edge_agent.status_file import StatusFile, read_status_file
from edge_agent.transport import Client
from protocol.records import Gap
from protocol.structs import replaced
from protocol.wire.batch import Header, encode_batch
from tests.edge_agent.cloud import Cloud
from tests.edge_agent.spooled import NOWHERE, batches, spooled
from tests.edge_agent.test_agent import event


@pytest.fixture(autouse=True)
def no_long_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody to say it to."""
    close = Client.close
    monkeypatch.setattr(Client, "close", lambda client, timeout: close(client, timeout=0.0))


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    running = Cloud()
    with running:
        yield running


def agent_in(folder: Path, name: str) -> Agent:
    return Agent(Settings(name=name, gateway=NOWHERE, spool=str(folder), fsync="never")).start()


def leave(folder: Path, name: str, events: int = 3) -> None:
    """What a process could not send."""
    agent = agent_in(folder, name)
    for key in range(events):
        agent.put(event(key), 100)
    assert agent.close(0.0) > 0


def release(folder: Path) -> None:
    """Nothing is left, and the agent knew it."""
    with Spool.open(folder / "up") as spool:
        spool.release(spool.next - 1)
    tell(folder, unacknowledged=0)


def tell(folder: Path, **changes: Any) -> None:
    file = StatusFile(str(folder))
    file.write({**read_status_file(str(folder)), **changes})
    file.close()


def sent(settings: Settings, drain_s: float = 10.0) -> tuple[bool, str]:
    said: list[str] = []
    nothing_left = send_left(settings, drain_s, threading.Event(), said.append)
    (text,) = said
    return nothing_left, text


def pump(folder: Path, name: str = "pump-7", gateway: str = NOWHERE) -> Settings:
    return Settings(name=name, gateway=gateway, spool=str(folder), fsync="never")


# At the start of a program


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The spool of a program's first process."""
    monkeypatch.setenv("THREADLINE_GATEWAY", NOWHERE)
    monkeypatch.setenv("THREADLINE_AGENT", "pump-7")
    monkeypatch.setenv("THREADLINE_SPOOL", str(tmp_path / "spool"))
    return tmp_path / "spool"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "edge_agent.siblings"]


def test_a_program_tells_of_what_nobody_sends_and_how_to_send_it(
    program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3):
        suffix = "" if number == 1 else f"-{number}"
        leave(tmp_path / f"spool{suffix}", f"pump-7{suffix}")
    left = sum(len(batches(tmp_path / f"spool-{number}")) for number in (2, 3))
    default_agent().close(0.0)
    (said,) = warnings(caplog)
    assert f"`threadline-agent send --spool {program} --gateway {NOWHERE}`" in said
    assert f"batches={left} spools={program}-2,{program}-3" in said


def test_what_others_have_open_or_have_sent_needs_no_words(
    program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (2, 3):
        leave(tmp_path / f"spool-{number}", f"pump-7-{number}")
    release(tmp_path / "spool-3")
    (tmp_path / "spool-4").mkdir()
    running = agent_in(tmp_path / "spool-2", "pump-7-2")
    default_agent().close(0.0)
    running.close(0.0)
    assert warnings(caplog) == []


def test_whether_somebody_has_it_open(tmp_path: Path) -> None:
    assert not is_open(str(tmp_path / "spool"))
    agent = agent_in(tmp_path / "spool", "pump-7")
    assert is_open(str(tmp_path / "spool"))
    agent.close(0.0)
    assert not is_open(str(tmp_path / "spool"))


# Whose they are


def test_each_spool_has_the_name_that_its_records_were_captured_under(tmp_path: Path) -> None:
    leave(tmp_path / "spool", "a-name-of-23-characters")
    leave(tmp_path / "spool-2", "a-name-of-23-characte-2")
    leave(tmp_path / "spool-4", "another")
    (tmp_path / "spool-3").mkdir()
    found = spools(Settings(gateway=NOWHERE, spool=f"{tmp_path}/spool/"))
    assert [(each.name, Path(each.spool).name) for each in found] == [
        ("a-name-of-23-characters", "spool"),
        ("a-name-of-23-characte-2", "spool-2"),
        ("another", "spool-4"),
    ]


def test_a_spool_that_tells_no_name_has_to_be_given_one(tmp_path: Path) -> None:
    for folder in ("spool", "spool-2"):
        leave(tmp_path / folder, "pump-7")
        (tmp_path / folder / "status").unlink()
    with pytest.raises(NoSpool, match="give --name"):
        spools(pump(tmp_path / "spool", name=""))
    assert [each.name for each in spools(pump(tmp_path / "spool"))] == ["pump-7", "pump-7-2"]


def test_the_spool_of_another_agent_is_refused(tmp_path: Path) -> None:
    leave(tmp_path, "pump-7")
    with pytest.raises(NoSpool, match=r"is the spool of agent 'pump-7', not of 'pump-8'"):
        spools(pump(tmp_path, name="pump-8"))


def test_a_folder_that_is_no_spool_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(NoSpool, match=f"no agent has its spool in {folder}"):
            spools(pump(folder))
    assert list(tmp_path.iterdir()) == []


# Sending


def test_what_is_left_is_sent(tmp_path: Path, cloud: Cloud) -> None:
    leave(tmp_path / "spool", "pump-7", events=2)
    leave(tmp_path / "spool-2", "pump-7-2", events=50)
    for each in spools(pump(tmp_path / "spool", gateway=cloud.address)):
        nothing_left, text = sent(each)
        assert nothing_left and text.startswith(f"agent {each.name}, spool {each.spool}: ")
        assert text.endswith(" acknowledged, nothing left")
        assert batches(Path(each.spool)) == []
        assert read_status_file(each.spool)["unacknowledged"] == 0
    assert cloud.events() == {"pump-7": [0, 1], "pump-7-2": list(range(50))}


def test_where_nothing_is_left_no_agent_begins(tmp_path: Path, cloud: Cloud) -> None:
    leave(tmp_path, "pump-7")
    release(tmp_path)
    assert sent(pump(tmp_path, gateway=cloud.address)) == (True, f"agent pump-7, spool {tmp_path}: nothing to send")
    assert cloud.gateway.heard == []
    assert read_status_file(str(tmp_path))["epoch"] == 1


def test_an_agent_that_was_killed_before_it_knew_that_all_was_taken_is_set_right(tmp_path: Path, cloud: Cloud) -> None:
    """Otherwise every start would tell of it."""
    leave(tmp_path, "pump-7")
    release(tmp_path)
    tell(tmp_path, unacknowledged=3)
    assert sent(pump(tmp_path, gateway=cloud.address))[0]
    assert read_status_file(str(tmp_path))["unacknowledged"] == 0


def test_a_spool_in_use_is_left_alone(tmp_path: Path) -> None:
    agent = agent_in(tmp_path, "pump-7")
    nothing_left, text = sent(pump(tmp_path))
    agent.close(0.0)
    assert nothing_left
    assert f"agent pump-7, spool {tmp_path}: in use, left alone" in text


def test_a_gateway_that_is_away_leaves_all_there_and_no_crash(tmp_path: Path) -> None:
    leave(tmp_path, "pump-7")
    nothing_left, text = sent(pump(tmp_path), drain_s=0.0)
    assert not nothing_left
    assert text == f"agent pump-7, spool {tmp_path}: 0 batches acknowledged, {len(batches(tmp_path))} left"
    leave(tmp_path, "pump-7")
    records = spooled(tmp_path, "pump-7")
    assert len([each for each in records if hasattr(each, "number")]) == 6
    assert not any(isinstance(each, Gap) for each in records)


def test_nothing_is_given_up_to_make_room_for_it(tmp_path: Path) -> None:
    leave(tmp_path, "pump-7")
    with Spool.open(tmp_path / "up", max_bytes=64 << 10) as spool, pytest.raises(SpoolFull):
        for seq in count():
            spool.append(encode_batch(Header(2, 2, seq), [event(key) for key in range(50)], "pump-7"))
    before = batches(tmp_path)
    nothing_left, _ = sent(replaced(pump(tmp_path), spool_bytes=64 << 10), drain_s=0.0)
    assert not nothing_left
    assert batches(tmp_path)[: len(before)] == before


def test_messages_for_other_agents_are_counted(tmp_path: Path, cloud: Cloud) -> None:
    leave(tmp_path, "pump-7")
    with Spool.open(tmp_path / "send-squares") as spool:
        spool.append(b"a crossing")
    nothing_left, text = sent(pump(tmp_path, gateway=cloud.address))
    assert not nothing_left
    assert text.endswith("nothing left; 1 messages for other agents wait until its app runs again")


def test_it_can_be_told_to_stop(tmp_path: Path) -> None:
    leave(tmp_path, "pump-7")
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    assert not send_left(pump(tmp_path), 60.0, stop, lambda _: None)
    assert time.monotonic() - began < 10
    assert not is_open(str(tmp_path))

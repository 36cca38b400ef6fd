"""An agent that nobody answers: what it writes, remembers and leaves behind. That it is heard, too, is for the system
tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from edge_agent.agent import Agent, AgentFailed, default_agent
from edge_agent.capture import Task, Workflow, counts
from edge_agent.config import ConfigError, Settings
from edge_agent.outbox.recovery import CRASH
from edge_agent.spool import Spool, SpoolLocked, SpoolUnusable, SpoolUnwritable
from edge_agent.status_file import NAME, read_status_file
from edge_agent.transport import Client, Message
from protocol.events import TaskBegun, TaskEnded
from protocol.ids import StreamId
from protocol.plan import Node, PlanDocument, PlanError
from protocol.records import Delivery, End, Gap, Origin, OriginKind, Status
from protocol.wire.batch import decode_batch
from protocol.wire.sections import EventKind, Kind
from tests.support.waiting import wait_until
from threadline.lab import free_port

CHILD = """
import os, sys
from edge_agent.agent import Agent
from edge_agent.config import Settings
from tests.edge_agent.test_agent import event, settings
agent = Agent(settings(sys.argv[1], **eval(sys.argv[2]))).start()
for key in range(100_000):
    agent.put(event(key), 100)
    if agent.durable:
        agent.flush()
    os.write(1, b"%d\\n" % key)
"""


def settings(folder: Path | str, **options: Any) -> Settings:
    return Settings(name="pump-7", gateway="127.0.0.1:9", spool=str(folder), **options)


def event(key: int) -> tuple[Any, ...]:
    return (Kind.EVENT, EventKind.TASK_ENDED, key, key, 0, "", [])


def records(folder: Path) -> list[Any]:
    """What is in the spool, but for reports of how the agent is."""
    with Spool.open(folder / "up") as spool:
        found = [each for entry in spool.entries() for each in decode_batch(entry.data, "pump-7").records()]
    return [each for each in found if not isinstance(each, Status)]


@pytest.fixture(autouse=True)
def no_long_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody to say it to."""
    close = Client.close
    monkeypatch.setattr(Client, "close", lambda client, timeout: close(client, timeout=0.0))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(settings(tmp_path)) as made:
        yield made
        made.close(0.0)


def test_an_agent_needs_a_gateway(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no gateway"):
        Agent(Settings(name="pump-7", spool=str(tmp_path)))


def test_that_it_has_started_is_told_at_once(tmp_path: Path) -> None:
    with Agent(settings(tmp_path, batch_age_s=3600, flush_s=3600)) as agent:
        wait_until(lambda: agent.status()["batches"] == 1, "a first batch")
        agent.put(event(0), 100)
        agent.flush()
        assert agent.status()["batches"] == 1, "what follows waits for company"
        agent.close(0.0)


def test_what_is_not_acknowledged_stays_for_the_next_start(agent: Agent, tmp_path: Path) -> None:
    for key in range(3):
        agent.put(event(key), 100)
    agent.flush(5.0)
    assert agent.close(0.0) >= 1
    found = records(tmp_path)
    assert [each.key for each in found if hasattr(each, "key")] == [0, 1, 2]
    assert isinstance(found[-1], End) or any(isinstance(each, End) for each in found)
    with Agent(settings(tmp_path)) as again:
        assert again.epoch.counter == agent.epoch.counter + 1
        assert again.epoch.nonce != agent.epoch.nonce
        again.close(0.0)
    assert not [each for each in records(tmp_path) if isinstance(each, Gap)], "it had ended as it should"


def test_nothing_follows_the_end(agent: Agent, tmp_path: Path) -> None:
    agent.put(event(0), 100)
    agent.close(0.0)
    agent.emit(Gap("late", 1, 1))
    agent.close(0.0)
    with Spool.open(tmp_path / "up") as spool:
        *_, last = (list(decode_batch(entry.data, "pump-7").records()) for entry in spool.entries())
    assert isinstance(last[0], End) or isinstance(last[-1], End)


def test_what_is_captured_after_the_agent_has_ended_is_refused_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = counts().get("discarded", 0)
    with Agent(settings(tmp_path, memory_bytes=64 << 10)) as agent:
        workflow = Workflow("w", recorder=agent).begin()
        running = Task("begun before", workflow).begin()
        agent.close(0.0)
    dropped = agent.status()["dropped"]
    running.end()
    for key in range(1_000):
        Task(key, workflow).begin().end()
    assert agent.status()["memory_bytes"] == 0
    assert agent.status()["dropped"] - dropped == counts()["discarded"] - before == 2_001
    told = [message for message in caplog.messages if "captured now is discarded" in message]
    assert len(told) == (before == 0)


def test_nobody_waits_for_the_disk_of_an_agent_that_has_ended(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.outbox.outbox._LOOK_S", 0.01)
    failed: list[Exception] = []

    def flush() -> None:
        try:
            agent.flush()
        except AgentFailed as error:
            failed.append(error)

    monkeypatch.setattr(agent._outbox, "step", lambda now: now + 0.01)  # as if the disk took nothing
    waiting = threading.Thread(target=flush, daemon=True)
    waiting.start()
    agent._stop()
    waiting.join(5.0)
    assert "has ended" in str(failed[0])
    agent.flush()  # returns: there is nothing that it could wait for


def test_keys_count_from_zero(agent: Agent) -> None:
    assert [agent.new_key() for _ in range(3)] == [0, 1, 2]


def test_a_spool_has_one_agent(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(SpoolLocked, match=str(os.getpid())):
        Agent(settings(tmp_path))


def plan_that_sends(to: str) -> PlanDocument:
    source = Node("s", "source", parameters={"ids": "uid", "watermarks": "ordered", "disorder_ms": 0})
    return PlanDocument("p", "segments", (source, Node("x", "send", ("s",), {"stream": "x", "to": [to]})))


def open_below(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    found = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sorted(each for each in found if each.startswith(str(folder)))


def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    """Whoever tries again in the same process is not locked out by itself."""
    with pytest.raises(PlanError, match="cannot send to itself"):
        Agent(settings(tmp_path), plan_that_sends(to="pump-7"))
    assert open_below(tmp_path) == []
    (tmp_path / "send-x").write_text("no folder")
    with pytest.raises(SpoolUnusable):
        Agent(settings(tmp_path), plan_that_sends(to="hub"))
    assert open_below(tmp_path) == []
    (tmp_path / "send-x").unlink()
    with Agent(settings(tmp_path), plan_that_sends(to="hub")) as agent:
        assert open_below(tmp_path) != []
        agent.close(0.0)
    assert open_below(tmp_path) == []


def test_a_disk_that_fails_at_the_end_does_not_keep_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(settings(tmp_path), plan_that_sends(to="hub")).start()
    wait_until((tmp_path / NAME).exists, "the status file")

    def fails(*_: Any) -> None:
        raise SpoolUnwritable("Input/output error")

    stop = agent._stop

    def stop_without_a_disk() -> None:
        monkeypatch.setattr(Spool, "sync", fails)
        stop()

    monkeypatch.setattr(agent, "_stop", stop_without_a_disk)
    with pytest.raises(SpoolUnwritable):
        agent.close(0.0)
    assert open_below(tmp_path) == []


def test_however_short_they_are_no_more_links_are_in_a_batch_than_anybody_reads(tmp_path: Path) -> None:
    with Agent(settings(tmp_path, batch_bytes=8 << 10)) as agent:
        workflow = Workflow("w", recorder=agent)
        for key in range(40):
            Task(key, workflow, dependencies=["a"] * 12_000).begin()
        agent.close(0.0)
    begun = [each for each in records(tmp_path) if isinstance(each, TaskBegun)]
    assert [len(each.dependencies) for each in begun] == [12_000] * 40


def test_a_delivery_of_very_many_origins_is_told_in_parts(agent: Agent, tmp_path: Path) -> None:
    stream = StreamId("pump-7", agent.epoch.counter, "alerts", agent.epoch.nonce)
    origins = tuple(Origin(OriginKind.SOURCE, stream, seq, seq) for seq in range(4_500))
    agent.emit(Delivery(stream, 0, 9, "alert", origins))
    agent.close(0.0)
    parts = [each for each in records(tmp_path) if isinstance(each, Delivery)]
    assert [len(each.origins) for each in parts] == [2_000, 2_000, 500]
    assert [origin.seq for each in parts for origin in each.origins] == list(range(4_500))


def test_status_says_how_it_is(agent: Agent, tmp_path: Path) -> None:
    agent.put(event(0), 100)
    agent.flush(5.0)
    wait_until((tmp_path / NAME).exists, "the status file")
    told = read_status_file(str(tmp_path))
    assert (told["agent"], told["pid"], told["epoch"]) == ("pump-7", os.getpid(), agent.epoch.counter)
    assert agent.status()["dropped"] == 0
    agent.close(0.0)
    assert read_status_file(str(tmp_path))["pid"] is None


def test_how_it_is_leaves_with_records_that_leave_anyway(tmp_path: Path) -> None:
    """One batch for both costs half as much all the way to the log."""
    agent = Agent(settings(tmp_path, status_s=10.0, fsync="never"))
    began = monotonic()
    for tenth in range(250):
        if tenth in (30, 86):  # when the second comes, the next status is nearly due
            agent.put(event(tenth), 100)
        agent.turn(began + tenth / 10)
    agent.close(0.0)
    with Spool.open(tmp_path / "up") as spool:
        batches = [list(decode_batch(entry.data, "pump-7").records()) for entry in spool.entries()]
    told = [{type(each) for each in batch} for batch in batches]
    assert told[:4] == [{Status}, {TaskEnded}, {TaskEnded, Status}, {Status}]


def test_an_agent_that_has_nothing_to_do_wakes_up_rarely(tmp_path: Path) -> None:
    agent = Agent(settings(tmp_path, status_s=30.0, fsync="never"))
    began = monotonic()
    for tenth in range(30):
        agent.turn(began + tenth / 10)
    assert agent.turn(began + 3.0) - began >= 8.0
    for tenth in range(90, 130):
        if tenth == 100:
            agent.put(event(0), 100)
        agent.turn(began + tenth / 10)
    told = read_status_file(str(tmp_path))
    assert (told["batches"], told["memory_bytes"]) == (2, 0), "who looks soon after a record sees what became of it"
    agent.close(0.0)


def test_a_disk_that_fails_elsewhere_keeps_no_record_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(settings(tmp_path, flush_s=0.2, fsync="never"))
    now = monotonic()
    for _ in range(2):  # it has said that it has started
        agent.turn(now)

    def fails(*_: Any) -> Any:
        raise SpoolUnwritable("Input/output error")

    monkeypatch.setattr(agent._uplink, "step", fails)
    for key in range(3):
        agent.put(event(key), 100)
        assert agent.turn(now) == pytest.approx(now + 0.2)
        now += 0.2
        agent.tell(fails)
        agent.turn(now)
        assert agent._outbox.unwritten == 0
    turns, end = 0, now + 20
    while now < end:
        now = agent.turn(now)
        turns += 1
    assert turns < 20 * 2, "when nothing comes, it is left alone for a while"
    agent.close(0.0)


def test_a_disk_that_fails_elsewhere_is_told_once_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(settings(tmp_path, flush_s=0.2, fsync="never", status_s=5.0))
    now, step, failing = monotonic(), agent._uplink.step, [True]

    def fails(at: float) -> float:
        if failing:
            raise SpoolUnwritable("Input/output error")
        return step(at)

    monkeypatch.setattr(agent._uplink, "step", fails)
    for tenth in range(300):
        agent.put(event(tenth), 100)
        agent.turn(now + tenth / 10)
    assert [message for message in caplog.messages if "disk" in message] == [
        f"the disk fails agent={agent.name} error=Input/output error"
    ]
    assert agent.status()["trouble"] == read_status_file(str(tmp_path))["trouble"] == "Input/output error"
    assert agent._status_at > now + 29.0, "the cloud hears of it every five seconds"
    failing.clear()
    agent.turn(now + 32.0)
    assert agent.status()["trouble"] == read_status_file(str(tmp_path))["trouble"] == ""
    agent.close(0.0)


def test_a_program_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    agent = Agent(settings("./spool", batch_records=1, flush_s=0.01))
    monkeypatch.chdir(tmp_path / "elsewhere")
    agent.start()
    for key in range(20):
        agent.put(event(key), 100)
        agent.flush(5.0)
    agent.close(0.0)
    assert agent.folder == str(tmp_path / "spool")
    assert [each.key for each in records(tmp_path / "spool") if hasattr(each, "key")] == list(range(20))
    assert read_status_file(str(tmp_path / "spool"))["pid"] is None
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_messages_that_mean_nothing_are_told_once_and_counted(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    garbage = Message("down", b"\x07garbage", 1, False)
    for _ in range(1_000):
        agent._on_down(garbage)
    (told,) = caplog.messages
    assert told == "ignored what is no answer agent=pump-7 messages=1 error=no answer for agent 'pump-7'"
    assert agent.status()["ignored"] == 1_000
    agent._tell_at = 0.0  # a minute later
    agent._on_down(garbage)
    assert "messages=1001" in caplog.messages[1]


def test_an_agent_that_was_stopped_by_a_defect_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Agent(settings(tmp_path, when_full="block", memory_bytes=64 << 10))

    def defect(*_: Any) -> float:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(made._uplink, "step", defect)
    made.start()
    wait_until(lambda: made.failure, "the thread to end")
    with pytest.raises(AgentFailed, match="ZeroDivisionError"):
        made.flush(5.0)
    putting = threading.Thread(target=lambda: [made.put(event(key), 100) for key in range(2_000)])
    putting.start()
    putting.join(5.0)
    assert not putting.is_alive(), "nobody waits for room that is not made any more"
    assert "stopped by a defect" in caplog.text
    made.close(0.0)


def test_who_waits_for_the_disk_leaves_no_more_behind_the_longer_it_takes(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.outbox.outbox._LOOK_S", 0.01)
    monkeypatch.setattr(agent._outbox, "step", lambda now: now + 0.01)  # as if it took nothing
    with pytest.raises(TimeoutError, match=r"not on disk after 0\.3 s"):
        agent.flush(0.3)
    assert len(agent._outbox._queue) <= 1 + 1, "besides how the agent is"


def test_an_agent_whose_disk_stands_still_does_not_write_into_the_files_of_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is closed, and the numbers of its files would be given to others, while its thread still waits for a sync."""
    monkeypatch.setattr("edge_agent.agent._STUCK_S", 0.2)
    goes_on, is_stuck = threading.Event(), threading.Event()
    sync = os.fdatasync

    def stuck(fd: int) -> None:
        if not goes_on.is_set():
            is_stuck.set()
            goes_on.wait(30.0)
        sync(fd)

    agent = Agent(settings(tmp_path / "spool", fsync="batch", flush_s=0.01)).start()
    wait_until(lambda: agent.status()["batches"], "the agent to have started")
    monkeypatch.setattr(os, "fdatasync", stuck)
    agent.put(event(1), 100)
    assert is_stuck.wait(10.0)
    agent.close(0.0)
    assert "the disk stands still" in caplog.text
    with pytest.raises(SpoolLocked):
        Agent(settings(tmp_path / "spool"))
    files = [(tmp_path / f"mine-{number}").open("w+b", buffering=0) for number in range(20)]
    goes_on.set()
    agent._thread.join(10.0)
    assert not agent._thread.is_alive()
    assert [file.read() for file in files] == [b""] * 20
    for file in files:
        file.close()
    Agent(settings(tmp_path / "spool")).close(0.0)
    assert [each.key for each in records(tmp_path / "spool") if hasattr(each, "key")] == [1]


# kill -9


def killed(folder: Path, count: int, **options: Any) -> int:
    """Let a process capture events, and kill it after so many; how many it had captured."""
    command = [sys.executable, "-c", CHILD, str(folder), repr(options)]
    root = Path(__file__).parents[2]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert child.stdout is not None
    for _ in range(count):
        last = child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split(b"\n")[:-1]
    child.wait()
    child.stdout.close()
    return int(rest[-1] if rest else last) + 1


def after_restart(folder: Path) -> tuple[list[int], Gap]:
    """The events of the killed process, and what the next one says of it."""
    with Agent(settings(folder)) as agent:
        agent.close(0.0)
    found = records(folder)
    (gap,) = [each for each in found if isinstance(each, Gap)]
    return [each.number for each in found if hasattr(each, "number")], gap


def test_a_killed_agent_that_was_to_be_durable_has_lost_nothing(tmp_path: Path) -> None:
    captured = killed(tmp_path, 30, durable=True, fsync="never")
    numbers, gap = after_restart(tmp_path)
    assert numbers[:captured] == list(range(captured))
    assert len(numbers) - captured <= 1, "the one that was being captured"
    assert (gap.reason, gap.next_event) == (CRASH, len(numbers))


def test_a_killed_agent_tells_where_its_records_end(tmp_path: Path) -> None:
    captured = killed(tmp_path, 20_000, flush_s=0.02, fsync="never")
    numbers, gap = after_restart(tmp_path)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) <= captured
    assert (gap.reason, gap.next_event, gap.epoch) == (CRASH, len(numbers), 1)


# A program's own agent


@pytest.mark.parametrize("spool", ["spool", "spool/", "./spool/.", "{here}/spool/"])
def test_processes_of_one_program_do_not_share_a_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spool: str
) -> None:
    monkeypatch.setenv("THREADLINE_GATEWAY", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("THREADLINE_AGENT", "a-name-of-23-characters")
    monkeypatch.setenv("THREADLINE_SPOOL", spool.format(here=tmp_path))
    monkeypatch.chdir(tmp_path)
    agents = [default_agent() for _ in range(3)]
    try:
        assert [agent.name for agent in agents] == [
            "a-name-of-23-characters",
            "a-name-of-23-characte-2",
            "a-name-of-23-characte-3",
        ]
        assert [agent.folder for agent in agents] == [f"{tmp_path}/{name}" for name in ("spool", "spool-2", "spool-3")]
    finally:
        for agent in agents:
            agent.close(0.0)

"""Trouble with disk and registry, silence, and damage: what is told, and what a successor knows."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest

from collector.epochs import NEVER_CAME
from collector.log import NOBODY, LogReader, LogUnwritable, Position, ReaderMark, ShardWriter
from collector.log.position import position_path
from collector.log.segment import Segment
from collector.registry import RegistryUnavailable
from protocol.plan import Node, PlanDocument
from protocol.records import Assertion, Declared, End, Gap, Lost, SourcePayload
from protocol.topics import shard_of
from protocol.wire.sections import Kind
from protocol.wire.values import decode
from tests.collector.agents import SHARD, FakeAgent, Shard, event
from tests.collector.shard_log.views import AGENT, findings, full_disk

# Trouble


def test_without_the_registry_a_batch_waits_and_is_taken_later(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.take(AGENT, AGENT.framed(0))

    def unavailable(*_: Any) -> Any:
        raise RegistryUnavailable("the disk is full")

    payload = AGENT.framed(1, SourcePayload(AGENT.stream("reports"), 0, 0, "x"))
    newer = FakeAgent(nonce=2)
    with monkeypatch.context() as patched:
        patched.setattr(shard.registry, "_transaction", unavailable)
        for each in (payload, newer.framed(0)):
            with pytest.raises(RegistryUnavailable):
                shard.log.take(AGENT.name, each)
        assert shard.take(AGENT, AGENT.framed(2))[1].next_seq == 1, "what needs no numbers is still answered"
        assert shard.log.counters.records == 1
    assert shard.take(AGENT, payload)[1].next_seq == 3
    assert shard.take(newer, newer.framed(0))[2].next_seq == 1
    assert shard.log.counters.reflashed == 0
    assert findings(shard) == []


def test_epochs_stay_in_memory_while_the_registry_takes_nothing(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [FakeAgent(nonce=nonce) for nonce in range(1, 6)]
    for agent in agents:
        shard.registry.epoch_of(agent.name, agent.nonce, agent.epoch)

    def unavailable(*_: Any) -> Any:
        raise RegistryUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(shard.registry, "close_epochs", unavailable)
        for agent in agents:
            shard.take(agent, agent.framed(0))
    shard.reopen()
    for agent in agents:
        assert shard.take(agent, agent.framed(0))[agent.nonce].next_seq == 1
    assert len(shard.entries(Kind.EVENT)) == 5


def test_what_cannot_be_written_is_not_acknowledged(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.take(AGENT, AGENT.framed(0))
    with full_disk(monkeypatch):
        shard.log.take(AGENT.name, AGENT.framed(1))
        for _ in range(2):
            with pytest.raises(LogUnwritable):
                shard.log.commit()
        shard.log.greet()
        with pytest.raises(LogUnwritable):
            shard.log.commit()
    assert shard.events() == [0]
    assert shard.take(AGENT)[1].next_seq == 2
    assert shard.events() == [0, 1]


def test_who_is_greeted_hears_of_nothing_that_is_not_committed(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0))
    shard.log.take(AGENT.name, AGENT.framed(1))
    shard.log.greet()
    shard.reopen()
    shard.log.greet()
    assert shard.take(AGENT)[1].next_seq == 1


def test_what_was_not_committed_comes_again(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0, SourcePayload(AGENT.stream("reports"), 0, 0, "x")))
    shard.log.take(AGENT.name, AGENT.framed(1, SourcePayload(AGENT.stream("others"), 0, 0, "x")))
    shard.reopen()
    shard.take(AGENT, AGENT.framed(1, SourcePayload(AGENT.stream("others"), 0, 0, "x")))
    assert [name for _, _, _, name, _ in shard.records(Kind.REGISTER)] == ["reports", "others"]
    assert findings(shard) == []


# The log as memory


def test_a_successor_knows_what_its_predecessor_knew(tmp_path: Path) -> None:
    """Through many segments and restarts."""
    shard = Shard(tmp_path, segment_bytes=500)
    keys = AGENT.stream("keys")
    for seq in range(40):
        records = (Assertion(keys, seq, 0, 0), SourcePayload(AGENT.stream("reports"), seq, 0, "x"), event(seq))
        shard.take(AGENT, AGENT.framed(seq, *records, first_event=seq))
        if seq % 7 == 3:
            shard.reopen()
    assert LogReader(tmp_path).end(SHARD).segment > 5
    shard.reopen()
    gap = Gap("dropped", 1, 1, (0, 44), (Lost("keys", 0, 44), Lost("reports", 0, 44)), (0, 44))
    shard.take(AGENT, AGENT.framed(0, gap, covers=45))
    assert shard.records(Kind.GAP) == [
        Gap("dropped", 1, 1, (40, 44), (Lost("keys", 40, 44), Lost("reports", 40, 44)), (40, 44))
    ]
    assert len(shard.records(Kind.REGISTER)) == 2
    assert findings(shard) == []
    shard.close()


def test_a_log_that_cannot_be_understood_is_not_opened(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.take(AGENT, AGENT.framed(0))
    shard.log.close()
    from collector.log import LogDamaged

    with monkeypatch.context() as patched:
        patched.setattr("collector.epochs.last_event", lambda data: decode(b"\xc1"))
        with pytest.raises(LogDamaged, match="shard 5: a row of 'pump-7' cannot be read"):
            shard.open()
    shard.open()
    assert shard.take(AGENT, AGENT.framed(1))[1].next_seq == 2


# Silence


def test_a_silent_agent_is_retired_once_and_may_return(tmp_path: Path) -> None:
    shard = Shard(tmp_path, retire_after_s=100.0)
    ended = FakeAgent("ended", 5)
    shard.take(AGENT, AGENT.framed(0))
    shard.take(ended, ended.framed(0, End(0)))
    shard.now += 99
    shard.log.retire()
    assert shard.log.idle
    shard.now += 1
    for _ in range(2):
        shard.log.retire()
        shard.log.commit()
        assert [(entry.agent, entry.nonce) for entry in shard.entries(Kind.RETIRE)] == [(AGENT.name, 1)]
        shard.reopen()
        shard.now += 200
    assert shard.take(AGENT, AGENT.framed(1))[1].next_seq == 2
    shard.now += 200
    shard.log.retire()
    shard.log.commit()
    assert len(shard.entries(Kind.RETIRE)) == 2
    assert findings(shard) == []
    shard.close()


def test_an_agent_that_has_ended_is_retired_if_it_has_to_do_with_others(tmp_path: Path) -> None:
    """Nobody waits for an agent that has ended, but for one that takes what others have sent meanwhile, and for others
    that take what it has sent."""
    shard = Shard(tmp_path, retire_after_s=100.0)
    receive = Node("in", "receive", parameters={"sender": "sender", "stream": "s"})
    source = Node("in", "source", parameters={"ids": "uid", "watermarks": "ordered", "disorder_ms": 0})
    send, sink = Node("out", "send", ("in",), {"stream": "s", "to": ["receiver"]}), Node("out", "sink", ("in",))
    plans = {"receiver": (receive, sink), "sender": (source, send), "alone": (source, sink)}
    for nonce, (name, nodes) in enumerate(plans.items(), 5):
        agent = FakeAgent(name, nonce)
        shard.take(agent, agent.framed(0, Declared(PlanDocument(agent.name, "segments", nodes).to_json()), End(0)))
    shard.now += 101
    for _ in range(2):
        shard.log.retire()
        shard.log.commit()
    assert [entry.agent for entry in shard.entries(Kind.RETIRE)] == ["receiver", "sender"]
    assert findings(shard) == []
    shard.close()


def test_an_agent_that_may_be_sent_to_is_retired_though_it_has_spoken_without_a_plan_since(tmp_path: Path) -> None:
    """`threadline-agent send`, some times, while the agent itself is stopped; also if the translator was restarted."""
    shard = Shard(tmp_path, retire_after_s=100.0)
    node = Node("in", "receive", parameters={"sender": "source", "stream": "s"})
    plan = PlanDocument("receiver", "segments", (node, Node("out", "sink", ("in",))))
    starts = [FakeAgent("receiver", nonce) for nonce in (5, 6, 7, 8)]
    shard.take(starts[0], starts[0].framed(0, Declared(plan.to_json()), End(0)))
    for start in starts[1:]:
        shard.take(start, start.framed(0, End(0)))
        shard.reopen()
    shard.now += 101
    shard.log.retire()
    shard.log.commit()
    assert [entry.nonce for entry in shard.entries(Kind.RETIRE)] == [8]
    assert findings(shard) == []
    shard.close()


def test_a_start_without_a_plan_that_has_ended_is_retired_for_those_before_it(tmp_path: Path) -> None:
    """The card of an agent was wiped, so that nobody tells how its start ended; then it was used to capture something,
    which neither goes on with the plan nor closes what it left open."""
    shard = Shard(tmp_path, retire_after_s=100.0)
    source = Node("in", "source", parameters={"ids": "uid", "watermarks": "ordered", "disorder_ms": 0})
    plan = PlanDocument("gauge", "segments", (source, Node("out", "sink", ("in",))))
    wiped, captures = FakeAgent("gauge", 5), FakeAgent("gauge", 6)
    shard.take(wiped, wiped.framed(0, Declared(plan.to_json())))
    shard.take(captures, captures.framed(0, End(0)))
    shard.reopen()
    shard.now += 101
    for _ in range(2):
        shard.log.retire()
        shard.log.commit()
    assert [entry.nonce for entry in shard.entries(Kind.RETIRE)] == [6]
    assert findings(shard) == []
    shard.close()


def test_silence_is_not_counted_while_nobody_listened(tmp_path: Path) -> None:
    shard = Shard(tmp_path, retire_after_s=100.0)
    shard.take(AGENT, AGENT.framed(0))
    shard.now += 90
    shard.reopen()
    shard.now += 90
    shard.log.excuse(85)
    shard.now += 90
    shard.log.retire()
    assert shard.log.idle
    shard.now += 6
    shard.log.retire()
    assert not shard.log.idle
    shard.close()


# Damage


def damage(shard: Shard, at: int) -> Path:
    """Make the commit of the segment unreadable, the first is the snapshot."""
    shard.log.close()
    (path,) = (shard.folder / "shard-05").glob("*.arrows")
    with Segment(path) as segment:
        frame = list(segment.frames())[at]
    content = bytearray(path.read_bytes())
    content[frame.end - 20] ^= 0x55
    path.write_bytes(content)
    return path


def test_what_damage_has_cost_has_a_name_in_the_log(shard: Shard) -> None:
    other = FakeAgent("valve-1", 9)
    shard.take(AGENT, AGENT.framed(0))
    shard.take(other, other.framed(0))
    for seq in range(1, 4):
        shard.take(AGENT, AGENT.framed(seq))
    path = damage(shard, 4)
    found = path.read_bytes()
    shard.open()
    assert path.with_suffix(".arrows.damaged").read_bytes() == found
    (entry,) = shard.entries(Kind.GAP)
    assert (entry.agent, entry.nonce, entry.epoch) == (NOBODY, 0, None)
    assert "what followed row 5 of segment 1, up to row 7 of segment 1," in entry.record.reason
    assert "shard-05/000000000001.arrows.damaged" in entry.record.reason
    (fault,) = findings(shard)
    assert entry.record.reason in fault

    # Of batches that were acknowledged once, the agent has none left.
    assert shard.take(AGENT, AGENT.framed(4, oldest=True))[1].next_seq == 5
    assert shard.take(other, other.framed(1))[9].next_seq == 2
    assert shard.records(Kind.GAP)[1:] == [Gap(NEVER_CAME, 1, 1, (2, 3))]
    assert shard.events() == [0, 1, 4]
    for _ in range(2):
        shard.reopen()
    assert len(shard.entries(Kind.GAP)) == 2, "it is told once"
    assert len(findings(shard)) == 1
    path.with_suffix(".arrows.damaged").unlink()
    assert findings(shard) == []
    assert shard.take(AGENT, AGENT.framed(5))[1].next_seq == 6
    assert len(shard.entries(Kind.GAP)) == 2


def test_a_loss_that_could_not_be_told_is_told_by_the_next_opening(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in range(3):
        shard.take(AGENT, AGENT.framed(seq))
    damage(shard, 2)

    def unavailable(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(LogUnwritable):
        patched.setattr(ShardWriter, "_start_segment", unavailable)
        shard.open()
    shard.open()
    assert len(shard.entries(Kind.GAP)) == 1


def test_a_shard_that_is_gone_though_its_agents_are_known_is_told(tmp_path: Path) -> None:
    """A fault until somebody says that he knows, as with every loss; readers go on behind it."""
    agent = FakeAgent(next(name for name in ascii_lowercase if shard_of(name) == SHARD))
    shard = Shard(tmp_path / "log")
    shard.take(agent, *(agent.framed(seq) for seq in range(5)))
    reader = LogReader(shard.folder)
    read_upto = reader.end(SHARD)
    shard.log.close()
    shutil.rmtree(shard.folder / "shard-05")
    told = "nothing is left of shards 5, though the registry knows agents of them: put them back"
    assert findings(shard) == [told]
    (shard.folder / "shard-05").mkdir()
    assert findings(shard) == [told]
    for _ in range(2):
        shard.open()
        (gap,) = shard.records(Kind.GAP)
        assert gap.reason == (
            "the log was damaged: everything could not be read any more and was cut; "
            "kept as found: shard-05/000000000001.arrows.damaged (empty, as the segment was not there)"
        )
        (finding,) = findings(shard)
        assert gap.reason in finding and "take 000000000001.arrows.damaged away to say that you know" in finding
        shard.log.close()
    shard.open()
    shard.take(agent, *(agent.framed(seq, oldest=True) for seq in range(5, 10)))
    rows = list(reader.rows(SHARD, read_upto, reader.end(SHARD)))
    assert [row.seq for row in rows if row.kind == Kind.EVENT] == [5, 6, 7, 8, 9], "none is taken for one of before"
    (shard.folder / "shard-05" / "000000000001.arrows.damaged").unlink()
    assert findings(shard) == [] and len(list(reader.rows(SHARD, read_upto, reader.end(SHARD)))) == len(rows)
    shard.close()


def test_a_shard_that_is_gone_goes_on_behind_the_furthest_reader(tmp_path: Path) -> None:
    agent = FakeAgent(next(name for name in ascii_lowercase if shard_of(name) == SHARD))
    shard = Shard(tmp_path / "log")
    for seq in range(3):
        shard.take(agent, agent.framed(seq))
        shard.reopen()
    reader = LogReader(shard.folder)
    read_upto = reader.end(SHARD)
    ReaderMark(shard.folder, "the one behind").leave({SHARD: Position(2, 1)})
    ReaderMark(shard.folder, "the one in front").leave({SHARD: read_upto, SHARD + 1: Position(9, 9)})
    shard.log.close()
    shutil.rmtree(shard.folder / "shard-05")
    shard.open()
    shard.take(agent, agent.framed(3, oldest=True))
    found = [
        row.kind for row in reader.rows(SHARD, read_upto, reader.end(SHARD)) if row.agent == NOBODY or row.seq == 3
    ]
    assert found[0] == Kind.GAP and found[-1] == Kind.EVENT
    shard.log.close()
    for path in [position_path(shard.folder / "shard-05"), *(shard.folder / "shard-05").glob("*.arrows")]:
        path.unlink()
    shard.open()
    assert shard.log.counters.gaps == 1, "the same once more"
    assert len(list((shard.folder / "shard-05").glob("*.lost"))) == 2
    shard.close()

"""What no agent of ours would send, and too much of everything."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import collector.shard_log
from collector.batch_rows import MOST_STREAMS, NO_NEWS
from collector.epochs import MOST_OWN_STREAMS
from collector.log import LogReader, Position
from collector.shard_log import CODECS
from protocol.ids import StreamId
from protocol.records import Declared, Delivery, End, Gap, Lost, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.batch import Header, frame
from protocol.wire.compression import Codec
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind
from tests.collector.agents import SHARD, FakeAgent, Shard, event
from tests.collector.shard_log.views import AGENT, findings

# What cannot be read


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x11",
        b"hello",
        b"\x7f" * 100,
        AGENT.framed(0)[:-1],
        bytes(70_000),
        FakeAgent("valve-1").framed(0),
        frame(Header(1, 1, 2**62, 2**62).encode(), AGENT.name, True),
        frame(Header(1, 1, 0, 1).encode()[:5], AGENT.name, True),
    ],
)
def test_what_is_no_batch_is_put_away_and_not_answered(shard: Shard, payload: bytes) -> None:
    assert shard.take(AGENT, payload) == {}
    assert (shard.log.counters.malformed, shard.quarantine.kept, shard.log.agents) == (1, 1, 0)
    assert shard.take(AGENT, AGENT.framed(0))[1].next_seq == 1


def broken(seq: int, body: bytes = b"\xffgarbage", nonce: int = 1) -> bytes:
    """Framed well, but with nothing in it that can be understood."""
    return frame(Header(1, nonce, seq).encode() + body, AGENT.name, seq == 0)


def test_a_batch_that_cannot_be_understood_does_not_keep_others_waiting(shard: Shard) -> None:
    answer = shard.take(AGENT, AGENT.framed(0), broken(1), AGENT.framed(2))[1]
    assert answer.next_seq == 3
    (gap,) = shard.records(Kind.GAP)
    assert (gap.batches, gap.nonce) == ((1, 1), 1)
    assert gap.reason.startswith("quarantined: there is no section 255")
    assert shard.events() == [0, 2]
    assert (shard.log.counters.quarantined, shard.quarantine.kept) == (1, 1)
    assert findings(shard) == []


def test_a_codec_that_cannot_be_read_is_answered_and_not_put_away(shard: Shard) -> None:
    unknown = frame(Header(1, 1, 0, codec=200).encode() + b"?", AGENT.name, True)
    answer = shard.take(AGENT, unknown)[1]
    assert (answer.next_seq, answer.codecs) == (0, CODECS)
    assert (shard.log.counters.unknown_codec, shard.quarantine.kept) == (1, 0)
    assert shard.take(AGENT, AGENT.framed(0))[1].next_seq == 1


def test_a_reflashed_device_is_counted_once_however_often_its_first_batch_comes(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0))
    unknown = frame(Header(AGENT.epoch, 2, 0, codec=200).encode() + b"?", AGENT.name, True)
    for _ in range(3):
        shard.take(AGENT, unknown)
    assert shard.log.counters.reflashed == 0, "there is nothing of it yet"
    again = FakeAgent(nonce=2, epoch=AGENT.epoch)
    shard.take(again, again.framed(0), again.framed(1))
    assert shard.log.counters.reflashed == 1


def gap_with(**fields: Any) -> tuple[Any, ...]:
    """A gap as no agent of ours would write it."""
    plain = {
        "reason": "x",
        "epoch": 1,
        "nonce": 1,
        "batches": None,
        "tuples": [],
        "events": None,
        "progress": [],
        "next_seqs": [],
        "next_event": None,
    }
    return (Kind.GAP, Packer().encode({**plain, **fields}))


HOSTILE = {
    "an empty batch": (),
    "a gap of one number": (gap_with(batches=[0]),),
    "a gap of three numbers": (gap_with(events=[0, 1, 2]),),
    "a gap backwards": (gap_with(events=[5, 2]),),
    "a gap from below zero": (gap_with(batches=[-5, 0]),),
    "a gap of what is to come": (gap_with(batches=[0, 2**40]),),
    "a gap without end": (gap_with(events=[0, 2**70]),),
    "a gap of tuples without end": (gap_with(tuples=[{"name": "a", "first": 0, "last": 2**63}]),),
    "a crash beyond all numbers": (gap_with(next_event=2**63),),
    "a crash at no number": (gap_with(next_event="soon"),),
    "progress of two parts": (gap_with(progress=[["a", 1]]),),
    "an epoch below zero": (gap_with(epoch=-1),),
    "a nonce of too many bits": (gap_with(nonce=2**64),),
    "another agent's deliveries": (Delivery(StreamId("other", 1, "alerts", 7), 0, 0, "x", ()),),
    "another epoch's deliveries": (Delivery(StreamId(AGENT.name, 1, "alerts", 7), 0, 0, "x", ()),),
    "another agent's promises": (Progress(StreamId("other", 1, "alerts", 7), 0, 0),),
    "a stream of a very long name": (SourcePayload(AGENT.stream("x" * 501), 0, 0, 0),),
    "a gap of a very long name": (Gap("x", 1, 1, tuples=(Lost("x" * 501, 0, 1),)),),
    "too many streams": tuple(SourcePayload(AGENT.stream(f"s{each}"), 0, 0, 0) for each in range(MOST_OWN_STREAMS + 1)),
    "too many references": (
        Delivery(
            AGENT.stream("alerts"),
            0,
            0,
            0,
            tuple(Origin(OriginKind.REMOTE, StreamId("o", 1, f"{each}", 1), 0, 0) for each in range(MOST_STREAMS)),
        ),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_batches_are_put_away_and_the_shard_goes_on(shard: Shard, name: str) -> None:
    batch = AGENT.batch(0, *HOSTILE[name]) if HOSTILE[name] else Header(1, 1, 0).encode()
    answer = shard.take(AGENT, frame(batch, AGENT.name, True), AGENT.framed(1))[1]
    assert answer.next_seq == 2
    (gap,) = shard.records(Kind.GAP)
    if HOSTILE[name]:
        assert gap.reason.startswith("quarantined: ")
    else:
        assert gap.reason == NO_NEWS
    assert findings(shard) == []
    shard.reopen()
    assert shard.take(AGENT, AGENT.framed(2))[1].next_seq == 3


def test_a_plan_that_cannot_be_read_is_logged_counted_and_said(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    batch = AGENT.batch(0, Declared('{"version": 2}'))
    assert shard.take(AGENT, frame(batch, AGENT.name, True))[1].next_seq == 1
    assert shard.records(Kind.PLAN) == [Declared('{"version": 2}')]
    assert shard.log.counters.unreadable_plans == 1
    assert f"a plan cannot be read, so its Sends are not known agent={AGENT.name}" in caplog.text


def test_a_defect_of_ours_does_not_stop_the_shard(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def defect(*_: Any) -> None:
        raise IndexError("oh")

    with monkeypatch.context() as patched:
        patched.setattr(collector.shard_log, "decode_batch", defect)
        assert shard.take(AGENT, AGENT.framed(0))[1].next_seq == 1
    assert "Traceback" in caplog.text
    assert shard.records(Kind.GAP)[0].reason == "quarantined: oh"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_the_shard_goes_on_and_can_be_opened_again(shard: Shard, seed: int) -> None:
    """Batches with bytes changed, framed anew so that they are looked into."""
    random = Random(seed)
    for number in range(40):
        agent = FakeAgent(f"pump-{number}", random.getrandbits(64), epoch=1)
        alerts = agent.stream("alerts")
        gap = Gap("crash", 1, 3, (0, 2), (Lost("a", 1, 2),), (1, 2), next_event=5)
        for batch in (
            agent.batch(0, Declared("{}"), gap, event(0), codec=Codec.NONE),
            agent.batch(1, SourcePayload(alerts, 0, 0, {"a": [1, "x"]}), Progress(alerts, 1, 1), codec=Codec.NONE),
        ):
            changed = bytearray(batch)
            for _ in range(random.randrange(3)):
                changed[random.randrange(9, len(batch))] = random.randrange(256)
            shard.take(agent, frame(bytes(changed), agent.name, True))
    assert shard.log.counters.quarantined > 10
    assert len(shard.entries(Kind.EVENT)) > 10
    assert findings(shard) == []
    shard.reopen()
    assert shard.take(AGENT, AGENT.framed(0))[1].next_seq == 1


# Bounds


def test_snapshots_stay_small_however_often_an_agent_restarts(shard: Shard) -> None:
    for nonce in range(1, 40):
        agent = FakeAgent(nonce=nonce)
        shard.take(agent, agent.framed(0, SourcePayload(agent.stream("s"), 0, 0, 0)), agent.framed(1, End(0)))
        shard.reopen()
    reader = LogReader(shard.folder)
    end = reader.end(SHARD)
    last = [row.nonce for row in reader.rows(SHARD, Position(end.segment, 0), end)]
    assert last == [38, 39]


def test_a_late_copy_of_an_old_epoch_is_a_copy(shard: Shard) -> None:
    agents = [FakeAgent(nonce=nonce) for nonce in range(1, 30)]
    for agent in agents:
        shard.take(agent, agent.framed(0), agent.framed(1))
    for _ in range(2):
        for agent in agents:
            answers = shard.take(agent, agent.framed(0), agent.framed(1))
            assert (answers[agent.nonce].next_seq, answers[agent.nonce].duplicate) == (2, False)
        shard.reopen()
    assert len(shard.entries(Kind.EVENT)) == 2 * len(agents)
    end = LogReader(shard.folder).end(SHARD)
    snapshot = list(LogReader(shard.folder).rows(SHARD, Position(end.segment, 0), end))
    assert len(snapshot) == 2, "copies do not fill the memory either"


def test_a_flood_of_names_is_refused(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector.shard_log, "MOST_AGENTS", 10)
    for number in range(30):
        agent = FakeAgent(f"fake-{number}")
        shard.log.take(agent.name, agent.framed(1))
    assert (shard.log.agents, shard.log.counters.refused_agents) == (10, 20)
    shard.now += 200
    shard.log.commit()
    shard.log.retire()
    assert shard.log.agents == 0, "of those there was nothing in the log"
    assert shard.take(AGENT, AGENT.framed(0))[1].next_seq == 1


def ended(number: int) -> FakeAgent:
    return FakeAgent(f"done-{number:02d}", nonce=50 + number)


def test_agents_that_have_ended_make_room_for_new_ones(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector.shard_log, "MOST_AGENTS", 10)
    monkeypatch.setattr(collector.shard_log, "_ROOM_FOR", 3)
    shard.take(AGENT, AGENT.framed(0))
    for number in range(30):
        shard.now += 1
        agent = ended(number)
        assert shard.take(agent, agent.framed(0), agent.framed(1, End(5)))[agent.nonce].next_seq == 2
    assert shard.log.agents <= 10
    assert shard.log.counters.refused_agents == 0
    assert shard.take(AGENT, AGENT.framed(1))[1].next_seq == 2, "who may still have something to say stays"
    for _ in range(2):
        for number in range(30):  # also those that were forgotten: their copies are no news
            agent = ended(number)
            assert shard.take(agent, agent.framed(0), agent.framed(1, End(5)))[agent.nonce].next_seq == 2
        shard.reopen()
    assert len(shard.entries(Kind.EVENT)) == 32
    assert findings(shard) == []


def test_a_retired_agent_that_was_forgotten_may_return(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collector.shard_log, "MOST_AGENTS", 2)
    other, third = FakeAgent("valve-1", 9), FakeAgent("valve-2", 10)
    shard.take(AGENT, AGENT.framed(0))
    shard.now += 100_000
    shard.log.retire()
    shard.take(other, other.framed(0))
    shard.take(third, third.framed(0))
    assert shard.log.agents == 2
    shard.now += 100_000
    shard.log.retire()
    assert shard.take(AGENT, AGENT.framed(0), AGENT.framed(1))[1].next_seq == 2
    assert shard.events() == [0, 1]
    assert "two devices" not in caplog.text
    assert findings(shard) == []


def test_that_there_is_no_room_is_told_at_once_and_then_once_a_minute(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collector.shard_log, "MOST_AGENTS", 1)
    shard.take(AGENT, AGENT.framed(0))
    for second in range(130):
        shard.now += 1
        shard.log.take("valve-1", FakeAgent("valve-1").framed(0))
        assert caplog.text.count("no room for more agents shard=5 most=1 agent=valve-1") == 1 + second // 60
    assert shard.log.counters.refused_agents == 130


def test_what_waits_for_a_silent_agent_is_forgotten(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0), AGENT.framed(2))
    shard.now += 60
    shard.log.retire()
    assert shard.take(AGENT, AGENT.framed(0))[1].early == 0b1
    shard.now += 150
    shard.log.retire()
    assert shard.take(AGENT, AGENT.framed(0))[1].early == 0


def test_a_flood_is_told_now_and_then(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        shard.log.take(AGENT.name, b"garbage %d" % number)
    assert len(caplog.records) == 7
    assert "count=64" in caplog.records[-1].message

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import collector.shard_log
from collector.epochs import MOST_OWN_STREAMS, NEVER_CAME
from collector.log import NOBODY, LogReader, LogUnwritable, Position, Row, ShardInUse, ShardWriter
from collector.log.segment import Segment
from collector.log_view import check
from collector.registry import RegistryUnavailable
from collector.shard_log import CODECS, GIVEN_UP, MOST_STREAMS, NO_NEWS, ShardLog
from protocol.chunks import read_deliveries, read_payloads, read_progress, read_sources
from protocol.ids import StreamId
from protocol.records import Assertion, Declared, Delivery, End, Gap, Lost, Origin, OriginKind, Progress, SourcePayload
from protocol.topics import shard_of
from protocol.wire.batch import Header, frame
from protocol.wire.compression import Codec
from protocol.wire.sections import Kind
from protocol.wire.values import Packer, decode
from tests.collector.agents import SHARD, FakeAgent, Shard, event

AGENT = FakeAgent()


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        yield


def rows(shard: Shard) -> list[Row]:
    reader = LogReader(shard.folder)
    return [row for row in reader.rows(SHARD, Position(1, 0), reader.end(SHARD)) if row.kind != Kind.SNAPSHOT]


def findings(shard: Shard) -> list[str]:
    return [line for line, is_fault in check(shard.folder) if is_fault]


# Order and acknowledgement


def test_batches_are_acknowledged_when_they_are_in_the_log(shard: Shard) -> None:
    shard.log.take(AGENT.name, AGENT.framed(0))
    assert shard.events() == []
    assert not shard.log.idle
    answers = shard.log.commit()
    assert [(name, answer.nonce, answer.next_seq) for name, answer in answers] == [(AGENT.name, 1, 1)]
    assert shard.events() == [0]
    assert shard.log.idle
    assert shard.log.commit() == []


def test_batches_enter_the_log_in_order_and_once(shard: Shard) -> None:
    answer = shard.take(AGENT, *[AGENT.framed(seq) for seq in (2, 1, 1, 4)])[1]
    assert (answer.next_seq, answer.early) == (0, 0b1011)
    answer = shard.take(AGENT, AGENT.framed(0), AGENT.framed(0), AGENT.framed(2))[1]
    assert (answer.next_seq, answer.early) == (3, 0b1)
    assert shard.events() == [0, 1, 2]
    assert shard.log.duplicates == 3


def test_answers_say_which_codecs_can_be_read(shard: Shard) -> None:
    assert shard.take(AGENT, AGENT.framed(0))[1].codecs == CODECS


def test_what_will_never_come_is_named(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0), AGENT.framed(3, oldest=True))
    assert shard.records(Kind.GAP) == [Gap(NEVER_CAME, 1, 1, (1, 2))]
    assert shard.events() == [0, 3]
    assert findings(shard) == []


def test_older_epochs_come_before_newer_ones(shard: Shard) -> None:
    newer = FakeAgent(nonce=2)
    shard.take(AGENT, AGENT.framed(0))
    not_yet = frame(newer.batch(0), newer.name, False)
    assert shard.take(newer, not_yet, newer.framed(1))[2].next_seq == 0
    shard.take(AGENT, AGENT.framed(1))
    assert shard.take(newer, newer.framed(0))[2].next_seq == 2
    assert [entry.nonce for entry in shard.entries(Kind.EVENT)] == [1, 1, 2, 2]


def test_agents_do_not_wait_for_each_other(shard: Shard) -> None:
    other = FakeAgent("valve-1", 9)
    shard.take(AGENT, AGENT.framed(5))
    assert shard.take(other, other.framed(0))[9].next_seq == 1
    assert shard.log.agents == 2


def test_one_shard_has_one_writer(shard: Shard) -> None:
    with pytest.raises(ShardInUse):
        ShardLog(shard.folder, SHARD, shard.registry, shard.quarantine)


# Rows


def test_tuples_become_columns_with_ids_and_payloads(shard: Shard) -> None:
    reports, alerts, far = AGENT.stream("reports"), AGENT.stream("alerts"), StreamId("other", 4, "sent", 77)
    origins = (Origin(OriginKind.SOURCE, reports, 3, 30), Origin(OriginKind.REMOTE, far, 8, 31))
    shard.take(
        AGENT,
        AGENT.framed(
            0,
            SourcePayload(reports, 3, 30, {"speed": 7}),
            Delivery(alerts, 0, 40, "stopped", origins),
            Progress(alerts, 41, 39),
        ),
    )
    found = {row.kind: row.data for row in rows(shard) if row.kind not in (Kind.REGISTER, Kind.PAYLOAD)}
    numbers = {name: number for number, _, _, name, _ in shard.records(Kind.REGISTER)}
    report, alert, sent = (numbers[name] << 36 for name in ("reports", "alerts", "sent"))
    assert read_sources(found[Kind.SOURCE]).id.tolist() == [report | 3]
    chunk = read_deliveries(found[Kind.DELIVERY])
    assert (chunk.id.tolist(), chunk.ts.tolist(), chunk.count.tolist()) == ([alert | 0], [40], [2])
    assert (chunk.origin_id.tolist(), chunk.remote.tolist()) == ([report | 3, sent | 8], [0, 1])
    progress = read_progress(found[Kind.PROGRESS])
    assert (progress.stream.tolist(), progress.watermark.tolist(), progress.hold.tolist()) == (
        [alert >> 36],
        [41],
        [39],
    )
    payloads = dict(pair for row in rows(shard) if row.kind == Kind.PAYLOAD for pair in read_payloads(row.data))
    assert payloads == {report | 3: {"speed": 7}, alert | 0: "stopped"}
    order = [Kind(row.kind) for row in rows(shard)]
    assert order.index(Kind.REGISTER) < order.index(Kind.SOURCE)
    assert findings(shard) == []


def test_a_stream_is_registered_once_per_epoch_that_names_it(shard: Shard) -> None:
    far = StreamId("other", 4, "sent", 77)

    def delivery(agent: FakeAgent, seq: int) -> Delivery:
        return Delivery(agent.stream("alerts"), seq, 0, "x", (Origin(OriginKind.REMOTE, far, seq, 0),))

    newer = FakeAgent(nonce=2)
    for seq in range(3):
        shard.take(AGENT, AGENT.framed(seq, delivery(AGENT, seq)))
        shard.reopen()
    shard.take(newer, newer.framed(0, delivery(newer, 0)))
    names = [(name, nonce) for _, _, _, name, nonce in shard.records(Kind.REGISTER)]
    assert names == [("alerts", 1), ("sent", 77), ("alerts", 2), ("sent", 77)]
    numbers = [number for number, _, _, name, _ in shard.records(Kind.REGISTER) if name == "sent"]
    assert len(set(numbers)) == 1


def test_a_batch_may_hold_several_gaps_and_kinds(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0, Declared("{}"), Gap("a", 7, 70), Gap("b", 8, 80), event(0), End(5)))
    assert [kind for kind, *_ in shard.entries()] == [Kind.PLAN, Kind.GAP, Kind.GAP, Kind.END, Kind.EVENT]
    assert findings(shard) == []


# What stands for batches that were given up


def replacement(first: int, last: int, *more: Any, events: tuple[int, int] | None = None) -> bytes:
    gap = Gap("dropped", 1, 1, (first, last), (), events or (first, last))
    return AGENT.framed(first, *more, gap, covers=last - first + 1)


def test_a_gap_takes_the_place_of_the_batches_that_it_names(shard: Shard) -> None:
    assert shard.take(AGENT, replacement(0, 4), AGENT.framed(5))[1].next_seq == 6
    assert shard.records(Kind.GAP) == [Gap("dropped", 1, 1, (0, 4), (), (0, 4))]
    assert shard.events() == [5]
    assert findings(shard) == []


def test_a_gap_names_nothing_that_is_in_the_log(shard: Shard) -> None:
    """The acknowledgement of two batches was lost, and the agent gave them up with others."""
    shard.take(AGENT, AGENT.framed(0, Declared("{}"), event(0)), AGENT.framed(1))
    assert shard.take(AGENT, replacement(0, 4, Declared("{}")))[1].next_seq == 5
    assert shard.records(Kind.GAP) == [Gap("dropped", 1, 1, (2, 4), (), (2, 4))]
    assert shard.records(Kind.PLAN) == [Declared("{}")], "told once"
    shard.reopen()
    assert shard.take(AGENT, replacement(0, 6))[1].next_seq == 7
    assert shard.records(Kind.GAP)[1:] == [Gap("dropped", 1, 1, (5, 6), (), (5, 6))]
    assert findings(shard) == []


def test_a_copy_of_what_was_given_up_is_no_news(shard: Shard) -> None:
    """Epoch 1 was given up from batch 1 on, epoch 2 as a whole; then copies of both come after all."""
    middle, newer = FakeAgent(nonce=2), FakeAgent(nonce=3)
    shard.take(AGENT, AGENT.framed(0))
    gaps = [Gap("dropped", 1, 1, (1, 3)), Gap("dropped", 2, 2, (0, 5)), Gap("dropped", 3, 3, (0, 1))]
    shard.take(newer, newer.framed(0, *gaps, covers=2))
    for _ in range(2):
        answers = shard.take(AGENT, AGENT.framed(1, oldest=True), middle.framed(0), newer.framed(0, *gaps, covers=2))
        assert {nonce: answer.next_seq for nonce, answer in answers.items()} == {1: 4, 2: 6, 3: 2}
        shard.reopen()
    assert shard.events() == [0]
    assert not any(answer.duplicate for answer in answers.values())
    assert len(shard.records(Kind.GAP)) == 3
    assert findings(shard) == []


def test_what_an_uncommitted_gap_said_is_not_remembered(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are lost with the translator, so the registry must not think that the epoch was closed."""
    newer = FakeAgent(nonce=3)
    payload = newer.framed(0, Gap("dropped", 2, 2, (0, 5)), Gap("dropped", 3, 3, (0, 1)), covers=2)
    with full_disk(monkeypatch):
        shard.log.take(newer.name, payload)
        with pytest.raises(LogUnwritable):
            shard.log.commit()
    shard.reopen()
    shard.take(newer, payload)
    assert {gap.nonce for gap in shard.records(Kind.GAP)} == {2, 3}


def test_a_crash_is_told_with_what_had_arrived(shard: Shard) -> None:
    newer = FakeAgent(nonce=2)
    shard.take(AGENT, AGENT.framed(0, event(0), event(1), SourcePayload(AGENT.stream("reports"), 0, 0, "x")))
    crash = Gap("crash", 1, 1, next_event=1)
    shard.take(newer, newer.framed(0, crash))
    assert shard.records(Kind.GAP) == [Gap("crash", 1, 1, next_seqs=(("reports", 1),), next_event=2)]


def test_batches_that_are_given_up_without_a_word_are_named_all_the_same(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0, event(0), covers=4), AGENT.framed(4))
    assert shard.records(Kind.GAP) == [Gap(GIVEN_UP, 1, 1, (0, 3))]
    assert findings(shard) == []
    shard.reopen()
    assert shard.take(AGENT, AGENT.framed(3))[1].next_seq == 5


# Two devices, and one that was wiped


def test_two_devices_with_one_name_are_told_and_lose_nothing(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    other = FakeAgent(nonce=2)
    assert not shard.take(AGENT, AGENT.framed(0))[1].duplicate
    assert not shard.take(other, other.framed(0))[2].duplicate
    for seq in range(1, 4):
        assert shard.take(AGENT, AGENT.framed(seq))[1].duplicate
        assert shard.take(other, other.framed(seq))[2].duplicate
    assert (shard.events(1), shard.events(2)) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert [record.message for record in caplog.records] == [f"two devices use one name agent={AGENT.name}"]
    third = FakeAgent(nonce=3)
    assert not shard.take(third, third.framed(0))[3].duplicate, "from here on it may be one again"
    assert findings(shard) == []


def test_three_devices_with_one_name_lose_nothing_either(shard: Shard) -> None:
    devices = [FakeAgent(nonce=nonce) for nonce in (1, 2, 3)]
    for seq in range(5):
        for device in devices:
            assert shard.take(device, device.framed(seq))[device.nonce].next_seq == seq + 1
        if seq == 2:
            shard.reopen()
    assert [shard.events(device.nonce) for device in devices] == [[0, 1, 2, 3, 4]] * 3


def test_a_reflashed_device_gets_another_number(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    again = FakeAgent(nonce=2, epoch=1)
    shard.take(AGENT, AGENT.framed(0, Delivery(AGENT.stream("alerts"), 0, 0, "x", ())))
    shard.take(again, again.framed(0, Delivery(again.stream("alerts"), 0, 0, "x", ())))
    assert [epoch for _, _, epoch, _, _ in shard.records(Kind.REGISTER)] == [1, 2]
    assert shard.log.counters.reflashed == 1
    assert "counts its starts anew" in caplog.text


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
    assert "what followed row 3 of segment 1, up to row 5 of segment 1," in entry.record.reason
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
    agent = next(each for each in map(FakeAgent, "abcdefghijklmnopqrstuvwxyz") if shard_of(each.name) == SHARD)
    shard = Shard(tmp_path / "log")
    shard.take(agent, agent.framed(0))
    shard.log.close()
    shutil.rmtree(shard.folder / "shard-05")
    assert findings(shard) == [f"{shard.folder} has no shard, though the registry knows of agents"]
    for _ in range(2):
        shard.open()
        assert [gap.reason for gap in shard.records(Kind.GAP)] == [
            "the log was damaged: the whole shard was gone, though agents of it are known"
        ]
        shard.log.close()
    shard.registry.close()

"""Batches become rows, in order and once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from collector.batch_rows import GIVEN_UP
from collector.epochs import NEVER_CAME
from collector.log import LogUnwritable, ShardInUse
from collector.shard_log import CODECS, ShardLog
from protocol.chunks import read_deliveries, read_progress, read_sources, read_tuples
from protocol.ids import StreamId
from protocol.plan import Node, PlanDocument
from protocol.records import Declared, Delivery, End, Gap, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.batch import frame
from protocol.wire.sections import Kind
from tests.collector.agents import SHARD, FakeAgent, Shard, event
from tests.collector.shard_log.views import AGENT, findings, full_disk, rows

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
    told = [read_tuples(row.data) for row in rows(shard) if row.kind == Kind.PAYLOAD]
    payloads = {each: said.payloads[place] for ids, said in told for place, each in enumerate(ids.tolist())}
    assert payloads == {report | 3: {"speed": 7}, alert | 0: "stopped"}
    order = [Kind(row.kind) for row in rows(shard)]
    assert order.index(Kind.REGISTER) < order.index(Kind.SOURCE)
    assert findings(shard) == []


SENDING = (
    Node("reports", "source", parameters={"ids": "uid", "watermarks": "ordered", "disorder_ms": 0}),
    Node("out", "send", ("reports",), {"stream": "stopped", "to": ["hub-1"]}),
    Node("alerts", "sink", ("reports",)),
)
PLAN = PlanDocument("p", "segments", SENDING).to_json()


def test_deliveries_of_a_send_are_told_apart_also_after_a_restart(shard: Shard) -> None:
    alert, sent = (Delivery(AGENT.stream(name), 0, 40, "x", ()) for name in ("alerts", "stopped"))
    shard.take(AGENT, AGENT.framed(0, Declared(PLAN), alert, sent))
    shard.reopen()
    shard.take(AGENT, AGENT.framed(1, sent, alert))
    chunks = [read_deliveries(row.data).sent.tolist() for row in rows(shard) if row.kind == Kind.DELIVERY]
    assert chunks == [[0, 1], [1, 0]]


def test_what_a_start_sends_is_known_by_the_plan_before_if_its_own_was_lost(shard: Shard) -> None:
    """A power cut took the batch with the plan, and left the next one."""
    shard.take(AGENT, AGENT.framed(0, Declared(PLAN)))
    for nonce in (2, 3):
        shard.reopen()
        later = FakeAgent(AGENT.name, nonce)
        deliveries = [Delivery(later.stream(name), 0, 40, "x", ()) for name in ("alerts", "stopped")]
        shard.take(later, later.framed(1, *deliveries, oldest=True))
    chunks = [read_deliveries(row.data).sent.tolist() for row in rows(shard) if row.kind == Kind.DELIVERY]
    assert chunks == [[0, 1], [0, 1]]


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


def test_every_start_says_once_by_which_number_people_know_it(shard: Shard) -> None:
    again = FakeAgent(nonce=2)
    for seq in range(3):
        for agent in (AGENT, again):
            shard.take(agent, agent.framed(seq, event(seq)))
        shard.reopen()
    found = [(entry.nonce, entry.seq, entry.record) for entry in shard.entries(Kind.EPOCH)]
    assert found == [(AGENT.nonce, 0, AGENT.epoch), (again.nonce, 0, AGENT.epoch + 1)]


def test_a_batch_may_hold_several_gaps_and_kinds(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0, Declared("{}"), Gap("a", 7, 70), Gap("b", 8, 80), event(0), End(5)))
    told = [Kind.EPOCH, Kind.PLAN, Kind.GAP, Kind.GAP, Kind.END, Kind.EVENT]
    assert [kind for kind, *_ in shard.entries()] == told
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


def test_what_the_disk_had_lost_before_what_was_given_up_with_a_later_start_is_named(shard: Shard) -> None:
    """Of epoch 1 the disk has lost batches 2 and 3, and of epoch 2 batch 0: then nobody can say so but the log, and
    what would have told it that they are missing was given up."""
    newer = FakeAgent(nonce=3)
    shard.take(AGENT, AGENT.framed(0), AGENT.framed(1))
    crash = Gap("crash; damaged", 1, 1, (6, 7), next_event=9)
    gaps = [crash, Gap("dropped", 1, 1, (4, 5)), Gap("dropped", 2, 2, (1, 1)), Gap("dropped", 3, 3, (0, 1))]
    shard.take(newer, newer.framed(0, *gaps, covers=2))
    named = [(gap.nonce, gap.batches) for gap in shard.records(Kind.GAP)]
    assert named == [(1, (6, 7)), (1, (2, 5)), (2, (0, 1)), (3, (0, 1))]
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
    assert [epoch for _, _, epoch, *_ in shard.records(Kind.REGISTER)] == [1, 2]
    assert [own_count for *_, own_count in shard.records(Kind.REGISTER)[1:]] == [1], "as others know it"
    assert shard.log.counters.reflashed == 1
    assert "counts its starts anew" in caplog.text


@pytest.mark.parametrize("seen", [3, 0])
def test_a_start_goes_on_behind_what_a_later_one_has_said_is_lost(shard: Shard, seen: int) -> None:
    for seq in range(seen):
        shard.take(AGENT, AGENT.framed(seq))
    other = FakeAgent(nonce=2)
    shard.take(other, other.framed(0, Gap("crash", AGENT.epoch, AGENT.nonce, (seen, 5), next_event=0)))
    shard.reopen()
    assert shard.take(AGENT, AGENT.framed(6))[1].next_seq == 7
    assert findings(shard) == []

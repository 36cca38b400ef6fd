"""What counts as lost, on a log and a store that hold exactly what the tests put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.log import Position, SegmentRemoved, ShardWriter, remove_segments
from protocol.chunks import pack, pack_sources
from protocol.records import Gap, Lost, SourcePayload
from protocol.wire.sections import EventKind, Kind, TupleColumns, decode_section
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from tests.collector.store.rows import AGENT, OWN, record_row, register_row, row
from threadline.load.fleet import DeviceEnd
from threadline.load.loss import Held, Loss, held_by_log, log_ends, lost_before_graph, lost_before_log
from threadline.load.profiles import RESULTS, Said

START = (AGENT.name, AGENT.nonce)
STREAM = 7
SHARD = 5
BEGUN: list[tuple[Any, ...]] = [
    (Kind.EVENT, EventKind.TASK_BEGUN, 10 + key, key, 0, f"t{key}", "", (), []) for key in range(3)
]
ENDED: list[tuple[Any, ...]] = [(Kind.EVENT, EventKind.TASK_ENDED, 20 + key, key, 0, "", []) for key in range(3)]


def end(**said: int) -> DeviceEnd:
    return DeviceEnd(*START, Said(**said), 0)


def sources(*seqs: int) -> bytes:
    told = record_row(*(SourcePayload(AGENT.stream("s"), seq, seq, None) for seq in seqs))
    section = decode_section(Kind.SOURCE, told.data, OWN)
    assert isinstance(section, TupleColumns)
    return pack_sources(section, np.array([STREAM], "<i8"))


def delivered(*counts: int, first: int = 0) -> bytes:
    """Deliveries with so many origins each."""
    ids = np.array([tuple_id(STREAM, first + place) for place in range(len(counts))], "<i8")
    nothing, origins = np.zeros(len(counts), "<i8"), np.zeros(sum(counts), "<i8")
    flat = [ids, nothing, np.array(counts, "<i4"), nothing.astype("<i4"), nothing.astype("u1")]
    return pack([*flat, origins, origins, origins.astype("u1")])


def test_the_log_is_counted_record_by_record() -> None:
    held = Held()
    for each in (
        row(Kind.SOURCE, sources(0, 1, 2)),
        row(Kind.SOURCE, sources(3)),
        row(Kind.DELIVERY, delivered(50, 50)),
        row(Kind.DELIVERY, delivered(12, first=2)),
        record_row(*BEGUN),
        record_row(*ENDED, first_event=3),
    ):
        held.add(each)
    assert held.said == Said(results=3, origins=112, readings=4, events=6)
    assert held.disorder == []
    assert list(lost_before_log([end(results=3, origins=112, readings=4, events=6)], {START: held})) == []


def test_what_is_missing_is_told_with_the_gap_that_names_it() -> None:
    held = Held()
    held.add(row(Kind.DELIVERY, delivered(50)))
    held.add(record_row(Gap("spool full", 3, AGENT.nonce, (4, 9), (Lost("results", 1, 2),), (5, 6))))
    (results, origins) = lost_before_log([end(results=3, origins=150)], {START: held})
    gap = "Gap: spool full, batches 4 to 9, results 1 to 2, events 5 to 6"
    assert results == Loss(AGENT.name, "log", "results", 3, 1, (gap,))
    assert (origins.what, origins.said, origins.found) == ("origins", 150, 50)


def test_what_a_device_still_has_may_arrive() -> None:
    """Unless it says itself that something was given up, or more has come than was said."""
    held = Held()
    held.add(row(Kind.DELIVERY, delivered(50)))
    said = DeviceEnd(*START, Said(results=3, origins=150), left=2)
    found = list(lost_before_log([said], {START: held}))
    assert [loss.may_arrive for loss in found] == [True, True]
    assert str(found[0]).endswith("1 of 3 results are in the log (it still has 2 batches)")
    assert not Loss("a", "log", "results", 3, 4, left=2).may_arrive
    held.add(record_row(Gap("spool full", 3, AGENT.nonce, (4, 9))))
    assert not any(loss.may_arrive for loss in lost_before_log([said], {START: held}))
    assert not any(loss.may_arrive for loss in lost_before_log([end(results=3)], {START: Held()}))


@pytest.mark.parametrize(
    ("unwritten", "dropped", "words"),
    [(7, 0, "7 records could not be written"), (0, 9, "it gave up 9 records")],
)
def test_what_a_device_had_only_in_its_memory_never_arrives(unwritten: int, dropped: int, words: str) -> None:
    """Though it has other batches left: nobody can tell which of the two is missing."""
    said = DeviceEnd(*START, Said(results=3), left=2, unwritten=unwritten, dropped=dropped)
    (loss,) = lost_before_log([said], {START: Held()})
    assert not loss.may_arrive
    assert str(loss).endswith(f"(it still has 2 batches; {words})")


@pytest.mark.parametrize(("first", "second"), [((0, 1), (1, 2)), ((0, 1), (0, 1)), ((0, 2), (3, 4))])
def test_what_comes_twice_or_out_of_order_is_told(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    held = Held()
    for seqs in (first, second):
        held.add(row(Kind.SOURCE, sources(*seqs)))
    assert any(loss.where == "log in order" for loss in lost_before_log([end(readings=4)], {START: held}))


def test_events_that_come_twice_are_told() -> None:
    held = Held()
    for _ in range(2):
        held.add(record_row(*BEGUN))
    assert any(loss.where == "log in order" for loss in lost_before_log([end(events=6)], {START: held}))


def logged(folder: Path, *seqs: int) -> None:
    """Readings that one writer has logged, in a segment of its own."""
    with ShardWriter(folder, SHARD) as writer:
        writer.begin(list)
        writer.append([row(Kind.SOURCE, sources(seq), seq) for seq in seqs])
        writer.commit()


def test_the_log_is_read_from_where_it_was_when_devices_came(tmp_path: Path) -> None:
    """What was there before, or was removed before, is not theirs."""
    logged(tmp_path, 0, 1, 2)
    logged(tmp_path, 3)
    remove_segments(tmp_path, SHARD, Position(2, 0))
    begins = log_ends(tmp_path)
    logged(tmp_path, 4, 5)
    assert held_by_log(tmp_path, begins, [START])[START].said == Said(readings=2)
    logged(tmp_path, 6)
    remove_segments(tmp_path, SHARD, Position(4, 0))
    with pytest.raises(SegmentRemoved, match="segment 2 has been removed, the oldest is 4"):
        held_by_log(tmp_path, begins, [START])


def test_a_shard_that_is_new_is_read_from_its_beginning(tmp_path: Path) -> None:
    begins = log_ends(tmp_path)
    assert begins == {}
    logged(tmp_path, 0, 1)
    assert held_by_log(tmp_path, begins, [START])[START].said == Said(readings=2)


def test_the_graph_has_to_have_every_result_with_its_origins_and_every_task(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'g.db'}"
    k = [tuple_id(STREAM, seq) for seq in range(2)]
    s = [tuple_id(8, seq) for seq in range(3)]
    edges = [(k[0], s[0]), (k[0], s[1]), (k[1], s[2])]
    rows = [register_row(STREAM, RESULTS), record_row(*BEGUN, seq=1), record_row(*ENDED[:2], seq=2, first_event=3)]
    with QuickWriter(tmp_path / "g.db") as writer:
        sinks, readings = dict.fromkeys(k, 5), dict.fromkeys(s, 1)
        writer.write(graph_batch("q", 0, sinks=sinks, sources=readings, edges=edges, rows=rows))
    assert list(lost_before_graph([end(results=2, origins=3)], store)) == []
    found = list(lost_before_graph([end(results=3, origins=4, tasks=3)], store))
    assert [(loss.what, loss.said, loss.found) for loss in found] == [
        ("results", 3, 2),
        ("origins", 4, 3),
        ("ends of tasks", 3, 2),
    ]
    stranger = DeviceEnd("nobody", 1, Said(results=1), 0)
    assert [loss.found for loss in lost_before_graph([stranger], store)] == [0]

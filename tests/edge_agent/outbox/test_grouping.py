from __future__ import annotations

from typing import Any

from edge_agent.config import Settings
from edge_agent.outbox.grouping import Group
from protocol.records import Delivery, End, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.sections import pending, pending_sized
from tests.edge_agent.records import ALERTS, PACKER, STREAM, begun

LONG, SHORT = "x" * 500, "x"


def group(**options: Any) -> Group:
    return Group(Settings(**options))


def test_a_group_is_empty_until_something_is_in_it() -> None:
    made = group()
    assert not made
    made.add(pending(Progress(ALERTS, 1, 1), PACKER), 50, 7.0)
    assert made
    assert made.since == 7.0
    made.add(begun(0), 50, 9.0)
    assert made.since == 7.0
    assert (len(made.rows), len(made.progress())) == (1, 1)


def test_a_group_is_full_by_count() -> None:
    made = group(batch_records=3)
    full = []
    for key in range(3):
        made.add(begun(key), 1, 0.0)
        full.append(made.is_full)
    assert full == [False, False, True]


def test_a_group_does_not_outgrow_a_small_spool() -> None:
    """However well it would be compressed."""
    small, large = (group(spool_bytes=size, batch_bytes=32_000, batch_records=10_000) for size in (64 << 10, 1 << 30))
    assert filled(small) == (64 << 10) // 16 // 100 + 1
    assert filled(large) > 500


def test_progress_does_not_fill_a_group() -> None:
    made = group(batch_records=2)
    for watermark in range(50):
        made.add(pending(Progress(ALERTS, watermark, 0), PACKER), 50, 0.0)
    assert not made.is_full
    assert made.progress() == [pending(Progress(ALERTS, 49, 0), PACKER)]


def test_equal_streams_are_one_stream() -> None:
    made = group()
    for watermark in range(3):
        made.add(pending(Progress(ALERTS._replace(), watermark, 0), PACKER), 50, 0.0)
    assert [row[2] for row in made.progress()] == [2]


def filled(made: Group) -> int:
    count = 0
    while not made.is_full:
        made.add(begun(count), 100, 0.0)
        count += 1
    return count


def test_the_size_is_foretold_from_how_well_the_last_batches_were_compressed() -> None:
    made = group(batch_bytes=1_000, batch_records=100_000)
    first = filled(made)
    made.written(first, 250)
    better = filled(made)
    assert better > 1.5 * first
    for _ in range(10):
        made.written(len(made.rows), 4_000)
        worse = filled(made)
    assert worse < first


def test_writing_frees_what_was_held_and_keeps_the_rest() -> None:
    made = group()
    for key in range(5):
        made.add(begun(key), 10 + key, 3.0)
    made.add(pending(Progress(ALERTS, 1, 1), PACKER), 50, 3.0)
    assert made.written(2, 100) == 10 + 11
    assert [row[3] for row in made.rows] == [2, 3, 4]
    assert (made.since, len(made.progress())) == (3.0, 1), "progress belongs to what comes last"
    assert made.written(3, 100) == 12 + 13 + 14
    assert not made
    assert made.progress() == []


def test_sizes_follow_what_is_in_a_record() -> None:
    origins = tuple(Origin(OriginKind.SOURCE, STREAM, seq, seq) for seq in range(100))

    def size(record: Any) -> int:
        return pending_sized(record, PACKER)[1]

    assert size(SourcePayload(STREAM, 0, 0, LONG)) >= size(SourcePayload(STREAM, 0, 0, SHORT)) + 490
    assert size(Delivery(ALERTS, 0, 0, SHORT, origins)) >= size(Delivery(ALERTS, 0, 0, SHORT, ())) + 100
    assert 0 < size(Progress(ALERTS, 1, 1)) <= size(End(1))

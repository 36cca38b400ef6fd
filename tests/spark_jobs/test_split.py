from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.chunks import read_progress, unpack
from protocol.row import Row
from protocol.wire.sections import Kind as RowKind
from spark_jobs.chunks import Chunk, Kind, bucket_of, by_bucket, joined, pack_rows, read_rows
from spark_jobs.split import read_control, split
from tests.spark_jobs.rows import Told, delivered, end, plan, progress, received, register, sink, source, tuple_id

BUCKETS = 3
rows = st.builds(
    Row,
    st.integers(0, 255),
    st.text(max_size=5),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**62),
    st.binary(max_size=9),
)


@given(st.lists(rows, max_size=8))
def test_rows_come_back_as_they_were(made: list[Row]) -> None:
    assert read_rows(pack_rows(made)) == made


@given(st.lists(st.integers(0, 2**63 - 1), max_size=50), st.integers(1, 9))
def test_every_row_goes_to_the_bucket_of_its_id(ids: list[int], buckets: int) -> None:
    column = np.array(ids, "<i8")
    chunks = list(by_bucket(Kind.SINK, column, [column, -column], buckets))
    for chunk in chunks:
        found, negative = unpack(chunk.data)
        assert set(bucket_of(found, buckets).tolist()) == {chunk.bucket}
        assert (negative == -found).all()
    assert sorted(int(each) for chunk in chunks for each in unpack(chunk.data)[0]) == sorted(ids)


def test_neighbours_spread_evenly() -> None:
    counts = np.bincount(bucket_of((7 << 36) + np.arange(4_000), 4), minlength=4)
    assert counts.min() > 900


def columns_of(chunks: list[Chunk], kind: Kind) -> list[list[int]]:
    found = joined(chunks, kind)
    return sorted(map(list, zip(*(column.tolist() for column in found), strict=True))) if found else []


def test_what_goes_where() -> None:
    """k comes from a reading and from d, which another agent sent; e is sent on and has two origins."""
    k, d, e, a, b = tuple_id(1, 0), tuple_id(2, 5), tuple_id(3, 0), tuple_id(4, 1), tuple_id(4, 2)
    row = delivered(
        "hub", Told(k, 90, ((a, 10, False), (d, 60, True))), Told(e, 80, ((a, 10, False), (b, -5, False)), True)
    )
    chunks = list(split(5, [row], BUCKETS))
    assert columns_of(chunks, Kind.SINK) == [[k, 90, 1, 0]]
    assert columns_of(chunks, Kind.REFERENCE) == [[k, 90, d, 60, 0]]
    assert columns_of(chunks, Kind.EDGE) == [[k, 90, a, 10, 0, 0]]
    (sent,) = [unpack(chunk.data) for chunk in chunks if chunk.kind == Kind.SENT]
    assert [column.tolist() for column in sent] == [[e], [80], [0], [2], [a, b], [10, -5], [0, 0]]
    for chunk in chunks:
        owner = {Kind.SINK: k, Kind.REFERENCE: d, Kind.EDGE: a, Kind.SENT: e}.get(Kind(chunk.kind))
        if owner is not None:
            assert chunk.bucket == bucket_of(np.array([owner]), BUCKETS)[0]


def test_every_bucket_hears_of_control_rows_in_every_micro_batch() -> None:
    told = [register(1, "a", "s"), plan("a", source("s"), sink("k", "s")), end("a")]
    chunks = list(split(5, told, BUCKETS))
    for bucket in range(BUCKETS):
        (found,) = read_control(chunk for chunk in chunks if chunk.bucket == bucket)
        assert (found.shard, found.rows) == (5, told)
    assert [chunk.kind for chunk in split(5, [Row(RowKind.SOURCE, "a", 1, 0, b"")], 2)] == [Kind.CONTROL] * 2


def test_everybody_hears_of_the_youngest_tuple_of_each_stream_of_the_agents_themselves() -> None:
    made = [
        delivered("hub", Told(tuple_id(1, 0), 90, ((tuple_id(4, 1), 10, False), (tuple_id(2, 5), 60, True)))),
        delivered("hub", Told(tuple_id(1, 1), 80, ((tuple_id(4, 2), -5, False), (tuple_id(5, 2), -7, False)))),
    ]
    (found,) = read_control(split(3, made, 1))
    assert dict(zip(found.streams.tolist(), found.latest.tolist(), strict=True)) == {1: 90, 4: 10, 5: -7}


def test_control_rows_are_read_by_shard_whatever_the_order_of_the_chunks() -> None:
    chunks = [chunk for shard in (9, 2, 11) for chunk in split(shard, [end(f"agent-{shard}")], 1)]
    assert [each.shard for each in read_control(chunks)] == [2, 9, 11]


def test_only_the_last_promise_of_a_stream_is_passed_on_before_a_row_that_may_depend_on_it() -> None:
    told = [progress("a", 1, 5), progress("b", 2, 6), progress("a", 1, 7, 3), end("a"), progress("b", 2, 9)]
    found = read_control(split(0, told, 1))[0].rows
    assert [(row.kind, row.agent) for row in found] == [
        (RowKind.PROGRESS, "a"),
        (RowKind.END, "a"),
        (RowKind.PROGRESS, "b"),
    ]
    first, last = read_progress(found[0].data), read_progress(found[2].data)
    assert (first.watermark.tolist(), first.hold.tolist()) == ([7], [3])
    assert last.watermark.tolist() == [9]
    (kept,) = [read_rows(chunk.data) for chunk in split(0, told, 1) if chunk.kind == Kind.ROWS]
    assert kept == found, "the store is told the same"


def test_a_promise_keeps_the_number_of_its_batch() -> None:
    """The store goes by it: it takes no older promise when the log is replayed, and knows that the agent was heard."""
    told = [progress("a", 1, ts)._replace(seq=seq) for ts, seq in ((5, 3), (7, 4))]
    found = read_control(split(0, told, 1))[0].rows
    assert [(row.seq, read_progress(row.data).watermark.tolist()) for row in found] == [(4, [7])]


def test_that_something_was_taken_of_a_send_is_passed_on_once() -> None:
    told = [received("hub", "edge", stream, of=start) for stream, start in (("a", 1), ("a", 1), ("b", 1), ("a", 2))]
    (kept,) = [read_rows(chunk.data) for chunk in split(0, told, 1) if chunk.kind == Kind.ROWS]
    assert kept == told
    assert read_control(split(0, told, 1))[0].rows == [told[0], told[2], told[3]]


def test_the_store_gets_what_the_stages_do_not_need() -> None:
    told = [Row(RowKind.PAYLOAD, "a", 1, 0, b"p"), Row(RowKind.EVENT, "a", 1, 0, b"e"), register(1, "a", "s")]
    (kept,) = [read_rows(chunk.data) for chunk in split(4, told, BUCKETS) if chunk.kind == Kind.ROWS]
    assert kept == told

"""From rows of the log to chunk rows: without memory, shard by shard.

Every record goes to the bucket that will need it: a sent tuple by its own id, a reference by the id of what it refers
to, an origin that is a source by the source's id, a sink tuple by its own id. Control rows go to every bucket, so every
bucket takes part in every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import SEQ_BITS, DeliveryChunk, Numbers, pack, promises_in, read_deliveries, unpack
from protocol.ids import StreamId
from protocol.records import BEGINNING, Received
from protocol.row import Row
from protocol.wire.sections import Kind as RowKind
from protocol.wire.sections import decode_section
from spark_jobs.chunks import Chunk, Kind, bucket_of, by_bucket, pack_rows, read_rows
from spark_jobs.fleet import CONTROL
from spark_jobs.shelf import Columns, Layout

SENT = Layout(flat=4, ragged=3)
"""The columns of Kind.SENT."""


def split(shard: int, rows: Iterable[Row], buckets: int) -> Iterator[Chunk]:
    """The chunk rows of all rows that one shard adds to a micro-batch."""
    control: list[Row] = []
    kept: list[Row] = []
    deliveries: list[DeliveryChunk] = []
    promises, takings = _Promises(), _Takings()
    for row in rows:
        if row.kind == RowKind.PROGRESS:
            promises.add(row)
            continue
        if row.kind == RowKind.RECEIVED:
            if takings.is_news(row):
                control.append(row)
        elif row.kind in CONTROL:
            before = list(promises.taken(row.agent))
            control += [*before, row]
            kept += before
        if row.kind == RowKind.DELIVERY:
            deliveries.append(read_deliveries(row.data))
        elif row.kind != RowKind.SOURCE:  # whose payloads say it all
            kept.append(row)
    last = list(promises.taken())
    control += last
    kept += last
    told = pack([np.array([shard], "<i8"), *_latest(deliveries), np.frombuffer(pack_rows(control), "u1")])
    for bucket in range(buckets):
        yield Chunk(Kind.CONTROL, bucket, told)
    if kept:
        yield Chunk(Kind.ROWS, shard % buckets, pack_rows(kept))
    if deliveries:
        yield from _split_deliveries(shard, deliveries, buckets)


class _Promises:
    """The last promise of each stream: what it had promised before does not matter any more."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        self._seqs: dict[tuple[str, int], int] = {}

    def add(self, row: Row) -> None:
        start = (row.agent, row.nonce)
        of = self._last.setdefault(start, {})
        self._seqs[start] = row.seq
        for stream, watermark, hold in promises_in(row.data):
            of[stream] = watermark, hold

    def taken(self, agent: str | None = None) -> Iterator[Row]:
        """Rows instead of those that were added: of one agent, or all. Each has the number of the last one."""
        for name, nonce in [each for each in self._last if agent in (None, each[0])]:
            of = self._last.pop((name, nonce))
            columns = [list(of), *([promise[side] for promise in of.values()] for side in (0, 1))]
            data = pack([np.array(column, "<i8") for column in columns])
            yield Row(RowKind.PROGRESS, name, nonce, self._seqs[name, nonce], data)


class _Takings:
    """From which Sends others have taken something: they say so with every message."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int, int, str]] = set()

    def is_news(self, row: Row) -> bool:
        """Whether one of them was not known."""
        own = StreamId(row.agent, 0, "", row.nonce)
        told = cast("list[Received]", decode_section(RowKind.RECEIVED, row.data, own))
        sends = {(row.agent, row.nonce, each.nonce, each.stream) for each in told}
        is_news = not sends <= self._known
        self._known |= sends
        return is_news


def _latest(deliveries: Sequence[DeliveryChunk]) -> tuple[Numbers, Numbers]:
    """The streams of which something is in these deliveries, but for what others have sent: the youngest of each."""
    ids = [column for each in deliveries for column in (each.id, each.origin_id[each.remote == 0])]
    times = [column for each in deliveries for column in (each.ts, each.origin_ts[each.remote == 0])]
    if not ids:
        return np.empty(0, "<i8"), np.empty(0, "<i8")
    streams, which = np.unique(np.concatenate(ids) >> SEQ_BITS, return_inverse=True)
    youngest = np.full(len(streams), BEGINNING, "<i8")
    np.maximum.at(youngest, which, np.concatenate(times))
    return streams, youngest


class Control(NamedTuple):
    """What a shard says that concerns everybody."""

    shard: int
    rows: list[Row]
    streams: Numbers
    """Those that have something in deliveries of the shard's agents now."""
    latest: Numbers
    """The time of the youngest of each."""


def read_control(chunks: Iterable[Chunk]) -> list[Control]:
    """Of each shard, in order."""
    found: list[Control] = []
    for chunk in chunks:
        if chunk.kind == Kind.CONTROL:
            shard, streams, latest, rows = unpack(chunk.data)
            found.append(Control(int(shard[0]), read_rows(rows.tobytes()), streams, latest))
    return sorted(found, key=lambda each: each.shard)


def _split_deliveries(shard: int, deliveries: list[DeliveryChunk], buckets: int) -> Iterator[Chunk]:
    names = ("id", "ts", "part", "sent", "count", "origin_id", "origin_ts", "remote")
    every = {name: np.concatenate([getattr(each, name) for each in deliveries]) for name in names}
    counts = every["count"].astype("<i8")
    table = [every["id"], every["ts"], every["part"], counts, every["origin_id"], every["origin_ts"], every["remote"]]
    is_sent = every["sent"] == 1
    kept = np.flatnonzero(is_sent | _is_indirect(every["part"], counts, every["remote"]))
    if len(kept):
        told = pack([*SENT.take(table, kept), every["sent"][kept]])
        yield Chunk(Kind.DELIVERED, shard % buckets, told)
    if is_sent.any():
        yield from _split_sent(SENT.take(table, np.flatnonzero(is_sent)), buckets)
        table = SENT.take(table, np.flatnonzero(~is_sent))
    ids, times, part, counts, origins, origin_times, remote = table
    if len(ids):
        row_of = np.repeat(np.arange(len(ids)), counts)
        is_remote = remote == 1
        references = np.bincount(row_of[is_remote], minlength=len(ids))
        yield from by_bucket(Kind.SINK, ids, [ids, times, references.astype("<i8"), part], buckets)
        is_part = (part != 0).astype("u1")
        columns = [ids[row_of], times[row_of], origins, origin_times, is_part[row_of]]
        if is_remote.any():
            chosen = [column[is_remote] for column in columns]
            yield from by_bucket(Kind.REFERENCE, chosen[2], chosen, buckets)
            columns = [column[~is_remote] for column in columns]
        yield from by_bucket(Kind.EDGE, columns[2], [*columns, np.zeros(len(columns[0]), "u1")], buckets)


def _is_indirect(part: Numbers, counts: Numbers, remote: NDArray[Any]) -> NDArray[np.bool_]:
    """Which deliveries may have come from sent tuples: one that is told in parts may have done so in another part."""
    row_of = np.repeat(np.arange(len(counts)), counts)
    found: NDArray[np.bool_] = (part != 0) | (np.bincount(row_of[remote == 1], minlength=len(counts)) > 0)
    return found


def _split_sent(table: Columns, buckets: int) -> Iterator[Chunk]:
    of = bucket_of(table[0], buckets)
    for bucket in range(buckets):
        rows = np.flatnonzero(of == bucket)
        if len(rows):
            yield Chunk(Kind.SENT, bucket, pack(SENT.take(table, rows)))

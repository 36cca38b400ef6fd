"""The graph for those who ask: read-only, beside the writer, in any process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from collector.store import feed
from collector.store.connection import connect_reader, errors_told
from collector.store.feed import Change, Cursor
from collector.store.packing import unpack
from collector.store.payloads import Payload, find_payload
from collector.store.people import People
from collector.store.tables import Tables
from protocol.chunks import OTHER_PARTS, SEQ_BITS
from protocol.graph import EdgeFlag, Reason, SinkFlag
from protocol.records import BEGINNING, END_OF_TIME

_SINK = "SELECT id, ts, stamp, label_stamp, flags, origins FROM sinks"


class Sink(NamedTuple):
    """A sink vertex; `label_stamp` is None as long as edges may be added to it."""

    id: int
    ts: int
    stamp: int
    label_stamp: int | None
    flags: SinkFlag
    origins: int


class Source(NamedTuple):
    """A source vertex; `label_stamp` is None as long as it may contribute to something. One that `is_sent` is an
    intermediate tuple that stands for its sources."""

    id: int
    ts: int
    stamp: int
    label_stamp: int | None
    is_sent: bool


class OriginEdge(NamedTuple):
    """Where an edge of a sink comes from."""

    id: int
    ts: int
    flags: EdgeFlag


class DirectOrigin(NamedTuple):
    """A tuple that an intermediate one came from; a remote one is intermediate itself."""

    id: int
    ts: int
    is_remote: bool


class Intermediate(NamedTuple):
    """A delivery of a Send. It is whole when all parts of it have come."""

    id: int
    ts: int
    is_whole: bool
    origins: tuple[DirectOrigin, ...]


class LateOrigin(NamedTuple):
    """An origin of a sink that is not in the graph. `via` is the intermediate tuple by which it was found; without one,
    what was PURGED could not be followed, and the origin is that intermediate tuple."""

    sink: int
    origin: int
    origin_ts: int
    reason: Reason
    via: int | None
    stamp: int


class StoreReader(People):
    """Reads from a store. Each answer is of one moment. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, connect_reader(path))
        self._tables = Tables(self._db)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    # Vertices

    def vertex(self, tuple_id: int) -> Sink | Source | None:
        """A vertex of the graph."""
        with self._moment():
            found = self._db.execute(f"{_SINK} WHERE id=?", (tuple_id,)).fetchone()
            if found:
                return _sink(found)
            ids = np.array([tuple_id], "<i8")
            vertex, label = self._tables.sources.find(ids), self._tables.labels.find(ids)
        if not len(vertex[0]):
            return None
        (_, ts, stamp, sent) = (int(column[0]) for column in vertex)
        return Source(tuple_id, ts, stamp, int(label[1][0]) if len(label[0]) else None, bool(sent))

    def sinks(
        self,
        *,
        from_ts: int = BEGINNING,
        to_ts: int = END_OF_TIME,
        stream: int | None = None,
        after: Sink | None = None,
        limit: int = 100,
    ) -> list[Sink]:
        """Sinks with from_ts <= ts <= to_ts, of all streams or of one, by time and id. `after` is the last one of the
        page before."""
        query, values = f"{_SINK} WHERE ts BETWEEN ? AND ?", [max(from_ts, after.ts) if after else from_ts, to_ts]
        if after:
            query, values = f"{query} AND (ts, id) > (?, ?)", [*values, after.ts, after.id]
        if stream is not None:
            first = stream << SEQ_BITS
            query, values = f"{query} AND id BETWEEN ? AND ?", [*values, first, first + (1 << SEQ_BITS) - 1]
        with self._moment():
            return [_sink(row) for row in self._db.execute(f"{query} ORDER BY ts, id LIMIT ?", (*values, limit))]

    # Edges

    def backward(self, sink: int) -> list[OriginEdge]:
        """The sources of a sink, by id."""
        with self._moment():
            found = self._db.execute("SELECT edges FROM sinks WHERE id=?", (sink,)).fetchone()
            if not found:
                return []
            ids, flags = unpack(found[0], 2)
            sources = self._tables.sources.find(ids)
        times = dict(zip(sources[0].tolist(), sources[1].tolist(), strict=True))
        edges = sorted(zip(ids.tolist(), flags.tolist(), strict=True))
        return [OriginEdge(each, times[each], EdgeFlag(flag)) for each, flag in edges]

    def forward(self, source: int) -> list[int]:
        """The sinks of a source, by id."""
        with self._moment():
            return sorted(self._tables.forward.find(np.array([source], "<i8"))[1].tolist())

    def intermediate(self, tuple_id: int) -> Intermediate | None:
        """A delivery of a Send, with its direct origins."""
        ids = np.array([tuple_id], "<i8")
        with self._moment():
            (_, ts, part), origins = self._tables.deliveries.find(ids), self._tables.origins.find(ids)
        if not len(ts):
            return None
        direct = sorted(zip(*[column.tolist() for column in origins[1:]], strict=True))
        origins_of = tuple(DirectOrigin(each, at, bool(remote)) for each, at, remote in direct)
        return Intermediate(tuple_id, int(ts[0]), len(part) == int(part[0] & OTHER_PARTS) + 1, origins_of)

    def late_of(self, sink: int) -> list[LateOrigin]:
        """What of a sink's origins came too late, by id."""
        with self._moment():
            rows = self._db.execute("SELECT * FROM late WHERE sink=? ORDER BY origin", (sink,)).fetchall()
        return [_late(row) for row in rows]

    def lost_of(self, sink: int) -> list[int]:
        """The intermediate tuples that a sink came from and that will never come."""
        with self._moment():
            rows = self._db.execute("SELECT origin FROM lost WHERE sink=? ORDER BY origin", (sink,)).fetchall()
        return [origin for (origin,) in rows]

    def payload(self, tuple_id: int) -> Payload | None:
        """What a tuple said."""
        with self._moment():
            return find_payload(self._db, tuple_id)

    # All of it

    def every_sink(self) -> Iterator[Sink]:
        """All sinks by id."""
        return map(_sink, self._db.execute(f"{_SINK} ORDER BY id"))

    def every_source(self) -> Iterator[Source]:
        """All source vertices by id."""
        for ids, ts, stamps, sent in self._tables.sources.every():
            labels = self._tables.labels.find(ids)
            label = dict(zip(labels[0].tolist(), labels[1].tolist(), strict=True))
            for each, *values, is_sent in zip(ids.tolist(), ts.tolist(), stamps.tolist(), sent.tolist(), strict=True):
                yield Source(each, values[0], values[1], label.get(each), bool(is_sent))

    def every_edge(self) -> Iterator[tuple[int, int]]:
        """All edges as (source, sink), by source."""
        for source, sink in self._tables.forward.every():
            yield from zip(source.tolist(), sink.tolist(), strict=True)

    def every_late(self) -> Iterator[LateOrigin]:
        """The late relation."""
        return map(_late, self._db.execute("SELECT * FROM late"))

    # Following

    def changes(self, after: Cursor, limit: int) -> Iterator[Change]:
        """At most `limit` changes behind a cursor, one by one, in the order in which they were made. CursorExpired if
        retention has removed some of them: begin anew, with all of the graph, at `feed_end`."""
        with errors_told(self._path):
            yield from feed.changes(self._db, after, limit)

    def feed_start(self) -> Cursor:
        """Behind what retention has removed from the feed: the oldest cursor that can be read from."""
        with errors_told(self._path):
            return feed.start(self._db)

    def feed_end(self) -> Cursor:
        """Behind the last change."""
        with self._moment():
            return feed.end(self._db)


def _sink(row: tuple[int, int, int, int | None, int, int]) -> Sink:
    tuple_id, ts, stamp, label_stamp, flags, origins = row
    return Sink(tuple_id, ts, stamp, label_stamp, SinkFlag(flags), origins)


def _late(row: tuple[int, int, int, int, int | None, int]) -> LateOrigin:
    sink, origin, ts, reason, via, stamp = row
    return LateOrigin(sink, origin, ts, Reason(reason), via, stamp)

"""The graph for those who ask: read-only, beside the writer, in any process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from collector import filters
from collector.store import captured_graph, captured_rows, feed
from collector.store.captured_graph import DataNode
from collector.store.captured_rows import (
    DataQuery,
    DataRow,
    RunKey,
    TaskQuery,
    TaskRow,
    WorkflowQuery,
    WorkflowRow,
)
from collector.store.compared import Comparison, compare
from collector.store.connection import connect_reader, errors_told
from collector.store.feed import Change, ChangeKind, Cursor
from collector.store.nonces import signed
from collector.store.packing import all_rows, distinct, unpack
from collector.store.pages import PAGE_BITS
from collector.store.payloads import Payload, Payloads
from collector.store.people import SENSELESS, People, Span
from collector.store.row_query import Page
from collector.store.seal import NotAsWritten, named
from collector.store.tables import Tables
from collector.store.vertices import (
    EDGES,
    SINK,
    Derivation,
    Sent,
    Sink,
    Source,
    TupleFound,
    derived_of,
    find_tuples,
    origins_of,
    sink_of,
    unsealed_edges,
)
from protocol.chunks import OTHER_PARTS, SEQ_BITS, Numbers
from protocol.graph import EdgeFlag, Reason
from protocol.records import BEGINNING, END_OF_TIME

_FEW = 1_000
_NO_START = 0  # they are numbered from 1
SinkState = Literal["open", "complete", "incomplete"]
_STATES: dict[SinkState, str] = {
    "open": "label_stamp IS NULL",
    "complete": "label_stamp IS NOT NULL AND flags = 0",
    "incomplete": "flags <> 0",
}


class SinkCount(NamedTuple):
    """The sinks of a stream in a slot of time."""

    stream: int
    slot: int
    sinks: int
    origins: int
    open: int
    incomplete: int


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
        self._payloads = Payloads(self._db)
        filters.register(self._db)
        with self.moment():
            (self.identity,) = self._db.execute("SELECT id FROM identity").fetchone()
            """Of the store, as long as nothing is put in its place."""

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
        found = self.tuples([tuple_id]).get(tuple_id)
        return None if isinstance(found, Sent) else found

    def tuples(self, ids: Iterable[int], likely_sinks: Iterable[int] = ()) -> dict[int, TupleFound]:
        """What these tuples are, without those that neither the graph nor a Send knows. It is faster if one says which
        of them are sinks."""
        with self.moment():
            return find_tuples(self._tables, ids, likely_sinks)

    def sinks(
        self,
        *,
        from_ts: int = BEGINNING,
        to_ts: int = END_OF_TIME,
        streams: Iterable[int] | None = None,
        state: SinkState | None = None,
        after: tuple[int, int] | None = None,
        newest_first: bool = False,
        limit: int = 100,
    ) -> list[Sink]:
        """Sinks with from_ts <= ts <= to_ts, of all streams or of some, by time and id. `after` is (ts, id) of the last
        one of the page before."""
        query, values = "ts BETWEEN ? AND ?", [from_ts, to_ts]
        if after:
            query, values = f"{query} AND (ts, id) {'<' if newest_first else '>'} (?, ?)", [*values, *after]
        if state:
            query += f" AND {_STATES[state]}"
        way = "DESC" if newest_first else "ASC"
        order = f"ORDER BY ts {way}, id {way} LIMIT ?"
        with self.moment():
            if streams is None:
                return [sink_of(row) for row in self._db.execute(f"{SINK} WHERE {query} {order}", (*values, limit))]
            of_stream = f"{SINK} WHERE id >> {SEQ_BITS} = ? AND {query} {order}"
            found = [
                sink_of(row)
                for stream in sorted(set(streams))
                for row in self._db.execute(of_stream, (stream, *values, limit))
            ]
        return sorted(found, key=lambda sink: (sink.ts, sink.id), reverse=newest_first)[:limit]

    def count_sinks(self, from_ts: int, to_ts: int, width_ms: int, streams: Iterable[int] | None) -> list[SinkCount]:
        """Sinks of each stream by time, in slots of so many ms from `from_ts` on; those that have none are left out."""
        query = f"""SELECT id >> {SEQ_BITS}, (ts - ?1) / ?3 AS slot, count(*), sum(origins),
            sum(label_stamp IS NULL), sum(flags <> 0) FROM sinks WHERE ts BETWEEN ?1 AND ?2 {{}} GROUP BY 1, 2"""
        with self.moment():
            if streams is None:
                rows = self._db.execute(query.format(""), (from_ts, to_ts, width_ms)).fetchall()
            else:
                only = query.format(f"AND id >> {SEQ_BITS} = ?4")
                values = [(from_ts, to_ts, width_ms, stream) for stream in sorted(set(streams))]
                rows = [row for each in values for row in self._db.execute(only, each)]
        return [SinkCount(*row) for row in rows]

    def times(self, streams: Iterable[int] | None, agent: str | None) -> tuple[int | None, int | None]:
        """From when to when there are sinks, of some streams, or else tasks, of an agent. What is at the ends of time
        does not count."""
        sinks = f"SELECT min(ts), max(ts) FROM sinks WHERE ts > {BEGINNING} AND ts < {END_OF_TIME}"
        with self.moment():
            if streams is None:
                found = self._db.execute(sinks).fetchall()
            else:
                of_stream = f"{sinks} AND id >> {SEQ_BITS} = ?"
                found = [self._db.execute(of_stream, (stream,)).fetchone() for stream in streams]
            known = [each for pair in found for each in pair if each is not None]
            if not known:
                tasks = "SELECT min(begun_ts), max(begun_ts) FROM tasks JOIN starts ON number = start"
                pair = self._db.execute(f"{tasks} WHERE ?1 IS NULL OR agent = ?1", (agent,)).fetchone()
                known = [each for each in pair if each is not None]
        return min(known, default=None), max(known, default=None)

    def count_tasks(
        self, from_ms: int, to_ms: int, width_ms: int, agent: str | None
    ) -> tuple[dict[int, int], dict[int, int]]:
        """By slot of time: how many tasks have begun there, and how many of those have failed."""
        query = (
            "SELECT (begun_ts - ?1) / ?3, count(*), sum(coalesce(tasks.status, '') = 'failed') FROM tasks"
            " JOIN starts ON number = start WHERE begun_ts BETWEEN ?1 AND ?2 AND (?4 IS NULL OR agent = ?4) GROUP BY 1"
        )
        rows = self._rows(query, from_ms, to_ms, width_ms, agent)
        return {slot: begun for slot, begun, _ in rows}, {slot: failed for slot, _, failed in rows}

    def sources_of(self, stream: int, from_ts: int, to_ts: int, most: int) -> Numbers | None:
        """The ids of the source vertices of a stream from one time to another, and of readings that came too late to be
        one; None if there are more than `most`."""
        bounds = stream << SEQ_BITS, ((stream + 1) << SEQ_BITS) - 1
        with self.moment():
            query = (
                "SELECT DISTINCT origin FROM late WHERE origin BETWEEN ? AND ? AND origin_ts BETWEEN ? AND ? LIMIT ?"
            )
            late = self._db.execute(query, (*bounds, from_ts, to_ts, most + 1)).fetchall()
            found = [np.array([each for (each,) in late], "<i8")]
            count = len(late)
            for ids, _ in self._tables.sources.between(*bounds, from_ts, to_ts):
                self.check_time()
                found.append(ids)
                count += len(ids)
                if count > most:
                    return None
        return distinct(np.concatenate(found)) if count <= most else None

    def is_sent_on(self, stream: int) -> bool:
        """Whether tuples of a stream were sent to other agents."""
        with self.moment():
            page = next(iter(self._tables.deliveries.pages((stream << SEQ_BITS >> PAGE_BITS) - 1)), None)
        return page is not None and page < (stream + 1) << SEQ_BITS >> PAGE_BITS

    def told_at(self, stamp: int) -> int | None:
        """When the first batch with this stamp was written, None if that is forgotten."""
        with self.moment():
            query = "SELECT min(written_ms) FROM batches WHERE stamp=?"
            found: int | None = self._db.execute(query, (stamp,)).fetchone()[0]
        return found

    # Edges

    def backward(self, sink: int) -> list[OriginEdge]:
        """The sources of a sink, by id."""
        with self.moment():
            found = self._db.execute(EDGES, (sink,)).fetchone()
            if not found:
                return []
            ids, flags = unpack(unsealed_edges(*found), 2)
            sources = self._tables.sources.find(ids)
            times = dict(zip(sources[0].tolist(), sources[1].tolist(), strict=True))
            if len(times) < len(ids):
                raise NotAsWritten(f"source_pages: sources of {named(sink)} are not there")
        edges = sorted(zip(ids.tolist(), flags.tolist(), strict=True))
        return [OriginEdge(each, times[each], EdgeFlag(flag)) for each, flag in edges]

    def edges_of(self, sink: int) -> list[tuple[int, int]]:
        """The sources of a sink by id, and what is special about each of them (EdgeFlag)."""
        with self.moment():
            found = self._db.execute(EDGES, (sink,)).fetchone()
            packed = unsealed_edges(*found) if found else b""
        return sorted((each, flag) for each, flag in all_rows(packed, 2))

    def origin_count(self, sink: int) -> int | None:
        """How many sources a sink has, None if it is no sink."""
        with self.moment():
            found = self._db.execute(f"{SINK} WHERE id=?", (sink,)).fetchone()
            return sink_of(found).origins if found else None

    def forward(self, source: int) -> list[int]:
        """The sinks of a source, by id."""
        with self.moment():
            return sorted(sink for _, sink in self._tables.forward.rows([source]))

    def touched(self, sources: Numbers) -> tuple[Numbers, Numbers]:
        """All edges of these sources, as columns of sources and sinks."""
        with self.moment():
            found, sinks = self._tables.forward.find(sources)
        return found, sinks

    def forward_bytes(self, source: int) -> int:
        """About how much has to be read to know the sinks of a source."""
        with self.moment():
            return self._tables.forward.size_bytes(source)

    def late_touched(self, sources: Numbers) -> tuple[Numbers, Numbers]:
        """The late relation from some origins, as columns of origins and sinks."""
        with self.moment():
            if len(sources) <= _FEW:
                query = "SELECT origin, sink FROM late WHERE origin=?"
                pairs = [pair for each in sources.tolist() for pair in self._db.execute(query, (each,))]
            else:
                pairs = self._db.execute("SELECT origin, sink FROM late").fetchall()
        origins, sinks = np.array(pairs, "<i8").reshape(-1, 2).T
        is_wanted = np.isin(origins, sources)
        return origins[is_wanted], sinks[is_wanted]

    def states_of(self, ids: Numbers) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For each tuple whether it is a source vertex, and whether it is expired."""
        with self.moment():
            return self._tables.sources.known(ids), self._tables.labels.known(ids)

    def origins_of(self, ids: Iterable[int]) -> list[Derivation]:
        """What these tuples came from directly."""
        with self.moment():
            return origins_of(self._tables, ids)

    def derived_of(self, ids: Iterable[int]) -> list[Derivation]:
        """What came from these tuples directly."""
        with self.moment():
            return derived_of(self._tables, ids)

    def intermediate(self, tuple_id: int) -> Intermediate | None:
        """A delivery of a Send, with its direct origins."""
        ids = np.array([tuple_id], "<i8")
        with self.moment():
            (_, ts, part), origins = self._tables.deliveries.find(ids), self._tables.origins.find(ids)
        if not len(ts):
            return None
        direct = sorted(zip(*[column.tolist() for column in origins[1:]], strict=True))
        origins_of = tuple(DirectOrigin(each, at, bool(remote)) for each, at, remote in direct)
        return Intermediate(tuple_id, int(ts[0]), len(part) == int(part[0] & OTHER_PARTS) + 1, origins_of)

    def late_of(self, sink: int) -> list[LateOrigin]:
        """What of a sink's origins came too late, by id."""
        with self.moment():
            rows = self._db.execute("SELECT * FROM late WHERE sink=? ORDER BY origin", (sink,)).fetchall()
        return [_late(row) for row in rows]

    def late_sinks_of(self, origin: int) -> list[int]:
        """The sinks that an origin came too late for, by id."""
        with self.moment():
            rows = self._db.execute("SELECT sink FROM late WHERE origin=? ORDER BY sink", (origin,)).fetchall()
        return [sink for (sink,) in rows]

    def late(self, streams: Iterable[int] | None, span: Span, after: tuple[int, int], limit: int) -> list[LateOrigin]:
        """The late relation by sink and origin: of sinks of some streams, and of origins within a span of time. `after`
        is (sink, origin) of the last one of the page before."""
        query = (
            "SELECT * FROM late WHERE (sink, origin) > (?, ?) AND origin_ts BETWEEN ? AND ? {} ORDER BY sink, origin"
            " LIMIT ?"
        )
        values = (*after, *span)
        with self.moment():
            if streams is None:
                return [_late(row) for row in self._db.execute(query.format(""), (*values, limit))]
            of_stream = query.format("AND sink BETWEEN ? AND ?")
            rows: list[LateOrigin] = []
            for stream in sorted(set(streams)):
                bounds = (stream << SEQ_BITS, ((stream + 1) << SEQ_BITS) - 1)
                found = self._db.execute(of_stream, (*values, *bounds, limit - len(rows)))
                rows += [_late(row) for row in found]
        return rows

    def lost_of(self, sink: int) -> list[int]:
        """The intermediate tuples that a sink came from and that will never come."""
        with self.moment():
            rows = self._db.execute("SELECT origin FROM lost WHERE sink=? ORDER BY origin", (sink,)).fetchall()
        return [origin for (origin,) in rows]

    def payload(self, tuple_id: int) -> Payload | None:
        """What a tuple said."""
        return self.payloads([tuple_id]).get(tuple_id)

    def payloads(self, ids: Iterable[int]) -> dict[int, Payload]:
        """What these tuples said, of those of which that is known."""
        with self.moment():
            return self._payloads.find(ids)

    # Captured

    def tasks(self, query: TaskQuery) -> Page[TaskRow]:
        """Tasks by what was asked."""
        with self.moment():
            return captured_rows.find_tasks(self._db, query)

    def tasks_after(self, agent: str, nonce: int, key: int) -> list[tuple[int, int, int | None]]:
        """Tasks of a start of an agent behind this one: key, when it has begun, and when it has ended, if it has."""
        query = (
            "SELECT key, begun_ts, ended_ts FROM starts JOIN tasks ON start = number"
            " WHERE agent=? AND nonce=? AND key>? AND begun_ts IS NOT NULL ORDER BY key"
        )
        return [(found, begun, ended) for found, begun, ended in self._rows(query, agent, signed(nonce), key)]

    def data(self, query: DataQuery) -> Page[DataRow]:
        """Data by what was asked, as tasks had it."""
        with self.moment():
            return captured_rows.find_data(self._db, query)

    def workflows(self, query: WorkflowQuery) -> Page[WorkflowRow]:
        """Runs of workflows by what was asked."""
        with self.moment():
            return captured_rows.find_workflows(self._db, query)

    def tasks_at(self, keys: Iterable[RunKey]) -> dict[RunKey, TaskRow]:
        """These tasks, as far as they are there."""
        with self.moment():
            return captured_rows.tasks_at(self._db, keys)

    def workflows_at(self, keys: Iterable[RunKey]) -> dict[RunKey, WorkflowRow]:
        """These runs of workflows, as far as they are there."""
        with self.moment():
            return captured_rows.workflows_at(self._db, keys)

    def has_captured(self, node: captured_graph.Node) -> bool:
        """Whether there is such a task, or such data."""
        with self.moment():
            return captured_graph.exists(self._db, node)

    def captured_origins_of(self, nodes: Iterable[captured_graph.Node]) -> captured_graph.Level:
        """What these tasks and data came from directly."""
        with self.moment():
            return captured_graph.origins_of(self._db, nodes)

    def captured_derived_of(self, nodes: Iterable[captured_graph.Node]) -> captured_graph.Level:
        """What came from these tasks and data directly."""
        with self.moment():
            return captured_graph.derived_of(self._db, nodes)

    def data_meant(self, start: int, workflow_id: str, data_id: str) -> list[DataNode]:
        """The data that a start means by a name."""
        with self.moment():
            return list(captured_graph.meant_by(self._db, start, workflow_id, data_id))

    def data_named(self, workflow_id: str, data_id: str) -> list[DataNode]:
        """All data of a name."""
        with self.moment():
            meant = captured_graph.meant_by(self._db, _NO_START, workflow_id, data_id)
            return [node for node in meant if captured_graph.exists(self._db, node)]

    def attributes_of(self, nodes: Iterable[DataNode]) -> dict[DataNode, Any]:
        """What was last told of data, if anything was."""
        with self.moment():
            told = captured_graph.told_of(self._db, nodes)
        return {node: row.attributes for node, row in told.items()}

    def compare(self, runs: Sequence[RunKey]) -> Comparison:
        """Several runs of workflows side by side."""
        with self.moment():
            return compare(self._db, runs)

    # Following

    def last_written_ms(self) -> int | None:
        """When something was last written."""
        rows = self._rows("SELECT written_ms FROM batches ORDER BY number DESC LIMIT 1")
        return rows[0][0] if rows else None

    def changes(self, after: Cursor, limit: int) -> Iterator[Change]:
        """At most `limit` changes behind a cursor, one by one, in the order in which they were made. CursorExpired if
        retention has removed some of them: begin anew, with all of the graph, at `feed_end`."""
        with errors_told(self._path):
            try:
                yield from feed.changes(self._db, after, limit)
            except SENSELESS as error:
                raise NotAsWritten(f"feed: {error!r}") from error

    def told(self, kind: ChangeKind, after_row: int) -> list[tuple[int, list[Numbers]]]:
        """All changes of one kind behind a row of the feed: the number of each row, and its changes as columns (see
        `Change`). For those who want only these, as fast as can be; that some were removed is not told."""
        with self.moment():
            return list(feed.told(self._db, kind, after_row))

    def feed_start(self) -> Cursor:
        """Behind what retention has removed from the feed: the oldest cursor that can be read from."""
        with errors_told(self._path):
            return feed.start(self._db)

    def feed_end(self) -> Cursor:
        """Behind the last change."""
        with self.moment():
            return feed.end(self._db)


def _late(row: tuple[int, int, int, int, int | None, int]) -> LateOrigin:
    sink, origin, ts, reason, via, stamp = row
    return LateOrigin(sink, origin, ts, Reason(reason), via, stamp)

"""Graphs for tests: batches made of plain values, a store that does not wait for the disk, what it holds as sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collector.store import StoreReader, StoreWriter
from protocol.chunks import DeliveryChunk
from protocol.graph import Edges, GraphBatch, LateEdges, LostOrigins, SinkLabels, Sinks, Sources
from protocol.row import Row
from protocol.topics import SHARDS
from tests.support.whole_graph import every_edge, every_late, every_sink, every_source

Pair = tuple[int, int]


def tuple_id(stream: int, seq: int) -> int:
    return stream << 36 | seq


def columns(rows: Iterable[Sequence[int]], *types: str) -> list[Any]:
    """Rows turned on their side."""
    rows = list(rows)
    return [np.array([row[place] for row in rows], kind) for place, kind in enumerate(types)]


def graph_batch(
    query: str,
    batch: int,
    *,
    stamp: int = 0,
    sinks: dict[int, int] | None = None,
    sources: dict[int, int] | None = None,
    edges: Iterable[Pair] = (),
    sink_labels: Iterable[int] = (),
    source_labels: Iterable[int] = (),
    late: Iterable[tuple[int, int, int, int]] = (),
    lost: Iterable[Pair] = (),
    deliveries: Sequence[DeliveryChunk] = (),
    rows: Sequence[Row] = (),
    read: tuple[str, str] | None = None,
) -> GraphBatch:
    """Sinks and sources by id with their ts, edges and lost origins as (sink, origin). Unless said otherwise
    (`read`: since, upto), each batch reads a row of every shard."""
    since, upto = read or (json.dumps({shard: [1, row] for shard in range(SHARDS)}) for row in (batch, batch + 1))
    return GraphBatch(
        query,
        batch,
        stamp,
        Sinks(*columns((sinks or {}).items(), "<i8", "<i8")),
        Sources(*columns([(each, ts, 0) for each, ts in (sources or {}).items()], "<i8", "<i8", "u1")),
        Edges(*columns([(*pair, 0) for pair in edges], "<i8", "<i8", "u1")),
        SinkLabels(*columns([(each, 0) for each in sink_labels], "<i8", "u1")),
        np.array(list(source_labels), "<i8"),
        LateEdges(*columns(late, "<i8", "<i8", "<i8", "u1")),
        LostOrigins(*columns(lost, "<i8", "<i8")),
        list(deliveries),
        list(rows),
        since,
        upto,
    )


def delivery(tuple_id: int, ts: int, origins: Iterable[tuple[int, int, int]] = (), *, part: int = 0) -> DeliveryChunk:
    """One delivery of a Send; origins as (id, ts, remote)."""
    of = list(origins)
    ids, times, remote = columns(of, "<i8", "<i8", "u1")
    head = columns([(tuple_id, ts, len(of), part, 1)], "<i8", "<i8", "<i4", "<i4", "u1")
    return DeliveryChunk(*[*head, ids, times, remote])


class QuickWriter(StoreWriter):
    """A writer that does not wait for the disk: a test reads what it wrote through the same kernel."""

    def __init__(self, path: Path, **options: Callable[[], int]) -> None:
        super().__init__(path, **options)
        self._db.execute("PRAGMA synchronous=OFF")


class Graph(NamedTuple):
    """All of a graph as plain values."""

    sinks: dict[int, int]
    sources: dict[int, int]
    edges: set[Pair]
    sink_labels: set[int]
    source_labels: set[int]
    late: set[Pair]


def stored_graph(reader: StoreReader) -> Graph:
    """What the store holds, checked to be the same whichever way it is read, and to be what it counts."""
    sinks, sources, late = list(every_sink(reader)), list(every_source(reader)), list(every_late(reader))
    edges = [(sink, source) for source, sink in every_edge(reader)]
    backward = [(sink.id, edge.id) for sink in sinks for edge in reader.backward(sink.id)]
    assert sorted(edges) == sorted(backward)
    assert len(edges) == len(set(edges))
    assert all(sink.origins == sum(sink.id == each for each, _ in edges) for sink in sinks)
    assert len({each.id for each in sources}) == len(sources)
    graph = Graph(
        {each.id: each.ts for each in sinks},
        {each.id: each.ts for each in sources},
        set(edges),
        {each.id for each in sinks if each.label_stamp is not None},
        {each.id for each in sources if each.label_stamp is not None},
        {(each.sink, each.origin) for each in late},
    )
    counters = reader.counters()
    for name in Graph._fields:
        assert counters.get(name, 0) == len(getattr(graph, name)), name
    return graph

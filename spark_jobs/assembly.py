"""From the last chunk rows of a micro-batch to what a store keeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from protocol.chunks import DeliveryChunk, unpack
from protocol.graph import Edges, GraphBatch, LateEdges, LostOrigins, SinkLabels, Sinks, Sources, no_numbers
from protocol.records import BEGINNING
from spark_jobs.ank import LEVEL
from spark_jobs.chunks import Chunk, Kind, joined, read_rows
from spark_jobs.shelf import Columns


def assemble(query: str, batch: int, chunks: Sequence[Chunk]) -> GraphBatch:
    """All that a micro-batch adds, by parts; each part is sorted, whatever the order of the chunks."""
    stamps = joined(chunks, Kind.STAMP)
    made = GraphBatch(query, batch, int(stamps[0].max()) if stamps else BEGINNING)
    labels = _sorted(chunks, Kind.SOURCE_LABEL, 0)
    made.sinks = Sinks(*(_sorted(chunks, Kind.NEW_SINK, 0) or ()))
    made.sources = Sources(*(_sorted(chunks, Kind.NEW_SOURCE, 0) or ()))
    made.edges = Edges(*(_sorted(chunks, Kind.NEW_EDGE, 1, 0) or ()))
    made.sink_labels = SinkLabels(*(_sorted(chunks, Kind.SINK_LABEL, 0) or ()))
    made.source_labels = labels[0] if labels else no_numbers()
    made.late = LateEdges(*(_sorted(chunks, Kind.LATE, 1, 0) or ()))
    made.lost = LostOrigins(*(_sorted(chunks, Kind.LOST, 1, 0) or ()))
    for data in sorted(chunk.data for chunk in chunks if chunk.kind == Kind.DELIVERED):
        made.deliveries.append(_deliveries(data))
    for data in sorted(chunk.data for chunk in chunks if chunk.kind == Kind.ROWS):
        made.rows += read_rows(data)
    return made


def _sorted(chunks: Sequence[Chunk], kind: Kind, *by: int) -> Columns | None:
    columns = joined(chunks, kind)
    if columns is None:
        return None
    order = np.lexsort([columns[place] for place in reversed(by)])
    return [column[order] for column in columns]


def _deliveries(data: bytes) -> DeliveryChunk:
    ids, times, part, counts, origins, origin_times, remote, sent = unpack(data)
    return DeliveryChunk(ids, times, counts.astype("<i4"), part, sent, origins, origin_times, remote)


@dataclass(slots=True)
class Figures:
    """How much the buckets of all stages keep."""

    deliveries: int = 0
    waiting: int = 0
    live_sources: int = 0
    pending_sinks: int = 0
    pairs: int = 0
    state_bytes: int = 0
    frontiers: dict[str, int] = field(default_factory=dict)
    """Of the sinks that are furthest behind: how far they have come, as `agent/sink`."""


def figures(chunks: Sequence[Chunk]) -> Figures:
    """What the stages say of themselves."""
    found = Figures()
    for chunk in chunks:
        if chunk.kind == Kind.FRONTIERS:
            found.frontiers = {f"{agent}/{sink}": reached for reached, agent, sink in json.loads(chunk.data)}
        if chunk.kind != Kind.FIGURES:
            continue
        level, *numbers = unpack(chunk.data)[0].tolist()
        if level == LEVEL:
            found.live_sources += numbers[0]
            found.pending_sinks += numbers[1]
            found.pairs += numbers[2]
            found.state_bytes += numbers[3]
        else:
            found.deliveries += numbers[0]
            found.waiting += numbers[1]
            found.state_bytes += numbers[2]
    return found

"""What one micro-batch adds to the live forward-provenance graph: what the pipeline computes and a store keeps.

The columns of a part belong together, row by row. A store keeps all of it in one transaction, in this order: sink
vertices, source vertices, edges, labels (K, S, E, L), then what came too late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import DeliveryChunk, Numbers
from protocol.row import Row

Flags = NDArray[np.uint8]


class EdgeFlag(IntFlag):
    """What is special about an edge."""

    TOO_DEEP = 1
    """Its origin is a tuple that an agent sent to another, because the chain of agents is longer than the pipeline."""


class SinkFlag(IntFlag):
    """What is special about a sink tuple whose origins are all told."""

    INCOMPLETE = 1
    """Some of its origins will never come: a Gap, or a damaged log."""


class Reason(IntEnum):
    """Why something stands in the late relation and not in the graph."""

    AFTER_LABEL = 1
    """The source had been labelled as expired before."""
    PURGED = 2
    """The origin is an intermediate tuple that the pipeline had let go of: the store resolves it."""


def no_numbers() -> Numbers:
    """An empty column."""
    return np.empty(0, "<i8")


def no_flags() -> Flags:
    """An empty column of flags."""
    return np.empty(0, "u1")


@dataclass(slots=True)
class Sinks:
    """Sink vertices."""

    id: Numbers = field(default_factory=no_numbers)
    ts: Numbers = field(default_factory=no_numbers)


@dataclass(slots=True)
class Sources:
    """Source vertices; `sent` is 1 for an intermediate tuple that stands for its sources (too deep)."""

    id: Numbers = field(default_factory=no_numbers)
    ts: Numbers = field(default_factory=no_numbers)
    sent: Flags = field(default_factory=no_flags)


@dataclass(slots=True)
class Edges:
    """From a source vertex to a sink vertex; flags are of EdgeFlag."""

    sink: Numbers = field(default_factory=no_numbers)
    source: Numbers = field(default_factory=no_numbers)
    flags: Flags = field(default_factory=no_flags)


@dataclass(slots=True)
class SinkLabels:
    """Sink vertices to which no edge will be added; flags are of SinkFlag."""

    id: Numbers = field(default_factory=no_numbers)
    flags: Flags = field(default_factory=no_flags)


@dataclass(slots=True)
class LateEdges:
    """What is not in the graph because it came too late; reasons are of Reason."""

    sink: Numbers = field(default_factory=no_numbers)
    origin: Numbers = field(default_factory=no_numbers)
    origin_ts: Numbers = field(default_factory=no_numbers)
    reason: Flags = field(default_factory=no_flags)


@dataclass(slots=True)
class LostOrigins:
    """Origins of sink tuples that will never come: tuples of a Send that the log does not have."""

    sink: Numbers = field(default_factory=no_numbers)
    origin: Numbers = field(default_factory=no_numbers)


@dataclass(slots=True)
class GraphBatch:
    """All that one micro-batch adds. (query, batch) is its name: a store that has seen it skips it."""

    query: str
    batch: int
    stamp: int
    """The frontier: how far the sinks had come."""
    sinks: Sinks = field(default_factory=Sinks)
    sources: Sources = field(default_factory=Sources)
    edges: Edges = field(default_factory=Edges)
    sink_labels: SinkLabels = field(default_factory=SinkLabels)
    source_labels: Numbers = field(default_factory=no_numbers)
    late: LateEdges = field(default_factory=LateEdges)
    lost: LostOrigins = field(default_factory=LostOrigins)
    deliveries: list[DeliveryChunk] = field(default_factory=list)
    """With their direct origins: those of Sends, which are intermediate tuples, and those of sinks that came from such.
    Those of a chunk are of one shard."""
    rows: list[Row] = field(default_factory=list)
    """Everything else that the log says, for the store alone: names of streams, plans, payloads, status, captured
    events, progress, gaps, ends."""
    since: str = ""
    """From where on the log was read for it: a position is JSON, of each shard [segment, row]."""
    upto: str = ""
    """Up to where."""

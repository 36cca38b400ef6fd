"""Reads the whole change feed of a store and checks it: order, nothing twice, nothing after a label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.store import StoreReader
from collector.store.feed import Change, ChangeKind, Cursor
from protocol.graph import Edges, GraphBatch, LateEdges, SinkLabels, Sinks, Sources
from protocol.graph_invariants import GraphInvariants

_PAGE = 100_000


def check_feed(reader: StoreReader, all_labelled: bool) -> list[str]:
    """What is wrong with the graph as it was told, from its beginning; nothing, if it is as it should be.

    `all_labelled`: whether every vertex must have its label by now.
    """
    invariants = GraphInvariants()
    findings = [finding for batch in _batches(reader) for finding in invariants.add(batch)]
    return findings + invariants.finish(all_labelled)


def _batches(reader: StoreReader) -> Iterator[GraphBatch]:
    """The changes in pieces of which each begins anew with vertices, as micro-batches do."""
    piece: list[Change] = []
    number = 0
    for change in _changes(reader):
        if piece and change.kind < piece[-1].kind:
            yield _batch(number, piece)
            piece, number = [], number + 1
        piece.append(change)
    if piece:
        yield _batch(number, piece)


def _changes(reader: StoreReader) -> Iterator[Change]:
    cursor = Cursor()
    while found := list(reader.changes(cursor, _PAGE)):
        yield from found
        cursor = found[-1].cursor


def _batch(number: int, changes: list[Change]) -> GraphBatch:
    def columns(kind: ChangeKind, *types: str) -> list[NDArray[Any]]:
        values = [change.values for change in changes if change.kind == kind]
        return [np.array([each[place] for each in values], type_) for place, type_ in enumerate(types)]

    made = GraphBatch("feed", number, changes[0].stamp)
    made.sinks = Sinks(*columns(ChangeKind.SINK, "<i8", "<i8"))
    made.sources = Sources(*columns(ChangeKind.SOURCE, "<i8", "<i8", "u1"))
    made.edges = Edges(*columns(ChangeKind.EDGE, "<i8", "<i8", "u1"))
    made.sink_labels = SinkLabels(*columns(ChangeKind.SINK_LABEL, "<i8", "u1"))
    (made.source_labels,) = columns(ChangeKind.SOURCE_LABEL, "<i8")
    made.late = LateEdges(*columns(ChangeKind.LATE, "<i8", "<i8", "<i8", "u1"))
    return made

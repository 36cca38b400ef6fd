"""What of a micro-batch is new to the store.

Sinks are rows, so whether one is known, and complete, is always looked up, and with it its edges. Source vertices are
packed, and a query tells each of them once: they are looked up only where another query has written before, as when a
new checkpoint replays the log. What is stored stays as it is, in whatever order or shape it is told again: a sink that
is labelled takes nothing more, and an edge to a source that is labelled already is late. What retention has removed is
gone for good: nothing is told twice.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collector.store.late import NOT_VIA, LateRows
from collector.store.packing import among, distinct, groups_of, spans_of, unpack
from collector.store.replay import Replay
from collector.store.tables import Tables
from collector.store.vertices import SINK_AND_EDGES, sink_of, unsealed_edges
from protocol.chunks import Numbers
from protocol.graph import Edges, GraphBatch, LostOrigins, Reason, SinkLabels, Sinks, Sources

Mask = NDArray[np.bool_]


class StoredSink(NamedTuple):
    """What the store has of a sink tuple."""

    is_labelled: bool
    edges: bytes


@dataclass(slots=True)
class News:
    """What is new, everything sorted by ids: edges by sink and source."""

    sinks: Sinks
    sources: Sources
    edges: Edges
    sink_labels: SinkLabels
    source_labels: Numbers
    late: LateRows
    lost: LostOrigins
    stored: dict[int, StoredSink]
    """Of the sinks that the batch names, those that were known."""
    ignored: int
    """How many vertices, edges and labels were not new."""


def select(tables: Tables, batch: GraphBatch, late: LateRows, query: int, replay: Replay | None) -> News:
    """The part of a batch that the store does not have. `late` is what the batch has of it, resolved."""
    edges = _sorted_edges(batch.edges)
    parts = (batch.sinks.id, edges.sink[groups_of(edges.sink)], batch.sink_labels.id, late.sink, batch.lost.sink)
    stored = _stored_sinks(tables.db, distinct(np.concatenate(parts)))
    known = np.array(sorted(stored), "<i8")
    complete = np.array(sorted(each for each, sink in stored.items() if sink.is_labelled), "<i8")
    sinks = _new_sinks(batch.sinks, known)
    if replay:
        left = (sinks.ts >= replay.removed_before) | ~replay.are_told(tables.db, sinks.id)
        sinks = Sinks(sinks.id[left], sinks.ts[left])
    fillable = np.setdiff1d(np.union1d(sinks.id, known), complete, assume_unique=True)

    sources, labels = _by_id(batch.sources), np.sort(batch.source_labels, kind="stable")
    if replay:
        sources = _sources_at(sources, ~tables.sources.known(sources.id, unless=query))
        named = distinct(edges.source[among(edges.sink, fillable)])
        sources = _sources_at(sources, (sources.ts >= replay.removed_before) | among(sources.id, named))
        labels = labels[_is_there(tables, labels, sources.id) & ~tables.labels.known(labels, unless=query)]

    edges = _edges_at(edges, among(edges.sink, fillable))
    edges = _edges_at(edges, ~_known_edges(tables.db, edges, stored))
    if replay:
        edges, more = _split_late(tables, edges, batch.sources, sources.id, query)
        late = LateRows(*[np.concatenate(both) for both in zip(late.columns(), more.columns(), strict=True)])
    late = _new_late(tables.db, late, fillable, stored, edges)
    sink_labels = _new_sink_labels(batch.sink_labels, fillable)
    lost = _new_lost(tables.db, batch.lost, fillable)
    told = (batch.sinks.id, batch.sources.id, batch.edges.sink, batch.sink_labels.id, batch.source_labels)
    new = (sinks.id, sources.id, edges.sink, sink_labels.id, labels)
    return News(
        sinks, sources, edges, sink_labels, labels, late, lost, stored, sum(map(len, told)) - sum(map(len, new))
    )


def _stored_sinks(db: sqlite3.Connection, ids: Numbers) -> dict[int, StoredSink]:
    stored: dict[int, StoredSink] = {}
    query = f"{SINK_AND_EDGES} WHERE id=?"
    for each in ids.tolist():
        found = db.execute(query, (each,)).fetchone()
        if found:
            sink = sink_of(found[:-1])
            stored[each] = StoredSink(sink.label_stamp is not None, unsealed_edges(each, found[-1]))
    return stored


def _new_sinks(sinks: Sinks, known: Numbers) -> Sinks:
    ids, at = np.unique(sinks.id, return_index=True)
    fresh = ~np.isin(ids, known, assume_unique=True)
    return Sinks(ids[fresh], sinks.ts[at[fresh]])


def _by_id(sources: Sources) -> Sources:
    order = np.argsort(sources.id, kind="stable")
    return Sources(sources.id[order], sources.ts[order], sources.sent[order])


def _sources_at(sources: Sources, mask: Mask) -> Sources:
    return Sources(sources.id[mask], sources.ts[mask], sources.sent[mask])


def _sorted_edges(edges: Edges) -> Edges:
    """By sink and source."""
    order = np.lexsort((edges.source, edges.sink))
    return Edges(edges.sink[order], edges.source[order], edges.flags[order])


def _edges_at(edges: Edges, mask: Mask) -> Edges:
    return edges if mask.all() else Edges(edges.sink[mask], edges.source[mask], edges.flags[mask])


def _is_there(tables: Tables, ids: Numbers, new: Numbers) -> Mask:
    """Which source vertices are there, with those that are just being added."""
    found = among(ids, new)
    found[~found] = tables.sources.known(ids[~found])
    return found


def _known_edges(db: sqlite3.Connection, edges: Edges, stored: dict[int, StoredSink]) -> Mask:
    """Which edges are in the graph, or in the late relation."""
    known = np.zeros(len(edges.sink), bool)
    has_late = db.execute("SELECT EXISTS (SELECT 1 FROM late)").fetchone()[0]
    for begin, end in spans_of(groups_of(edges.sink), len(known)):
        sink = int(edges.sink[begin])
        if sink in stored:
            known[begin:end] |= np.isin(edges.source[begin:end], unpack(stored[sink].edges, 2)[0])
            if has_late:
                found = db.execute("SELECT origin FROM late WHERE sink=?", (sink,)).fetchall()
                known[begin:end] |= np.isin(edges.source[begin:end], [origin for (origin,) in found])
    return known


def _split_late(tables: Tables, edges: Edges, told: Sources, new: Numbers, query: int) -> tuple[Edges, LateRows]:
    """Edges to sources that another query has labelled before are late."""
    edges = _edges_at(edges, _is_there(tables, edges.source, new))
    expired = tables.labels.known(edges.source, unless=query)
    late = _edges_at(edges, expired)
    sources = tables.sources.find(late.source)
    ids, at = np.unique(np.concatenate((sources[0], told.id)), return_index=True)
    ts = np.concatenate((sources[1], told.ts))[at][np.searchsorted(ids, late.source)]
    reasons = np.full(len(late.sink), int(Reason.AFTER_LABEL), "<i8")
    return _edges_at(edges, ~expired), LateRows(late.sink, late.source, ts, reasons, np.full_like(ts, NOT_VIA))


def _new_late(
    db: sqlite3.Connection, late: LateRows, sinks: Numbers, stored: dict[int, StoredSink], edges: Edges
) -> LateRows:
    """Late rows of these sinks that neither the graph nor the late relation has, each pair once."""
    order = np.lexsort((late.origin, late.sink))
    late = LateRows(*[column[order] for column in late.columns()])
    fresh = among(late.sink, sinks)
    for begin, end in spans_of(groups_of(late.sink), len(late)):
        sink = int(late.sink[begin])
        first, last = np.searchsorted(edges.sink, (sink, sink + 1)).tolist()
        taken = set(edges.source[first:last].tolist())
        if sink in stored:
            taken.update(unpack(stored[sink].edges, 2)[0].tolist())
            for origin, via in db.execute("SELECT origin, via FROM late WHERE sink=?", (sink,)):
                taken.update((origin, via))  # what was resolved once is not resolved again
        for place, origin in enumerate(late.origin[begin:end].tolist(), begin):
            fresh[place] &= origin not in taken
            taken.add(origin)
    return LateRows(*[column[fresh] for column in late.columns()])


def _new_sink_labels(labels: SinkLabels, fillable: Numbers) -> SinkLabels:
    ids, at = np.unique(labels.id, return_index=True)
    fresh = np.isin(ids, fillable, assume_unique=True)
    return SinkLabels(ids[fresh], labels.flags[at[fresh]])


def _new_lost(db: sqlite3.Connection, lost: LostOrigins, fillable: Numbers) -> LostOrigins:
    """Each pair once: two tuples that a sink came from may have come from the one that is lost."""
    query = "SELECT 1 FROM lost WHERE sink=? AND origin=?"
    of_fillable = among(lost.sink, fillable)
    pairs = sorted(set(zip(lost.sink[of_fillable].tolist(), lost.origin[of_fillable].tolist(), strict=True)))
    fresh = [pair for pair in pairs if db.execute(query, pair).fetchone() is None]
    sinks, origins = np.array(fresh, "<i8").reshape(-1, 2).T
    return LostOrigins(sinks, origins)

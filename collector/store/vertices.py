"""Tuples of the graph, many at a time: what each of them is, and what it came from or went into directly.

A sink that came from tuples which other agents sent has its direct origins in a relation of its own; every other one
came directly from the sources of its edges.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from collector.store.packing import among, unpack
from collector.store.seal import NotAsWritten, named, sealed, unsealed
from collector.store.tables import Tables
from protocol.chunks import Numbers
from protocol.graph import SinkFlag

_AT_ONCE = 500
_FLAGS = [SinkFlag(number) for number in range(2 * max(SinkFlag))]  # looked up faster than made
_SINK = struct.Struct("<6q?")
SINK = "SELECT id, ts, stamp, label_stamp, flags, origins, sum FROM sinks"
SINK_AND_EDGES = "SELECT id, ts, stamp, label_stamp, flags, origins, sum, edges FROM sinks"
EDGES = "SELECT id, edges FROM sinks WHERE id=?"


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


class Sent(NamedTuple):
    """An intermediate tuple: a delivery of a Send."""

    id: int
    ts: int


TupleFound = Sink | Source | Sent


class Derivation(NamedTuple):
    """One tuple came directly from another."""

    origin: int
    derived: int
    is_late: bool


def sink_of(row: tuple[Any, ...]) -> Sink:
    """A row of the table."""
    tuple_id, ts, stamp, label_stamp, flags, origins, its_sum = row
    if sum_of_sink(tuple_id, ts, stamp, label_stamp, flags, origins) != its_sum:
        raise NotAsWritten(f"sinks: {named(tuple_id)} is not as it was written")
    return Sink(tuple_id, ts, stamp, label_stamp, _FLAGS[flags], origins)


def sum_of_sink(tuple_id: int, ts: int, stamp: int, label_stamp: int | None, flags: int, origins: int) -> int:
    """The checksum of a row, but for its edges."""
    return crc32(_SINK.pack(tuple_id, ts, stamp, label_stamp or 0, flags, origins, label_stamp is None))


def sealed_edges(tuple_id: int, packed: bytes) -> bytes:
    """The edges of a sink as they are stored."""
    return sealed(packed, tuple_id & 0xFFFFFFFF)


def unsealed_edges(tuple_id: int, data: Any) -> bytes:
    """The packed edges of a sink: source, flags."""
    found = unsealed(data, tuple_id & 0xFFFFFFFF)
    if found is None:
        raise NotAsWritten(f"sinks: the edges of {named(tuple_id)} are not as they were written")
    return found


def find_tuples(tables: Tables, ids: Iterable[int], likely_sinks: Iterable[int] = ()) -> dict[int, TupleFound]:
    """What these tuples are, without those that neither the graph nor a Send knows. Where one knows which of them are
    sinks, they need not be looked for elsewhere first."""
    found: dict[int, TupleFound] = _find_sinks(tables, likely_sinks)
    left = set(ids).difference(found)
    sources = list(tables.sources.rows(sorted(left)))
    if sources:
        labels = {row[0]: row[1] for row in tables.labels.rows(sorted(left))}
        for each, ts, stamp, sent in sources:
            found[each] = Source(each, ts, stamp, labels.get(each), sent == 1)
        left.difference_update(found)
    if left:
        found |= _find_sinks(tables, left)
        left.difference_update(found)
    if left:
        for each, ts, _ in tables.deliveries.rows(sorted(left)):
            found[each] = Sent(each, ts)
    return found


def _find_sinks(tables: Tables, ids: Iterable[int]) -> dict[int, TupleFound]:
    found: dict[int, TupleFound] = {}
    for some in _batched(sorted(ids)):
        query = f"{SINK} WHERE id IN ({','.join('?' * len(some))})"
        found |= {row[0]: sink_of(row) for row in tables.db.execute(query, some)}
    return found


def _batched(ids: list[int]) -> Iterator[list[int]]:
    """As many as one statement may name."""
    for begin in range(0, len(ids), _AT_ONCE):
        yield ids[begin : begin + _AT_ONCE]


def origins_of(tables: Tables, ids: Iterable[int]) -> list[Derivation]:
    """What these tuples came from directly."""
    wanted = np.array(sorted(ids), "<i8")
    derived, origins = tables.origins.find(wanted)[:2]
    late = {pair for each in wanted.tolist() for pair in _late_of(tables, each)}
    found = {
        (origin, each): Derivation(origin, each, (origin, each) in late)
        for each, origin in zip(derived.tolist(), origins.tolist(), strict=True)
    }
    for each in wanted[~among(wanted, np.unique(derived))].tolist():
        row = tables.db.execute(EDGES, (each,)).fetchone()
        if row:
            for origin in unpack(unsealed_edges(*row), 2)[0].tolist():
                found[origin, each] = Derivation(origin, each, False)
            for origin, _ in (pair for pair in late if pair[1] == each):
                found[origin, each] = Derivation(origin, each, True)
    return [found[pair] for pair in sorted(found)]


def _late_of(tables: Tables, sink: int) -> list[tuple[int, int]]:
    """Late origins of a sink that are no origins of an intermediate tuple."""
    query = "SELECT origin FROM late WHERE sink=? AND via IS NULL"
    return [(origin, sink) for (origin,) in tables.db.execute(query, (sink,))]


def derived_of(tables: Tables, ids: Iterable[int]) -> list[Derivation]:
    """What came from these tuples directly."""
    wanted = np.array(sorted(ids), "<i8")
    origins, derived = tables.derived.find(wanted)
    pairs = dict.fromkeys(zip(origins.tolist(), derived.tolist(), strict=True), False)
    query = "SELECT sink FROM late WHERE origin=? AND via IS NULL"
    late = [(each, sink) for each in wanted.tolist() for (sink,) in tables.db.execute(query, (each,))]
    sources, sinks = tables.forward.find(wanted)
    sources, sinks = _without_indirect(tables, sources, sinks)
    pairs |= dict.fromkeys(zip(sources.tolist(), sinks.tolist(), strict=True), False)
    if late:
        late_origins, late_sinks = np.array(late, "<i8").T
        direct = _without_indirect(tables, late_origins, late_sinks)
        pairs |= dict.fromkeys(zip(direct[0].tolist(), direct[1].tolist(), strict=True), False)
        pairs |= {pair: True for pair in late if pair in pairs}
    return [Derivation(*pair, is_late) for pair, is_late in sorted(pairs.items())]


def _without_indirect(tables: Tables, origins: Numbers, sinks: Numbers) -> tuple[Numbers, Numbers]:
    """Pairs but for those of sinks that have their direct origins elsewhere."""
    is_direct = ~tables.origins.known(sinks)
    return origins[is_direct], sinks[is_direct]

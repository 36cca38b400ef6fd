"""Reads a whole store and says what in it is not as it was written, or does not fit together.

Whoever reads from the store notices packed values that have changed. What nobody notices that way is looked for here as
well: rows that an index no longer leads to, plain values, and relations that say the same in two ways.

As a program (`python -m collector.store.check FILE`), for those who have no time to wait: a line of JSON for each thing
that is wrong, and only when the machine has nothing else to do.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collector.store import feed
from collector.store.connection import DAMAGE, connect_reader
from collector.store.errors import StoreError
from collector.store.packing import among, distinct, unpack
from collector.store.pages import Pages
from collector.store.payloads import PAYLOAD, places_of, read_head, unsealed_payload
from collector.store.seal import NotAsWritten, named
from collector.store.tables import SUMMED, Tables, count_of
from collector.store.vertices import SINK_AND_EDGES, sink_of, unsealed_edges
from protocol.chunks import Numbers
from protocol.table_sums import wrong_sums

_MOST_TOLD = 20
_MASK = (1 << 64) - 1
_ODD = np.array((0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93), "<u8")


class Finding(NamedTuple):
    """Something that is wrong."""

    text: str
    is_noticed: bool
    """Whoever reads it notices. Else somebody may get a wrong answer, or too few."""


def check(path: Path) -> Iterator[Finding]:
    """What is wrong; nothing, if all is well. The store may be written to meanwhile."""
    try:
        db = connect_reader(path)
    except StoreError as error:
        yield Finding(str(error), True)
        return
    try:
        db.execute("BEGIN")  # all of one moment
        for (line,) in db.execute(f"PRAGMA integrity_check({_MOST_TOLD})"):
            if line != "ok":
                yield Finding(f"SQLite: {' '.join(str(line).split())}", False)
        for table in wrong_sums(db, SUMMED):
            yield Finding(f"{table}: rows are not as they were written", False)
        yield from _Graph(db).findings()
        yield from _wrong_payloads(db)
        yield from (Finding(text, True) for text in feed.faults(db))
    except DAMAGE as error:
        yield Finding(f"{path}: {error}", False)
    finally:
        db.close()


class _Graph:
    """One pass over vertices and edges, and what they add up to."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._tables = Tables(db)
        self._counts = dict.fromkeys(("sinks", "sink_labels", "edges", "sources", "source_labels"), 0)
        self._backward = 0  # the sum of all edges

    def findings(self) -> Iterator[Finding]:
        """What is wrong with it. Only if every part is sound, they are compared with each other."""
        is_sound = True
        for finding in self._wrong_sinks():
            is_sound = False
            yield finding
        tables, sums = self._tables, dict[Pages, int]()
        for pages in (tables.sources, tables.labels, tables.forward, tables.deliveries, tables.origins, tables.derived):
            sums[pages] = 0
            for found in pages.fragments():
                if isinstance(found, str):
                    is_sound = False
                    yield Finding(found, True)
                else:
                    sums[pages] += _summed(*found[1][:2])
        if not is_sound:
            return
        if self._backward & _MASK != sums[tables.forward] & _MASK:
            yield Finding("forward_pages: the edges by their sources are not those by their sinks", False)
        if _turned(tables.derived) & _MASK != sums[tables.origins] & _MASK:
            yield Finding("derived_pages: what came from tuples is not what others came from", False)
        yield from (Finding(text, False) for text in self._wrong_sources())
        for name, count in self._counts.items():
            if count != (told := count_of(self._db, name)):
                yield Finding(f"counters: there are {count} {name}, not {told}", False)

    def _wrong_sinks(self) -> Iterator[Finding]:
        """Figures about many sinks are computed without looking at their sums: nobody would notice."""
        for *row, data in self._db.execute(SINK_AND_EDGES):
            try:
                sink = sink_of(tuple(row))
            except DAMAGE as error:
                yield Finding(str(error), False)
                continue
            try:
                sources, _ = unpack(unsealed_edges(sink.id, data), 2)
                if len(sources) != sink.origins:
                    raise NotAsWritten(f"sinks: {named(sink.id)} has {len(sources)} edges, not {sink.origins}")
            except DAMAGE as error:
                yield Finding(str(error), True)
                continue
            self._counts["sinks"] += 1
            self._counts["sink_labels"] += sink.label_stamp is not None
            self._counts["edges"] += sink.origins
            self._backward += _summed(sources, np.full_like(sources, sink.id))

    def _wrong_sources(self) -> Iterator[str]:
        """Every source once, and every label and edge of one."""
        tables = self._tables
        for page in tables.sources.pages():
            ids = tables.sources.page(page)[0]
            labels = tables.labels.page(page)[0]
            self._counts["sources"] += len(ids)
            self._counts["source_labels"] += len(labels)
            if len(distinct(ids)) != len(ids) or len(distinct(labels)) != len(labels):
                yield f"source_pages: a vertex or label of {named(int(ids[0]), int(ids[-1]))} is there twice"
            if not (among(labels, ids).all() and among(tables.forward.page(page)[0], ids).all()):
                yield f"source_pages: labels or edges of {named(int(ids[0]), int(ids[-1]))} are of no vertex"


def _wrong_payloads(db: sqlite3.Connection) -> Iterator[Finding]:
    """Rows that are not as they were written, and places that do not lead to them."""
    expected: list[tuple[int, ...]] = []
    is_sound = True
    for row in db.execute(PAYLOAD):
        try:
            ids = read_head(unsealed_payload(*row)).ids
        except DAMAGE as error:
            is_sound = False
            yield Finding(str(error), True)
            continue
        expected += places_of(ids, np.full_like(ids, row[0]))
    if is_sound and sorted(expected) != sorted(db.execute("SELECT * FROM payload_places")):
        yield Finding("payload_places: they do not lead to all that tuples have said", False)


def _turned(pages: Pages) -> int:
    """The sum of a relation, by its second column."""
    total = 0
    for found in pages.fragments():
        assert not isinstance(found, str)
        total += _summed(found[1][1], found[1][0])
    return total


def _summed(first: Numbers, second: Numbers) -> int:
    """The hashes of pairs together: the same for the same pairs, in whatever order they are read."""
    mixed: NDArray[np.uint64] = first.view("<u8") * _ODD[0] ^ second.view("<u8") * _ODD[1]
    mixed ^= mixed >> np.uint64(29)
    return int((mixed * _ODD[2]).sum(dtype="<u8"))


def main() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for finding in check(Path(sys.argv[1])):
        print(json.dumps(finding._asdict()), flush=True)


if __name__ == "__main__":
    main()

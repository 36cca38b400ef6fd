"""Reads a whole store and says what in it is not as it was written, or does not fit together.

Whoever reads from the store notices packed values that have changed. What nobody notices that way is looked for here as
well: rows that an index no longer leads to, plain values, and relations that say the same in two ways.

As a program (`python -m collector.store.check FILE`), for those who have no time to wait: a line of JSON for each thing
that is wrong, while others go first. As long as somebody reads a moment of it, SQLite cannot use its log of changes
anew, which grows with all that is written: when that is too much, the program gives up.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collector.store import feed
from collector.store.connection import DAMAGE, connect_reader
from collector.store.errors import OtherStore, StoreError, StoreMissing, StoreUnavailable
from collector.store.packing import among, distinct, unpack
from collector.store.pages import Pages
from collector.store.payloads import PAYLOAD, places_of, read_head, unsealed_payload
from collector.store.schema import wrong_tables
from collector.store.seal import NotAsWritten, named
from collector.store.tables import SUMMED, Tables, count_of
from collector.store.vertices import SINK_AND_EDGES, sink_of, unsealed_edges
from protocol.chunks import Numbers
from protocol.table_sums import wrong_sums

MOST_LOG_BYTES = 512 << 20
GIVEN_UP = 75
"""How the program ends if it gave up: a later one may come to an end."""
_LAST_IN_LINE = 19
_MOST_TOLD = 20
_STEPS_BETWEEN_LOOKS = 1_000  # of SQLite's machine: about a hundred rows
_MASK = (1 << 64) - 1
_MAY_PASS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_IOERR_NOMEM,
}
"""What keeps from looking, and says nothing of the store. Not SQLITE_IOERR: what a bad sector has held is damaged."""
_ODD = np.array((0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93), "<u8")


class Finding(NamedTuple):
    """Something that is wrong."""

    text: str
    is_noticed: bool
    """Whoever reads it notices. Else somebody may get a wrong answer, or too few."""


class GivenUp(RuntimeError):
    """So much was written meanwhile that the check gave up."""


def check(path: Path, most_log_bytes: int | None = None) -> Iterator[Finding]:
    """What is wrong; nothing, if all is well. StoreError if nobody can say, as there is no store, or none that can be
    read now. It may be written to meanwhile: GivenUp if SQLite's log of changes grows beyond a bound, if there is one.
    """
    try:
        yield from _findings(path, _ChangeLog(path, most_log_bytes))
    except MemoryError as error:
        raise StoreUnavailable(f"{path}: there is not enough memory to look through it") from error


def _findings(path: Path, log: _ChangeLog) -> Iterator[Finding]:
    try:
        db = connect_reader(path)
    except (StoreMissing, StoreUnavailable, OtherStore):
        raise
    except StoreError as error:
        yield Finding(str(error), True)
        return
    try:
        db.set_progress_handler(log.is_too_long, _STEPS_BETWEEN_LOOKS)
        db.execute("BEGIN")  # all of one moment
        yield from (Finding(text, False) for text in wrong_tables(db))
        for (line,) in db.execute(f"PRAGMA integrity_check({_MOST_TOLD})"):
            if line != "ok":
                yield Finding(f"SQLite: {' '.join(str(line).split())}", False)
        for table in wrong_sums(db, SUMMED):
            yield Finding(f"{table}: rows are not as they were written", False)
        yield from _Graph(db).findings()
        yield from _wrong_payloads(db)
        yield from (Finding(text, True) for text in feed.faults(db))
    except DAMAGE as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        if code == sqlite3.SQLITE_INTERRUPT:
            raise GivenUp(f"{log.path} has grown to {log.size_bytes()} bytes") from error
        if not _MAY_PASS.isdisjoint((code, code & 0xFF)):  # the rest is detail
            raise StoreUnavailable(f"{path}: {error}") from error
        yield Finding(f"{path}: {error}", False)
    finally:
        db.close()


class _ChangeLog:
    """SQLite's log of changes. The file stays as large as it ever was: only what is more than before counts."""

    def __init__(self, store: Path, most_bytes: int | None) -> None:
        self.path = store.with_name(f"{store.name}-wal")
        self._most_bytes = inf if most_bytes is None else max(most_bytes, self.size_bytes())

    def size_bytes(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def is_too_long(self) -> bool:
        return self.size_bytes() > self._most_bytes


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
    """Rows that are not as they were written, and places that do not lead to them. There may be too many to hold: their
    number and the sum of their hashes are compared."""
    places = total = 0
    is_sound = True
    for row in db.execute(PAYLOAD):
        try:
            ids = read_head(unsealed_payload(*row)).ids
        except DAMAGE as error:
            is_sound = False
            yield Finding(str(error), True)
            continue
        for place in places_of(ids, np.full_like(ids, row[0])):
            places += 1
            total += hash(place)
    if not is_sound:
        return
    for place in db.execute("SELECT * FROM payload_places"):
        places -= 1
        total -= hash(place)
    if places or total:
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
    os.nice(_LAST_IN_LINE)  # not SCHED_IDLE: it would never come to an end on a busy machine
    try:
        for finding in check(Path(sys.argv[1]), MOST_LOG_BYTES):
            print(json.dumps(finding._asdict()), flush=True)
    except GivenUp:
        sys.exit(GIVEN_UP)
    except StoreError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

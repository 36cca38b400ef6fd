"""The change feed: everything that was added to the graph, in order, for those who follow it.

Changes are stored packed, thousands to a row, in the transaction that makes them. A cursor names one of them by its row
and its place in it, so a reader can stop and go on anywhere.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from collector.store.errors import CursorExpired
from collector.store.packing import pack_groups, unpack
from collector.store.seal import NotAsWritten, sealed, unsealed
from protocol.chunks import SEQ_BITS, Numbers

MOST_ITEMS = 4096
_NAME = struct.Struct("<4q")


class ChangeKind(IntEnum):
    """What was added, in the order in which a batch adds it."""

    SINK = 1
    SOURCE = 2
    EDGE = 3
    SINK_LABEL = 4
    SOURCE_LABEL = 5
    LATE = 6


_LAYOUTS = {
    ChangeKind.SINK: "it",  # id, ts
    ChangeKind.SOURCE: "itn",  # id, ts, sent
    ChangeKind.EDGE: "iin",  # sink, source, flags
    ChangeKind.SINK_LABEL: "in",  # id, flags
    ChangeKind.SOURCE_LABEL: "i",  # id
    ChangeKind.LATE: "iitni",  # sink, origin, origin's ts, reason, via
}
"""What the values are: ids, times or other numbers. Ids are packed as two columns, as streams are many and tuples of
one batch are close to each other in all of them."""


class Cursor(NamedTuple):
    """How far a reader has come: it has seen all rows before this one, and so many items of it."""

    row: int = 0
    items: int = 0


class Change(NamedTuple):
    """One thing that was added. `values` are as `ChangeKind` says: for a vertex id and ts, for an edge sink, source and
    flags, for a label the id, for a late one sink, origin, its ts, reason and via."""

    cursor: Cursor
    kind: ChangeKind
    stamp: int
    values: tuple[int, ...]


def append(
    db: sqlite3.Connection, number: int, stamp: int, changes: Sequence[tuple[ChangeKind, Sequence[NDArray[Any]]]]
) -> None:
    """Tell what a batch has added, kind by kind."""
    for kind, columns in changes:
        count = len(columns[0])
        starts = np.arange(0, count, MOST_ITEMS)
        sizes = np.diff(starts, append=count).tolist()
        packed = zip(sizes, pack_groups(_split(kind, columns), starts), strict=True)
        rows = [(size, sealed_changes(number, kind, stamp, size, data)) for size, data in packed]
        db.executemany(
            f"INSERT INTO feed (batch, kind, stamp, count, data) VALUES ({number:d},{kind:d},{stamp:d},?,?)", rows
        )


def changes(db: sqlite3.Connection, after: Cursor, limit: int) -> Iterator[Change]:
    """At most `limit` changes behind a cursor, with those that are added meanwhile. CursorExpired if some are gone."""
    gone, last = start(db), end(db)
    if after < gone or after > last:
        raise CursorExpired(f"the feed goes from {tuple(gone)} to {tuple(last)}, {tuple(after)} is outside")
    row, seen = (after.row + 1, 0) if after == gone else after
    while limit > 0:
        found = db.execute("SELECT batch, kind, stamp, count, data FROM feed WHERE number=?", (row,)).fetchone()
        if found is None:
            if start(db).row >= row:
                raise CursorExpired(f"row {row} of the feed was removed before it was read")
            if row <= end(db).row:
                raise NotAsWritten(f"feed: row {row} is gone")
            return
        columns = _unsealed(row, *found)
        kind = ChangeKind(found[1])
        if seen > len(columns[0]):
            raise CursorExpired(f"row {row} of the feed has {len(columns[0])} changes, not {seen}")
        shown = [column[seen : seen + limit].tolist() for column in columns]
        for place, values in enumerate(zip(*shown, strict=True), seen + 1):
            yield Change(Cursor(row, place), kind, found[2], values)
        limit -= len(shown[0])
        row, seen = row + 1, 0


def told(db: sqlite3.Connection, kind: ChangeKind, after_row: int) -> Iterator[tuple[int, list[Numbers]]]:
    """All changes of one kind behind a row: row by row, as columns."""
    query = "SELECT number, batch, kind, stamp, count, data FROM feed WHERE number > ? AND kind = ? ORDER BY number"
    for row in db.execute(query, (after_row, kind)):
        yield row[0], _unsealed(*row)


def sealed_changes(batch: int, kind: int, stamp: int, count: int, data: bytes) -> bytes:
    """Packed changes as they are stored."""
    return sealed(data, crc32(_NAME.pack(batch, kind, stamp, count)))


def _unsealed(number: int, batch: int, kind: int, stamp: int, count: int, data: bytes) -> list[Numbers]:
    """The changes of a row, as columns."""
    found = unsealed(data, crc32(_NAME.pack(batch, kind, stamp, count)))
    if found is None:
        raise NotAsWritten(f"feed: row {number} is not as it was written")
    return list(_joined(ChangeKind(kind), found))


def faults(db: sqlite3.Connection) -> Iterator[str]:
    """What of the feed is not as it was written, or not there."""
    expected = start(db).row
    for row in db.execute("SELECT number, batch, kind, stamp, count, data FROM feed ORDER BY number"):
        expected += 1
        if row[0] != expected:
            yield f"feed: rows {expected} to {row[0] - 1} are gone"
            expected = row[0]
        try:
            _unsealed(*row)
        except (NotAsWritten, struct.error) as error:
            yield str(error)


def _split(kind: ChangeKind, columns: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    split: list[NDArray[Any]] = []
    for of, column in zip(_LAYOUTS[kind], columns, strict=True):
        split += [column >> SEQ_BITS, column & (1 << SEQ_BITS) - 1] if of == "i" else [column]
    return split


def _joined(kind: ChangeKind, data: bytes) -> Iterator[Numbers]:
    layout = _LAYOUTS[kind]
    columns = iter(unpack(data, len(layout) + layout.count("i")))
    for of in layout:
        yield next(columns) << SEQ_BITS | next(columns) if of == "i" else next(columns)


def start(db: sqlite3.Connection) -> Cursor:
    """Behind all changes that were removed."""
    return Cursor(*db.execute("SELECT number, count FROM feed_trimmed").fetchone())


def end(db: sqlite3.Connection) -> Cursor:
    """Behind the last change."""
    found = db.execute("SELECT number, count FROM feed ORDER BY number DESC LIMIT 1").fetchone()
    return Cursor(*found) if found else start(db)


def trim(db: sqlite3.Connection, before_batch: int) -> None:
    """Remove the changes of all batches before this one."""
    found = db.execute(
        "SELECT number, count FROM feed WHERE batch<? ORDER BY number DESC LIMIT 1", (before_batch,)
    ).fetchone()
    if found:
        db.execute("UPDATE feed_trimmed SET number=?, count=?", found)
        db.execute("DELETE FROM feed WHERE number<=?", found[:1])

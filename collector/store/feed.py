"""The change feed: everything that was added to the graph, in order, for those who follow it.

Changes are stored packed, thousands to a row, in the transaction that makes them. A cursor names one of them by its row
and its place in it, so a reader can stop and go on anywhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collector.store.errors import CursorExpired
from collector.store.packing import pack_groups, unpack
from protocol.chunks import SEQ_BITS, Numbers

MOST_ITEMS = 4096


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
        rows = zip(sizes, pack_groups(_split(kind, columns), starts), strict=True)
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
        found = db.execute("SELECT kind, stamp, data FROM feed WHERE number=?", (row,)).fetchone()
        if found is None:
            if start(db).row >= row:
                raise CursorExpired(f"row {row} of the feed was removed before it was read")
            return
        kind = ChangeKind(found[0])
        columns = list(_joined(kind, found[2]))
        if seen > len(columns[0]):
            raise CursorExpired(f"row {row} of the feed has {len(columns[0])} changes, not {seen}")
        shown = [column[seen : seen + limit].tolist() for column in columns]
        for place, values in enumerate(zip(*shown, strict=True), seen + 1):
            yield Change(Cursor(row, place), kind, found[1], values)
        limit -= len(shown[0])
        row, seen = row + 1, 0


def told(db: sqlite3.Connection, kind: ChangeKind, after_row: int) -> Iterator[tuple[int, list[Numbers]]]:
    """All changes of one kind behind a row: row by row, as columns."""
    query = "SELECT number, data FROM feed WHERE number > ? AND kind = ? ORDER BY number"
    for number, data in db.execute(query, (after_row, kind)):
        yield number, list(_joined(kind, data))


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

"""A relation of numbers that is keyed by tuple ids, packed by ranges of ids.

A row per entry would cost more than everything else together. Ids are dense within a stream, so the entries of 4,096
neighbours, a *page*, are stored as few *fragments*: each batch adds one to every page that it touches. Whoever looks
for an id reads the fragments of its page. Many small fragments are merged into one of the next tier, so an entry is
rewritten at most twice, and a page has some dozens of fragments at most. Fragments are stored in the order in which
they come, so a batch fills few pages of the file, and are found by an index.

An id may have many entries, as a reading has that was in many windows. So a fragment has a bounded number of them, and
the index knows from which to which id each goes, and from which to which number its second column: fragments that
cannot hold what is looked for are not read.

Every fragment has a tag: who wrote it. Writers that never tell a thing twice need not look at their own.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby, repeat
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from collector.store.packing import (
    among,
    distinct,
    find_rows,
    groups_of,
    pack_groups,
    rows_between,
    spans_of,
    unpack_groups,
)
from collector.store.seal import NotAsWritten, named, sealed, unsealed
from protocol.chunks import Numbers

PAGE_BITS = 12
MOST_FRAGMENTS = 64  # half as many more for some pages: streams that fill theirs together need not merge together
MOST_MERGED_BYTES = 1 << 20
MOST_ENTRIES = 4096  # of a fragment
_SEALED = "data, tag, first, last, least, most"
_NAME = struct.Struct("<5q")
_SPARSE = 8  # so far apart on average, ids are looked for one by one
TOP_TIER = 2
MIXED = 0
"""The tag of what several have written."""

Relation = list[Numbers]
"""Columns of entries, the first one being their ids."""


class Pages:
    """One relation in its table."""

    def __init__(self, db: sqlite3.Connection, table: str, width: int) -> None:
        self._db = db
        self._table = table
        self._width = width
        self._seed = crc32(table.encode())
        self._sealed = sealed_fragment(table)
        self._insert = f"INSERT INTO {table} (page, tier, tag, first, last, least, most, data) VALUES (?,?,?,?,?,?,?,?)"

    def add(self, columns: Sequence[NDArray[Any]], tag: int) -> None:
        """Add entries, sorted by id."""
        ids = columns[0]
        if not len(ids):
            return
        pages = ids >> PAGE_BITS
        starts = groups_of(pages)
        touched = pages[starts].tolist()
        self._write(columns, starts, 0, tag)
        count = f"SELECT count(*) FROM {self._table} WHERE page=? AND tier=0"
        for page in touched:
            (fragments,) = self._db.execute(count, (page,)).fetchone()
            if fragments >= MOST_FRAGMENTS and fragments >= MOST_FRAGMENTS + _spread(page):
                self._merge(page, 0)

    def _merge(self, page: int, tier: int) -> None:
        """Make one fragment of all of a tier, of the tier above. Large ones are not worth it: they only move up."""
        where = f"FROM {self._table} WHERE page=? AND tier=?"
        (size_bytes,) = self._db.execute(f"SELECT sum(length(data)) {where}", (page, tier)).fetchone()
        if size_bytes > MOST_MERGED_BYTES:
            self._db.execute(f"UPDATE {self._table} SET tier=? WHERE page=? AND tier=?", (TOP_TIER, page, tier))
            return
        found = self._db.execute(f"SELECT {_SEALED} {where} ORDER BY number", (page, tier)).fetchall()
        self._db.execute(f"DELETE {where}", (page, tier))
        entries = unpack_groups([self._unsealed(*row) for row in found], self._width)
        self._put(tier + 1, {row[1] for row in found}, _by_id(entries))
        if tier + 1 < TOP_TIER:
            (fragments,) = self._db.execute(f"SELECT count(*) {where}", (page, tier + 1)).fetchone()
            if fragments >= MOST_FRAGMENTS:
                self._merge(page, tier + 1)

    def _put(self, tier: int, tags: set[int], entries: Relation) -> None:
        """All entries of one page."""
        self._write(entries, np.zeros(1, "<i8"), tier, tags.pop() if len(tags) == 1 else MIXED)

    def _write(self, columns: Sequence[NDArray[Any]], page_starts: Numbers, tier: int, tag: int) -> None:
        """Entries as fragments, sorted by id; each page goes from its start to the next one's."""
        ids, second = columns[:2]
        starts = _cut(page_starts, len(ids))
        bounds = [
            ids[starts].tolist(),
            ids[np.append(starts[1:], len(ids)) - 1].tolist(),
            np.minimum.reduceat(second, starts).tolist(),
            np.maximum.reduceat(second, starts).tolist(),
        ]
        fragments = list(map(self._sealed, repeat(tag), *bounds, pack_groups(columns, starts)))
        pages = (ids[starts] >> PAGE_BITS).tolist()
        self._db.executemany(self._insert, zip(pages, repeat(tier), repeat(tag), *bounds, fragments, strict=False))

    def _unsealed(self, data: bytes, *name: int) -> bytes:
        """What a fragment holds, which was found by its tag and bounds."""
        found = unsealed(data, crc32(_NAME.pack(*name), self._seed))
        if found is None:
            raise NotAsWritten(f"{self._table}: what is there of {named(*name[1:3])} is not as it was written")
        return found

    def fragments(self) -> Iterator[tuple[int, Relation] | str]:
        """All fragments in the order of the file, with their pages; what is wrong with those that are not as they were
        written."""
        for page, *row in self._db.execute(f"SELECT page, {_SEALED} FROM {self._table} ORDER BY number"):
            try:
                entries = unpack_groups([self._unsealed(*row)], self._width)
                if page != row[2] >> PAGE_BITS:
                    raise NotAsWritten(f"{self._table}: {named(*row[2:4])} are not of page {page}")
            except (NotAsWritten, struct.error) as error:
                yield str(error)
            else:
                yield page, entries

    def find(self, ids: Numbers) -> Relation:
        """All entries of these ids, those of each fragment together."""
        return self._found(ids, None, range(self._width))

    def rows(self, ids: Iterable[int]) -> Iterator[tuple[int, ...]]:
        """All entries of these ids, which are sorted, row by row: faster for some dozens of them."""
        for _, of_page in groupby(ids, lambda each: each >> PAGE_BITS):
            some = list(of_page)
            first, last, wanted = some[0], some[-1], set(some)
            if last - first > _SPARSE * len(some):
                yield from zip(*[column.tolist() for column in self.find(np.array(some, "<i8"))], strict=True)
                continue
            for data in self._fragments(first, last, None):
                yield from (row for row in rows_between(data, self._width, first, last) if row[0] in wanted)

    def known(self, ids: Numbers, unless: int | None = None) -> NDArray[np.bool_]:
        """For each id whether there is an entry. `unless`: leave out what this one has written."""
        return among(ids, np.sort(self._found(ids, unless, (0,))[0]))

    def _found(self, ids: Numbers, unless: int | None, columns: Collection[int]) -> Relation:
        wanted = ids if _is_rising(ids) else distinct(ids)
        found: list[Relation] = []
        for begin, end in _spans(wanted):
            some = wanted[begin:end]
            for data in self._fragments(int(some[0]), int(some[-1]), unless):
                rows = find_rows(data, self._width, some, columns)
                if rows is not None:
                    found.append(rows)
        if len(found) == 1:
            return found[0]
        return [np.concatenate(column) for column in zip(*found, strict=True)] if found else [wanted[:0]] * len(columns)

    def page(self, page: int) -> Relation:
        """All entries of a page, by id."""
        return _by_id(self._entries(page))

    def size_bytes(self, tuple_id: int) -> int:
        """About how much has to be read to find an id."""
        query = f"SELECT coalesce(sum(length(data)), 0) FROM {self._table} WHERE page=? AND first<=? AND last>=?"
        (size,) = self._db.execute(query, (tuple_id >> PAGE_BITS, tuple_id, tuple_id)).fetchone()
        return int(size)

    def between(self, first: int, last: int, least: int, most: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Ids from one to another, both being the ends of a page, and their numbers in the second column, where that is
        within bounds: fragment by fragment."""
        query = f"SELECT {_SEALED} FROM {self._table} WHERE page BETWEEN ? AND ? AND least<=? AND most>=?"
        for row in self._db.execute(query, (first >> PAGE_BITS, last >> PAGE_BITS, most, least)):
            ids, second = unpack_groups([self._unsealed(*row)], self._width, 2)
            is_within = (second >= least) & (second <= most)
            yield ids[is_within], second[is_within]

    def pages(self, after: int = -1) -> Iterator[int]:
        """The numbers of all pages, in order. Pages may change meanwhile."""
        query = f"SELECT page FROM {self._table} WHERE page>? ORDER BY page LIMIT 1"
        while found := self._db.execute(query, (after,)).fetchone():
            (after,) = found
            yield after

    def replace(self, page: int, columns: Relation) -> None:
        """Put these entries, sorted by id, in the place of all that a page has."""
        where = f"FROM {self._table} WHERE page=?"
        tags = {tag for (tag,) in self._db.execute(f"SELECT tag {where}", (page,))}
        self._db.execute(f"DELETE {where}", (page,))
        if len(columns[0]):
            self._put(TOP_TIER, tags, columns)

    def _entries(self, page: int) -> Relation:
        query = f"SELECT {_SEALED} FROM {self._table} WHERE page=? ORDER BY number"
        return unpack_groups([self._unsealed(*row) for row in self._db.execute(query, (page,))], self._width)

    def _fragments(self, first: int, last: int, unless: int | None) -> list[bytes]:
        """All that may hold ids from one to another of a page, in any order; within each, entries are sorted by id."""
        query = f"SELECT {_SEALED} FROM {self._table} WHERE page=? AND first<=? AND last>=?"
        if unless is not None:
            query += f" AND tag<>{unless:d}"
        return [self._unsealed(*row) for row in self._db.execute(query, (first >> PAGE_BITS, last, first))]


def sealed_fragment(table: str) -> Callable[..., bytes]:
    """What gives a fragment of a table its seal, from its tag, bounds and entries."""
    seed = crc32(table.encode())
    return lambda *row: sealed(row[-1], crc32(_NAME.pack(*row[:-1]), seed))


def _is_rising(ids: Numbers) -> bool:
    return bool(np.logical_and.reduce(ids[1:] > ids[:-1]))


def _spans(sorted_ids: Numbers) -> list[tuple[int, int]]:
    """From where to where the ids of each page go."""
    pages = sorted_ids >> PAGE_BITS
    if len(pages) and pages[0] == pages[-1]:
        return [(0, len(pages))]
    return spans_of(groups_of(pages), len(pages))


def _cut(starts: Numbers, rows: int) -> Numbers:
    """Where groups begin if none of them has more than MOST_ENTRIES."""
    sizes = np.diff(starts, append=rows)
    if sizes.max() <= MOST_ENTRIES:
        return starts
    pieces = -(-sizes // MOST_ENTRIES)
    firsts = np.cumsum(pieces) - pieces
    cut: Numbers = np.repeat(starts, pieces) + MOST_ENTRIES * (np.arange(pieces.sum()) - np.repeat(firsts, pieces))
    return cut


def _spread(page: int) -> int:
    """A number below half of MOST_FRAGMENTS, as good as random."""
    return (page * 0x9E3779B97F4A7C15 >> 40) % (MOST_FRAGMENTS // 2)


def _by_id(entries: Relation) -> Relation:
    """Sorted, those of one id in the order in which they came."""
    order = np.argsort(entries[0], kind="stable")
    return [column[order] for column in entries]

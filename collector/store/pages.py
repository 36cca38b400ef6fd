"""A relation of numbers that is keyed by tuple ids, packed by ranges of ids.

A row per entry would cost more than everything else together. Ids are dense within a stream, so the entries of 4,096
neighbours, a *page*, are stored as few *fragments*: each batch adds one to every page that it touches. Whoever looks
for an id reads the fragments of its page. Many small fragments are merged into one of the next tier, so an entry is
rewritten at most twice, and a page has some dozens of fragments at most. Fragments are stored in the order in which
they come, so a batch fills few pages of the file, and are found by an index.

Every fragment has a tag: who wrote it. Writers that never tell a thing twice need not look at their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.store.packing import among, distinct, find_rows, groups_of, pack, pack_groups, spans_of, unpack_groups
from protocol.chunks import Numbers

PAGE_BITS = 12
MOST_FRAGMENTS = 64  # half as many more for some pages: streams that fill theirs together need not merge together
MOST_MERGED_BYTES = 1 << 20
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
        self._insert = f"INSERT INTO {table} (page, tier, tag, data) VALUES"

    def add(self, columns: Sequence[NDArray[Any]], tag: int) -> None:
        """Add entries, sorted by id."""
        ids = columns[0]
        if not len(ids):
            return
        pages = ids >> PAGE_BITS
        starts = groups_of(pages)
        touched = pages[starts].tolist()
        data = pack_groups(columns, starts)
        self._db.executemany(f"{self._insert} (?,0,{tag:d},?)", zip(touched, data, strict=True))
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
        found = self._db.execute(f"SELECT data, tag {where} ORDER BY number", (page, tier)).fetchall()
        self._db.execute(f"DELETE {where}", (page, tier))
        entries = unpack_groups([data for data, _ in found], self._width)
        self._put(page, tier + 1, {tag for _, tag in found}, _by_id(entries))
        if tier + 1 < TOP_TIER:
            (fragments,) = self._db.execute(f"SELECT count(*) {where}", (page, tier + 1)).fetchone()
            if fragments >= MOST_FRAGMENTS:
                self._merge(page, tier + 1)

    def _put(self, page: int, tier: int, tags: set[int], entries: Relation) -> None:
        tag = tags.pop() if len(tags) == 1 else MIXED
        self._db.execute(f"{self._insert} (?,?,?,?)", (page, tier, tag, pack(entries)))

    def find(self, ids: Numbers) -> Relation:
        """All entries of these ids, those of each fragment together."""
        return self._found(ids, None, range(self._width))

    def known(self, ids: Numbers, unless: int | None = None) -> NDArray[np.bool_]:
        """For each id whether there is an entry. `unless`: leave out what this one has written."""
        return among(ids, np.sort(self._found(ids, unless, (0,))[0]))

    def _found(self, ids: Numbers, unless: int | None, columns: Collection[int]) -> Relation:
        wanted = ids if _is_rising(ids) else distinct(ids)
        found: list[Relation] = []
        for begin, end in _spans(wanted):
            some = wanted[begin:end]
            for data in self._fragments(int(some[0]) >> PAGE_BITS, unless):
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
        query = f"SELECT coalesce(sum(length(data)), 0) FROM {self._table} WHERE page=?"
        (size,) = self._db.execute(query, (tuple_id >> PAGE_BITS,)).fetchone()
        return int(size)

    def pages(self, after: int = -1) -> Iterator[int]:
        """The numbers of all pages, in order. Pages may change meanwhile."""
        query = f"SELECT page FROM {self._table} WHERE page>? ORDER BY page LIMIT 1"
        while found := self._db.execute(query, (after,)).fetchone():
            (after,) = found
            yield after

    def every(self) -> Iterator[Relation]:
        """All entries, page by page."""
        return map(self.page, self.pages())

    def replace(self, page: int, columns: Relation) -> None:
        """Put these entries, sorted by id, in the place of all that a page has."""
        where = f"FROM {self._table} WHERE page=?"
        tags = {tag for (tag,) in self._db.execute(f"SELECT tag {where}", (page,))}
        self._db.execute(f"DELETE {where}", (page,))
        if len(columns[0]):
            self._put(page, TOP_TIER, tags, columns)

    def _entries(self, page: int) -> Relation:
        query = f"SELECT data FROM {self._table} WHERE page=? ORDER BY number"
        return unpack_groups([data for (data,) in self._db.execute(query, (page,))], self._width)

    def _fragments(self, page: int, unless: int | None) -> list[bytes]:
        """All that is stored of a page, in any order; within each of them, entries are sorted by id."""
        query = f"SELECT data FROM {self._table} WHERE page=?"
        if unless is not None:
            query += f" AND tag<>{unless:d}"
        return [data for (data,) in self._db.execute(query, (page,))]


def _is_rising(ids: Numbers) -> bool:
    return bool(np.logical_and.reduce(ids[1:] > ids[:-1]))


def _spans(sorted_ids: Numbers) -> list[tuple[int, int]]:
    """From where to where the ids of each page go."""
    pages = sorted_ids >> PAGE_BITS
    if len(pages) and pages[0] == pages[-1]:
        return [(0, len(pages))]
    return spans_of(groups_of(pages), len(pages))


def _spread(page: int) -> int:
    """A number below half of MOST_FRAGMENTS, as good as random."""
    return (page * 0x9E3779B97F4A7C15 >> 40) % (MOST_FRAGMENTS // 2)


def _by_id(entries: Relation) -> Relation:
    """Sorted, those of one id in the order in which they came."""
    order = np.argsort(entries[0], kind="stable")
    return [column[order] for column in entries]

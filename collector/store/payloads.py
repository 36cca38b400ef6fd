"""What tuples said: kept as the agents have packed it, and found by the pages of ids that each agent batch touches.

Only the head of a section is read, its ids and times: values are unpacked when somebody asks for one.
"""

from __future__ import annotations

import sqlite3
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from collector.store.errors import StoreUnusable
from collector.store.log_rows import LogRows
from collector.store.packing import groups_of
from collector.store.pages import PAGE_BITS
from collector.store.seal import NotAsWritten, sealed, unsealed
from protocol.chunks import Numbers, cloud_ids, read_tuples
from protocol.ids import StreamId
from protocol.row import Row
from protocol.wire.columns import Reader
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import MOST_NAMES, MOST_RECORDS, Kind, read_seqs, read_shapes, read_streams

_OWN = StreamId("", 0, "")
_NAME = struct.Struct("<5q")
PAYLOAD = "SELECT number, start, seq, kind, last_ts, data FROM payloads"
MOST_TABLES = 4096
MOST_SECTIONS = 1024  # of about 8 KB each
_KINDS = (Kind.SOURCE, Kind.DELIVERY, Kind.ASSERTION)


class Payload(NamedTuple):
    """What a tuple said and when, and in which kind of record."""

    kind: Kind
    value: Any
    ts: int


class _Head(NamedTuple):
    ids: Numbers
    last_ts: int


_tables: dict[bytes, bytes] = {}


def read_head(data: bytes) -> _Head:
    """The ids of the tuples, and the time of the youngest."""
    if data[0] not in _KINDS:
        raise MalformedBatch(f"section {data[0]} has no payloads")
    reader = Reader(data, 1)
    named = reader.take(8 * reader.varint(MOST_NAMES))
    numbers = np.frombuffer(named, "<i8")
    count = reader.varint(MOST_RECORDS)
    if count == 0:
        raise MalformedBatch("a section without records")
    _pass_tables(reader, data, named)
    of, seqs, ts = reader.small(count, len(numbers)), read_seqs(reader, count), reader.ints(count)
    return _Head(cloud_ids(numbers, of, seqs), max(ts))


def _pass_tables(reader: Reader, data: bytes, named: bytes) -> None:
    """Names of streams and shapes: an agent repeats them in every batch, so they are read once."""
    at = reader.at
    table = _tables.get(named)
    if table is not None and data.startswith(table, at):
        reader.at += len(table)
        return
    streams = read_streams(reader, _OWN)
    if len(streams) != len(named) // 8:
        raise MalformedBatch(f"{len(named) // 8} numbers for {len(streams)} streams")
    read_shapes(reader)
    _tables[named] = data[at : reader.at]
    while len(_tables) > MOST_TABLES:
        del _tables[next(iter(_tables))]


def add_payloads(db: sqlite3.Connection, log: LogRows, rows: Sequence[Row]) -> None:
    """Keep rows of payloads; `log` numbers the starts of agents that they are of, knows what was told, and takes what
    cannot be read."""
    (first,) = db.execute("SELECT coalesce(max(number), 0) + 1 FROM payloads").fetchone()
    kept: list[tuple[int, int, int, int, int, bytes]] = []
    ids: list[Numbers] = []
    for row in rows:
        if log.is_told(row):
            log.start_of(row)
            continue
        try:
            head = read_head(row.data)
        except (ValueError, IndexError) as error:
            log.refuse(row, error)
            continue
        name = (first + len(kept), log.start_of(row), row.seq, row.data[0], head.last_ts)
        kept.append((*name, sealed_payload(*name, row.data)))
        ids.append(head.ids)
    if not kept:
        return
    db.executemany("INSERT INTO payloads VALUES (?,?,?,?,?,?)", kept)
    log.counts["payloads"] += sum(map(len, ids))
    _add_places(db, np.concatenate(ids), np.repeat(np.arange(first, first + len(kept)), [len(each) for each in ids]))


def sealed_payload(number: int, start: int, seq: int, kind: int, last_ts: int, data: bytes) -> bytes:
    """A row of payloads as it is stored."""
    return sealed(data, crc32(_NAME.pack(number, start, seq, kind, last_ts)))


def unsealed_payload(*row: Any) -> bytes:
    """What a row of payloads holds."""
    *name, data = row
    found = unsealed(data, crc32(_NAME.pack(*name)))
    if found is None:
        raise NotAsWritten(f"payloads: row {name[0]} is not as it was written")
    return found


def _add_places(db: sqlite3.Connection, ids: Numbers, numbers: Numbers) -> None:
    """Where to look for an id: its page, and from which to which id a row goes there."""
    db.executemany("INSERT INTO payload_places VALUES (?,?,?,?)", places_of(ids, numbers))


def places_of(ids: Numbers, numbers: Numbers) -> Iterator[tuple[int, ...]]:
    """The rows of `payload_places` for ids and the numbers of the rows that say what they said."""
    order = np.lexsort((ids, numbers))
    ids, numbers = ids[order], numbers[order]
    pages = ids >> PAGE_BITS
    begins = np.union1d(groups_of(pages), groups_of(numbers))
    ends = np.append(begins[1:], len(ids)) - 1
    found = (pages[begins], ids[begins], numbers[begins], ids[ends])
    return zip(*[each.tolist() for each in found], strict=True)


class Payloads:
    """Finds what tuples said. Sections that were read last are remembered: neighbours are asked for together."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sections: dict[tuple[int, int, int], _Section] = {}

    def find(self, ids: Iterable[int]) -> dict[int, Payload]:
        """Of these tuples those of which the store knows it."""
        wanted = sorted(ids)
        found: dict[int, Payload] = {}
        for page, of_page in groupby(wanted, lambda each: each >> PAGE_BITS):
            self._find_in(page, list(of_page), found)
        return found

    def _find_in(self, page: int, wanted: list[int], found: dict[int, Payload]) -> None:
        query = (
            "SELECT first, last, number, start, seq FROM payload_places JOIN payloads ON number = payload"
            " WHERE page=? AND first<=? AND last>=? ORDER BY number"
        )
        for first, last, *name in self._db.execute(query, (page, wanted[-1], wanted[0])).fetchall():
            within = wanted[bisect_left(wanted, first) : bisect_right(wanted, last)]
            missing = [each for each in within if each not in found]
            if not missing:
                continue
            try:
                section = self._section((name[0], name[1], name[2]))
                found |= {each: section.payload(each) for each in missing if each in section.places}
            except (ValueError, IndexError) as error:
                raise StoreUnusable(f"payload {name[0]} cannot be read: {error}") from error

    def _section(self, name: tuple[int, int, int]) -> _Section:
        """A row by its number and, as numbers are given again, whose batch it is of."""
        section = self._sections.pop(name, None)
        if section is None:
            row = self._db.execute(f"{PAYLOAD} WHERE number=?", name[:1]).fetchone()
            section = _Section(unsealed_payload(*row))
        self._sections[name] = section
        while len(self._sections) > MOST_SECTIONS:
            del self._sections[next(iter(self._sections))]
        return section


class _Section:
    """A row of payloads, of which values are unpacked one by one."""

    def __init__(self, data: bytes) -> None:
        self._kind = Kind(data[0])
        ids, self._columns = read_tuples(data)
        self.places = {each: place for place, each in reversed(list(enumerate(ids.tolist())))}

    def payload(self, tuple_id: int) -> Payload:
        place = self.places[tuple_id]
        return Payload(self._kind, self._columns.payloads[place], self._columns.ts[place])


def remove_payloads(db: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Remove rows of payloads; returns of how many tuples."""
    tuples = 0
    for number in numbers:
        row = db.execute(f"{PAYLOAD} WHERE number=?", (number,)).fetchone()
        ids = read_head(unsealed_payload(*row)).ids
        tuples += len(ids)
        for page in np.unique(ids >> PAGE_BITS).tolist():
            db.execute("DELETE FROM payload_places WHERE page=? AND payload=?", (page, number))
        db.execute("DELETE FROM payloads WHERE number=?", (number,))
    return tuples

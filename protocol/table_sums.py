"""Sums of the tables of a database: whoever reads a whole table can tell that all its rows are there and as they were
written, and that there are no others. SQLite looks at how its pages hang together, not at what is in them.

The sum is that of the rows' hashes, so their order does not matter, and a row that is added, changed or removed is
added and subtracted. Triggers of the writing connection see to it, whichever statement it is, and the sums are stored
in the transaction that changes the rows.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

SCHEMA = """
CREATE TABLE sums (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID; -- of the hashes of a table's rows
"""
_MASK = (1 << 64) - 1


class SummingConnection(sqlite3.Connection):
    """A connection that knows what it has changed since the sums were stored."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._changes: Counter[str] = Counter()

    def watch(self, tables: Iterable[str]) -> None:
        """From now on, see every change of these tables, which have their sums."""
        self.execute("PRAGMA recursive_triggers=ON")  # else nobody is told what a REPLACE removes
        self.create_function("noted", -1, self._note)
        for table in tables:
            columns = [row[1] for row in self.execute(f"PRAGMA table_info({table})")]
            new, old = (", ".join(f"{which}.{column}" for column in columns) for which in ("NEW", "OLD"))
            for event, notes in (
                ("INSERT", f"noted('{table}', 1, {new})"),
                ("DELETE", f"noted('{table}', -1, {old})"),
                ("UPDATE", f"noted('{table}', -1, {old}), noted('{table}', 1, {new})"),
            ):
                name = f"sum_{table}_{event.lower()}"
                self.execute(f"CREATE TEMP TRIGGER {name} AFTER {event} ON main.{table} BEGIN SELECT {notes}; END")

    def _note(self, table: str, sign: int, *values: Any) -> None:
        self._changes[table] += sign * _hash(values)

    def store_sums(self) -> None:
        """Within the transaction that has made the changes."""
        for table, change in self._changes.items():
            (before,) = self.execute("SELECT value FROM sums WHERE name=?", (table,)).fetchone()
            self.execute("UPDATE sums SET value=? WHERE name=?", (_signed(before + change), table))
        self._changes.clear()

    def forget_changes(self) -> None:
        """They were taken back."""
        self._changes.clear()


def sum_up(db: sqlite3.Connection, tables: Iterable[str]) -> None:
    """Store the sums of these tables as they are."""
    for table in tables:
        db.execute("INSERT OR REPLACE INTO sums VALUES (?,?)", (table, _sum_of(db, table)))


def wrong_sums(db: sqlite3.Connection, tables: Iterable[str]) -> Iterator[str]:
    """Those of these tables of which rows are not as they were written."""
    for table in tables:
        found = db.execute("SELECT value FROM sums WHERE name=?", (table,)).fetchone()
        if found is None or found[0] != _sum_of(db, table):
            yield table


def _sum_of(db: sqlite3.Connection, table: str) -> int:
    return _signed(sum(map(_hash, db.execute(f"SELECT * FROM {table}"))))


def _hash(values: tuple[Any, ...]) -> int:
    """The same whichever version of Python computes it: `repr` would know more letters in a newer one."""
    return crc32(ascii(values).encode())


def _signed(number: int) -> int:
    number &= _MASK
    return number - (1 << 64) if number >> 63 else number

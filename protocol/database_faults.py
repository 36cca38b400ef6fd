"""What in a database is not as this version has made it. SQLite keeps the statements that made its tables and indexes
as text beside them, and believes whatever stands there: columns of another name or type, an index that is none now.

They are compared as they stand, byte by byte: SQLite writes them down as they were told, and adds columns to them in
one way, so a database that was brought up to date has the same as a new one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

from protocol.table_sums import wrong_sums

_STATEMENTS = (  # as bytes: what has changed may be no text
    "SELECT CAST(name AS BLOB), CAST(quote(type) || quote(name) || quote(tbl_name) || quote(sql) AS BLOB)"
    " FROM sqlite_master"
)


def faults(db: sqlite3.Connection, script: str, summed: Sequence[str]) -> Iterator[str]:
    """What is wrong with a database that `script` has made, and that has sums of these tables."""
    yield from wrong_statements(db, script)
    for (line,) in db.execute("PRAGMA integrity_check(1)"):
        if line != "ok":
            yield " ".join(str(line).split())
    for table in wrong_sums(db, summed):
        yield f"rows of {table} are not as they were written"


def wrong_statements(db: sqlite3.Connection, script: str) -> Iterator[str]:
    """Tables and indexes that `script` makes, and that are not there or something else. There may be others: who adds
    an index changes nothing of what is written."""
    found = dict[bytes, bytes](db.execute(_STATEMENTS))
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(script)
        for name, made in new.execute(_STATEMENTS):
            if name not in found:
                yield f"{name.decode()} is not there"
            elif found[name] != made:
                yield f"{name.decode()} has other columns"

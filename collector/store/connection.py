"""Connections to the file: one that writes, any number that read, and errors in the words of the store."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from collector.store.errors import OtherStore, StoreError, StoreMissing, StoreUnavailable, StoreUnusable, TooSlow
from collector.store.schema import STEPS, migrate, version_of, wrong_tables
from collector.store.seal import NotAsWritten
from collector.store.tables import BOOKS, SUMMED
from collector.store.vertices import sum_of_sink
from protocol.table_sums import SummingConnection, wrong_sums

_PAGE_BYTES = 8192  # blobs are large
_CACHE_KIB = 16 << 10
_CHECKPOINT_PAGES = (64 << 20) // _PAGE_BYTES  # a batch is some megabytes: they are put in place by the dozen
_BUSY_S = 10.0
_MAY_PASS = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
}


DAMAGE = (
    sqlite3.DatabaseError,
    NotAsWritten,
    UnicodeDecodeError,
    json.JSONDecodeError,
    msgspec.DecodeError,
    struct.error,
)
"""What reading raises if what is stored is not what was written, and other faults of the database."""


@contextmanager
def errors_told(path: Path) -> Iterator[None]:
    """SQLite's errors as those of the store."""
    try:
        yield
    except DAMAGE as error:
        raise store_error(path, error) from error


def store_error(path: Path, error: Exception) -> StoreError:
    """One of DAMAGE as an error of the store."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest is detail
    if code == sqlite3.SQLITE_INTERRUPT:
        return TooSlow("the answer takes too long")
    if code == sqlite3.SQLITE_CORRUPT or not isinstance(error, sqlite3.Error):
        return StoreUnusable(
            f"{path} is damaged ({error}): put back a copy, without {path.name}-wal and -shm, together with that of "
            "its checkpoint, or take a new --store and a new --checkpoint, which replays the log"
        )
    return (StoreUnavailable if code in _MAY_PASS else StoreUnusable)(f"{path}: {error}")


def connect_writer(path: Path) -> sqlite3.Connection:
    """The connection of the one writer; the file is made, or brought up to date. A commit is on disk before it returns:
    Spark forgets what it has handed over. Any thread may use it, one at a time."""
    with errors_told(path):
        db = sqlite3.connect(
            path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, factory=SummingConnection
        )
        try:
            db.execute("PRAGMA cell_size_check=ON")
            version = version_of(db, path)
            db.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
            if version < len(STEPS):
                with transaction(db):
                    migrate(db, version)
            for wrong in wrong_tables(db):
                raise NotAsWritten(wrong)
            for table in wrong_sums(db, BOOKS):
                raise NotAsWritten(f"{table}: rows are not as they were written")
            db.create_function("sum_of_sink", 6, sum_of_sink, deterministic=True)
            db.watch(SUMMED)
        except BaseException:
            db.close()
            raise
    return db


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing."""
    if not path.exists():
        raise StoreMissing(f"{path} is not there yet: a writer makes it")
    with errors_told(path):
        db = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA cell_size_check=ON")
            version = version_of(db, path)
            if version == 0:
                raise StoreMissing(f"{path} is empty: a writer makes the store")
            if version < len(STEPS):
                raise OtherStore(
                    f"{path} has schema {version}, this version needs {len(STEPS)}: a writer brings it up to date"
                )
        except BaseException:
            db.close()
            raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """All or nothing; with `BEGIN`, all that is read is of one moment."""
    db.execute(begin)
    try:
        yield
        if isinstance(db, SummingConnection):
            db.store_sums()
        db.execute("COMMIT")
    except BaseException:
        if isinstance(db, SummingConnection):
            db.forget_changes()
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise

"""Numbers of streams and epochs, given once and for ever, to all translators alike.

One small SQLite database, and one transaction per question that memory cannot answer: it finds what is known, adds what
is not, and is on disk before anybody hears the answer. Answers never change, so each process keeps what it has heard
last.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from protocol import table_sums
from protocol.database_faults import faults
from protocol.table_sums import SummingConnection, sum_up

NUMBER_BITS = 27
MOST_STREAMS = (1 << NUMBER_BITS) - 1
MOST_NUMBERS_KEPT = 1 << 16  # in memory, as everything that is asked for again can be read again
MOST_EPOCHS_KEPT = 1 << 14
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)

_SCHEMA_VERSION = 2
_TABLES = ("streams", "epochs")
_SCHEMA = """
CREATE TABLE streams (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, nonce INTEGER NOT NULL, epoch INTEGER NOT NULL, name TEXT NOT NULL,
    UNIQUE (agent, nonce, name));
CREATE TABLE epochs (
    agent TEXT NOT NULL, nonce INTEGER NOT NULL, counter INTEGER NOT NULL, shown INTEGER NOT NULL,
    reflashed INTEGER NOT NULL, first_seen_ms INTEGER NOT NULL, closed_at INTEGER,
    UNIQUE (agent, nonce), UNIQUE (agent, shown));
"""
_AGENTS = "SELECT DISTINCT agent FROM epochs"
_NUMBER = "SELECT number FROM streams WHERE agent=? AND nonce=? AND name=?"


class RegistryError(RuntimeError):
    """Anything about the registry; the text says what."""


class RegistryUnavailable(RegistryError):
    """Full disk, or locked for too long: nothing was given or changed; ask again later."""

    is_busy = False
    """Others have it just now."""


class RegistryDamaged(RegistryError):
    """The file is not a registry that this version can read."""


class RegistryMissing(RegistryError):
    """There was one, and it is not there any more: a new one would give its numbers a second time."""


class RegistryFull(RegistryError):
    """All numbers of streams are given."""


class StreamName(NamedTuple):
    """A stream of one start of an agent, as the agent names it. `epoch` is only shown, the nonce identifies."""

    agent: str
    nonce: int
    epoch: int
    name: str


class StreamNumber(NamedTuple):
    """A stream's number; `is_new` if this very call gave it."""

    number: int
    is_new: bool


class Epoch(NamedTuple):
    """The number by which people know a start of an agent."""

    shown: int
    reflashed: bool
    """The agent's counter has begun anew, as on a card that was written again: another start had this number before."""


class ClosedEpoch(NamedTuple):
    """An epoch of which nothing more is expected, and how far it had come."""

    agent: str
    nonce: int
    shown: int
    next_seq: int


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Recent(Generic[_Key, _Value]):
    """What was asked for last. For any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[_Key, _Value] = {}
        self._turn = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        with self._turn:
            value = self._kept.pop(key, None)
            if value is not None:
                self._kept[key] = value
            return value

    def put(self, key: _Key, value: _Value) -> None:
        with self._turn:
            self._kept.pop(key, None)
            self._kept[key] = value
            if len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]

    def __len__(self) -> int:
        return len(self._kept)


class Registry:
    """The registry in its file. Threads and processes may share it."""

    def __init__(
        self, path: Path, *, may_create: bool = True, wait_s: float = 10.0, clock_ms: Callable[[], int] = _now_ms
    ) -> None:
        """`wait_s`: how long to wait for other processes before RegistryUnavailable. `may_create`: whether a file that
        is not there is made, and RegistryMissing otherwise."""
        self._path = path
        self._clock_ms = clock_ms
        self._numbers: _Recent[tuple[str, int, str], int] = _Recent(MOST_NUMBERS_KEPT)
        self._epochs: _Recent[tuple[str, int], Epoch] = _Recent(MOST_EPOCHS_KEPT)
        self._turn = threading.Lock()
        self._file: os.stat_result | None = None
        if not may_create and not path.exists():
            raise self._missing("not there")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegistryUnavailable(f"the folder {path.parent} cannot be made: {error.strerror}") from error
        with self._errors_told():
            self._db = sqlite3.connect(
                path, timeout=wait_s, isolation_level=None, check_same_thread=False, factory=SummingConnection
            )
        try:
            self._prepare(wait_s, may_create)
            self._file = path.stat()
        except BaseException:
            self._db.close()
            raise

    def _missing(self, why: str) -> RegistryMissing:
        return RegistryMissing(
            f"{self._path} is {why}, though the log beside it has segments: without it numbers would be given twice. "
            "Put it back from a copy, or begin a new log in another folder"
        )

    def _prepare(self, wait_s: float, may_create: bool) -> None:
        give_up = time.monotonic() + wait_s
        while True:
            try:
                with self._errors_told():
                    self._db.execute("PRAGMA journal_mode=WAL")
                    self._db.execute("PRAGMA synchronous=FULL")
                break
            except RegistryUnavailable as error:
                # Of several processes that find a new file, one changes its mode, and the others are not made to wait.
                if not error.is_busy or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
        with self._transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0 and not may_create:
                raise self._missing("empty")
            if version > _SCHEMA_VERSION:
                raise RegistryDamaged(f"{self._path}: written by another version ({version})")
            for statement in (_SCHEMA if version == 0 else "").split(";"):
                db.execute(statement)
            if version < _SCHEMA_VERSION:
                db.execute(table_sums.SCHEMA)
                sum_up(db, _TABLES)
                db.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
            self._check(db)
        with self._errors_told():
            self._db.watch(_TABLES)

    def _check(self, db: sqlite3.Connection) -> None:
        """Numbers that are not those that were given would make one stream of two, or two of one: nothing of it may be
        believed then."""
        if wrong := _wrong(db):
            raise RegistryDamaged(_damaged(self._path, wrong))

    def number_of(self, stream: StreamName) -> StreamNumber:
        """The number of a stream, given now if it has none."""
        return self.numbers_of([stream])[stream]

    def numbers_of(self, streams: Iterable[StreamName]) -> dict[StreamName, StreamNumber]:
        """The numbers of streams. New ones are given to all that have none, or, with an error, to none of them."""
        wanted = {each: (each.agent, each.nonce, each.name) for each in streams}
        new: set[tuple[str, int, str]] = set()
        unknown: dict[tuple[str, int, str], StreamName] = {}
        found: dict[tuple[str, int, str], int] = {}
        for each, key in wanted.items():
            if (number := self._numbers.get(key)) is None:
                unknown[key] = each
            else:
                found[key] = number
        if unknown:
            with self._transaction() as db:
                (last,) = db.execute("SELECT coalesce(max(number), 0) FROM streams").fetchone()
                for key, stream in unknown.items():
                    agent, nonce, name = key
                    known = db.execute(_NUMBER, (agent, _signed(nonce), name)).fetchone()
                    if known:
                        found[key] = known[0]
                        continue
                    if last >= MOST_STREAMS:
                        raise RegistryFull(f"{self._path}: all {MOST_STREAMS} numbers of streams are given")
                    last += 1
                    db.execute(
                        "INSERT INTO streams VALUES (?,?,?,?,?)", (last, agent, _signed(nonce), stream.epoch, name)
                    )
                    found[key] = last
                    new.add(key)
            for key in unknown:
                self._numbers.put(key, found[key])
        return {each: StreamNumber(found[key], key in new) for each, key in wanted.items()}

    def epoch_of(self, agent: str, nonce: int, counter: int) -> Epoch:
        """The number to show for a start of an agent: its own count, unless another start has it already."""
        epoch = self._epochs.get((agent, nonce))
        if epoch is None:
            with self._transaction() as db:
                epoch = self._stored_epoch(db, agent, nonce, counter)
            self._epochs.put((agent, nonce), epoch)
        return epoch

    def _stored_epoch(self, db: sqlite3.Connection, agent: str, nonce: int, counter: int) -> Epoch:
        known = db.execute(
            "SELECT shown, reflashed FROM epochs WHERE agent=? AND nonce=?", (agent, _signed(nonce))
        ).fetchone()
        if known:
            return Epoch(known[0], bool(known[1]))
        (is_used,) = db.execute(
            "SELECT EXISTS (SELECT 1 FROM epochs WHERE agent=? AND counter=?)", (agent, counter)
        ).fetchone()
        (is_shown, next_free) = db.execute(
            "SELECT coalesce(max(shown = ?), 0), coalesce(max(shown), -1) + 1 FROM epochs WHERE agent=?",
            (counter, agent),
        ).fetchone()
        shown = next_free if is_used or is_shown else counter
        db.execute(
            "INSERT INTO epochs VALUES (?,?,?,?,?,?,NULL)",
            (agent, _signed(nonce), counter, shown, is_used, self._clock_ms()),
        )
        return Epoch(shown, bool(is_used))

    def close_epochs(self, closed: Iterable[ClosedEpoch]) -> None:
        """Remember how far epochs had come that nobody else remembers from now on."""
        with self._transaction() as db:
            for agent, nonce, shown, next_seq in closed:
                self._stored_epoch(db, agent, nonce, shown)
                db.execute("UPDATE epochs SET closed_at=? WHERE agent=? AND nonce=?", (next_seq, agent, _signed(nonce)))

    def closed_epoch(self, agent: str, nonce: int) -> tuple[int, int] | None:
        """The number to show for an epoch that was closed, and how far it had come."""
        with self._turn, self._errors_told():
            found: tuple[int, int] | None = self._db.execute(
                "SELECT shown, closed_at FROM epochs WHERE agent=? AND nonce=? AND closed_at IS NOT NULL",
                (agent, _signed(nonce)),
            ).fetchone()
        return found

    def agents(self) -> list[str]:
        """All agents of which anything was ever logged."""
        with self._turn, self._errors_told():
            return [agent for (agent,) in self._db.execute(_AGENTS)]

    def confirm(self, streams: Iterable[tuple[tuple[str, int, str], int]]) -> None:
        """RegistryDamaged if it did not give streams (agent, nonce, name) the numbers that the log has for them: it may
        be a copy that is older than the log."""
        with self._turn, self._errors_told():
            for (agent, nonce, name), number in streams:
                found = self._db.execute(_NUMBER, (agent, _signed(nonce), name)).fetchone()
                if found != (number,):
                    raise RegistryDamaged(
                        f"{self._path} does not fit the log: it knows stream {name} of {agent} as "
                        f"{found[0] if found else 'nothing'}, not as {number}. If it is a copy that is older than the "
                        "log, put back a newer one, or begin a new log in another folder"
                    )

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on disk before it ends."""
        with self._turn, self._errors_told():
            self._check_place()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.store_sums()
                self._db.execute("COMMIT")
            except BaseException:
                self._db.forget_changes()
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _check_place(self) -> None:
        """SQLite goes on writing to a file that was deleted, and then forgets all that it was told."""
        try:
            is_there = self._file is None or os.path.samestat(self._file, self._path.stat())
        except OSError:
            is_there = False
        if not is_there:
            raise RegistryUnavailable(f"{self._path}: deleted or moved while in use: put it back, or start anew")

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            what = "cannot be opened for writing: " if code in _UNWRITABLE else ""
            told = RegistryUnavailable(f"{self._path}: {what}{error}")
            told.is_busy = code in _BUSY
            raise told from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # even what SQLite says may be no text then
            raise RegistryDamaged(f"{self._path}: {error}") from error


def registry_fault(path: Path) -> str:
    """What would keep translators from going on with a registry; nothing, if it is sound. It may be written to
    meanwhile, and stays as it is."""
    if not path.exists():
        return f"{path} is not there, though there are segments: put it back from a copy"
    try:
        with closing(_read_only(path)) as db:
            db.execute("BEGIN")  # all of one moment
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > _SCHEMA_VERSION:
                return f"{path}: written by another version ({version})"
            wrong = _wrong(db, _TABLES if version == _SCHEMA_VERSION else ()) if version else "empty"
    except sqlite3.OperationalError as error:
        return f"{path} cannot be read: {error}"
    except (sqlite3.Error, UnicodeDecodeError) as error:
        wrong = str(error)
    return _damaged(path, wrong) if wrong else ""


def _wrong(db: sqlite3.Connection, summed: Sequence[str] = _TABLES) -> str:
    """The first thing that is not as it was written; nothing, if all is."""
    return next(faults(db, _SCHEMA + table_sums.SCHEMA if summed else _SCHEMA, summed), "")


def _damaged(path: Path, wrong: str) -> str:
    way_out = "put it back from a copy that is as new as the log, or begin a new log in another folder"
    return f"{path} is damaged ({wrong}): {way_out}"


def _read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. On a disk that takes nothing, SQLite has to be told that nobody writes."""
    uri = f"file:{quote(str(path))}?mode=ro"
    db = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        db.execute("SELECT 1 FROM sqlite_master")  # opens the file
        return db
    except sqlite3.OperationalError:
        db.close()
        if path.with_name(f"{path.name}-wal").is_file():
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None)
    except BaseException:
        db.close()
        raise


class RegistryView:
    """Reads what people want to know out of a registry that others write; without one, it knows nothing."""

    def __init__(self, path: Path) -> None:
        self._db: sqlite3.Connection | None = None
        with suppress(sqlite3.Error, UnicodeDecodeError):
            self._db = _read_only(path)

    def epoch_of(self, agent: str, nonce: int) -> int | None:
        """The number by which people know a start of an agent."""
        found = self._found("SELECT shown FROM epochs WHERE agent=? AND nonce=?", agent, _signed(nonce))
        return found[0] if found else None

    def number_of(self, agent: str, nonce: int, name: str) -> int | None:
        """The number that a stream was given."""
        found = self._found(_NUMBER, agent, _signed(nonce), name)
        return found[0] if found else None

    def agents(self) -> list[str]:
        """All agents of which anything was ever logged."""
        return self._found(_AGENTS)

    def _found(self, query: str, *values: str | int) -> list[Any]:
        if self._db is not None:
            with suppress(sqlite3.Error, UnicodeDecodeError):
                return [value for (value,) in self._db.execute(query, values)]
        return []

    def close(self) -> None:
        """Let go of the file."""
        if self._db is not None:
            self._db.close()


def _signed(nonce: int) -> int:
    """SQLite has no unsigned integers."""
    return nonce - (1 << 64) if nonce >> 63 else nonce

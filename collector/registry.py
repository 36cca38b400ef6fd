"""Numbers of streams and epochs, given once and for ever, to all translators alike.

One small SQLite database, and one transaction per question that memory cannot answer: it finds what is known, adds what
is not, and is on disk before anybody hears the answer. Answers never change, so each process keeps what it has heard.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

NUMBER_BITS = 27
MOST_STREAMS = (1 << NUMBER_BITS) - 1

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE streams (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, nonce INTEGER NOT NULL, epoch INTEGER NOT NULL, name TEXT NOT NULL,
    UNIQUE (agent, nonce, name));
CREATE TABLE epochs (
    agent TEXT NOT NULL, nonce INTEGER NOT NULL, counter INTEGER NOT NULL, shown INTEGER NOT NULL,
    reflashed INTEGER NOT NULL, first_seen_ms INTEGER NOT NULL, closed_at INTEGER,
    UNIQUE (agent, nonce), UNIQUE (agent, shown));
"""


class RegistryError(RuntimeError):
    """Anything about the registry; the text says what."""


class RegistryUnavailable(RegistryError):
    """Full disk, or locked for too long: nothing was given or changed; ask again later."""


class RegistryDamaged(RegistryError):
    """The file is not a registry that this version can read."""


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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Registry:
    """The registry in its file. Threads and processes may share it."""

    def __init__(self, path: Path, *, wait_s: float = 10.0, clock_ms: Callable[[], int] = _now_ms) -> None:
        """`wait_s`: how long to wait for other processes before RegistryUnavailable."""
        self._path = path
        self._clock_ms = clock_ms
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._epochs: dict[tuple[str, int], Epoch] = {}
        self._turn = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise RegistryUnavailable(f"{path}: {error}") from error
        try:
            self._prepare(wait_s)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, wait_s: float) -> None:
        give_up = time.monotonic() + wait_s
        while True:
            try:
                with self._errors_told():
                    self._db.execute("PRAGMA journal_mode=WAL")
                    self._db.execute("PRAGMA synchronous=FULL")
                break
            except RegistryUnavailable:
                # Of several processes that find a new file, one changes its mode, and the others are not made to wait.
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
        with self._transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
            elif version != _SCHEMA_VERSION:
                raise RegistryDamaged(f"{self._path}: written by another version ({version})")

    def number_of(self, stream: StreamName) -> StreamNumber:
        """The number of a stream, given now if it has none."""
        return self.numbers_of([stream])[stream]

    def numbers_of(self, streams: Iterable[StreamName]) -> dict[StreamName, StreamNumber]:
        """The numbers of streams. New ones are given to all that have none, or, with an error, to none of them."""
        wanted = list(streams)
        numbers = self._numbers
        new: set[tuple[str, int, str]] = set()
        unknown = {key: each for each in wanted if (key := (each.agent, each.nonce, each.name)) not in numbers}
        if unknown:
            found: dict[tuple[str, int, str], int] = {}
            with self._transaction() as db:
                (last,) = db.execute("SELECT coalesce(max(number), 0) FROM streams").fetchone()
                for key, stream in unknown.items():
                    agent, nonce, name = key
                    known = db.execute(
                        "SELECT number FROM streams WHERE agent=? AND nonce=? AND name=?", (agent, _signed(nonce), name)
                    ).fetchone()
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
            numbers.update(found)
        keys = [(each, (each.agent, each.nonce, each.name)) for each in wanted]
        return {each: StreamNumber(numbers[key], key in new) for each, key in keys}

    def epoch_of(self, agent: str, nonce: int, counter: int) -> Epoch:
        """The number to show for a start of an agent: its own count, unless another start has it already."""
        epoch = self._epochs.get((agent, nonce))
        if epoch is None:
            with self._transaction() as db:
                epoch = self._stored_epoch(db, agent, nonce, counter)
            self._epochs[agent, nonce] = epoch
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

    def close_epoch(self, agent: str, nonce: int, next_seq: int) -> None:
        """Remember how far an epoch had come that nobody else remembers from now on."""
        with self._transaction() as db:
            db.execute("UPDATE epochs SET closed_at=? WHERE agent=? AND nonce=?", (next_seq, agent, _signed(nonce)))

    def closed_epoch(self, agent: str, nonce: int) -> tuple[int, int] | None:
        """The number to show for an epoch that was closed, and how far it had come."""
        with self._turn, self._errors_told():
            found: tuple[int, int] | None = self._db.execute(
                "SELECT shown, closed_at FROM epochs WHERE agent=? AND nonce=? AND closed_at IS NOT NULL",
                (agent, _signed(nonce)),
            ).fetchone()
        return found

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on disk before it ends."""
        with self._turn, self._errors_told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise RegistryUnavailable(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise RegistryDamaged(f"{self._path}: {error}") from error


def _signed(nonce: int) -> int:
    """SQLite has no unsigned integers."""
    return nonce - (1 << 64) if nonce >> 63 else nonce

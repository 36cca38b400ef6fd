"""What people want to know besides the graph: agents and their plans, streams, captured workflows, what went wrong."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, cast

from collector.store.connection import DAMAGE, store_error
from collector.store.errors import StoreUnusable, TooSlow
from collector.store.nonces import signed, unsigned
from protocol.ids import StreamId
from protocol.records import BEGINNING, END_OF_TIME
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, decode_section

SENSELESS = (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError, MalformedBatch)
"""What is raised, as such, by code that was given values which nobody has written: or which is wrong itself."""
_STEPS_BETWEEN_LOOKS = 20_000  # of SQLite's machine: about a millisecond


class Span(NamedTuple):
    """From one time to another, both of which belong to it."""

    first_ms: int
    last_ms: int


EVER = Span(BEGINNING, END_OF_TIME)


class StreamName(NamedTuple):
    """Whose stream it is, and what it is called; `epoch` is None as long as only others have named it."""

    agent: str
    nonce: int
    epoch: int | None
    name: str


class Stream(NamedTuple):
    """A stream by its number; `watermark` and `hold` are None if it has promised nothing."""

    number: int
    agent: str
    nonce: int
    epoch: int | None
    name: str
    watermark: int | None
    hold: int | None
    last_seen_ms: int | None
    """When its agent was last heard; None if only others have named it."""


class Start(NamedTuple):
    """A start of an agent."""

    name: str
    nonce: int
    epoch: int | None
    last_seq: int | None
    last_seen_ms: int
    state: str
    """`running`, `ended`, or `retired`: silent for so long that nobody waits for it."""
    end_ts: int | None
    clock_ms: int | None
    """The device's own time when it told its last status, which was stored at `status_seen_ms`."""
    status_seen_ms: int | None
    status: dict[str, Any] | None


_START = (
    "SELECT agent, nonce, epoch, last_seq, last_seen_ms,"
    " CASE WHEN ended THEN 'ended' WHEN retired_at > coalesce(last_seq, -1) THEN 'retired' ELSE 'running' END,"
    " end_ts, clock_ms, status_seen_ms, status FROM starts"
)

_OF_AGENT = f"{_START} WHERE agent=? ORDER BY last_seen_ms"


def _start(row: tuple[Any, ...]) -> Start:
    name, nonce, *rest, status = row
    return Start(name, unsigned(nonce), *rest, status and json.loads(status))  # type: ignore[call-arg]


class Plan(NamedTuple):
    """The plan of one start of an agent, as JSON."""

    number: int
    agent: str
    nonce: int
    epoch: int | None
    plan: str
    seen_ms: int


class Gap(NamedTuple):
    """What will never come, and why; `agent` is empty where the log itself has lost something."""

    number: int
    agent: str
    nonce: int
    seq: int
    reason: str
    detail: dict[str, Any]
    seen_ms: int


class Refused(NamedTuple):
    """A row of the log that could not be read."""

    number: int
    agent: str
    nonce: int
    seq: int
    kind: int
    reason: str
    seen_ms: int


class Kept(NamedTuple):
    """Records of one batch that are in no result."""

    number: int
    agent: str
    nonce: int
    seq: int
    records: list[Any]
    seen_ms: int


class Moment:
    """A transaction that only reads, unless there is one already. A class, as every answer enters many of them."""

    __slots__ = ("_db", "_is_outermost", "_path")

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path, self._db = path, db
        self._is_outermost = False

    def __enter__(self) -> None:
        if not self._db.in_transaction:
            self._is_outermost = True
            try:
                self._db.execute("BEGIN")
            except sqlite3.DatabaseError as error:
                raise store_error(self._path, error) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._is_outermost and self._db.in_transaction:
            self._db.execute("ROLLBACK")  # nothing was written
        _tell(self._path, error)


@contextmanager
def _sense_of(path: Path) -> Iterator[None]:
    """What makes no sense in rows that were read, as an error of the store."""
    try:
        yield
    except Exception as error:
        _tell(path, error)
        raise


def _tell(path: Path, error: BaseException | None) -> None:
    """Raise an error of the store if this one is due to what it holds."""
    if isinstance(error, DAMAGE):
        raise store_error(path, error) from error
    if type(error) in SENSELESS:
        raise StoreUnusable(
            f"{path} holds what makes no sense ({error!r}): `threadline store check` says if it is damaged"
        ) from error


class People:
    """Answers over one connection that only reads."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db
        self._give_up_at = inf

    def moment(self) -> Moment:
        """All that is read within is of one moment, that of the outermost one."""
        return Moment(self._path, self._db)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """TooSlow if what is asked within takes longer."""
        self._give_up_at = monotonic() + seconds
        self._db.set_progress_handler(lambda: monotonic() > self._give_up_at, _STEPS_BETWEEN_LOOKS)
        try:
            yield
        finally:
            self._db.set_progress_handler(None, 0)
            self._give_up_at = inf

    def give_up(self) -> None:
        """End what is being asked: TooSlow. For any thread."""
        self._give_up_at = -inf

    def check_time(self) -> None:
        """TooSlow if the time that `within` has given is over: for what takes long outside of SQLite."""
        if monotonic() > self._give_up_at:
            raise TooSlow("the answer takes too long")

    @property
    def data_version(self) -> int:
        """A number that changes when something was written."""
        try:
            (version,) = self._db.execute("PRAGMA data_version").fetchone()
        except sqlite3.DatabaseError as error:
            raise store_error(self._path, error) from error
        return int(version)

    def counters(self) -> dict[str, int]:
        """The figures about all of it, kept while writing."""
        return dict(self._rows("SELECT name, value FROM counters"))

    def streams(
        self,
        *,
        agent: str | None = None,
        name: str | None = None,
        epoch: int | None = None,
        seen: Span = EVER,
        after: int = 0,
        limit: int = -1,
    ) -> list[Stream]:
        """Streams that were ever named, by number: all, or those of an agent, of a name or of an epoch, or of starts
        that were heard last within a span of time. `after` is the number of the last one of the page before."""
        where, values = _where({"streams.agent": agent, "name": name, "streams.epoch": epoch})
        if seen != EVER:
            where += " AND last_seen_ms BETWEEN ? AND ?"
            values += seen
        rows = self._rows(
            "SELECT streams.number, streams.agent, streams.nonce, streams.epoch, name, watermark, hold, last_seen_ms"
            " FROM streams LEFT JOIN progress ON stream = streams.number"
            " LEFT JOIN starts ON starts.agent = streams.agent AND starts.nonce = streams.nonce"
            f" WHERE streams.number > ? AND {where} ORDER BY streams.number LIMIT ?",
            *(after, *values, limit),
        )
        with _sense_of(self._path):
            return [Stream(number, agent, unsigned(nonce), *rest) for number, agent, nonce, *rest in rows]

    def stream_names(self, numbers: Iterable[int]) -> dict[int, StreamName]:
        """The names of these streams, without those that nobody has named."""
        query = "SELECT agent, nonce, epoch, name FROM streams WHERE number=?"
        found: dict[int, StreamName] = {}
        with self.moment():
            for number in numbers:
                row = self._db.execute(query, (number,)).fetchone()
                if row:
                    found[number] = StreamName(row[0], unsigned(row[1]), *row[2:])
        return found

    def starts_of(self, agent: str) -> list[Start]:
        """All starts of an agent, oldest first."""
        with self.moment():
            return [_start(row) for row in self._rows(f"{_OF_AGENT}, epoch, number", agent)]

    def start_named(self, number: int) -> tuple[str, int, int | None]:
        """The agent, nonce and epoch of a start."""
        ((agent, nonce, epoch),) = self._rows("SELECT agent, nonce, epoch FROM starts WHERE number=?", number)
        return agent, unsigned(nonce), epoch

    def start_number(self, agent: str, epoch: int | None, nonce: int | None = None) -> int | None:
        """The start of an agent with this epoch or, if that is None, with this nonce."""
        if epoch is None:
            found = self._rows("SELECT number FROM starts WHERE agent=? AND nonce=?", agent, signed(nonce or 0))
        else:
            found = self._rows("SELECT number FROM starts WHERE agent=? AND epoch=? ORDER BY number", agent, epoch)
        return found[-1][0] if found else None

    def agents(self, *, name: str | None = None, seen: Span = EVER, after: str = "", limit: int = -1) -> list[Start]:
        """Agents by name, each as of the start that was heard last, if that was within a span of time. `after` is the
        name of the last one of the page before."""
        where, values = _where({"agent": name})
        found: list[Start] = []
        with self.moment():
            names = self._db.execute(
                f"SELECT DISTINCT agent FROM starts WHERE agent > ? AND {where} ORDER BY agent", (after, *values)
            )
            for (each,) in names:
                (newest,) = map(_start, self._rows(f"{_OF_AGENT} DESC, epoch DESC, number DESC LIMIT 1", each))
                if seen.first_ms <= newest.last_seen_ms <= seen.last_ms:
                    found.append(newest)
                if len(found) == limit:
                    break
        return found

    def plans(
        self, *, agent: str | None = None, epoch: int | None = None, seen: Span = EVER, after: int = 0, limit: int = -1
    ) -> list[Plan]:
        """Plans, oldest first. `after` is the number of the last one of the page before."""
        where, values = _where({"agent": agent, "epoch": epoch})
        rows = self._rows(
            "SELECT number, agent, nonce, epoch, plan, plan_seen_ms FROM starts WHERE plan IS NOT NULL AND number > ?"
            f" AND {where} AND plan_seen_ms BETWEEN ? AND ? ORDER BY number LIMIT ?",
            *(after, *values, *seen, limit),
        )
        with _sense_of(self._path):
            return [Plan(number, agent, unsigned(nonce), *rest) for number, agent, nonce, *rest in rows]

    def gaps(self, *, agent: str | None = None, seen: Span = EVER, after: int = 0, limit: int = 100) -> list[Gap]:
        """Gaps in the order in which they were told. `after` is the number of the last one of the page before."""
        where, values = _where({"agent": agent})
        rows = self._rows(
            "SELECT number, agent, nonce, seq, reason, detail, seen_ms FROM gaps WHERE number > ?"
            f" AND {where} AND seen_ms BETWEEN ? AND ? ORDER BY number LIMIT ?",
            *(after, *values, *seen, limit),
        )
        with _sense_of(self._path):
            return [
                Gap(number, agent, unsigned(nonce), seq, why, json.loads(detail), seen_ms)
                for number, agent, nonce, seq, why, detail, seen_ms in rows
            ]

    def refused(
        self, *, agent: str | None = None, seen: Span = EVER, after: int = 0, limit: int = 100
    ) -> list[Refused]:
        """Rows of the log that could not be read. `after` is the number of the last one of the page before."""
        where, values = _where({"agent": agent})
        rows = self._rows(
            "SELECT number, agent, nonce, seq, kind, reason, seen_ms FROM refused WHERE number > ?"
            f" AND {where} AND seen_ms BETWEEN ? AND ? ORDER BY number LIMIT ?",
            *(after, *values, *seen, limit),
        )
        with _sense_of(self._path):
            return [Refused(number, agent, unsigned(nonce), *rest) for number, agent, nonce, *rest in rows]

    def kept(
        self, kind: Kind, *, agent: str | None = None, seen: Span = EVER, after: int = 0, limit: int = 100
    ) -> list[Kept]:
        """Late or skipped tuples as agents told them, several to a row."""
        where, values = _where({"agent": agent})
        rows = self._rows(
            "SELECT number, agent, nonce, seq, data, seen_ms FROM kept WHERE number > ? AND kind = ?"
            f" AND {where} AND seen_ms BETWEEN ? AND ? ORDER BY number LIMIT ?",
            *(after, kind, *values, *seen, limit),
        )
        found: list[Kept] = []
        with _sense_of(self._path):
            for number, name, nonce, seq, data, seen_ms in rows:
                records = decode_section(kind, data, StreamId(name, 0, "", unsigned(nonce)))
                found.append(Kept(number, name, unsigned(nonce), seq, cast("list[Any]", records), seen_ms))
        return found

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.moment():
            return self._db.execute(query, values).fetchall()


def _where(wanted: Mapping[str, str | int | None]) -> tuple[str, list[str | int]]:
    """Conditions of SQL for the columns that have to have a value."""
    given = {column: value for column, value in wanted.items() if value is not None}
    return " AND ".join([f"{column} = ?" for column in given] or ["1"]), list(given.values())

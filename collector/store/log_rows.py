"""What the log says besides the graph: names of streams, plans, progress, status, gaps, ends, captured events.

Every statement stays right when it is told again, in any order: what is first stays, what is latest goes by the number
of the agent's batch. A row that cannot be read is kept with the reason, and the rest goes on.
"""

from __future__ import annotations

import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from collector.plain import as_json
from collector.store.captured import add_events
from collector.store.nonces import signed
from collector.store.replay import Replay
from protocol.chunks import read_progress
from protocol.ids import StreamId
from protocol.row import Row
from protocol.structs import as_dict
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, decode_section
from protocol.wire.values import decode

_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
_STREAM = """INSERT INTO streams VALUES (?,?,?,?,?) ON CONFLICT (number) DO UPDATE SET epoch=excluded.epoch
WHERE agent=excluded.agent AND nonce=excluded.nonce AND name=excluded.name AND {}"""
_OWN_STREAM = _STREAM.format("excluded.epoch IS NOT NULL")
_OTHER_STREAM = _STREAM.format("epoch IS NULL")
_PLAN = "UPDATE starts SET plan=?, plan_seen_ms=? WHERE number=? AND plan IS NULL"
_PROGRESS = """INSERT INTO progress VALUES (?,?,?,?) ON CONFLICT (stream)
DO UPDATE SET watermark=excluded.watermark, hold=excluded.hold, seq=excluded.seq WHERE excluded.seq >= seq"""
_STATUS = """UPDATE starts SET status=?1, status_seq=?2, clock_ms=?3,
status_seen_ms=CASE WHEN coalesce(status_seq, -1) < ?2 THEN ?4 ELSE status_seen_ms END
WHERE number=?5 AND coalesce(status_seq, -1) <= ?2"""
_SEEN = "UPDATE starts SET last_seq=?, last_seen_ms=? WHERE number=? AND coalesce(last_seq, -1) < ?"


class LogRows:
    """The rows of one micro-batch on their way into the store, within its transaction."""

    def __init__(self, db: sqlite3.Connection, now_ms: int, replay: Replay | None = None) -> None:
        self._db = db
        self._now_ms = now_ms
        self._replay = replay
        self._starts: dict[tuple[str, int], int] = {}
        self._last_seqs: dict[int, int] = {}
        self.counts: Counter[str] = Counter()

    def write(self, rows: Iterable[Row]) -> None:
        """Keep what these rows say."""
        for row in rows:
            keep = _KEEPERS.get(row.kind)
            if keep is None:
                self.refuse(row, MalformedBatch(f"a row of kind {row.kind} tells the store nothing"))
                continue
            if row.agent:
                self._start(row)  # it was heard, whatever it says
            before = self.counts.copy()
            self._db.execute("SAVEPOINT a_row")
            try:
                keep(self, row)
            except _UNREADABLE as error:
                self._db.execute("ROLLBACK TO a_row")
                self.counts = before
                self.refuse(row, error)
            self._db.execute("RELEASE a_row")

    def finish(self) -> None:
        """Note how far agents have come."""
        for start, seq in self._last_seqs.items():
            self._db.execute(_SEEN, (seq, self._now_ms, start, seq))

    def refuse(self, row: Row, error: Exception) -> None:
        """Keep a row that cannot be read, once."""
        if self.is_told(row):
            return
        reason = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
        found = self._db.execute(
            "INSERT OR IGNORE INTO refused (agent, nonce, seq, kind, reason, data, seen_ms) VALUES (?,?,?,?,?,?,?)",
            (row.agent, signed(row.nonce), row.seq, row.kind, reason, row.data, self._now_ms),
        )
        self.counts["refused"] += found.rowcount

    def start_of(self, row: Row) -> int:
        """The number of the start of an agent that a row is of; that it was heard is noted."""
        number = self._start(row)
        self._last_seqs[number] = max(row.seq, self._last_seqs.get(number, row.seq))
        return number

    def _start(self, row: Row) -> int:
        key = (row.agent, row.nonce)
        number = self._starts.get(key)
        if number is None:
            values = (row.agent, signed(row.nonce))
            self._db.execute(
                "INSERT OR IGNORE INTO starts (agent, nonce, last_seen_ms) VALUES (?,?,?)", (*values, self._now_ms)
            )
            query = "SELECT number FROM starts WHERE agent=? AND nonce=?"
            (number,) = self._db.execute(query, values).fetchone()
            self._starts[key] = int(number)
        return int(number)

    def is_told(self, row: Row) -> bool:
        """Whether another query has told it: then it is here, or was removed."""
        return self._replay is not None and self._replay.is_told(row.agent)

    # One kind each

    def _register(self, row: Row) -> None:
        number, agent, epoch, name, nonce, *_ = decode(row.data)
        start = self.start_of(row)
        is_own = (agent, nonce) == (row.agent, row.nonce)
        self._add_stream(number, agent, nonce, epoch, name, is_own)
        if is_own:
            self._db.execute("UPDATE starts SET epoch=? WHERE number=?", (epoch, start))

    def _epoch(self, row: Row) -> None:
        self._db.execute("UPDATE starts SET epoch=? WHERE number=?", (int(decode(row.data)), self.start_of(row)))

    def _add_stream(self, number: int, agent: str, nonce: int, epoch: int | None, name: str, is_own: bool) -> None:
        """Whose stream it is knows best by which number people know its epoch."""
        statement = _OWN_STREAM if is_own else _OTHER_STREAM
        self._db.execute(statement, (number, agent, signed(nonce), epoch, name))

    def _snapshot(self, row: Row) -> None:
        told = decode(row.data)
        start = self._start(row)
        for name, number in told["own_streams"].items():
            self._add_stream(number, row.agent, row.nonce, told["epoch"], name, True)
        for number, agent, nonce, name in told["other_streams"]:
            self._add_stream(number, agent, nonce, None, name, False)
        self._db.execute(
            "UPDATE starts SET epoch=?, ended=max(ended, ?) WHERE number=?",
            (told["epoch"], bool(told["ended"]), start),
        )
        if told["plan"]:
            self._add_plan(start, row._replace(kind=Kind.PLAN, data=told["plan"]))
        if told["retired"]:
            self._retire(row)
        if row.seq > 0:  # it is the number of the next batch
            self._last_seqs[start] = max(row.seq - 1, self._last_seqs.get(start, 0))

    def _plan(self, row: Row) -> None:
        self._add_plan(self.start_of(row), row)

    def _add_plan(self, start: int, row: Row) -> None:
        for declared in _decoded(row):
            self._db.execute(_PLAN, (declared.plan, self._now_ms, start))

    def _progress(self, row: Row) -> None:
        chunk = read_progress(row.data)
        self.start_of(row)
        columns = [column.tolist() for column in (chunk.stream, chunk.watermark, chunk.hold)]
        self._db.executemany(_PROGRESS, [(*values, row.seq) for values in zip(*columns, strict=True)])

    def _status(self, row: Row) -> None:
        start = self.start_of(row)
        for status in _decoded(row):
            values = (as_json(as_dict(status)), row.seq, status.clock_ms, self._now_ms, start)
            self._db.execute(_STATUS, values)

    def _events(self, row: Row) -> None:
        self.counts.update(add_events(self._db, self.start_of(row), _decoded(row)))

    def _gap(self, row: Row) -> None:
        if row.agent:
            self.start_of(row)
        for gap in _decoded(row):
            found = self._db.execute(
                "INSERT OR IGNORE INTO gaps (agent, nonce, seq, reason, detail, seen_ms) VALUES (?,?,?,?,?,?)",
                (row.agent, signed(row.nonce), row.seq, gap.reason, as_json(as_dict(gap)), self._now_ms),
            )
            self.counts["gaps"] += found.rowcount

    def _end(self, row: Row) -> None:
        start = self.start_of(row)
        for end in _decoded(row):
            self._db.execute("UPDATE starts SET ended=1, end_ts=? WHERE number=?", (end.ts, start))

    def _retire(self, row: Row) -> None:
        """Its seq is that of the batch that is waited for: if that comes, the agent has returned."""
        self._db.execute(
            "UPDATE starts SET retired_at=max(coalesce(retired_at, 0), ?) WHERE number=?", (row.seq, self._start(row))
        )

    def _keep(self, row: Row) -> None:
        """Late and skipped tuples, sketches: as they are, for whoever asks."""
        self.start_of(row)
        if self.is_told(row):
            return
        records = len(_decoded(row))
        found = self._db.execute(
            "INSERT OR IGNORE INTO kept (agent, nonce, seq, kind, data, seen_ms) VALUES (?,?,?,?,?,?)",
            (row.agent, signed(row.nonce), row.seq, row.kind, row.data, self._now_ms),
        )
        self.counts[f"{Kind(row.kind).name.lower()}_records"] += records * found.rowcount

    def _pass_over(self, row: Row) -> None:
        """What agents tell each other's records by: nobody asks the store for it."""
        self.start_of(row)
        self.counts["received_rows"] += not self.is_told(row)


def _decoded(row: Row) -> list[Any]:
    section = decode_section(Kind(row.kind), row.data, StreamId(row.agent, 0, "", row.nonce))
    if not isinstance(section, list):
        raise MalformedBatch(f"columns in a row of kind {row.kind}")
    return section


_KEEPERS: dict[int, Callable[[LogRows, Row], None]] = {
    Kind.EPOCH: LogRows._epoch,
    Kind.REGISTER: LogRows._register,
    Kind.SNAPSHOT: LogRows._snapshot,
    Kind.PLAN: LogRows._plan,
    Kind.PROGRESS: LogRows._progress,
    Kind.STATUS: LogRows._status,
    Kind.EVENT: LogRows._events,
    Kind.GAP: LogRows._gap,
    Kind.END: LogRows._end,
    Kind.RETIRE: LogRows._retire,
    Kind.LATE: LogRows._keep,
    Kind.SKIPPED: LogRows._keep,
    Kind.SKETCH: LogRows._keep,
    Kind.RECEIVED: LogRows._pass_over,
}

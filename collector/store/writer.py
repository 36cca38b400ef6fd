"""The one writer of the store: a micro-batch of the pipeline becomes one transaction, with the key by which it is known
again and the changes that others follow.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from collector.store import feed
from collector.store.connection import connect_writer, errors_told, transaction
from collector.store.errors import OtherContent, StoreUnusable
from collector.store.feed import ChangeKind
from collector.store.intermediate import add_deliveries
from collector.store.late import NOT_VIA, resolve
from collector.store.lock import WriterLock
from collector.store.log_rows import LogRows
from collector.store.packing import groups_of, pack, pack_groups, unpack
from collector.store.payloads import add_payloads
from collector.store.replay import Replay, shards_behind
from collector.store.retention import Removed, remove_before
from collector.store.selection import News, select
from collector.store.tables import Tables, add_counts
from collector.store.vertices import sealed_edges, sum_of_sink
from protocol.graph import GraphBatch
from protocol.records import BEGINNING
from protocol.wire.sections import Kind


@dataclass(frozen=True, slots=True)
class Written:
    """How much of a batch was new; `ignored` is what the store had already."""

    sinks: int
    sources: int
    edges: int
    sink_labels: int
    source_labels: int
    late: int
    lost: int
    refused: int
    ignored: int


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path names."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class StoreWriter:
    """Writes to a store that no other process writes to. For any thread."""

    def __init__(self, path: Path, *, clock_ms: Callable[[], int] = _now_ms) -> None:
        self._path = path
        self._clock_ms = clock_ms
        self._turn = threading.Lock()
        self._lock = WriterLock(path)
        try:
            self._db = connect_writer(path)
        except BaseException:
            self._lock.release()
            raise
        self._tables = Tables(self._db)
        self._file = _identity(path)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let a successor have the store."""
        with self._turn:
            if not self._is_closed:
                self._is_closed = True
                self._db.close()
                self._lock.release()

    def made_from(self, told: Mapping[str, str]) -> None:
        """Say what will be told from now on: which log, and how it is read. OtherContent if the store was made from
        something else: numbers would mean something else, or the graph would be made of two."""
        with self._turn, errors_told(self._path), transaction(self._db):
            (is_empty,) = self._db.execute("SELECT NOT EXISTS (SELECT 1 FROM batches)").fetchone()
            if is_empty:  # whoever wanted to write has told nothing
                self._db.execute("DELETE FROM made_from")
            found = dict(self._db.execute("SELECT name, value FROM made_from"))
            for name, value in told.items():
                if found.get(name, value) != value:
                    raise OtherContent(
                        f"{self._path} was made with {name} {found[name]}, not {value}: take a new store for that"
                    )
            self._db.executemany("INSERT OR IGNORE INTO made_from VALUES (?,?)", told.items())

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that was written."""
        with self._turn, errors_told(self._path):
            (last,) = self._db.execute(
                "SELECT max(batch) FROM batches JOIN queries ON queries.number = batches.query WHERE name=?", (query,)
            ).fetchone()
        return None if last is None else int(last)

    def told_upto(self) -> list[str]:
        """Up to where each query has read the log, as its last batch says it."""
        with self._turn, errors_told(self._path):
            return [self._upto(each) for each in self._queries()]

    def write(self, batch: GraphBatch) -> Written | None:
        """Keep a batch, all of it or nothing, on disk when this returns. None: it was written before."""
        if _identity(self._path) != self._file:
            raise StoreUnusable(
                f"{self._path} was deleted or replaced while it was being written to: put it back, or take a new "
                "--store and a new --checkpoint, which replays the log"
            )
        with self._turn, errors_told(self._path), transaction(self._db):
            query = self._query(batch.query)
            if self._is_known(query, batch):
                return None
            replay = self._replay(query, batch.since)
            now_ms = self._clock_ms()
            stamp = max(batch.stamp, self._last_stamp())
            number = self._db.execute(
                "INSERT INTO batches (query, batch, stamp, written_ms, upto) VALUES (?,?,?,?,?)",
                (query, batch.batch, stamp, now_ms, batch.upto),
            ).lastrowid
            assert number is not None
            counts: Counter[str] = Counter(batches=1)
            rows = LogRows(self._db, now_ms, replay)
            rows.write([row for row in batch.rows if row.kind != Kind.PAYLOAD])
            add_payloads(self._db, rows, [row for row in batch.rows if row.kind == Kind.PAYLOAD])
            rows.finish()
            counts.update(rows.counts)
            counts["deliveries"] = add_deliveries(self._tables, batch.deliveries, query, replay)
            news = select(self._tables, batch, resolve(self._tables, batch.late), query, replay)
            self._add(news, stamp, query, number)
            written = Written(
                len(news.sinks.id),
                len(news.sources.id),
                len(news.edges.sink),
                len(news.sink_labels.id),
                len(news.source_labels),
                len(news.late),
                len(news.lost.sink),
                rows.counts["refused"],
                news.ignored,
            )
            for name in Written.__slots__:
                counts[name] = getattr(written, name)
            add_counts(self._db, counts)
        return written

    def retain(self, before_ts: int, is_over: Callable[[], bool] = lambda: False) -> Removed:
        """Remove what is complete and older than this, keeping the graph whole, and the changes and keys of batches
        that were written before. Made of many short transactions: batches may be written between them, and it ends
        between two of them when it is over."""
        return remove_before(self._path, self._tables, self._turn, before_ts, is_over)

    def _query(self, name: str) -> int:
        self._db.execute("INSERT OR IGNORE INTO queries (name) VALUES (?)", (name,))
        (number,) = self._db.execute("SELECT number FROM queries WHERE name=?", (name,)).fetchone()
        return int(number)

    def _last_stamp(self) -> int:
        """Stamps never go back, also when another query tells the beginning once more."""
        found = self._db.execute("SELECT stamp FROM batches ORDER BY number DESC LIMIT 1").fetchone()
        return int(found[0]) if found else BEGINNING

    def _replay(self, query: int, since: str) -> Replay | None:
        """None as long as there was no other query."""
        queries = self._queries()
        if len(queries) == 1:
            return None
        (removed_before,) = self._db.execute("SELECT ts FROM removed_before").fetchone()
        others = [self._upto(each) for each in queries if each != query]
        return Replay(shards_behind(since, others), removed_before)

    def _queries(self) -> list[int]:
        return [number for (number,) in self._db.execute("SELECT number FROM queries")]

    def _upto(self, query: int) -> str:
        """Up to where a query has read the log."""
        last = "SELECT upto FROM batches WHERE query=? ORDER BY batch DESC LIMIT 1"
        found = self._db.execute(last, (query,)).fetchone()
        return str(found[0]) if found else ""

    def _is_known(self, query: int, batch: GraphBatch) -> bool:
        """Whether the batch was written. OtherContent if it was another one: somebody has turned back the clock of the
        query that tells it, and what it has told since then would be lost."""
        name = (query, batch.batch)
        found = self._db.execute("SELECT upto FROM batches WHERE query=? AND batch=?", name).fetchone()
        if found is not None and found[0] != batch.upto:
            raise OtherContent(
                f"{self._path} has another batch {batch.batch} of this query: the checkpoint is not as it was when the "
                "store got it; a new --checkpoint folder replays the log"
            )
        (is_forgotten,) = self._db.execute(
            "SELECT coalesce(forgotten >= ?, 0) FROM queries WHERE number=?", (batch.batch, query)
        ).fetchone()
        return found is not None or bool(is_forgotten)

    def _add(self, news: News, stamp: int, query: int, number: int) -> None:
        """Put what is new into the graph, and tell of it: K, S, E, L, then what is late."""
        self._add_sinks(news, stamp)
        sources, edges, tables = news.sources, news.edges, self._tables
        stamps = np.full(len(sources.id), stamp, "<i8")
        tables.sources.add([sources.id, sources.ts, stamps, sources.sent], query)
        order = np.argsort(edges.source, kind="stable")
        tables.forward.add([edges.source[order], edges.sink[order]], query)
        labels = news.source_labels
        tables.labels.add([labels, np.full(len(labels), stamp, "<i8")], query)
        late = [column.tolist() for column in news.late.columns()]
        self._db.executemany(
            f"INSERT INTO late VALUES (?,?,?,?,nullif(?,{NOT_VIA}),{stamp:d})", zip(*late, strict=True)
        )
        lost = zip(news.lost.sink.tolist(), news.lost.origin.tolist(), strict=True)
        self._db.executemany("INSERT OR IGNORE INTO lost VALUES (?,?)", lost)
        feed.append(
            self._db,
            number,
            stamp,
            [
                (ChangeKind.SINK, [news.sinks.id, news.sinks.ts]),
                (ChangeKind.SOURCE, [sources.id, sources.ts, sources.sent]),
                (ChangeKind.EDGE, [edges.sink, edges.source, edges.flags]),
                (ChangeKind.SINK_LABEL, [news.sink_labels.id, news.sink_labels.flags]),
                (ChangeKind.SOURCE_LABEL, [labels]),
                (ChangeKind.LATE, news.late.columns()),
            ],
        )

    def _add_sinks(self, news: News, stamp: int) -> None:
        """Sinks with their edges and labels, most of which come at once."""
        edges = news.edges
        starts = groups_of(edges.sink)
        sizes = np.diff(starts, append=len(edges.sink)).tolist()
        packed = pack_groups([edges.source, edges.flags], starts)
        of_sink = dict(zip(edges.sink[starts].tolist(), zip(sizes, packed, strict=True), strict=True))
        flags = dict(zip(news.sink_labels.id.tolist(), news.sink_labels.flags.tolist(), strict=True))
        rows = []
        for each, ts in zip(news.sinks.id.tolist(), news.sinks.ts.tolist(), strict=True):
            label, flag = (stamp, flags.pop(each)) if each in flags else (None, 0)
            size, data = of_sink.pop(each, (0, b""))
            row = (each, ts, stamp, label, flag, size)
            rows.append((*row, sealed_edges(each, data), sum_of_sink(*row)))
        self._db.executemany("INSERT INTO sinks VALUES (?,?,?,?,?,?,?,?)", rows)
        changed = {*of_sink, *flags}
        for each, (size, more) in of_sink.items():
            parts = [unpack(data, 2) for data in (news.stored[each].edges, more)]
            both = pack([np.concatenate(column) for column in zip(*parts, strict=True)])
            data = sealed_edges(each, both)
            self._db.execute("UPDATE sinks SET origins=origins+?, edges=? WHERE id=?", (size, data, each))
        self._db.executemany(
            f"UPDATE sinks SET label_stamp={stamp:d}, flags=? WHERE id=?",
            [(flag, each) for each, flag in flags.items()],
        )
        sum_up = "UPDATE sinks SET sum=sum_of_sink(id, ts, stamp, label_stamp, flags, origins) WHERE id=?"
        self._db.executemany(sum_up, [(each,) for each in changed])

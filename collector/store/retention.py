"""Retention: what is complete and old goes, and the graph stays whole at every moment.

A sink goes when it is labelled and older than the given time, with its edges; a source vertex when it is labelled and
as old, and none of its sinks is left. That is done in many short transactions, between which batches can be written:
each of them leaves every edge with both of its ends.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from collector.store import feed
from collector.store.connection import errors_told, transaction
from collector.store.packing import among, distinct, groups_of, spans_of, unpack
from collector.store.pages import PAGE_BITS, Pages
from collector.store.payloads import PAYLOAD, read_head, remove_payloads, unsealed_payload
from collector.store.tables import Tables, add_counts
from collector.store.vertices import SINK_AND_EDGES, sink_of, unsealed_edges
from protocol.chunks import Numbers, is_last_part

_SINKS_AT_ONCE = 2_000
_PAGES_AT_ONCE = 64
_PAYLOADS_AT_ONCE = 500
_KEPT_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Removed:
    """How much retention has removed."""

    sinks: int
    sources: int
    edges: int
    late: int
    lost: int
    deliveries: int
    payloads: int
    kept: int
    """Rows with late and skipped tuples, and rows that could not be read."""


class _Over(Exception):
    """There is no time for the next step."""


class _Retention:
    """One run over the whole store, or until it is over."""

    def __init__(
        self, path: Path, tables: Tables, turn: threading.Lock, before_ts: int, is_over: Callable[[], bool]
    ) -> None:
        self._is_over = is_over
        self._path = path
        self._tables = tables
        self._db = tables.db
        self._turn = turn
        self._before_ts = before_ts
        self.removed: Counter[str] = Counter()

    @contextmanager
    def _step(self) -> Iterator[Counter[str]]:
        """A transaction; what it removes is counted in the same one."""
        if self._is_over():
            raise _Over
        with self._turn, errors_told(self._path), transaction(self._db):
            counts: Counter[str] = Counter()
            yield counts
            add_counts(self._db, {name: -count for name, count in counts.items()})
        self.removed.update(counts)

    def note(self) -> None:
        """From now on, what is older and not here is not new."""
        with self._step():
            self._db.execute("UPDATE removed_before SET ts=max(ts, ?)", (self._before_ts,))

    def remove_sinks(self) -> None:
        """Old sinks, with all that belongs to them. By id: neighbours have their edges in the same pages."""
        query = f"{SINK_AND_EDGES} WHERE id>? AND ts<? AND label_stamp IS NOT NULL ORDER BY id LIMIT ?"
        after = -1
        while True:
            with self._step() as counts:
                found = self._db.execute(query, (after, self._before_ts, _SINKS_AT_ONCE)).fetchall()
                ids = [(sink_of(row[:-1]).id,) for row in found]
                counts["sinks"] = counts["sink_labels"] = len(ids)
                edges = [unpack(unsealed_edges(row[0], row[-1]), 2)[0] for row in found]
                counts["edges"] = self._remove_edges(edges, ids)
                self._remove_origins(np.array([each for (each,) in ids], "<i8"))
                for table in ("late", "lost"):
                    counts[table] = self._db.executemany(f"DELETE FROM {table} WHERE sink=?", ids).rowcount
                self._db.executemany("DELETE FROM sinks WHERE id=?", ids)
            if not found:
                return
            (after,) = ids[-1]

    def _remove_edges(self, sources: list[Numbers], sinks: list[tuple[int]]) -> int:
        """Take all edges of these sinks out of the forward index."""
        if not sources:
            return 0
        gone = np.array([each for (each,) in sinks], "<i8")
        forward = self._tables.forward
        edges = np.concatenate(sources)
        for page in distinct(edges >> PAGE_BITS).tolist():
            source, sink = forward.page(page)
            left = ~among(sink, gone)
            forward.replace(page, [source[left], sink[left]])
        return len(edges)

    def remove_sources(self) -> None:
        """Old source vertices that have no sink any more."""
        tables = self._tables
        for pages in self._slices(tables.sources):
            with self._step() as counts:
                for page in pages:
                    vertices, labels, forward = (
                        each.page(page) for each in (tables.sources, tables.labels, tables.forward)
                    )
                    old = vertices[0][vertices[1] < self._before_ts]
                    gone = np.setdiff1d(np.intersect1d(old, labels[0]), forward[0])
                    if len(gone):
                        counts["sources"] += _remove(tables.sources, page, vertices, gone)
                        counts["source_labels"] += _remove(tables.labels, page, labels, gone)

    def remove_deliveries(self) -> None:
        """Old intermediate tuples, unless one stands in the graph for its sources."""
        tables = self._tables
        for pages in self._slices(tables.deliveries):
            with self._step() as counts:
                for page in pages:
                    parts = tables.deliveries.page(page)
                    gone = np.setdiff1d(parts[0][parts[1] < self._before_ts], tables.sources.page(page)[0])
                    if len(gone):
                        counts["deliveries"] += int((among(parts[0], gone) & is_last_part(parts[2])).sum())
                        _remove(tables.deliveries, page, parts, gone)
                        self._remove_origins(gone)

    def _remove_origins(self, ids: Numbers) -> None:
        """The direct origins of these deliveries, in both directions."""
        tables, origins = self._tables, list[Numbers]()
        for page in distinct(ids >> PAGE_BITS).tolist():
            entries = tables.origins.page(page)
            is_gone = among(entries[0], ids)
            if is_gone.any():
                origins.append(entries[1][is_gone])
                tables.origins.replace(page, [column[~is_gone] for column in entries])
        for page in distinct(np.concatenate(origins) >> PAGE_BITS).tolist() if origins else ():
            entries = tables.derived.page(page)
            left = ~among(entries[1], ids)
            tables.derived.replace(page, [column[left] for column in entries])

    def remove_payloads(self) -> None:
        """Payloads of old tuples of which none is left."""
        query = f"{PAYLOAD} WHERE last_ts<? AND number>? ORDER BY number LIMIT ?"
        after = 0
        while True:
            with self._step() as counts:
                found = self._db.execute(query, (self._before_ts, after, _PAYLOADS_AT_ONCE)).fetchall()
                if found:
                    heads = [read_head(unsealed_payload(*row)).ids for row in found]
                    starts = np.cumsum([0, *map(len, heads[:-1])])
                    stays = np.logical_or.reduceat(self._are_left(np.concatenate(heads)), starts)
                    gone = [row[0] for row, kept in zip(found, stays.tolist(), strict=True) if not kept]
                    counts["payloads"] = remove_payloads(self._db, gone)
            if not found:
                return
            after = found[-1][0]

    def _are_left(self, ids: Numbers) -> NDArray[np.bool_]:
        """Which tuples are vertices, or intermediate."""
        wanted = distinct(ids)
        sinks: list[int] = []
        for begin, end in spans_of(groups_of(wanted >> PAGE_BITS), len(wanted)):
            query = "SELECT id FROM sinks WHERE id BETWEEN ? AND ?"
            sinks += [each for (each,) in self._db.execute(query, (int(wanted[begin]), int(wanted[end - 1])))]
        left = self._tables.sources.known(ids) | self._tables.deliveries.known(ids)
        return left | among(ids, np.array(sinks, "<i8"))

    def remove_kept(self) -> None:
        """Late and skipped tuples, and rows that could not be read, that came so long ago. How many there ever were is
        still counted."""
        for table in ("kept", "refused"):
            query = f"DELETE FROM {table} WHERE number IN (SELECT number FROM {table} WHERE seen_ms<? LIMIT ?)"
            removed = _KEPT_AT_ONCE
            while removed == _KEPT_AT_ONCE:
                with self._step():
                    removed = self._db.execute(query, (self._before_ts, _KEPT_AT_ONCE)).rowcount
                self.removed["kept"] += removed

    def forget_batches(self) -> None:
        """Changes and keys of batches that were written long ago; the last key of each query stays."""
        with self._step():
            (first,) = self._db.execute(
                "SELECT min(number) FROM batches WHERE written_ms>=?", (self._before_ts,)
            ).fetchone()
            if first is None:
                (first,) = self._db.execute("SELECT coalesce(max(number), 0) + 1 FROM batches").fetchone()
            feed.trim(self._db, first)
            old = "number<? AND batch < (SELECT max(batch) FROM batches AS every WHERE every.query = batches.query)"
            for query, batch in self._db.execute(
                f"SELECT query, max(batch) FROM batches WHERE {old} GROUP BY query", (first,)
            ).fetchall():
                self._db.execute("UPDATE queries SET forgotten=? WHERE number=?", (batch, query))
            self._db.execute(f"DELETE FROM batches WHERE {old}", (first,))

    def _slices(self, pages: Pages) -> Iterator[list[int]]:
        """The numbers of all pages, some at a time."""
        after = -1
        while True:
            with self._turn, errors_told(self._path):
                found = list(islice(pages.pages(after), _PAGES_AT_ONCE))
            if not found:
                return
            yield found
            after = found[-1]


def _remove(pages: Pages, page: int, entries: list[Numbers], gone: Numbers) -> int:
    """Take the entries of these ids out of a page."""
    left = ~among(entries[0], gone)
    pages.replace(page, [column[left] for column in entries])
    return int((~left).sum())


def remove_before(
    path: Path, tables: Tables, turn: threading.Lock, before_ts: int, is_over: Callable[[], bool]
) -> Removed:
    """Remove what is complete and older than this; `turn` is taken for each step. The graph stays whole."""
    run = _Retention(path, tables, turn, before_ts, is_over)
    with suppress(_Over):
        run.note()
        run.remove_sinks()
        run.remove_sources()
        run.remove_deliveries()
        run.remove_payloads()
        run.remove_kept()
        run.forget_batches()
    return Removed(**{name: run.removed[name] for name in Removed.__slots__})

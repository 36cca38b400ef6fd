"""The relations of the graph that are kept in pages, and the figures about all of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from collector.store.pages import Pages

BOOKS = (
    *("made_from", "queries", "batches", "feed_trimmed", "removed_before", "counters", "identity"),
    *("streams", "starts", "progress"),
)
"""Tables of plain values that a writer goes by."""
SUMMED = (
    *BOOKS,
    *("late", "lost", "gaps", "kept", "refused"),
    *("workflows", "tasks", "dependencies", "data", "data_names", "data_derivations"),
)
"""All tables of plain values: each has a sum (`protocol.table_sums`), as to tell for each row that is read would cost
more than reading it."""


class Tables:
    """The page tables over one connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.sources = Pages(db, "source_pages", 4)
        """Source vertices: id, ts, stamp, sent."""
        self.labels = Pages(db, "label_pages", 2)
        """Source vertices that are expired: id, stamp."""
        self.forward = Pages(db, "forward_pages", 2)
        """Edges by their source: source, sink."""
        self.deliveries = Pages(db, "delivery_pages", 3)
        """Intermediate tuples: id, ts, part; one that is told in parts has an entry for each."""
        self.origins = Pages(db, "origin_pages", 4)
        """Their direct origins, and those of sinks that came from intermediate tuples: id, origin, origin's ts, remote.
        A sink that is not here came directly from the sources of its edges."""
        self.derived = Pages(db, "derived_pages", 2)
        """The same by the origin: origin, id."""


def add_counts(db: sqlite3.Connection, counts: Mapping[str, int]) -> None:
    """Add to the figures."""
    db.executemany(
        "INSERT INTO counters VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        [(name, value) for name, value in counts.items() if value],
    )


def count_of(db: sqlite3.Connection, name: str) -> int:
    """One of the figures."""
    found = db.execute("SELECT value FROM counters WHERE name=?", (name,)).fetchone()
    return int(found[0]) if found else 0

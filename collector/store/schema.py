"""The tables of the store, and the steps from each version of them to the next.

Tuple ids are cloud ids (`protocol.chunks`). A page table holds a relation of `collector.store.pages`. Nonces are
unsigned and stored as signed numbers of the same 64 bits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from collector.store import captured_graph
from collector.store.errors import OtherStore
from collector.store.feed import sealed_changes
from collector.store.packing import unpack_groups
from collector.store.pages import MIXED, sealed_fragment
from collector.store.payloads import sealed_payload
from collector.store.tables import SUMMED, Tables
from collector.store.vertices import sealed_edges, sum_of_sink
from protocol import table_sums
from protocol.database_faults import wrong_statements

APPLICATION_ID = 0x54686C6E

_GRAPH = """
CREATE TABLE made_from (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID; -- the log, and how
CREATE TABLE queries (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    forgotten INTEGER -- batches up to this one were written, and their keys are gone
);
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, query INTEGER NOT NULL, batch INTEGER NOT NULL, stamp INTEGER NOT NULL,
    written_ms INTEGER NOT NULL, upto TEXT NOT NULL, UNIQUE (query, batch)
);
CREATE TABLE sinks (
    id INTEGER PRIMARY KEY, ts INTEGER NOT NULL, stamp INTEGER NOT NULL, label_stamp INTEGER, flags INTEGER NOT NULL,
    origins INTEGER NOT NULL, edges BLOB NOT NULL -- packed: source, flags
);
CREATE INDEX sinks_by_ts ON sinks (ts);
CREATE TABLE late (
    sink INTEGER NOT NULL, origin INTEGER NOT NULL, origin_ts INTEGER NOT NULL, reason INTEGER NOT NULL, via INTEGER,
    stamp INTEGER NOT NULL, PRIMARY KEY (sink, origin)
) WITHOUT ROWID;
CREATE TABLE lost (sink INTEGER NOT NULL, origin INTEGER NOT NULL, PRIMARY KEY (sink, origin)) WITHOUT ROWID;
CREATE TABLE feed (
    number INTEGER PRIMARY KEY AUTOINCREMENT, batch INTEGER NOT NULL, kind INTEGER NOT NULL, stamp INTEGER NOT NULL,
    count INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE TABLE feed_trimmed (number INTEGER NOT NULL, count INTEGER NOT NULL);
INSERT INTO feed_trimmed VALUES (0, 0);
CREATE TABLE removed_before (ts INTEGER NOT NULL); -- what is older and not here may have been removed
INSERT INTO removed_before VALUES (-9223372036854775808);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_PAGES = "".join(
    f"""
CREATE TABLE {name}_pages (
    number INTEGER PRIMARY KEY, page INTEGER NOT NULL, tier INTEGER NOT NULL, tag INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX {name}_pages_by_page ON {name}_pages (page, tier, tag);
"""
    for name in ("source", "label", "forward", "delivery", "origin")
)
_PAYLOADS = """
CREATE TABLE payloads (
    number INTEGER PRIMARY KEY, start INTEGER NOT NULL, seq INTEGER NOT NULL, kind INTEGER NOT NULL,
    last_ts INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX payloads_by_batch ON payloads (start, seq);
CREATE INDEX payloads_by_ts ON payloads (last_ts);
CREATE TABLE payload_places (
    page INTEGER NOT NULL, first INTEGER NOT NULL, payload INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (page, first, payload)
) WITHOUT ROWID;
"""
_AGENTS = """
CREATE TABLE streams (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, nonce INTEGER NOT NULL, epoch INTEGER, name TEXT NOT NULL
);
CREATE TABLE starts (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, nonce INTEGER NOT NULL, epoch INTEGER, last_seq INTEGER,
    last_seen_ms INTEGER NOT NULL, ended INTEGER NOT NULL DEFAULT 0, end_ts INTEGER, retired_at INTEGER,
    plan TEXT, plan_seen_ms INTEGER, status TEXT, status_seq INTEGER, clock_ms INTEGER, UNIQUE (agent, nonce)
);
CREATE TABLE progress (
    stream INTEGER PRIMARY KEY, watermark INTEGER NOT NULL, hold INTEGER NOT NULL, seq INTEGER NOT NULL
);
CREATE TABLE gaps (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, nonce INTEGER NOT NULL, seq INTEGER NOT NULL,
    reason TEXT NOT NULL, detail TEXT NOT NULL, UNIQUE (agent, nonce, seq, detail)
);
CREATE TABLE kept (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, nonce INTEGER NOT NULL, seq INTEGER NOT NULL,
    kind INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE (agent, nonce, seq, kind, data)
);
CREATE TABLE refused (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, nonce INTEGER NOT NULL, seq INTEGER NOT NULL,
    kind INTEGER NOT NULL, reason TEXT NOT NULL, data BLOB NOT NULL, UNIQUE (agent, nonce, seq, kind, data)
);
"""
_CAPTURED = """
CREATE TABLE workflows (
    start INTEGER NOT NULL, key INTEGER NOT NULL, id TEXT, begun_ts INTEGER, attributes TEXT, ended_ts INTEGER,
    status TEXT, error TEXT, PRIMARY KEY (start, key)
) WITHOUT ROWID;
CREATE INDEX workflows_by_id ON workflows (id);
CREATE TABLE tasks (
    start INTEGER NOT NULL, key INTEGER NOT NULL, workflow INTEGER, id TEXT, transformation TEXT, begun_ts INTEGER,
    ended_ts INTEGER, status TEXT, error TEXT, PRIMARY KEY (start, key)
) WITHOUT ROWID;
CREATE INDEX tasks_by_workflow ON tasks (start, workflow);
CREATE INDEX tasks_by_id ON tasks (id);
CREATE INDEX tasks_running ON tasks (begun_ts) WHERE ended_ts IS NULL;
CREATE TABLE dependencies (
    start INTEGER NOT NULL, task INTEGER NOT NULL, place INTEGER NOT NULL, id TEXT NOT NULL, key INTEGER NOT NULL,
    PRIMARY KEY (start, task, place)
) WITHOUT ROWID;
CREATE TABLE data (
    start INTEGER NOT NULL, task INTEGER NOT NULL, generated INTEGER NOT NULL, place INTEGER NOT NULL, id TEXT NOT NULL,
    workflow_id TEXT NOT NULL, derivations TEXT NOT NULL, attributes TEXT NOT NULL,
    PRIMARY KEY (start, task, generated, place)
) WITHOUT ROWID;
CREATE INDEX data_by_id ON data (id);
"""

_KEPT_FOR_A_TIME = "".join(
    f"""
ALTER TABLE {name} ADD COLUMN seen_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX {name}_by_seen ON {name} (seen_ms);
"""
    for name in ("kept", "refused")
)

_ASKED_FOR = """
CREATE TABLE derived_pages (
    number INTEGER PRIMARY KEY, page INTEGER NOT NULL, tier INTEGER NOT NULL, tag INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX derived_pages_by_page ON derived_pages (page, tier, tag);
CREATE INDEX sinks_by_stream ON sinks (id >> 36, ts);
CREATE INDEX sinks_incomplete ON sinks (ts) WHERE flags <> 0;
CREATE INDEX tasks_by_begun ON tasks (begun_ts);
CREATE INDEX late_by_origin ON late (origin);
CREATE INDEX streams_by_name ON streams (agent, name);
CREATE INDEX batches_by_stamp ON batches (stamp, written_ms);
CREATE INDEX sinks_open ON sinks (ts) WHERE label_stamp IS NULL;
ALTER TABLE starts ADD COLUMN status_seen_ms INTEGER;
ALTER TABLE gaps ADD COLUMN seen_ms INTEGER NOT NULL DEFAULT 0;
"""

_PAGE_TABLES = {"source": 4, "label": 2, "forward": 2, "delivery": 3, "origin": 4, "derived": 2}
"""And how many columns each has."""
_BOUNDED = "".join(
    f"""
ALTER TABLE {name}_pages ADD COLUMN first INTEGER NOT NULL DEFAULT 0; -- id
ALTER TABLE {name}_pages ADD COLUMN last INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {name}_pages ADD COLUMN least INTEGER NOT NULL DEFAULT 0; -- of the second column
ALTER TABLE {name}_pages ADD COLUMN most INTEGER NOT NULL DEFAULT 0;
DROP INDEX {name}_pages_by_page;
CREATE INDEX {name}_pages_by_page ON {name}_pages (page, tier, tag, first, last, least, most);
"""
    for name in _PAGE_TABLES
)
_IDENTITY = """
CREATE TABLE identity (id TEXT NOT NULL); -- of this store, whatever it is called
INSERT INTO identity VALUES (lower(hex(randomblob(4))));
"""
_SEALED = f"""
ALTER TABLE sinks ADD COLUMN sum INTEGER NOT NULL DEFAULT 0; -- of a row, but for its edges
{table_sums.SCHEMA}
"""


def _turn_origins(db: sqlite3.Connection, _: int) -> None:
    """What is derived from an origin: so far, only the origins of what is derived were kept."""
    derived = Tables(db).derived
    for (page,) in db.execute("SELECT DISTINCT page FROM origin_pages ORDER BY page").fetchall():
        fragments = db.execute("SELECT data FROM origin_pages WHERE page=? ORDER BY number", (page,))
        ids, origins = unpack_groups([data for (data,) in fragments], _PAGE_TABLES["origin"], 2)
        order = np.lexsort((ids, origins))
        derived.add([origins[order], ids[order]], MIXED)


def _bound_fragments(db: sqlite3.Connection, _: int) -> None:
    """From which to which number every fragment goes."""
    for name, width in _PAGE_TABLES.items():
        update = f"UPDATE {name}_pages SET first=?, last=?, least=?, most=? WHERE number=?"
        for (number,) in db.execute(f"SELECT number FROM {name}_pages").fetchall():
            (data,) = db.execute(f"SELECT data FROM {name}_pages WHERE number=?", (number,)).fetchone()
            ids, second = unpack_groups([data], width, 2)
            db.execute(update, (int(ids[0]), int(ids[-1]), int(second.min()), int(second.max()), number))


def _seal(db: sqlite3.Connection, version: int) -> None:
    """Every packed value gets its seal, and every table its sum; `version` is that of the store so far."""
    for table in [name for name in _PAGE_TABLES if name != "derived" or version >= _WITH_DERIVED]:
        _rewrite(db, f"{table}_pages", "tag, first, last, least, most", sealed_fragment(f"{table}_pages"))
    _rewrite(db, "feed", "batch, kind, stamp, count", sealed_changes)
    _rewrite(db, "payloads", "number, start, seq, kind, last_ts", sealed_payload)
    for (each,) in db.execute("SELECT id FROM sinks").fetchall():
        *row, edges = db.execute(
            "SELECT id, ts, stamp, label_stamp, flags, origins, edges FROM sinks WHERE id=?", (each,)
        ).fetchone()
        changed = (sealed_edges(each, edges), sum_of_sink(*row), each)
        db.execute("UPDATE sinks SET edges=?, sum=? WHERE id=?", changed)
    table_sums.sum_up(db, SUMMED)


def _rewrite(db: sqlite3.Connection, table: str, columns: str, seal: Callable[..., bytes]) -> None:
    for (number,) in db.execute(f"SELECT number FROM {table}").fetchall():
        row = db.execute(f"SELECT {columns}, data FROM {table} WHERE number=?", (number,)).fetchone()
        db.execute(f"UPDATE {table} SET data=? WHERE number=?", (seal(*row), number))


Step = tuple[str, Callable[[sqlite3.Connection, int], None] | None]
"""Statements, and what has to be done with what is there, given the version that it was of."""
_WITH_DERIVED = 3
STEPS: tuple[Step, ...] = (
    (_GRAPH + _PAGES + _PAYLOADS + _AGENTS + _CAPTURED, None),
    (_KEPT_FOR_A_TIME, None),
    (_ASKED_FOR + captured_graph.TABLES + captured_graph.FILL, _turn_origins),
    (_BOUNDED + _IDENTITY, _bound_fragments),
    (_SEALED, _seal),
)
"""Step n makes version n + 1 of version n. A step that was released is never changed. What has to be done with what is
there is done to the tables of the last version."""


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """The version of a store, 0 if the file is empty. OtherStore if it is another's or from the future."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != APPLICATION_ID or version < 1:
        raise OtherStore(f"{path} is a database of something else")
    if version > len(STEPS):
        raise OtherStore(f"{path} was written by a newer version: its schema is {version}, this one knows {len(STEPS)}")
    return int(version)


def wrong_tables(db: sqlite3.Connection) -> Iterator[str]:
    """What of a store that is up to date is not as the steps have made it."""
    return wrong_statements(db, "".join(statements for statements, _ in STEPS))


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring a store up to date, within the caller's transaction."""
    for statements, _ in STEPS[version:]:
        for statement in statements.split(";"):
            db.execute(statement)
    for _, fill in STEPS[version:]:
        if fill is not None:
            fill(db, version)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={len(STEPS)}")

"""Captured events as rows that can be filtered: workflows, tasks, and the data that tasks used and generated.

A beginning and an end may come in any order, or one of them never (a Gap): each fills its half of the row, once.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence

from collector.plain import as_json
from collector.store.captured_graph import add_names
from protocol.events import DataItem, Event, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded

_WORKFLOW_BEGUN = """INSERT INTO workflows (start, key, id, begun_ts, attributes) VALUES (?,?,?,?,?)
ON CONFLICT (start, key) DO UPDATE SET id=excluded.id, begun_ts=excluded.begun_ts, attributes=excluded.attributes
WHERE begun_ts IS NULL"""
_WORKFLOW_ENDED = """INSERT INTO workflows (start, key, ended_ts, status, error) VALUES (?,?,?,?,?)
ON CONFLICT (start, key) DO UPDATE SET ended_ts=excluded.ended_ts, status=excluded.status, error=excluded.error
WHERE ended_ts IS NULL"""
_TASK_BEGUN = """INSERT INTO tasks (start, key, workflow, id, transformation, begun_ts) VALUES (?,?,?,?,?,?)
ON CONFLICT (start, key) DO UPDATE SET workflow=excluded.workflow, id=excluded.id,
transformation=excluded.transformation, begun_ts=excluded.begun_ts WHERE begun_ts IS NULL"""
_TASK_ENDED = """INSERT INTO tasks (start, key, ended_ts, status, error) VALUES (?,?,?,?,?)
ON CONFLICT (start, key) DO UPDATE SET ended_ts=excluded.ended_ts, status=excluded.status, error=excluded.error
WHERE ended_ts IS NULL"""


def add_events(db: sqlite3.Connection, start: int, events: Iterable[Event]) -> Counter[str]:
    """Keep the events of one start of an agent; returns how many were new, by what they tell."""
    counts: Counter[str] = Counter()
    for event in events:
        key = (start, event.key)
        if isinstance(event, WorkflowBegun):
            values = (*key, event.id, event.ts, as_json(event.attributes))
            counts["workflows_begun"] += db.execute(_WORKFLOW_BEGUN, values).rowcount
        elif isinstance(event, WorkflowEnded):
            found = db.execute(_WORKFLOW_ENDED, (*key, event.ts, event.status, event.error))
            counts[f"workflows_{event.status}"] += found.rowcount
        elif isinstance(event, TaskBegun):
            found = db.execute(_TASK_BEGUN, (*key, event.workflow, event.id, event.transformation, event.ts))
            counts["tasks_begun"] += found.rowcount
            db.executemany(
                "INSERT OR IGNORE INTO dependencies VALUES (?,?,?,?,?)",
                [(*key, place, each.id, each.key) for place, each in enumerate(event.dependencies)],
            )
            _add_data(db, key, False, event.used)
        elif isinstance(event, TaskEnded):
            found = db.execute(_TASK_ENDED, (*key, event.ts, event.status, event.error))
            counts[f"tasks_{event.status}"] += found.rowcount
            _add_data(db, key, True, event.generated)
    return counts


def _add_data(db: sqlite3.Connection, task: tuple[int, int], is_generated: bool, items: Sequence[DataItem]) -> None:
    rows = [
        (*task, is_generated, place, item.id, item.workflow_id, as_json(item.derivations), as_json(item.attributes))
        for place, item in enumerate(items)
    ]
    db.executemany("INSERT OR IGNORE INTO data VALUES (?,?,?,?,?,?,?,?)", rows)
    add_names(db, task[0], items, is_generated)

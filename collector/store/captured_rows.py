"""Captured tasks, data and workflows as tables that can be asked.

All three are asked in the same way (`collector.store.row_query`); here is what each of them is made of.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from collector.filters import Bind, Path, attribute_sql
from collector.store.nonces import unsigned
from collector.store.row_query import Attribute, Column, Limit, Page, Query, Table, find_at, find_page

Status = Literal["running", "finished", "failed"]
RunKey = tuple[int, int]
"""A workflow or a task: the number of the agent's start, and its key there."""


class TaskRow(NamedTuple):
    """A task; what is None has not been told. `values` are those of the question's fields that it has."""

    start: int
    agent: str
    nonce: int
    epoch: int | None
    key: int
    name: str | None
    transformation: str | None
    workflow: int | None
    workflow_name: str | None
    begun_ms: int | None
    ended_ms: int | None
    elapsed_ms: int | None
    status: Status
    error: str | None
    values: Mapping[str, Any]


class DataRow(NamedTuple):
    """Data as one task used or generated it."""

    start: int
    agent: str
    nonce: int
    epoch: int | None
    task: int
    is_generated: bool
    place: int
    name: str
    workflow_name: str
    derivations: list[str]
    attributes: Any
    task_name: str | None
    transformation: str | None
    begun_ms: int | None
    ended_ms: int | None
    values: Mapping[str, Any]


class WorkflowRow(NamedTuple):
    """A run of a workflow."""

    start: int
    agent: str
    nonce: int
    epoch: int | None
    key: int
    name: str | None
    begun_ms: int | None
    ended_ms: int | None
    elapsed_ms: int | None
    status: Status
    error: str | None
    attributes: Any
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery(Query):
    """Fields: `name`, `transformation`, `agent`, `epoch`, `workflow_name`, `status`, `begun_ms`, `ended_ms`,
    `elapsed_ms`, `error`; `id` and `workflow` as `collector.names` writes them; `used.PATH`, `generated.PATH` and
    `workflow.PATH`. If several data of a task have the path, the last of them counts."""

    workflow: RunKey | None = None
    workflow_name: str | None = None
    transformation: str | None = None
    name: str | None = None
    status: Status | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataQuery(Query):
    """Fields: `name`, `workflow_name`, `agent`, `epoch`, `task`, `task_name`, `transformation`, `role` (used or
    generated), `begun_ms` and `ended_ms` of the task, and `attributes.PATH`; any other path is one of attributes."""

    task: RunKey | None = None
    workflow: RunKey | None = None
    workflow_name: str | None = None
    name: str | None = None
    is_generated: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowQuery(Query):
    """Fields: `id`, `name`, `agent`, `epoch`, `status`, `begun_ms`, `ended_ms`, `elapsed_ms`, `error`, and
    `attributes.PATH`; any other path is one of attributes."""

    name: str | None = None
    status: Status | None = None


def find_tasks(db: sqlite3.Connection, query: TaskQuery) -> Page[TaskRow]:
    """Tasks by what was asked, or as they began within each start."""
    limits = [
        Limit("name", "t.id = {}", query.name),
        Limit("transformation", "t.transformation = {}", query.transformation),
        Limit("workflow_name", "w.id = {}", query.workflow_name),
        *_of_run("workflow", "t.start", "t.workflow", query.workflow),
        _of_status("t", query.status),
    ]
    return find_page(db, _TASKS, query, limits)


def find_data(db: sqlite3.Connection, query: DataQuery) -> Page[DataRow]:
    """Data by what was asked, or as tasks had it."""
    limits = [
        Limit("name", "d.id = {}", query.name),
        Limit("workflow_name", "d.workflow_id = {}", query.workflow_name),
        *_of_run("task", "d.start", "d.task", query.task),
        *_of_run("workflow", "t.start", "t.workflow", query.workflow),
        Limit("is_generated", "d.generated = {}", query.is_generated),
    ]
    return find_page(db, _DATA, query, limits)


def find_workflows(db: sqlite3.Connection, query: WorkflowQuery) -> Page[WorkflowRow]:
    """Runs of workflows by what was asked, or as they began within each start."""
    limits = [
        Limit("name", "w.id = {}", query.name),
        _of_status("w", query.status),
    ]
    return find_page(db, _WORKFLOWS, query, limits)


def tasks_at(db: sqlite3.Connection, keys: Iterable[RunKey]) -> dict[RunKey, TaskRow]:
    """These tasks, as far as they are there."""
    return {(row.start, row.key): row for row in find_at(db, _TASKS, keys)}


def workflows_at(db: sqlite3.Connection, keys: Iterable[RunKey]) -> dict[RunKey, WorkflowRow]:
    """These runs of workflows, as far as they are there."""
    return {(row.start, row.key): row for row in find_at(db, _WORKFLOWS, keys)}


def data_at(db: sqlite3.Connection, keys: Iterable[tuple[int, int, int, int]]) -> list[DataRow]:
    """Data by start, task, whether it was generated, and place."""
    return find_at(db, _DATA, keys)


# The tables


def _of_task(is_generated: bool) -> Attribute:
    """What is at a path of the last data of a task that has it."""

    def sql(path: Path, bind: Bind) -> str:
        found = attribute_sql("d.attributes", path, bind)  # once for each row: LIMIT -1 keeps the query within
        data = f"d.start = t.start AND d.task = t.key AND d.generated = {is_generated:d} ORDER BY d.place DESC LIMIT -1"
        return f"(SELECT found FROM (SELECT {found} AS found FROM data d WHERE {data}) WHERE found IS NOT NULL LIMIT 1)"

    return sql


def _in(column: str) -> Attribute:
    return lambda path, bind: attribute_sql(column, path, bind)


def _id(kind: str, key: str) -> str:
    """As `collector.names` writes it."""
    return f"'{kind}:' || s.agent || '@' || coalesce(s.epoch, printf('~%x', s.nonce)) || ':' || {key}"


_LONGEST_MS = 1 << 53  # in JSON, too, everybody reads such a number as it is


def elapsed_sql(table: str) -> str:
    """How long a run took; nothing if its clock has said nonsense: SQLite would make other numbers of that."""
    elapsed = f"{table}.ended_ts - {table}.begun_ts"
    return f"CASE WHEN {elapsed} BETWEEN -{_LONGEST_MS} AND {_LONGEST_MS} THEN {elapsed} END"


def _run_columns(table: str) -> dict[str, Column]:
    """What tasks and workflows have in common."""
    return {
        "id": Column(_id("task" if table == "t" else "workflow", f"{table}.key")),
        "name": Column(f"{table}.id"),
        "agent": Column("s.agent"),
        "epoch": Column("s.epoch", is_number=True),
        "status": Column(f"coalesce({table}.status, 'running')"),
        "begun_ms": Column(f"{table}.begun_ts", is_number=True),
        "ended_ms": Column(f"{table}.ended_ts", is_number=True),
        "elapsed_ms": Column(elapsed_sql(table), is_number=True),
        "error": Column(f"nullif({table}.error, '')"),
    }


_START = "s.agent, s.nonce, s.epoch"
_ENDED = (
    f"{{0}}.begun_ts, {{0}}.ended_ts, {elapsed_sql('{0}')}, coalesce({{0}}.status, 'running'), nullif({{0}}.error, '')"
)


def _task_row(values: Mapping[str, Any], start: int, agent: str, nonce: int, *rest: Any) -> TaskRow:
    return TaskRow._make((start, agent, unsigned(nonce), *rest, values))


def _data_row(values: Mapping[str, Any], start: int, agent: str, nonce: int, *rest: Any) -> DataRow:
    epoch, task, generated, place, name, workflow_name, derivations, attributes, *of_task = rest
    told = (epoch, task, bool(generated), place, name, workflow_name, json.loads(derivations), json.loads(attributes))
    return DataRow._make((start, agent, unsigned(nonce), *told, *of_task, values))


def _workflow_row(values: Mapping[str, Any], start: int, agent: str, nonce: int, *rest: Any) -> WorkflowRow:
    *told, attributes = rest
    return WorkflowRow._make((start, agent, unsigned(nonce), *told, attributes and json.loads(attributes), values))


_TASKS = Table(
    "tasks t JOIN starts s ON s.number = t.start LEFT JOIN workflows w ON w.start = t.start AND w.key = t.workflow",
    ("t.start", "t.key"),
    "t.begun_ts",
    _run_columns("t")
    | {
        "transformation": Column("t.transformation"),
        "workflow": Column(_id("workflow", "t.workflow")),
        "workflow_name": Column("w.id"),
    },
    {"used": _of_task(False), "generated": _of_task(True), "workflow": _in("w.attributes")},
    False,
    f"t.start, {_START}, t.key, t.id, t.transformation, t.workflow, w.id, {_ENDED.format('t')}",
    _task_row,
)
_DATA = Table(
    "data d JOIN starts s ON s.number = d.start JOIN tasks t ON t.start = d.start AND t.key = d.task",
    ("d.start", "d.task", "d.generated", "d.place"),
    "t.begun_ts",
    {
        "name": Column("d.id"),
        "workflow_name": Column("d.workflow_id"),
        "agent": Column("s.agent"),
        "epoch": Column("s.epoch", is_number=True),
        "role": Column("CASE d.generated WHEN 1 THEN 'generated' ELSE 'used' END"),
        "task": Column(_id("task", "d.task")),
        "task_name": Column("t.id"),
        "transformation": Column("t.transformation"),
        "begun_ms": Column("t.begun_ts", is_number=True),
        "ended_ms": Column("t.ended_ts", is_number=True),
    },
    {"attributes": _in("d.attributes")},
    True,
    f"d.start, {_START}, d.task, d.generated, d.place, d.id, d.workflow_id, d.derivations, d.attributes,"
    " t.id, t.transformation, t.begun_ts, t.ended_ts",
    _data_row,
)
_WORKFLOWS = Table(
    "workflows w JOIN starts s ON s.number = w.start",
    ("w.start", "w.key"),
    "w.begun_ts",
    _run_columns("w"),
    {"attributes": _in("w.attributes")},
    True,
    f"w.start, {_START}, w.key, w.id, {_ENDED.format('w')}, w.attributes",
    _workflow_row,
)


def _of_run(part: str, start: str, key: str, run: RunKey | None) -> list[Limit]:
    columns = (start, key) if run else ()
    return [Limit(part, f"{column} = {{}}", value) for column, value in zip(columns, run or (), strict=True)]


def _of_status(table: str, status: Status | None) -> Limit:
    """What runs has not ended: there is an index of that."""
    is_running = f"{table}.ended_ts IS NULL AND 'running' = {{}}"
    return Limit("status", is_running if status == "running" else f"{table}.status = {{}}", status)

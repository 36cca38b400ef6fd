"""What people want to know besides the graph: agents and their plans, streams, captured workflows, what went wrong."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from collector.store.connection import errors_told, transaction
from collector.store.schema import unsigned


class Stream(NamedTuple):
    """A stream by its number; `watermark` and `hold` are None if it has promised nothing."""

    number: int
    agent: str
    nonce: int
    epoch: int | None
    name: str
    watermark: int | None
    hold: int | None


class Agent(NamedTuple):
    """An agent, as of the start that was heard last."""

    name: str
    nonce: int
    epoch: int | None
    last_seq: int | None
    last_seen_ms: int
    state: str
    """`running`, `ended`, or `retired`: silent for so long that nobody waits for it."""
    end_ts: int | None
    clock_ms: int | None
    status: dict[str, Any] | None


class Plan(NamedTuple):
    """The plan of one start of an agent, as JSON."""

    agent: str
    nonce: int
    epoch: int | None
    plan: str
    seen_ms: int


class Gap(NamedTuple):
    """What will never come, and why; `agent` is empty where the log itself has lost something."""

    agent: str
    nonce: int
    seq: int
    reason: str
    detail: dict[str, Any]


class Refused(NamedTuple):
    """A row of the log that could not be read."""

    agent: str
    nonce: int
    seq: int
    kind: int
    reason: str


class Workflow(NamedTuple):
    """A captured workflow; what is None has not been told."""

    agent: str
    nonce: int
    key: int
    id: str | None
    begun_ts: int | None
    ended_ts: int | None
    status: str | None
    error: str | None
    attributes: Any


class Task(NamedTuple):
    """A captured task; without an end it is running."""

    agent: str
    nonce: int
    key: int
    workflow: int | None
    id: str | None
    transformation: str | None
    begun_ts: int | None
    ended_ts: int | None
    status: str | None
    error: str | None


class Data(NamedTuple):
    """Data as a task used or generated it."""

    agent: str
    nonce: int
    task: int
    is_generated: bool
    id: str
    workflow_id: str
    derivations: list[str]
    attributes: Any


class People:
    """Answers over one connection that only reads."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """All that is read within is of one moment."""
        with errors_told(self._path), transaction(self._db, "BEGIN"):
            yield

    def counters(self) -> dict[str, int]:
        """The figures about all of it, kept while writing."""
        return dict(self._rows("SELECT name, value FROM counters"))

    def streams(self) -> list[Stream]:
        """All streams that were ever named, by number."""
        rows = self._rows(
            "SELECT number, agent, nonce, epoch, name, watermark, hold FROM streams"
            " LEFT JOIN progress ON stream = number ORDER BY number"
        )
        return [Stream(number, agent, unsigned(nonce), *rest) for number, agent, nonce, *rest in rows]

    def agents(self) -> list[Agent]:
        """All agents by name."""
        rows = self._rows(
            "SELECT agent, nonce, epoch, last_seq, last_seen_ms,"
            " CASE WHEN ended THEN 'ended' WHEN retired_at > coalesce(last_seq, -1) THEN 'retired' ELSE 'running' END,"
            " end_ts, clock_ms, status FROM starts"
            " ORDER BY last_seen_ms, epoch, number"
        )
        newest = {
            name: Agent(name, unsigned(nonce), *rest, status and json.loads(status))  # type: ignore[call-arg]
            for name, nonce, *rest, status in rows
        }
        return [newest[name] for name in sorted(newest)]

    def plans(self) -> list[Plan]:
        """All plans, oldest first."""
        rows = self._rows(
            "SELECT agent, nonce, epoch, plan, plan_seen_ms FROM starts WHERE plan IS NOT NULL ORDER BY number"
        )
        return [Plan(agent, unsigned(nonce), *rest) for agent, nonce, *rest in rows]

    def gaps(self, after: int = 0, limit: int = 100) -> list[Gap]:
        """Gaps in the order in which they were told, leaving out the first ones."""
        rows = self._rows(
            "SELECT agent, nonce, seq, reason, detail FROM gaps ORDER BY number LIMIT ? OFFSET ?", limit, after
        )
        return [Gap(agent, unsigned(nonce), seq, why, json.loads(detail)) for agent, nonce, seq, why, detail in rows]

    def refused(self, after: int = 0, limit: int = 100) -> list[Refused]:
        """Rows of the log that could not be read, leaving out the first ones."""
        rows = self._rows(
            "SELECT agent, nonce, seq, kind, reason FROM refused ORDER BY number LIMIT ? OFFSET ?", limit, after
        )
        return [Refused(agent, unsigned(nonce), *rest) for agent, nonce, *rest in rows]

    def workflows(self, workflow_id: str | None = None) -> list[Workflow]:
        """Workflows by when they began, all or those of one id."""
        rows = self._rows(
            "SELECT agent, nonce, key, id, begun_ts, ended_ts, workflows.status, error, attributes FROM workflows"
            " JOIN starts ON number = start WHERE ?1 IS NULL OR id = ?1 ORDER BY begun_ts, start, key",
            workflow_id,
        )
        return [
            Workflow(agent, unsigned(nonce), *rest, attributes and json.loads(attributes))  # type: ignore[call-arg]
            for agent, nonce, *rest, attributes in rows
        ]

    def tasks(
        self, *, agent: str | None = None, workflow: int | None = None, is_running: bool | None = None
    ) -> list[Task]:
        """Tasks by when they began: of an agent, of a workflow (by its key), running or ended, or all."""
        values: list[str | int] = []
        query = "SELECT agent, nonce, key, workflow, id, transformation, begun_ts, ended_ts,"
        query += " tasks.status, error FROM tasks JOIN starts ON number = start WHERE 1"
        if agent is not None:
            query, values = f"{query} AND agent = ?", [*values, agent]
        if workflow is not None:
            query, values = f"{query} AND workflow = ?", [*values, workflow]
        if is_running is not None:
            query += f" AND ended_ts IS {'' if is_running else 'NOT '}NULL"
        rows = self._rows(f"{query} ORDER BY begun_ts, start, key", *values)
        return [Task(name, unsigned(nonce), *rest) for name, nonce, *rest in rows]

    def data(self, data_id: str) -> list[Data]:
        """All uses and makings of data of this id."""
        rows = self._rows(
            "SELECT agent, nonce, task, generated, id, workflow_id, derivations, attributes FROM data"
            " JOIN starts ON number = start WHERE id = ? ORDER BY start, task, generated, place",
            data_id,
        )
        return [
            Data(name, unsigned(nonce), task, bool(made), each, of, json.loads(sources), json.loads(attributes))
            for name, nonce, task, made, each, of, sources, attributes in rows
        ]

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._moment():
            return self._db.execute(query, values).fetchall()

"""DfAnalyzer's REST format, as its own capture library sends it: dataflows to `/pde/dataflow/json`, tasks to
`/pde/task/json`.

DfAnalyzer makes a table of every set of a dataflow when the dataflow is declared, and never changes it. We learn what a
workflow looks like only from what comes. So a dataflow's tag is made of its specification: as soon as a task shows a
transformation or an attribute that was not there before, the workflow goes on as another dataflow, which has it.

What it takes into SQL it takes as it is, so names are made into ones that SQL knows, and texts are escaped here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from math import isfinite
from typing import Any, NamedTuple
from urllib.parse import quote

from collector.forwarding.identifiers import task_id
from collector.forwarding.system import Request
from collector.log_view import Entry
from collector.plain import as_json
from protocol.events import DataItem, Event, TaskBegun, TaskEnded, WorkflowBegun
from protocol.wire.sections import Kind

MOST_RUNNING = 10_000  # tasks that have not ended
MOST_ENDED = 1_000  # that others may still depend on: which ones nobody says, and all are written with each position
MOST_WORKFLOWS = 1_000
MOST_TRANSFORMATIONS = 100  # of a dataflow; it begins anew with the next one
MOST_ATTRIBUTES = 200  # of a set; what a user names beyond that is told in one
MOST_TEXT = 10_000  # characters that a column of DfAnalyzer holds
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MOST_NAME = 30
_MOST_BITS = 1_000  # of a number that DfAnalyzer can keep, which is not to say exactly
_NUMERIC, _TEXT = "NUMERIC", "TEXT"
_ID, _SOURCES, _CONTENT, _MORE = "data_id", "derived_from", "content", "more_attributes"
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_TAKEN = frozenset((
    _ID, _SOURCES, _CONTENT, _MORE, "id",
    # Words that SQL does not let a column be named by.
    "all", "alter", "and", "any", "as", "asc", "between", "by", "case", "cast", "check", "column", "commit",
    "constraint", "create", "cross", "current", "date", "day", "declare", "default", "delete", "desc", "distinct",
    "drop", "else", "end", "escape", "except", "exists", "extract", "false", "file", "for", "foreign", "from", "full",
    "function", "grant", "group", "having", "hour", "if", "in", "index", "inner", "insert", "intersect", "interval",
    "into", "is", "join", "key", "left", "like", "limit", "match", "merge", "minute", "month", "natural", "no", "not",
    "null", "of", "on", "or", "order", "outer", "over", "partition", "position", "primary", "range", "references",
    "return", "right", "rollback", "row", "rows", "second", "select", "set", "some", "start", "table", "temp", "then",
    "time", "timestamp", "to", "true", "type", "union", "unique", "update", "user", "using", "value", "values", "view",
    "when", "where", "while", "with", "year",
))  # fmt: skip

Attributes = dict[str, str]
"""Of one set: names and types, in the order in which they were first seen."""


class _TaskKey(NamedTuple):
    agent: str
    nonce: int
    key: int


class _Task(NamedTuple):
    """What the end of a task does not repeat, and where its begin was told."""

    workflow: str
    transformation: str
    begun_ts: int
    tag: str


@dataclass(slots=True)
class _Dataflow:
    """What is known so far of workflows of one id: by transformation, what goes in and what comes out."""

    workflow: str
    transformations: dict[str, tuple[Attributes, Attributes]] = field(default_factory=dict)
    tag: str = ""

    def learn(self, transformation: str, used: Iterable[DataItem], generated: Iterable[DataItem]) -> None:
        sets = self.transformations.get(transformation)
        is_new = sets is None
        if sets is None:
            if len(self.transformations) >= MOST_TRANSFORMATIONS:
                self.transformations = {}
            sets = self.transformations[transformation] = _empty_set(), _empty_set()
        grown = [
            _learn(attributes, item)
            for attributes, items in zip(sets, (used, generated), strict=True)
            for item in items
        ]
        if is_new or any(grown):
            content = json.dumps([self.workflow, self.transformations])
            self.tag = f"{_plain_name(self.workflow)}_{_digest(content, 4)}"

    def set_tags(self, transformation: str) -> tuple[str, str]:
        """Tables of all dataflows are in one place, so their names have to differ."""
        suffix = self.tag.rpartition("_")[2]
        return f"i{transformation}_{suffix}", f"o{transformation}_{suffix}"

    def specification(self) -> dict[str, Any]:
        return {
            "tag": self.tag,
            "transformations": [
                {
                    "tag": transformation,
                    "sets": [
                        {
                            "tag": tag,
                            "type": kind,
                            "attributes": [{"name": name, "type": type} for name, type in attributes.items()],
                        }
                        for tag, kind, attributes in zip(
                            self.set_tags(transformation), ("INPUT", "OUTPUT"), sets, strict=True
                        )
                    ],
                }
                for transformation, sets in self.transformations.items()
            ],
        }


class DfAnalyzer:
    """DfAnalyzer at its URL."""

    def __init__(self, url: str) -> None:
        self.skipped: Counter[str] = Counter()
        self._url = url.rstrip("/")
        self._declared: dict[str, None] = {}
        self._workflows: dict[_TaskKey, str] = {}
        self._running: dict[_TaskKey, _Task] = {}
        self._ended: dict[_TaskKey, str] = {}  # with their transformations
        self._dataflows: dict[str, _Dataflow] = {}

    def requests(self, entries: Sequence[Entry]) -> Iterator[Request]:
        for entry in entries:
            if entry.kind is Kind.EVENT:
                yield from self._of_event(entry, entry.record)
            else:
                self.skipped[entry.kind.name.lower()] += 1

    def memory(self) -> Any:
        return {
            "workflows": [[*key, id] for key, id in self._workflows.items()],
            "running": [[*key, *task] for key, task in self._running.items()],
            "ended": [[*key, transformation] for key, transformation in self._ended.items()],
            "dataflows": [[each.workflow, each.transformations, each.tag] for each in self._dataflows.values()],
        }

    def recall(self, memory: Any) -> None:
        self._workflows = {_TaskKey(*key): id for *key, id in memory["workflows"]}
        self._running = {_TaskKey(*row[:3]): _Task(*row[3:]) for row in memory["running"]}
        self._ended = {_TaskKey(*key): transformation for *key, transformation in memory["ended"]}
        self._dataflows = {
            workflow: _Dataflow(
                workflow, {name: (dict(used), dict(generated)) for name, (used, generated) in made.items()}, tag
            )
            for workflow, made, tag in memory["dataflows"]
        }

    def _of_event(self, entry: Entry, event: Event) -> Iterator[Request]:
        key = _TaskKey(entry.agent, entry.nonce, event.key)
        if isinstance(event, WorkflowBegun):
            _keep(self._workflows, key, event.id, MOST_WORKFLOWS)
        elif isinstance(event, TaskBegun):
            yield from self._begin(entry, event)
        elif isinstance(event, TaskEnded) and key in self._running:
            task = self._running.pop(key)
            _keep(self._ended, key, task.transformation, MOST_ENDED)
            yield from self._end(entry, event, task)
        else:
            self.skipped["task_ended" if isinstance(event, TaskEnded) else "workflow_ended"] += 1

    def _begin(self, entry: Entry, event: TaskBegun) -> Iterator[Request]:
        of = self._workflows.get(_TaskKey(entry.agent, entry.nonce, event.workflow))
        if of is None:  # its begin was lost, or is too long ago
            of = event.used[0].workflow_id if event.used else "unknown"
        transformation = _plain_name(event.transformation)
        dataflow = self._dataflow(of)
        dataflow.learn(transformation, event.used, ())
        yield from self._declaration(dataflow)
        task = _Task(of, transformation, event.ts, dataflow.tag)
        _keep(self._running, _TaskKey(entry.agent, entry.nonce, event.key), task, MOST_RUNNING)
        message = self._message(entry, event.key, task, "RUNNING")
        message["workspace"] = f"{task_id(entry.agent, entry.epoch or 0, event.key)}/{quote(event.id, safe='')}"
        message |= self._dependencies(entry, event)
        tag = dataflow.set_tags(transformation)[0]
        message["sets"] = self._elements(tag, dataflow.transformations[transformation][0], event.used)
        yield self._post("task", message)

    def _end(self, entry: Entry, event: TaskEnded, task: _Task) -> Iterator[Request]:
        dataflow = self._dataflow(task.workflow)
        dataflow.learn(task.transformation, (), event.generated)
        yield from self._declaration(dataflow)
        known: dict[str, Any] = {"performances": [{"startTime": _time(task.begun_ts), "endTime": _time(event.ts)}]}
        if event.status == "failed":
            known["error"] = self._text(event.error or "failed")
        if task.tag != dataflow.tag:  # or it would seem to run for ever there
            yield self._post("task", self._message(entry, event.key, task, "FINISHED") | known)
        message = self._message(entry, event.key, task._replace(tag=dataflow.tag), "FINISHED") | known
        tag = dataflow.set_tags(task.transformation)[1]
        message["sets"] = self._elements(tag, dataflow.transformations[task.transformation][1], event.generated)
        yield self._post("task", message)

    def _dataflow(self, workflow: str) -> _Dataflow:
        dataflow = self._dataflows.get(workflow) or _Dataflow(workflow)
        _keep(self._dataflows, workflow, dataflow, MOST_WORKFLOWS)
        return dataflow

    def _declaration(self, dataflow: _Dataflow) -> Iterator[Request]:
        """Once in a life: DfAnalyzer itself forgets dataflows when it is started anew, as we are then."""
        if dataflow.tag not in self._declared:
            yield self._post("dataflow", dataflow.specification())
        _keep(self._declared, dataflow.tag, None, MOST_WORKFLOWS)

    def _message(self, entry: Entry, key: int, task: _Task, status: str) -> dict[str, Any]:
        return {
            "tag": task.transformation,
            "dataflow": task.tag,
            "transformation": task.transformation,
            "id": str(task_number(entry.agent, entry.epoch or 0, key)),
            "resource": entry.agent,
            "status": status,
        }

    def _dependencies(self, entry: Entry, event: TaskBegun) -> dict[str, Any]:
        """By transformation and number, as DfAnalyzer wants them; those of tasks that nobody remembers are not told."""
        tags, ids = [], []
        for each in event.dependencies:
            key = _TaskKey(entry.agent, entry.nonce, each.key)
            transformation = self._running[key].transformation if key in self._running else self._ended.get(key)
            if transformation is None:
                self.skipped["dependency"] += 1
                continue
            tags.append({"tag": transformation})
            ids.append({"id": str(task_number(entry.agent, entry.epoch or 0, each.key))})
        return {"dependency": {"tags": tags, "ids": ids}} if tags else {}

    def _elements(self, tag: str, attributes: Attributes, items: Sequence[DataItem]) -> list[dict[str, Any]]:
        """Each by itself, although of one set: DfAnalyzer takes all values of a set's elements for one row."""
        return [{"tag": tag, "elements": [self._row(attributes, item)]} for item in items]

    def _row(self, attributes: Attributes, item: DataItem) -> list[str]:
        named = _named(item.attributes)
        values = {name: value for name, (_, value) in named.items()}
        more = {key: value for name, (key, value) in named.items() if name not in attributes and value is not None}
        values |= {_ID: item.id, _SOURCES: list(item.derivations) or None, _MORE: more or None}
        return [
            self._number(values.get(name)) if type == _NUMERIC else self._text(values.get(name))
            for name, type in attributes.items()
        ]

    def _number(self, value: Any) -> str:
        if value is None:
            return "NULL"
        if not isfinite(value):
            self.skipped["not_a_number"] += 1
            return "NULL"
        return repr(value)

    def _text(self, value: Any) -> str:
        """Between quotes it reads as what it was."""
        text = "" if value is None else value if isinstance(value, str) else as_json(value)
        if len(text) > MOST_TEXT:
            self.skipped["text_end"] += 1
            text = text[:MOST_TEXT]
        return text.replace("\\", "\\\\").replace("'", "''")

    def _post(self, what: str, message: dict[str, Any]) -> Request:
        return Request(f"{self._url}/pde/{what}/json", json.dumps(message, ensure_ascii=False).encode())


def task_number(agent: str, epoch: int, key: int) -> int:
    """DfAnalyzer wants numbers below 2^31. Those of one start of an agent never meet."""
    base = int.from_bytes(blake2b(f"{agent}@{epoch}".encode(), digest_size=4).digest(), "big")
    return (base + key) % (1 << 31)


def _empty_set() -> Attributes:
    return {_ID: _TEXT, _SOURCES: _TEXT, _MORE: _TEXT}


def _learn(attributes: Attributes, item: DataItem) -> bool:
    """Whether an item shows something of its set that was not known: a column, or one that is not of numbers only."""
    has_grown = False
    for name, (_, value) in _named(item.attributes).items():
        type = _NUMERIC if _is_number(value) else _TEXT
        known = attributes.get(name)
        has_room = known is not None or len(attributes) < MOST_ATTRIBUTES
        if value is not None and known not in (_TEXT, type) and has_room:
            attributes[name] = type
            has_grown = True
    return has_grown


def _named(value: Any) -> dict[str, tuple[str, Any]]:
    """Attributes by the names of their columns, each with the user's own name; a value without names is one."""
    if isinstance(value, dict):
        return {_plain_name(str(key)): (str(key), part) for key, part in value.items()}
    return {} if value is None else {_CONTENT: (_CONTENT, value)}


def _plain_name(name: str) -> str:
    """A name that SQL and DfAnalyzer, which knows no capitals, can tell from all others."""
    if _NAME.fullmatch(name) and len(name) <= _MOST_NAME and name not in _TAKEN and not name.endswith("_task_id"):
        return name
    kept = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return f"{'' if kept[:1].isalpha() else 'x'}{kept[:20]}_{_digest(name, 3)}"


def _digest(text: str, size_bytes: int) -> str:
    return blake2b(text.encode(), digest_size=size_bytes).hexdigest()


def _is_number(value: Any) -> bool:
    """Whether a column of numbers is the place for it. A number that no column holds is a text."""
    return isinstance(value, float) or (type(value) is int and value.bit_length() <= _MOST_BITS)


def _time(ts: int) -> str:
    try:
        return (_BEGINNING + timedelta(milliseconds=ts)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except OverflowError:
        return str(ts)


def _keep(kept: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """The newest, and of the rest as many as there is room for."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]

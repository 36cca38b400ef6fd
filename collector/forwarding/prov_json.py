"""W3C PROV-JSON documents over HTTP: for any system that takes PROV.

A record is a few statements, each true by itself: an element (a workflow is an Agent, a task an Activity, data and
tuples are Entities) or a relation between two. So documents may be cut anywhere, and whoever takes them puts them
together by ids. Relations have ids too where PROV lets them, made of what they relate, so that a document may come
twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from prov.constants import PROV, PROV_ATTR_ENDTIME, PROV_ATTR_STARTTIME
from prov.identifier import Namespace, QualifiedName

from collector.export.naming import local_name
from collector.export.prov_terms import RELATE, new_document, spread, written
from collector.export.values import as_date
from collector.forwarding.identifiers import (
    data_id,
    general_data_id,
    named_workflow_id,
    task_id,
    unknown_task_id,
    workflow_id,
)
from collector.forwarding.system import Request
from collector.log_view import Entry
from protocol.events import UNKNOWN, DataItem, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded
from protocol.records import Delivery, SourcePayload

MOST_STATEMENTS = 2_000  # of a document
_SINGLE = frozenset((PROV_ATTR_STARTTIME, PROV_ATTR_ENDTIME))  # an activity has one of each
_NAMELESS = frozenset(("specializationOf",))  # PROV-DM gives it no id: it is told by its ends


class Term(NamedTuple):
    """A word as a value, such as the type of an element: `tl:task`, `prov:SoftwareAgent`."""

    name: str


class Free(NamedTuple):
    """What a user gave, whatever it is."""

    value: Any


Attributes = list[tuple[str, Any]]
"""Names, and values that are plain literals, times, `Term` or `Free`."""


class Element(NamedTuple):
    """Something that is known of an agent, activity or entity."""

    kind: str
    id: str
    attributes: Attributes


class Relation(NamedTuple):
    """A relation of PROV-DM between two elements, which may be told elsewhere."""

    kind: str
    subject: str
    object: str


Statement = Element | Relation


class ProvJson:
    """A system that takes PROV-JSON documents at its URL."""

    def __init__(self, url: str, most_statements: int = MOST_STATEMENTS) -> None:
        self.skipped: Counter[str] = Counter()
        self._url = url
        self._most_statements = most_statements

    def requests(self, entries: Sequence[Entry]) -> Iterator[Request]:
        pending: list[Statement] = []
        for entry in entries:
            is_told = False
            for statement in statements(entry):
                is_told = True
                pending.append(statement)
                if len(pending) >= self._most_statements:
                    yield Request(self._url, document(pending))
                    pending = []
            if not is_told:
                self.skipped[entry.kind.name.lower()] += 1
        if pending:
            yield Request(self._url, document(pending))


def statements(entry: Entry) -> Iterator[Statement]:
    """What a record says in PROV; nothing if PROV has no words for it."""
    agent, epoch, record = entry.agent, entry.epoch or 0, entry.record
    match record:
        case WorkflowBegun():
            run, named = workflow_id(agent, epoch, record.key), named_workflow_id(agent, epoch, record.id)
            attributes: Attributes = [("tl:begun_ms", record.ts), *_free("attributes", record.attributes)]
            yield Element("agent", run, [*_workflow(record.id), *attributes])
            yield Element("agent", named, _workflow(record.id))
            yield Relation("actedOnBehalfOf", run, named)
        case WorkflowEnded():
            attributes = [("tl:ended_ms", record.ts), *_ending(record.status, record.error)]
            yield Element("agent", workflow_id(agent, epoch, record.key), attributes)
        case TaskBegun():
            task = task_id(agent, epoch, record.key)
            attributes = [("tl:transformation", record.transformation), ("tl:begun_ms", record.ts)]
            attributes += _time("prov:startTime", record.ts)
            yield Element("activity", task, [*_named("task", record.id), *attributes])
            yield Relation("wasAssociatedWith", task, workflow_id(agent, epoch, record.workflow))
            for each in record.dependencies:
                is_known = each.key != UNKNOWN
                other = task_id(agent, epoch, each.key) if is_known else unknown_task_id(agent, epoch, each.id)
                yield Relation("wasInformedBy", task, other)
            for item in record.used:
                yield Relation("used", task, data_id(agent, epoch, item.workflow_id, item.id))
                yield from _data(agent, epoch, item)
        case TaskEnded():
            task = task_id(agent, epoch, record.key)
            attributes = [("tl:ended_ms", record.ts), *_time("prov:endTime", record.ts)]
            yield Element("activity", task, [*attributes, *_ending(record.status, record.error)])
            for item in record.generated:
                yield Relation("wasGeneratedBy", data_id(agent, epoch, item.workflow_id, item.id), task)
                yield from _data(agent, epoch, item)
        case SourcePayload():
            yield Element("entity", str(record.id), _tuple("source", record))
        case Delivery():
            yield Element("entity", str(record.id), _tuple("delivery", record))
            for origin in record.origins:
                yield Relation("wasDerivedFrom", str(record.id), str(origin.id))


def _data(agent: str, epoch: int, item: DataItem) -> Iterator[Statement]:
    id = data_id(agent, epoch, item.workflow_id, item.id)
    yield Element("entity", id, [*_named("data", item.id), *_free("attributes", item.attributes)])
    yield Relation("wasAttributedTo", id, named_workflow_id(agent, epoch, item.workflow_id))
    yield from _general(id, item.workflow_id, item.id)
    for source in item.derivations:
        origin = data_id(agent, epoch, item.workflow_id, source)
        yield Relation("wasDerivedFrom", id, origin)
        yield from _general(origin, item.workflow_id, source)


def _general(id: str, workflow_name: str, name: str) -> Iterator[Statement]:
    """A start does not say whose data it uses, and who generates it may tell of it later. So what one has generated and
    what others use of that name meet in the data of that name, whosever it is."""
    general = general_data_id(workflow_name, name)
    yield Element("entity", general, _named("data", name))
    yield Relation("specializationOf", id, general)


def _named(type: str, name: str) -> Attributes:
    """`name` is the id that the user gave it."""
    return [("prov:type", Term(f"tl:{type}")), ("tl:name", name)]


def _workflow(name: str) -> Attributes:
    return [("prov:type", Term("prov:SoftwareAgent")), *_named("workflow", name)]


def _tuple(type: str, record: SourcePayload | Delivery) -> Attributes:
    return [("prov:type", Term(f"tl:{type}")), ("tl:ts", record.ts), *_free("payload", record.payload)]


def _ending(status: str, error: str) -> Attributes:
    return [("tl:status", status), *([("tl:error", error)] if error else [])]


def _time(name: str, time_ms: int) -> Attributes:
    date = as_date(time_ms)
    return [] if date is None else [(name, date)]


def _free(name: str, value: Any) -> Attributes:
    return [] if value is None else [(f"tl:{name}", Free(value))]


def document(told: Iterable[Statement]) -> bytes:
    """Statements as a PROV-JSON document. What they say of one element is put together."""
    made, tl = new_document()
    elements: dict[tuple[str, str], dict[tuple[QualifiedName, Any], Any]] = {}
    relations: dict[Relation, None] = {}
    for statement in told:
        if isinstance(statement, Relation):
            relations[statement] = None
            continue
        known = elements.setdefault((statement.kind, statement.id), {(tl["id"], statement.id): statement.id})
        for name, value in _qualified(tl, statement.attributes):
            known.setdefault((name, None if name in _SINGLE else value), value)
    add: dict[str, Callable[..., object]] = {"agent": made.agent, "activity": made.activity, "entity": made.entity}
    for (kind, id), attributes in elements.items():
        values = [(name, value) for (name, _), value in attributes.items()]
        add[kind](tl[local_name(id)], other_attributes=values)
    for each in relations:
        ends = tl[local_name(each.subject)], tl[local_name(each.object)]
        named = {} if each.kind in _NAMELESS else {"identifier": tl[relation_id(each)]}
        RELATE[each.kind](made, *ends, **named)
    return written(made, "json")


def relation_id(relation: Relation) -> str:
    """The same wherever the relation is told."""
    return f"{relation.kind}:{blake2b(json.dumps(relation).encode(), digest_size=12).hexdigest()}"


def _qualified(tl: Namespace, attributes: Attributes) -> Iterator[tuple[QualifiedName, Any]]:
    for name, value in attributes:
        if isinstance(value, Free):
            yield from spread(tl, name.removeprefix("tl:"), value.value)
        else:
            yield _name(tl, name), _name(tl, value.name) if isinstance(value, Term) else value


def _name(tl: Namespace, name: str) -> QualifiedName:
    prefix, _, local = name.partition(":")
    return PROV[local] if prefix == "prov" else tl[local]

"""The graph that PROV documents tell, and the one that records tell, written down as plainly as can be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from prov.model import Literal, ProvDocument, ProvElement, QualifiedName

from collector.log_view import Entry
from collector.plain import as_json
from protocol.events import DataItem, Event, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded, relations
from protocol.records import Delivery, SourcePayload

TL = "urn:threadline:"
PROV = "http://www.w3.org/ns/prov#"
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class Graph(NamedTuple):
    """Elements as (type, URI) with what is said of them, and relations as (type, URI, URI)."""

    elements: dict[tuple[str, str], set[tuple[str, Any]]]
    relations: set[tuple[str, str, str]]


def told(documents: Iterable[bytes]) -> Graph:
    """As a system understands it that puts documents together by ids."""
    graph = Graph({}, set())
    by_id: dict[str, tuple[str, str, str]] = {}
    for content in documents:
        document = ProvDocument.deserialize(content=content.decode(), format="json")
        for record in document.get_records():
            kind = record.get_type().localpart
            if isinstance(record, ProvElement):
                assert record.identifier is not None, record
                known = graph.elements.setdefault((kind, record.identifier.uri), set())
                known |= {(name.uri, _value(value)) for name, value in record.attributes}
            else:
                ends = [value.uri for _, value in record.formal_attributes if isinstance(value, QualifiedName)]
                assert len(ends) == 2, record
                relation = (kind, ends[0], ends[1])
                assert (record.identifier is None) == (kind == "Specialization"), record
                if record.identifier is not None:
                    assert by_id.setdefault(record.identifier.uri, relation) == relation, "one id, two relations"
                graph.relations.add(relation)
    return graph


def _value(value: Any) -> Any:
    if isinstance(value, QualifiedName):
        return value.uri
    if isinstance(value, Literal):
        assert value.datatype is not None and value.datatype.uri == f"{TL}json", value
        return ("json", _canonical(json.loads(value.value)))
    return value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


_KINDS = {
    "wasAssociatedWith": "Association",
    "wasInformedBy": "Communication",
    "used": "Usage",
    "wasGeneratedBy": "Generation",
    "wasAttributedTo": "Attribution",
    "wasDerivedFrom": "Derivation",
}


def expected(entries: Iterable[Entry]) -> Graph:
    """The oracle."""
    graph = Graph({}, set())
    for entry in entries:
        record = entry.record
        if isinstance(record, Event):
            _expect_event(graph, f"{entry.agent}@{entry.epoch}", record)
        elif isinstance(record, SourcePayload | Delivery):
            id = _uri(str(record.id))
            about = _of(graph, "Entity", id, "source" if isinstance(record, SourcePayload) else "delivery")
            about |= {(f"{TL}ts", record.ts), *_values("payload", record.payload)}
            if isinstance(record, Delivery):
                graph.relations.update(("Derivation", id, _uri(str(origin.id))) for origin in record.origins)
    return graph


def _expect_event(graph: Graph, start: str, event: Event) -> None:
    match event:
        case WorkflowBegun():
            about = _of(graph, "Agent", _uri(f"workflow:{start}:{event.key}"), "workflow", event.id)
            about |= {(f"{TL}begun_ms", event.ts), *_values("attributes", event.attributes)}
            about.add((f"{PROV}type", f"{PROV}SoftwareAgent"))
            named = _uri(f"workflow:{start}:?{quote(event.id, safe='')}")
            _of(graph, "Agent", named, "workflow", event.id).add((f"{PROV}type", f"{PROV}SoftwareAgent"))
            graph.relations.add(("Delegation", _uri(f"workflow:{start}:{event.key}"), named))
        case WorkflowEnded():
            about = _of(graph, "Agent", _uri(f"workflow:{start}:{event.key}"))
            about |= {(f"{TL}ended_ms", event.ts), *_ending(event)}
        case TaskBegun():
            about = _of(graph, "Activity", _uri(f"task:{start}:{event.key}"), "task", event.id)
            about |= {(f"{TL}begun_ms", event.ts), *_times("startTime", event.ts)}
            about.add((f"{TL}transformation", event.transformation))
            for item in event.used:
                _expect_data(graph, start, item)
        case TaskEnded():
            about = _of(graph, "Activity", _uri(f"task:{start}:{event.key}"))
            about |= {(f"{TL}ended_ms", event.ts), *_times("endTime", event.ts), *_ending(event)}
            for item in event.generated:
                _expect_data(graph, start, item)
    for each, workflow in _with_one_item(event):
        for relation in relations(each):
            subject, object = (_uri(_full(start, end, workflow)) for end in (relation.subject, relation.object))
            graph.relations.add((_KINDS[relation.name], subject, object))


def _with_one_item(event: Event) -> Iterator[tuple[Event, str]]:
    """The event once for each of its data, as a relation does not say of which workflow data is."""
    if isinstance(event, TaskBegun):
        head = (event.number, event.ts, event.key, event.workflow, event.id, event.transformation, event.dependencies)
        yield TaskBegun(*head, ()), ""
        yield from ((TaskBegun(*head, (item,)), item.workflow_id) for item in event.used)
    elif isinstance(event, TaskEnded):
        ending = (event.number, event.ts, event.key, event.status, event.error)
        yield from ((TaskEnded(*ending, (item,)), item.workflow_id) for item in event.generated)


def _full(start: str, end: str, workflow: str) -> str:
    kind, _, rest = end.partition(":")
    if kind == "data":
        return f"data:{start and f'{start}:'}{quote(workflow, safe='')}/{quote(rest, safe='')}"
    return f"{kind}:{start}:?{quote(rest[1:], safe='')}" if rest.startswith("?") else f"{kind}:{start}:{rest}"


def _expect_data(graph: Graph, start: str, item: DataItem) -> None:
    about = _of(graph, "Entity", _uri(_full(start, f"data:{item.id}", item.workflow_id)), "data", item.id)
    about |= set(_values("attributes", item.attributes))
    for name in (item.id, *item.derivations):
        specific, general = (_full(each, f"data:{name}", item.workflow_id) for each in (start, ""))
        _of(graph, "Entity", _uri(general), "data", name)
        graph.relations.add(("Specialization", _uri(specific), _uri(general)))


def _of(graph: Graph, kind: str, id: str, type: str = "", name: str | None = None) -> set[tuple[str, Any]]:
    about = graph.elements.setdefault((kind, id), {(f"{TL}id", unquote(id.removeprefix(TL)))})
    if type:
        about.add((f"{PROV}type", f"{TL}{type}"))
    if name is not None:
        about.add((f"{TL}name", name))
    return about


def _uri(id: str) -> str:
    return TL + quote(id, safe="/@:")


def _ending(event: WorkflowEnded | TaskEnded) -> Iterator[tuple[str, Any]]:
    yield f"{TL}status", event.status
    if event.error:
        yield f"{TL}error", event.error


def _times(name: str, ts: int) -> Iterator[tuple[str, Any]]:
    if abs(ts) < 60_000_000_000_000:  # what lies between this and the end of the calendar is not tried
        yield PROV + name, BEGINNING + timedelta(milliseconds=ts)


def _values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    value = None if value is None else json.loads(as_json(value))
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield TL + quote(f"{name}.{key}", safe="/@:"), _plain(part)
    elif value is not None:
        yield TL + name, _plain(value)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else ("json", _canonical(value))

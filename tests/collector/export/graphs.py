"""Graphs to export, made by chance or by hand, and what every re-read document is compared with: plain sets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from hypothesis import strategies as st

from collector.api.models import DataVertex, Edge, Graph, Label, TaskVertex, TupleVertex, Vertex, WorkflowVertex

SHARP = "a%2/@:#?&+<>\"'\\,;=-.\t\n\r\0\x1f\x7f\x85é💧\ufffd\ufffe\uffff [](){}"
"""Characters that mean something to one of the formats, or that it cannot hold."""

texts = st.text(st.one_of(st.sampled_from(SHARP), st.characters(exclude_categories=["Cs"])), max_size=12)
free_texts = st.one_of(texts, st.text(st.sampled_from(["\ud800", "\udfff", "x"]), max_size=3))
numbers = st.one_of(
    st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**70), 2**70), st.floats(width=64)
)
keys = st.one_of(st.sampled_from(["speed", "Speed", "", ".", "=1", "payload.x"]), free_texts)
free = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, free_texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=8,
)
int64s = st.one_of(st.integers(0, 2_000_000_000_000), st.integers(-(2**63), 2**63 - 1))
maybe_int64s = st.none() | int64s
maybe_texts = st.none() | texts


def ids(prefix: str) -> st.SearchStrategy[str]:
    """Ids as they are, and any text: what users call their data is theirs to choose."""
    return st.one_of(st.integers(0, 9).map(lambda number: f"{prefix}car-7@3:{number}"), texts)


_AGENTS = st.sampled_from(["car-7", "pump-1", ""])
_EPOCHS = st.sampled_from([None, 1, 2])


def tuples(id: str) -> st.SearchStrategy[TupleVertex]:
    return st.builds(
        TupleVertex,
        id=st.just(id),
        kind=st.sampled_from(["source", "sink", "intermediate"]),
        agent=_AGENTS,
        epoch=_EPOCHS,
        stream=st.sampled_from(["reports", "alerts", "a/b@c"]),
        seq=int64s,
        ts=maybe_int64s,
        state=st.sampled_from(["alive", "expired", "open", "complete", "incomplete", None]),
        since=st.none() | st.builds(Label, stamp=maybe_int64s, written_ms=int64s),
        origins=maybe_int64s,
        payload=free,
    )


def tasks(id: str) -> st.SearchStrategy[TaskVertex]:
    return st.builds(
        TaskVertex,
        id=st.just(id),
        agent=_AGENTS,
        epoch=_EPOCHS,
        name=maybe_texts,
        transformation=maybe_texts,
        workflow=maybe_texts,
        workflow_name=maybe_texts,
        begun_ms=maybe_int64s,
        ended_ms=maybe_int64s,
        elapsed_ms=maybe_int64s,
        status=st.sampled_from(["running", "finished", "failed"]),
        error=maybe_texts,
    )


def data(id: str) -> st.SearchStrategy[DataVertex]:
    return st.builds(
        DataVertex,
        id=st.just(id),
        agent=st.none() | _AGENTS,
        epoch=_EPOCHS,
        name=texts,
        workflow_name=texts,
        attributes=free,
    )


def workflows(id: str) -> st.SearchStrategy[WorkflowVertex]:
    return st.builds(
        WorkflowVertex,
        id=st.just(id),
        agent=_AGENTS,
        epoch=_EPOCHS,
        name=maybe_texts,
        begun_ms=maybe_int64s,
        ended_ms=maybe_int64s,
        elapsed_ms=maybe_int64s,
        status=st.sampled_from(["running", "finished", "failed"]),
        error=maybe_texts,
        attributes=free,
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph, with ends of edges that are not shown if it was cut. An id is of one kind of things only."""
    found = draw(st.lists(st.sampled_from(["", "task:", "data:", "workflow:"]), max_size=7))
    ends: dict[str, list[str]] = {"": [], "task:": [], "data:": [], "workflow:": []}
    for prefix in found:
        name = draw(ids(prefix).filter(lambda name: all(name not in names for names in ends.values())))
        ends[prefix].append(name)
    make: dict[str, Any] = {"": tuples, "task:": tasks, "data:": data, "workflow:": workflows}
    vertices = [draw(make[prefix](name)) for prefix, names in ends.items() for name in names]
    truncated = draw(st.booleans())
    if truncated:
        ends[""].append("far/away@9:1")
        ends["data:"].append("data:far/away")
        ends["task:"].append("task:far@9:1")
        ends["workflow:"].append("workflow:far@9:1")
    edges = draw(st.lists(_edges(ends), max_size=10)) if any(_pairs(ends)) else []
    return Graph(
        vertices=draw(st.permutations(vertices)), edges=edges, truncated=truncated, next=draw(st.none() | texts)
    )


def _pairs(ends: dict[str, list[str]]) -> list[tuple[str, list[str], list[str]]]:
    """Relations with what may be their derived and origin ends."""
    entities = [*ends[""], *ends["data:"]]
    possible = [
        ("wasDerivedFrom", entities, entities),
        ("used", ends["task:"], ends["data:"]),
        ("wasGeneratedBy", ends["data:"], ends["task:"]),
        ("wasInformedBy", ends["task:"], ends["task:"]),
        ("wasAssociatedWith", ends["task:"], ends["workflow:"]),
    ]
    return [(relation, derived, origins) for relation, derived, origins in possible if derived and origins]


def _edges(ends: dict[str, list[str]]) -> st.SearchStrategy[Edge]:
    flags = st.lists(st.sampled_from(["too_deep", "late"]), unique=True)
    return st.one_of(
        [
            st.builds(
                Edge,
                origin=st.sampled_from(origins),
                derived=st.sampled_from(derived),
                relation=st.just(relation),
                flags=flags,
            )
            for relation, derived, origins in _pairs(ends)
        ]
    )


class Plain(NamedTuple):
    """A graph as sets: what each vertex is and says, and which edges there are."""

    vertices: dict[str, dict[str, Any]]
    edges: set[tuple[str, str, str, frozenset[str]]]


def check(found: Plain, graph: Graph) -> None:
    """A re-read document tells all of the graph: what is not None, free values as JSON knows them, and types too."""
    assert found.edges == plain_edges(graph.edges)
    assert _exact(found.vertices) == _exact({each.id: plain_vertex(each) for each in graph.vertices})


def _exact(vertices: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Python takes 1, 1.0 and True for the same; their JSON is not."""
    return {each: json.dumps(vertex, sort_keys=True) for each, vertex in vertices.items()}


def plain_vertex(vertex: Vertex) -> dict[str, Any]:
    found = vertex.model_dump()
    since = found.pop("since", None) or {}
    found |= {f"since_{name}": value for name, value in since.items()}
    for name in ("payload", "attributes"):
        if name in found:
            found[name] = plain_value(found[name])
    return {name: value for name, value in found.items() if value is not None}


def plain_edges(edges: Iterable[Edge]) -> set[tuple[str, str, str, frozenset[str]]]:
    return {(edge.origin, edge.derived, edge.relation, frozenset(edge.flags)) for edge in edges}


def plain_value(value: Any) -> Any:
    """A free value without what JSON does not know. Two halves of a character that follow each other become it."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, str):
        return json.loads(json.dumps(value))
    if isinstance(value, list):
        return [plain_value(each) for each in value]
    if isinstance(value, dict):
        return {plain_value(key): plain_value(each) for key, each in value.items()}
    return value


def reading(seq: int = 0, **told: Any) -> TupleVertex:
    """A reading of car-7."""
    said: dict[str, Any] = {"state": "alive", "ts": 1000 + seq, "payload": {"speed": seq}} | told
    return TupleVertex(
        id=f"car-7/reports@3:{seq}", kind="source", agent="car-7", epoch=3, stream="reports", seq=seq, **said
    )


def alert(seq: int = 0, **told: Any) -> TupleVertex:
    """A result of hub."""
    said: dict[str, Any] = {"state": "complete", "ts": 5000, "origins": 2, "payload": {"cars": 2}} | told
    return TupleVertex(id=f"hub/alerts@1:{seq}", kind="sink", agent="hub", epoch=1, stream="alerts", seq=seq, **said)


def task(key: int = 0, **told: Any) -> TaskVertex:
    """A task of pi-1 in the workflow `training`."""
    said: dict[str, Any] = {"begun_ms": 1000, "ended_ms": 3000, "elapsed_ms": 2000, "status": "finished"} | told
    return TaskVertex(
        id=f"task:pi-1@1:{key}",
        agent="pi-1",
        epoch=1,
        name=f"t{key}",
        transformation="fit",
        workflow="workflow:pi-1@1:0",
        workflow_name="training",
        **said,
    )


def datum(name: str, attributes: Any = None, generated: bool = True) -> DataVertex:
    """Data of the workflow `training`, generated by pi-1 or an input."""
    where = "pi-1@1:" if generated else ""
    return DataVertex(
        id=f"data:{where}training/{name}",
        agent="pi-1" if generated else None,
        epoch=1 if generated else None,
        name=name,
        workflow_name="training",
        attributes=attributes,
    )


def workflow(**told: Any) -> WorkflowVertex:
    """The workflow `training` on pi-1."""
    said: dict[str, Any] = {
        "begun_ms": 900,
        "ended_ms": None,
        "elapsed_ms": None,
        "status": "running",
        "attributes": {},
    } | told
    return WorkflowVertex(id="workflow:pi-1@1:0", agent="pi-1", epoch=1, name="training", **said)


def showing(*vertices: Vertex, edges: Sequence[Edge] = (), next: str | None = None, truncated: bool = False) -> Graph:
    """A graph of these vertices."""
    return Graph(vertices=list(vertices), edges=list(edges), next=next, truncated=truncated)


def two_agents() -> Graph:
    """An alert that came from two readings, one of them late, and a reading that nothing came from yet."""
    edges = [
        Edge(origin=reading(0).id, derived=alert().id, relation="wasDerivedFrom"),
        Edge(origin=reading(1).id, derived=alert().id, relation="wasDerivedFrom", flags=["late"]),
    ]
    return showing(reading(0), reading(1), reading(2), alert(), edges=edges)


def training() -> Graph:
    """Two tasks of a workflow, the second one of which is running."""
    first, second = task(0), task(1, ended_ms=None, elapsed_ms=None, status="running")
    given, made = datum("in-1", {"rows": 10}, generated=False), datum("out-1", {"loss": 0.5})
    edges = [
        Edge(origin=given.id, derived=first.id, relation="used"),
        Edge(origin=first.id, derived=made.id, relation="wasGeneratedBy"),
        Edge(origin=given.id, derived=made.id, relation="wasDerivedFrom"),
        Edge(origin=made.id, derived=second.id, relation="used"),
        Edge(origin=first.id, derived=second.id, relation="wasInformedBy"),
        Edge(origin=workflow().id, derived=first.id, relation="wasAssociatedWith"),
        Edge(origin=workflow().id, derived=second.id, relation="wasAssociatedWith"),
    ]
    return showing(given, first, made, second, workflow(), edges=edges)

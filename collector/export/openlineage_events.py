"""A graph as OpenLineage events, for catalogues that follow jobs and datasets.

A task or a workflow is a run; data are datasets. A catalogue knows no tuples, so the sink stream of an agent is a job
that reads the streams of its origins, and each start of the agent is a run of it. Nothing says that a stream has ended:
such a run is RUNNING, as of now.

Which tuple came from which is listed in a facet, `threadline_graph`: each event has the vertices and the edges that it
stands for, and all events together hold the whole graph.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import attr
from openlineage.client.event_v2 import (
    DatasetEvent,
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
    StaticDataset,
)
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    error_message_run,
    job_dependencies_run,
    job_type_job,
    parent_run,
)
from openlineage.client.serde import Serde

from collector.api.models import DataVertex, Edge, Graph, TaskVertex, TupleVertex, Vertex, WorkflowVertex
from collector.export.naming import NAMESPACE, local_name
from collector.export.values import as_date, fields_of, json_text, values_of

JOB_NAMESPACE = "threadline"
FACET = "threadline_graph"
PRODUCER = NAMESPACE.removesuffix(":")

_UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Stands where an event must have a time and there is none. The facet says which times are known."""

Event = RunEvent | DatasetEvent
Fields = dict[str, Any]


@attr.define
class GraphRunFacet(RunFacet):
    """The part of the graph for which a run stands."""

    vertices: list[Fields] = attr.field(factory=list)
    edges: list[Fields] = attr.field(factory=list)
    cut: Fields | None = None
    """There is more than is shown: the cursor that leads on, if one does."""


@attr.define
class GraphDatasetFacet(DatasetFacet):
    """The part of the graph for which a dataset stands: data, or the tuples of a stream that are shown."""

    vertices: list[Fields] = attr.field(factory=list)
    edges: list[Fields] = attr.field(factory=list)
    cut: Fields | None = None


class Delivery(NamedTuple):
    """A run that delivers tuples: a start of an agent, and one of its streams."""

    dataset: str
    epoch: int | None


class _Shown:
    """A graph by what its events ask: what is behind an id, and which edges are told with it."""

    def __init__(self, graph: Graph) -> None:
        self.vertices: dict[str, Vertex] = {vertex.id: vertex for vertex in graph.vertices}
        self.runs: dict[str, list[Edge]] = {}
        """Tasks and workflows, also those that only edges name, with the edges of each."""
        self.derivations: dict[str, list[Edge]] = {}
        self.cut: Fields | None = None
        if graph.truncated or graph.next is not None:
            self.cut = {"truncated": graph.truncated, "next": graph.next}
        for vertex in graph.vertices:
            if isinstance(vertex, (TaskVertex, WorkflowVertex)):
                self.runs[vertex.id] = []
        for edge in graph.edges:
            if edge.relation == "wasDerivedFrom":
                self.derivations.setdefault(edge.derived, []).append(edge)
            else:
                run = edge.origin if edge.relation == "wasGeneratedBy" else edge.derived
                self.runs.setdefault(run, []).append(edge)

    def dataset_of(self, entity: str) -> str:
        """The name of the dataset of a tuple (its stream) or of data. What is not shown is told by its id."""
        vertex = self.vertices.get(entity)
        if isinstance(vertex, TupleVertex):
            return f"{vertex.agent}/{vertex.stream}"
        if vertex is None and not entity.startswith("data:"):
            return entity.rpartition("@")[0] or entity
        return entity

    def delivery_of(self, entity: str) -> Delivery | None:
        """The run that delivered it, None if it is data."""
        vertex = self.vertices.get(entity)
        if isinstance(vertex, DataVertex) or (vertex is None and entity.startswith("data:")):
            return None
        return Delivery(self.dataset_of(entity), vertex.epoch if vertex is not None else None)

    def run_facet(self, vertices: Iterable[str], edges: Iterable[Edge]) -> GraphRunFacet:
        return GraphRunFacet(vertices=self._told(vertices), edges=_grouped(edges), cut=self.cut, producer=PRODUCER)

    def dataset_facets(self, entities: Iterable[str]) -> dict[str, DatasetFacet]:
        """The facet of a dataset that holds these. How a tuple was derived is told by its run."""
        entities = list(entities)
        edges = [edge for each in entities if self.delivery_of(each) is None for edge in self.derivations.get(each, ())]
        vertices = self._told(entities)
        return {FACET: GraphDatasetFacet(vertices=vertices, edges=_grouped(edges), cut=self.cut, producer=PRODUCER)}

    def grouped(self, entities: Iterable[str]) -> dict[str, list[str]]:
        """Entities by the names of their datasets, each once."""
        found: dict[str, list[str]] = {}
        for each in dict.fromkeys(entities):
            found.setdefault(self.dataset_of(each), []).append(each)
        return found

    def _told(self, vertices: Iterable[str]) -> list[Fields]:
        return [_fields(self.vertices[each]) for each in vertices if each in self.vertices]


def event_lines(graph: Graph) -> bytes:
    """The events, one JSON object per line."""
    lines = (Serde.to_json(event) + "\n" for event in events(graph, time.time_ns() // 1_000_000))
    return "".join(lines).encode()


def events(graph: Graph, now_ms: int) -> Iterator[Event]:
    """Events about all that is shown: of workflows and tasks, of streams, and of what no run has to do with."""
    shown = _Shown(graph)
    told: set[str] = set()
    for run, edges in shown.runs.items():
        told.update(edge.origin if edge.relation == "used" else edge.derived for edge in edges)
        yield from _run_events(shown, run, edges, now_ms)
    deliveries: dict[Delivery, list[str]] = {}
    for entity in dict.fromkeys((*_sinks(graph), *shown.derivations)):
        delivery = shown.delivery_of(entity)
        if delivery is not None:
            deliveries.setdefault(delivery, []).append(entity)
    for delivery, delivered in deliveries.items():
        edges = [edge for each in delivered for edge in shown.derivations.get(each, ())]
        told.update(delivered, (edge.origin for edge in edges))
        yield _delivery_event(shown, delivery, delivered, edges, now_ms)
    entities = [vertex.id for vertex in graph.vertices if isinstance(vertex, (TupleVertex, DataVertex))]
    rest = (each for each in (*entities, *shown.derivations) if each not in told)
    for name, members in shown.grouped(rest).items():
        dataset = StaticDataset(JOB_NAMESPACE, name, facets=shown.dataset_facets(members))
        yield DatasetEvent(eventTime=_time(now_ms), dataset=dataset, producer=PRODUCER)


def run_id(name: str) -> str:
    """The id of a run, always the same for the same vertex: events of two exports are about one run."""
    return str(uuid5(NAMESPACE_URL, NAMESPACE + local_name(name)))


def _sinks(graph: Graph) -> Iterator[str]:
    return (vertex.id for vertex in graph.vertices if isinstance(vertex, TupleVertex) and vertex.kind == "sink")


def _run_events(shown: _Shown, run: str, edges: list[Edge], now_ms: int) -> Iterator[RunEvent]:
    """START, if it is known when, and how it is now. Of one that only edges name, nothing but that it is there."""
    vertex = shown.vertices.get(run)
    inputs = [edge.origin for edge in edges if edge.relation == "used"]
    outputs = [edge.derived for edge in edges if edge.relation == "wasGeneratedBy"]
    job = _job_of(run, vertex)
    facets: dict[str, RunFacet] = {FACET: shown.run_facet([run], edges)}
    state = RunState.OTHER
    at_ms: int | None = now_ms
    if isinstance(vertex, (TaskVertex, WorkflowVertex)):
        known = _known_facets(shown, vertex, edges)
        facets |= known
        if as_date(vertex.begun_ms) is not None:
            yield RunEvent(
                eventType=RunState.START,
                eventTime=_time(vertex.begun_ms),
                run=Run(run_id(run), dict(known)),
                job=job,
                inputs=[InputDataset(JOB_NAMESPACE, name) for name in shown.grouped(inputs)],
                producer=PRODUCER,
            )
        if vertex.status == "running":
            state, at_ms = RunState.RUNNING, max(now_ms, vertex.begun_ms or now_ms)
        else:
            state = RunState.COMPLETE if vertex.status == "finished" else RunState.FAIL
            at_ms = vertex.ended_ms if vertex.ended_ms is not None else vertex.begun_ms
        if vertex.status == "failed":
            message = vertex.error if vertex.error is not None else "it failed and did not say why"
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "PYTHON", producer=PRODUCER)
    yield _event(shown, state, _time(at_ms), Run(run_id(run), facets), job, inputs, outputs)


def _delivery_event(
    shown: _Shown, delivery: Delivery, delivered: list[str], edges: list[Edge], now_ms: int
) -> RunEvent:
    job = Job(JOB_NAMESPACE, delivery.dataset, _job_facets("STREAMING", "STREAM"))
    run = Run(run_id(f"{delivery.dataset}@{delivery.epoch}"), {FACET: shown.run_facet([], edges)})
    origins = [edge.origin for edge in edges]
    return _event(shown, RunState.RUNNING, _time(now_ms), run, job, origins, delivered)


def _event(
    shown: _Shown, state: RunState, at: str, run: Run, job: Job, inputs: Iterable[str], outputs: Iterable[str]
) -> RunEvent:
    """An event with all that is known of what the run has read and written."""
    read = [
        InputDataset(JOB_NAMESPACE, name, facets=shown.dataset_facets(members))
        for name, members in shown.grouped(inputs).items()
    ]
    written = [
        OutputDataset(JOB_NAMESPACE, name, facets=shown.dataset_facets(members))
        for name, members in shown.grouped(outputs).items()
    ]
    return RunEvent(eventType=state, eventTime=at, run=run, job=job, inputs=read, outputs=written, producer=PRODUCER)


def _job_of(run: str, vertex: Vertex | None) -> Job:
    if isinstance(vertex, TaskVertex):
        return Job(JOB_NAMESPACE, _task_job_name(vertex), _job_facets("BATCH", "TASK"))
    if isinstance(vertex, WorkflowVertex):
        return Job(JOB_NAMESPACE, vertex.name or run, _job_facets("BATCH", "WORKFLOW"))
    return Job(JOB_NAMESPACE, run)


def _task_job_name(task: TaskVertex) -> str:
    """What its runs have in common: the transformation, within the workflow."""
    name = task.transformation or task.name or task.id
    return f"{task.workflow_name}.{name}" if task.workflow_name else name


def _job_facets(processing: str, job_type: str) -> dict[str, JobFacet]:
    return {"jobType": job_type_job.JobTypeJobFacet(processing, "THREADLINE", job_type, producer=PRODUCER)}


def _known_facets(shown: _Shown, vertex: TaskVertex | WorkflowVertex, edges: Iterable[Edge]) -> dict[str, RunFacet]:
    """What OpenLineage has facets of its own for: the workflow of a task, and the tasks that it waited for."""
    facets: dict[str, RunFacet] = {}
    if isinstance(vertex, TaskVertex) and vertex.workflow is not None:
        facets["parent"] = parent_run.ParentRunFacet(
            run=parent_run.Run(run_id(vertex.workflow)),
            job=parent_run.Job(JOB_NAMESPACE, vertex.workflow_name or vertex.workflow),
            producer=PRODUCER,
        )
    upstream = []
    for informant in [edge.origin for edge in edges if edge.relation == "wasInformedBy"]:
        job = job_dependencies_run.JobIdentifier(JOB_NAMESPACE, _job_of(informant, shown.vertices.get(informant)).name)
        run = job_dependencies_run.RunIdentifier(run_id(informant))
        upstream.append(job_dependencies_run.JobDependency(job=job, run=run))
    if upstream:
        facets["jobDependencies"] = job_dependencies_run.JobDependenciesRunFacet(upstream, producer=PRODUCER)
    return facets


def _fields(vertex: Vertex) -> Fields:
    """A vertex for a facet. Free values are JSON text: the library would take every null out of them."""
    free = {field.name for field in fields_of(type(vertex)) if field.is_free}
    return {name: json_text(value) if name in free else value for name, value in values_of(vertex).items()}


def _grouped(edges: Iterable[Edge]) -> list[Fields]:
    """Edges with those that differ only in their origin together."""
    found: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for edge in edges:
        found.setdefault((edge.derived, edge.relation, tuple(edge.flags)), []).append(edge.origin)
    return [
        {"derived": derived, "relation": relation, "flags": list(flags), "origins": origins}
        for (derived, relation, flags), origins in found.items()
    ]


def _time(time_ms: int | None) -> str:
    return (as_date(time_ms) or _UNKNOWN_TIME).isoformat(timespec="milliseconds")

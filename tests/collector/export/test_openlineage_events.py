"""OpenLineage events, read into the library's own classes, are the graph that was exported."""

from __future__ import annotations

import json
import uuid
from typing import Any

import attr
import pytest
from hypothesis import given, settings
from openlineage.client import event_v2, facet_v2
from openlineage.client.event_v2 import DatasetEvent, InputDataset, Job, OutputDataset, Run, RunEvent, RunState

from collector.api.models import Edge, Graph
from collector.export import export
from collector.export.openlineage_events import (
    FACET,
    Event,
    GraphDatasetFacet,
    GraphRunFacet,
    events,
    run_id,
)
from tests.collector.export.graphs import (
    Plain,
    alert,
    check,
    datum,
    graphs,
    plain_edges,
    reading,
    showing,
    task,
    training,
    two_agents,
    workflow,
)

NOW_MS = 1_794_900_000_000
FACETS: dict[str, Any] = {
    "parent": facet_v2.parent_run.ParentRunFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "jobDependencies": facet_v2.job_dependencies_run.JobDependenciesRunFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
}


def read(document: bytes) -> list[Event]:
    return [read_event(json.loads(line)) for line in document.splitlines()]


def read_event(told: dict[str, Any]) -> Event:
    """The event in the library's classes, which check it; each names the schema that it was made by."""
    schema = told.pop("schemaURL")
    event: Event
    if "dataset" in told:
        dataset = read_dataset(told.pop("dataset"), event_v2.StaticDataset)
        event = DatasetEvent(dataset=dataset, **told)
    else:
        run, job = told.pop("run"), told.pop("job")
        event = RunEvent(
            eventType=RunState(told.pop("eventType")),
            run=Run(run["runId"], read_facets(run["facets"], GraphRunFacet)),
            job=Job(job["namespace"], job["name"], read_facets(job["facets"])),
            inputs=[read_dataset(each, InputDataset) for each in told.pop("inputs")],
            outputs=[read_dataset(each, OutputDataset) for each in told.pop("outputs")],
            **told,
        )
    assert event.schemaURL == schema
    return event


def read_dataset(told: dict[str, Any], kind: Any) -> Any:
    assert not told.pop("inputFacets", None)
    assert not told.pop("outputFacets", None)
    facets = read_facets(told.pop("facets"), GraphDatasetFacet)
    return kind(**told, facets=facets)


def read_facets(told: dict[str, dict[str, Any]], ours: Any = None) -> dict[str, Any]:
    found = {}
    for name, fields in told.items():
        kind = ours if name == FACET else FACETS[name]
        producer, schema = fields.pop("_producer"), fields.pop("_schemaURL")
        found[name] = kind(**fields, producer=producer)
        assert found[name]._schemaURL == schema
        known = {each.name for each in attr.fields(kind)}
        assert set(fields) <= known
    return found


def facets_of(event: Event) -> list[Any]:
    if isinstance(event, DatasetEvent):
        holders: list[Any] = [event.dataset]
    else:
        holders = [event.run, *(event.inputs or ()), *(event.outputs or ())]
    return [holder.facets[FACET] for holder in holders if FACET in holder.facets]


def graph_of(found: list[Event]) -> Plain:
    graph = Plain({}, set())
    for facet in (facet for event in found for facet in facets_of(event)):
        for vertex in facet.vertices:
            vertex = vertex | {name: json.loads(vertex[name]) for name in ("payload", "attributes") if name in vertex}
            assert graph.vertices.setdefault(vertex["id"], vertex) == vertex
        for edge in facet.edges:
            for origin in edge["origins"]:
                graph.edges.add((origin, edge["derived"], edge["relation"], frozenset(edge["flags"])))
    return graph


def runs(found: list[Event], state: RunState | None = None) -> list[RunEvent]:
    return [each for each in found if isinstance(each, RunEvent) and state in (None, each.eventType)]


@settings(max_examples=max(20, settings().max_examples // 10))
@given(graphs())
def test_read_again_they_are_the_graph(graph: Graph) -> None:
    check(graph_of(read(export(graph, "openlineage"))), graph)


@settings(max_examples=max(20, settings().max_examples // 10))
@given(graphs())
def test_inputs_and_outputs_say_what_tasks_used_and_generated(graph: Graph) -> None:
    task_ids = {edge.derived if edge.relation == "used" else edge.origin for edge in graph.edges}
    task_ids |= {vertex.id for vertex in graph.vertices if vertex.kind == "task"}
    names = {run_id(each): each for each in task_ids}
    found = set()
    for event in runs(read(export(graph, "openlineage"))):
        if event.run.runId in names:
            name = names[event.run.runId]
            found |= {(each.name, name, "used") for each in event.inputs or ()}
            found |= {(name, each.name, "wasGeneratedBy") for each in event.outputs or ()}
    expected = {edge[:3] for edge in plain_edges(graph.edges) if edge[2] in ("used", "wasGeneratedBy")}
    assert found == expected


@pytest.mark.parametrize("graph", [two_agents(), training()])
def test_graphs_as_they_are(graph: Graph) -> None:
    check(graph_of(read(export(graph, "openlineage"))), graph)


def test_no_graph_no_events() -> None:
    assert export(showing(), "openlineage") == b""


def test_a_finished_task_started_and_completed() -> None:
    first, last = [
        each for each in runs(read(export(training(), "openlineage"))) if each.run.runId == run_id(task(0).id)
    ]
    assert (first.eventType, first.eventTime) == (RunState.START, "1970-01-01T00:00:01.000+00:00")
    assert (last.eventType, last.eventTime) == (RunState.COMPLETE, "1970-01-01T00:00:03.000+00:00")
    assert first.job == last.job
    assert (last.job.namespace, last.job.name) == ("threadline", "training.fit")
    given, made = datum("in-1", generated=False).id, datum("out-1").id
    assert [(each.namespace, each.name) for each in first.inputs or ()] == [("threadline", given)]
    assert first.outputs == []
    assert [each.name for each in last.inputs or ()] == [given]
    assert [each.name for each in last.outputs or ()] == [made]


def test_a_running_task_started_and_is_running_as_of_now() -> None:
    found = [each for each in runs(list(events(training(), NOW_MS))) if each.run.runId == run_id(task(1).id)]
    assert [(each.eventType, each.eventTime) for each in found] == [
        (RunState.START, "1970-01-01T00:00:01.000+00:00"),
        (RunState.RUNNING, "2026-11-17T07:20:00.000+00:00"),
    ]


def test_a_running_task_of_a_device_whose_clock_is_ahead_is_not_running_before_it_began() -> None:
    vertex = task(begun_ms=NOW_MS + 5000, ended_ms=None, status="running")
    started, running = events(showing(vertex), NOW_MS)
    assert started.eventTime == running.eventTime == "2026-11-17T07:20:05.000+00:00"


@pytest.mark.parametrize(("error", "said"), [("disk full", "disk full"), (None, "it failed and did not say why")])
def test_a_failed_task_says_why(error: str | None, said: str) -> None:
    graph = showing(task(status="failed", error=error))
    first, last = runs(read(export(graph, "openlineage")))
    assert (first.eventType, last.eventType) == (RunState.START, RunState.FAIL)
    facets: Any = last.run.facets
    assert facets["errorMessage"].message == said
    assert "errorMessage" not in (first.run.facets or {})


def test_what_is_not_known_to_have_begun_has_no_start() -> None:
    (ended,) = runs(list(events(showing(task(begun_ms=None)), NOW_MS)))
    assert (ended.eventType, ended.eventTime) == (RunState.COMPLETE, "1970-01-01T00:00:03.000+00:00")
    (neither,) = runs(list(events(showing(task(begun_ms=None, ended_ms=None)), NOW_MS)))
    assert (neither.eventType, neither.eventTime) == (RunState.COMPLETE, "1970-01-01T00:00:00.000+00:00")


def test_the_workflow_is_the_parent_and_a_run_of_its_own() -> None:
    found = runs(read(export(training(), "openlineage")))
    own = [each for each in found if each.run.runId == run_id(workflow().id)]
    assert [each.eventType for each in own] == [RunState.START, RunState.RUNNING]
    assert own[0].job.name == "training"
    for event in found:
        if event not in own:
            parent: Any = (event.run.facets or {})["parent"]
            assert parent.run == {"runId": run_id(workflow().id), "facets": {}}
            assert parent.job == {"namespace": "threadline", "name": "training", "facets": {}}


def test_a_task_names_the_runs_that_it_waited_for() -> None:
    last = runs(read(export(training(), "openlineage")), RunState.RUNNING)[0]
    facets: Any = last.run.facets
    (upstream,) = facets["jobDependencies"].upstream
    assert upstream["run"] == {"runId": run_id(task(0).id)}
    assert upstream["job"] == {"namespace": "threadline", "name": "training.fit"}


def test_a_sink_stream_is_a_job_that_is_running() -> None:
    found = list(events(two_agents(), NOW_MS))
    (delivery,) = runs(found)
    assert (delivery.eventType, delivery.eventTime) == (RunState.RUNNING, "2026-11-17T07:20:00.000+00:00")
    assert delivery.job.name == "hub/alerts"
    assert [each.name for each in delivery.inputs or ()] == ["car-7/reports"]
    assert [each.name for each in delivery.outputs or ()] == ["hub/alerts"]
    facets: Any = delivery.run.facets
    assert facets[FACET].edges == [
        {"derived": alert().id, "relation": "wasDerivedFrom", "flags": [], "origins": [reading(0).id]},
        {"derived": alert().id, "relation": "wasDerivedFrom", "flags": ["late"], "origins": [reading(1).id]},
    ]
    assert [facet.edges for facet in facets_of(delivery)[1:]] == [[], []], "once is enough"
    (rest,) = [each for each in found if isinstance(each, DatasetEvent)]
    assert rest.dataset.name == "car-7/reports"
    assert [vertex["id"] for vertex in (rest.dataset.facets or {})[FACET].vertices] == [reading(2).id]  # type: ignore[attr-defined]


def test_each_start_of_an_agent_is_a_run_of_the_same_job() -> None:
    starts = [alert().model_copy(update={"id": f"hub/alerts@{epoch}:0", "epoch": epoch}) for epoch in (1, 2)]
    found = runs(list(events(showing(alert(1), *starts), NOW_MS)))
    assert [each.job.name for each in found] == ["hub/alerts"] * 2
    assert len({each.run.runId for each in found}) == 2


def test_a_run_has_the_same_id_in_every_export() -> None:
    first, second = [[each.run.runId for each in runs(list(events(training(), now)))] for now in (NOW_MS, NOW_MS + 1)]
    assert first == second
    assert {uuid.UUID(each).version for each in first} == {5}


def test_a_task_that_only_an_edge_names_is_there_and_nothing_more_is_said_of_it() -> None:
    edge = Edge(origin="task:far@1:1", derived=datum("out-1").id, relation="wasGeneratedBy")
    (event,) = runs(read(export(showing(datum("out-1"), edges=[edge], truncated=True), "openlineage")))
    assert event.eventType == RunState.OTHER
    assert event.job.name == "task:far@1:1"
    assert [each.name for each in event.outputs or ()] == [datum("out-1").id]


def test_entities_that_only_edges_name_are_told_by_their_ids() -> None:
    edges = [
        Edge(origin=reading(0).id, derived="hub/alerts@1:9", relation="wasDerivedFrom"),
        Edge(origin="car-8/reports@3:1", derived="hub/alerts@1:9", relation="wasDerivedFrom"),
        Edge(origin=datum("a").id, derived="data:training/b", relation="wasDerivedFrom"),
    ]
    graph = showing(reading(0), datum("a"), edges=edges, truncated=True)
    found = list(events(graph, NOW_MS))
    check(graph_of(found), graph)
    (delivery,) = runs(found)
    assert delivery.job.name == "hub/alerts"
    assert [each.name for each in delivery.inputs or ()] == ["car-7/reports", "car-8/reports"]
    datasets = [each.dataset.name for each in found if isinstance(each, DatasetEvent)]
    assert datasets == [datum("a").id, "data:training/b"]


def test_events_that_do_not_hold_all_say_so() -> None:
    whole, cut = training(), training().model_copy(update={"next": "abc"})
    assert all(facet.cut is None for event in read(export(whole, "openlineage")) for facet in facets_of(event))
    for event in read(export(cut, "openlineage")):
        assert all(facet.cut == {"truncated": False, "next": "abc"} for facet in facets_of(event))

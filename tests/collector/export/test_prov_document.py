"""A document of PROV, read by the library that owns the format, is the graph that was exported."""

from __future__ import annotations

import json
import warnings
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft4Validator  # type: ignore[import-untyped]
from prov.constants import PROV_N_MAP, PROV_TYPE
from prov.model import Literal, ProvDocument, ProvRecord

from collector.api.models import Graph
from collector.export import export, vertex_id_of
from collector.export.naming import NAMESPACE
from tests.collector.export.graphs import Plain, check, graphs, reading, showing, training, two_agents

KINDS = {
    "entity": {"source", "sink", "intermediate", "data"},
    "activity": {"task"},
    "agent": {"workflow"},
}
SCHEMA = Draft4Validator(json.loads((files("prov.tests") / "schemas" / "prov-json.schema.json").read_text()))
READ_AS = {"prov-json": "json", "prov-n": "provn"}


def read(document: bytes, format: str) -> ProvDocument:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ProvDocument.deserialize(content=document, format=READ_AS[format])
    assert isinstance(found, ProvDocument)
    return found


def local(name: Any) -> str:
    assert name.uri.startswith(NAMESPACE)
    return str(name.uri[len(NAMESPACE) :])


def graph_of(document: ProvDocument) -> Plain:
    found = Plain({}, set())
    for record in document.get_records():
        what = PROV_N_MAP[record.get_type()]
        if what not in KINDS:
            derived, origin = [vertex_id_of(local(end)) for end in record.args[:2]]
            flags = frozenset(str(flag) for _, flag in record.extra_attributes)
            found.edges.add((origin, derived, what, flags))
        elif local(record.identifier) != "+cut":
            vertex = vertex_of(record)
            assert vertex["kind"] in KINDS[what]
            found.vertices[vertex_id_of(local(record.identifier))] = vertex
    return found


def vertex_of(record: ProvRecord) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.extra_attributes:
        value = json.loads(value.value) if isinstance(value, Literal) else value
        if name == PROV_TYPE:
            if value.uri.startswith(NAMESPACE):
                found["kind"] = local(value)
            continue
        field, dot, key = vertex_id_of(local(name)).partition(".")
        if dot:
            found.setdefault(field, {})[key] = value
        else:
            found[field] = value
    return found


@settings(max_examples=max(20, settings().max_examples // 10))
@given(graphs())
def test_both_notations_read_again_are_the_graph_and_equal(graph: Graph) -> None:
    documents = [read(export(graph, format), format) for format in READ_AS]
    for document in documents:
        check(graph_of(document), graph)
    assert documents[0] == documents[1]


@pytest.mark.parametrize("graph", [two_agents(), training(), showing()])
def test_graphs_as_they_are(graph: Graph) -> None:
    for format in READ_AS:
        check(graph_of(read(export(graph, format), format)), graph)


@settings(max_examples=max(20, settings().max_examples // 10))
@given(graphs())
def test_prov_json_is_what_its_schema_asks_for(graph: Graph) -> None:
    SCHEMA.validate(json.loads(export(graph, "prov-json")))


def test_prov_n_reads_like_prov() -> None:
    text = export(training(), "prov-n").decode()
    for line in (
        "prefix tl <urn:threadline:>",
        r"activity(tl:task\:pi-1@1\:0, 1970-01-01T00:00:01+00:00, 1970-01-01T00:00:03+00:00, [",
        r"agent(tl:workflow\:pi-1@1\:0, [prov:type='prov:SoftwareAgent', prov:type='tl:workflow', ",
        r"used(tl:task\:pi-1@1\:0, tl:data\:training/in-1, -)",
        r"wasGeneratedBy(tl:data\:pi-1@1\:training/out-1, tl:task\:pi-1@1\:0, -)",
        r"wasDerivedFrom(tl:data\:pi-1@1\:training/out-1, tl:data\:training/in-1, -, -, -)",
        r"wasInformedBy(tl:task\:pi-1@1\:1, tl:task\:pi-1@1\:0)",
        r"wasAssociatedWith(tl:task\:pi-1@1\:0, tl:workflow\:pi-1@1\:0, -)",
        "tl:attributes.loss",
    ):
        assert line in text
    assert (
        'wasDerivedFrom(tl:hub/alerts@1\\:0, tl:car-7/reports@3\\:1, -, -, -, [tl:flag="late"])'
        in export(two_agents(), "prov-n").decode()
    )


@pytest.mark.parametrize("mark_of", [{"truncated": True}, {"truncated": False, "next": "abc"}])
def test_a_document_that_does_not_hold_all_says_so(mark_of: dict[str, Any]) -> None:
    whole = two_agents()
    cut = whole.model_copy(update=mark_of)
    for format in READ_AS:
        assert not read(export(whole, format), format).get_record("tl:+cut")
        (mark,) = read(export(cut, format), format).get_record("tl:+cut")
        told = {local(name): value for name, value in mark.extra_attributes if name != PROV_TYPE}
        assert told == mark_of


def test_a_time_that_no_calendar_has_is_still_told() -> None:
    far = training().vertices[1].model_copy(update={"begun_ms": 2**62, "ended_ms": -(2**62)})
    graph = showing(far)
    for format in READ_AS:
        document = read(export(graph, format), format)
        check(graph_of(document), graph)
        (record,) = document.get_records()
        assert [value for _, value in record.formal_attributes] == [None, None]


def test_values_keep_their_types() -> None:
    payload = {"int": 1, "big": 2**70, "float": 1.0, "bool": True, "text": "1", "none": None, "list": [1, None]}
    text = export(showing(reading(payload=payload)), "prov-n").decode()
    for said in (
        "tl:payload.int=1,",
        'tl:payload.big="1180591620717411303424" %% xsd:integer',
        'tl:payload.float="1.0" %% xsd:double',
        'tl:payload.bool="true" %% xsd:boolean',
        'tl:payload.text="1"',
        'tl:payload.none="null" %% tl:json',
        'tl:payload.list="[1,null]" %% tl:json',
    ):
        assert said in text

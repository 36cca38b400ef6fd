"""GraphML, read by networkx, is the graph that was exported."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import networkx as nx  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings

from collector.api.models import Edge, Graph, TupleVertex
from collector.export import export, vertex_id_of
from collector.export.graphml import NOT_SHOWN
from collector.export.naming import readable
from tests.collector.export.graphs import Plain, alert, check, datum, graphs, reading, showing, training, two_agents

FREE = ("payload", "attributes")


def read(document: bytes) -> Any:
    return nx.parse_graphml(document.decode(), force_multigraph=True)


def graph_of(document: bytes) -> Plain:
    """The graph without the columns of single keys, which repeat what the JSON says."""
    found = read(document)
    vertices = {}
    for node, data in found.nodes(data=True):
        if data["kind"] != NOT_SHOWN:
            fields = {name: value for name, value in data.items() if "." not in name}
            fields |= {name: json.loads(fields[name]) for name in FREE if name in fields}
            vertices[vertex_id_of(node)] = {"id": vertex_id_of(node), **fields}
    edges = {
        (vertex_id_of(origin), vertex_id_of(derived), data["relation"], frozenset(data.get("flags", "").split()))
        for origin, derived, data in found.edges(data=True)
    }
    return Plain(vertices, edges)


def without_what_xml_cannot_hold(graph: Graph) -> Graph:
    """Texts lose it; ids and free values do not."""
    vertices = []
    for vertex in graph.vertices:
        lossy = {name: value for name, value in vertex if isinstance(value, str) and name not in ("id", *FREE)}
        vertices.append(vertex.model_copy(update={name: readable(value) for name, value in lossy.items()}))
    return graph.model_copy(update={"vertices": vertices})


@settings(max_examples=max(20, settings().max_examples // 10))
@given(graphs())
def test_read_again_it_is_the_graph(graph: Graph) -> None:
    document = export(graph, "graphml", title="what\0ever & <more>")
    check(graph_of(document), without_what_xml_cannot_hold(graph))
    about = read(document).graph
    assert about["title"] == "what\ufffdever & <more>"
    assert about["truncated"] == graph.truncated


@pytest.mark.parametrize("graph", [two_agents(), training(), showing()])
def test_graphs_as_they_are(graph: Graph) -> None:
    check(graph_of(export(graph, "graphml")), graph)


def test_keys_have_types_that_fit_the_values() -> None:
    payloads: list[dict[str, Any]] = [{"a": 1, "b": 1, "c": True, "d": "x", "e": 1, "f": 2**70}, {"b": 0.5, "e": "y"}]
    graph = showing(*[reading(seq, payload=each) for seq, each in enumerate(payloads)])
    keys = {
        key.get("attr.name"): key.get("attr.type")
        for key in ElementTree.fromstring(export(graph, "graphml"))
        if key.get("for") == "node"
    }
    assert {name: keys[f"payload.{name}"] for name in "abcdef"} == {
        "a": "long",
        "b": "double",
        "c": "boolean",
        "d": "string",
        "e": "string",
        "f": "string",
    }
    assert keys["ts"] == keys["seq"] == keys["epoch"] == keys["since_written_ms"] == "long"
    assert keys["kind"] == keys["payload"] == "string"
    nodes = read(export(graph, "graphml")).nodes
    assert [nodes[each.id].get("payload.b") for each in graph.vertices] == [1.0, 0.5]
    assert [nodes[each.id].get("payload.e") for each in graph.vertices] == ["1", "y"]
    assert nodes[reading(0).id]["payload.f"] == str(2**70)


def test_an_edge_leads_from_the_origin_to_what_was_derived() -> None:
    found = nx.parse_graphml(export(two_agents(), "graphml").decode())
    assert set(found.successors(reading(0).id)) == {alert().id}
    assert found.edges[reading(1).id, alert().id]["flags"] == "late"


def test_an_end_that_is_not_shown_is_a_node_that_says_so() -> None:
    edge = Edge(origin=reading(0).id, derived="hub/alerts@1:9", relation="wasDerivedFrom")
    document = export(showing(reading(0), edges=[edge], truncated=True, next="abc"), "graphml")
    named = {node.get("id") for node in ElementTree.fromstring(document).iter() if node.tag.endswith("}node")}
    assert named == {reading(0).id, "hub/alerts@1:9"}
    found = read(document)
    assert found.nodes["hub/alerts@1:9"] == {"kind": NOT_SHOWN}
    assert found.graph["truncated"] is True
    assert found.graph["next"] == "abc"


def test_characters_that_xml_cannot_hold() -> None:
    odd = datum("nul\0 %41", {"note": "bell\a\ufffe"})
    (node, data), *_ = read(export(showing(odd), "graphml")).nodes(data=True)
    assert node == "data:pi-1@1:training/nul%00 %2541"
    assert vertex_id_of(node) == odd.id
    assert data["name"] == "nul\ufffd %41"
    assert data["attributes.note"] == "bell\ufffd\ufffd"
    assert json.loads(data["attributes"]) == {"note": "bell\a\ufffe"}


def test_white_space_stays_what_it_is() -> None:
    odd = datum("a\tb\r\nc\rd  e")
    (node, data), *_ = read(export(showing(odd), "graphml")).nodes(data=True)
    assert node == odd.id
    assert data["name"] == odd.name


def test_keys_that_look_alike_do_not_overwrite_each_other() -> None:
    vertex = reading(payload={"a\0": 1, "a\1": 2, "A\1": 3, "b": 4})
    assert isinstance(vertex, TupleVertex)
    (_, data), *_ = read(export(showing(vertex), "graphml")).nodes(data=True)
    assert data["payload.a\ufffd"] == 1
    assert data["payload.b"] == 4
    assert json.loads(data["payload"]) == vertex.payload

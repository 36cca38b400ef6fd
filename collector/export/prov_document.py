"""A graph as a document of W3C PROV: tuples and data are entities, tasks are activities, workflows are software agents.

The relations of our edges are PROV's own. A vertex is named by its id, percent-encoded where PROV-N asks for it; its
fields are attributes of the same names. A payload (or attributes) is an attribute per key, such as `tl:payload.speed`:
numbers and texts with the type that they have, anything else as JSON, which the type `tl:json` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prov.constants import PROV, PROV_TYPE
from prov.identifier import Namespace, QualifiedName
from prov.model import ProvDocument

from collector.api.models import Graph, TaskVertex, Vertex, WorkflowVertex
from collector.export.naming import local_name
from collector.export.prov_terms import RELATE, new_document, spread, written
from collector.export.values import as_date, fields_of, values_of

Attributes = list[tuple[QualifiedName, Any]]

# No id has this name: in the names of ids, + is encoded.
_CUT = "+cut"


def prov_json(graph: Graph) -> bytes:
    """The graph as PROV-JSON."""
    return written(document(graph), "json")


def prov_n(graph: Graph) -> bytes:
    """The graph as PROV-N."""
    return written(document(graph), "provn")


def document(graph: Graph) -> ProvDocument:
    """The graph as PROV. If there is more than is shown, an entity of the type tl:cut says so."""
    made, tl = new_document()
    for vertex in graph.vertices:
        _add_vertex(made, tl, vertex)
    # The library writes what is said twice in a way that the schema of PROV-JSON does not allow.
    for derived, origin, relation, flags in dict.fromkeys(
        (edge.derived, edge.origin, edge.relation, frozenset(edge.flags)) for edge in graph.edges
    ):
        ends = tl[local_name(derived)], tl[local_name(origin)]
        RELATE[relation](made, *ends, other_attributes=[(tl["flag"], flag) for flag in sorted(flags)])
    if graph.truncated or graph.next is not None:
        attributes: Attributes = [(PROV_TYPE, tl["cut"]), (tl["truncated"], graph.truncated)]
        if graph.next is not None:
            attributes.append((tl["next"], graph.next))
        made.entity(tl[_CUT], attributes)
    return made


def _add_vertex(made: ProvDocument, tl: Namespace, vertex: Vertex) -> None:
    name = tl[local_name(vertex.id)]
    attributes: Attributes = [(PROV_TYPE, tl[vertex.kind]), *_attributes(tl, vertex)]
    if isinstance(vertex, TaskVertex):
        made.activity(name, as_date(vertex.begun_ms), as_date(vertex.ended_ms), attributes)
    elif isinstance(vertex, WorkflowVertex):
        made.agent(name, [(PROV_TYPE, PROV["SoftwareAgent"]), *attributes])
    else:
        made.entity(name, attributes)


def _attributes(tl: Namespace, vertex: Vertex) -> Iterator[tuple[QualifiedName, Any]]:
    """The fields of a vertex. Its kind is a type of PROV and needs no attribute."""
    free = {field.name for field in fields_of(type(vertex)) if field.is_free}
    for name, value in values_of(vertex).items():
        if name in free:
            yield from spread(tl, name, value)
        elif name != "kind":
            yield tl[name], value

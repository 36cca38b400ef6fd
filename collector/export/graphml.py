"""A graph as GraphML: nodes and edges with typed data, an edge leading from the origin to what was derived from it.

The id of a node is the id of the vertex, readable for people. Texts lose the few characters that XML cannot hold (each
becomes U+FFFD); ids and JSON keep them, percent-encoded and escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from collector.api.models import Graph
from collector.export.naming import readable, xml_name
from collector.export.table import Column, Type, cell_text, edge_row, vertex_table

_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"\
 xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
"""
_TYPES: Mapping[Type, str] = {"integer": "long", "number": "double", "boolean": "boolean", "text": "string"}
# Readers change line ends, and in attributes all white space, unless they are written as references.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
)
_ABOUT = (Column("title", "text"), Column("truncated", "boolean"), Column("next", "text"))
_EDGE = (Column("relation", "text"), Column("flags", "text"))
NOT_SHOWN = "not shown"
"""The kind of a node that is the end of an edge and no vertex of the graph: the page was cut there."""


def graphml(graph: Graph, title: str) -> bytes:
    """The graph as a document; what it says of itself is its title, and whether there is more."""
    return "".join(_parts(graph, title)).encode()


def _parts(graph: Graph, title: str) -> Iterator[str]:
    vertices = vertex_table(graph.vertices)
    columns = [column for column in vertices.columns if column.name not in ("id", "kind")]
    columns.insert(0, Column("kind", "text"))
    yield _HEAD
    keys: dict[tuple[str, str], str] = {}
    for owner, owned in (("graph", _ABOUT), ("node", columns), ("edge", _EDGE)):
        for column in owned:
            key = keys[owner, column.name] = f"d{len(keys)}"
            name = _escaped(column.name)
            yield f'<key id="{key}" for="{owner}" attr.name="{name}" attr.type="{_TYPES[column.type]}"/>\n'

    def data(owner: str, row: Mapping[str, Any], columns: Iterable[Column]) -> str:
        cells = ((column, row.get(column.name)) for column in columns)
        return "".join(
            f'<data key="{keys[owner, column.name]}">{_escaped(cell_text(value))}</data>'
            for column, value in cells
            if value is not None
        )

    yield '<graph edgedefault="directed">\n'
    yield data("graph", {"title": title, "truncated": graph.truncated, "next": graph.next}, _ABOUT) + "\n"
    for row in vertices.rows:
        yield f'<node id="{_identifier(row["id"])}">{data("node", row, columns)}</node>\n'
    shown = {vertex.id for vertex in graph.vertices}
    for end in dict.fromkeys(end for edge in graph.edges for end in (edge.origin, edge.derived) if end not in shown):
        yield f'<node id="{_identifier(end)}">{data("node", {"kind": NOT_SHOWN}, columns)}</node>\n'
    for number, edge in enumerate(graph.edges):
        ends = f'source="{_identifier(edge.origin)}" target="{_identifier(edge.derived)}"'
        yield f'<edge id="e{number}" {ends}>{data("edge", edge_row(edge), _EDGE)}</edge>\n'
    yield "</graph>\n</graphml>\n"


def _identifier(vertex_id: str) -> str:
    return xml_name(vertex_id).translate(_ESCAPES)


def _escaped(text: str) -> str:
    return readable(text).translate(_ESCAPES)

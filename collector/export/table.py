"""A graph as one table: a row per vertex and a row per edge.

Which columns there are depends on what kinds of things are shown, not on their values. A free value (a payload, or
attributes) stands in its column as JSON, exactly. Its top-level keys also get columns of their own, for those who sort,
sum and plot; these may leave something out, the JSON never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from collector.api.models import Edge, Graph, Vertex
from collector.export.naming import SURROGATE, readable
from collector.export.values import Field, fields_of, json_text, plain, values_of

MOST_KEYS = 200
"""So many keys of a free value get columns of their own, those that come first."""

Type = Literal["integer", "number", "boolean", "text"]


class Column(NamedTuple):
    """A column by its name, and what it holds besides None."""

    name: str
    type: Type


class Table(NamedTuple):
    """Rows by the names of columns; what a row does not name is None."""

    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]


def graph_table(graph: Graph) -> Table:
    """Vertices, then edges, told apart by `record`. If there is more than is shown, a last row, `cut`, says so."""
    vertices = vertex_table(graph.vertices)
    columns = [Column("record", "text"), *(vertices.columns or (Column("id", "text"), Column("kind", "text")))]
    rows = [{"record": "vertex", **row} for row in vertices.rows]
    if graph.edges:
        columns += [Column(name, "text") for name in ("origin", "derived", "relation", "flags")]
        rows += [{"record": "edge", **edge_row(edge)} for edge in graph.edges]
    if graph.truncated or graph.next is not None:
        columns += [Column("truncated", "boolean"), Column("next", "text")]
        rows.append({"record": "cut", "truncated": graph.truncated, "next": graph.next})
    return Table(tuple(columns), rows)


def vertex_table(vertices: Sequence[Vertex]) -> Table:
    """A row per vertex, with the fields of all kinds that are among them."""
    fields: dict[str, Field] = {}
    for kind in dict.fromkeys(type(vertex) for vertex in vertices):
        fields.update((field.name, field) for field in fields_of(kind))
    rows = [values_of(vertex) for vertex in vertices]
    columns = [
        Column(name, "integer" if field.is_integer else "text") for name, field in fields.items() if not field.is_free
    ]
    for name in [name for name, field in fields.items() if field.is_free]:
        columns.append(Column(name, "text"))
        columns += _spread(name, rows)
    return Table(tuple(columns), rows)


def edge_row(edge: Edge) -> dict[str, Any]:
    """An edge by the names of its columns."""
    flags = " ".join(edge.flags) or None
    return {"origin": edge.origin, "derived": edge.derived, "relation": edge.relation, "flags": flags}


def row_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows that are no graph; what is no number and no text becomes JSON."""
    found = [{readable(name): plain(value) for name, value in row.items()} for row in rows]
    names = dict.fromkeys(name for row in found for name in row)
    return Table(tuple(_typed(name, found) for name in names), found)


def cell_text(value: Any) -> str:
    """A value of a column of texts: a text as it is, anything else as JSON."""
    return SURROGATE.sub("\ufffd", value) if isinstance(value, str) else json_text(value)


def _spread(name: str, rows: Iterable[dict[str, Any]]) -> list[Column]:
    """Turn the free values of this name into JSON text, and their keys into columns `name.key`."""
    rows = [row for row in rows if name in row]
    columns: dict[str, str] = {}
    for row in rows:
        value = plain(row[name])
        row[name] = json_text(value)
        for key, each in value.items() if isinstance(value, dict) else ():
            column = f"{name}.{readable(key)}"
            # Some readers do not tell names apart by the case of their letters.
            folded = column.casefold()
            if folded not in columns and len(columns) < MOST_KEYS:
                columns[folded] = column
            if columns.get(folded) == column:
                row.setdefault(column, each)
    return [_typed(column, rows) for column in columns.values()]


def _typed(name: str, rows: Iterable[dict[str, Any]]) -> Column:
    """A column with a type that holds all its values exactly. If there is none, they become texts."""
    rows = [row for row in rows if row.get(name) is not None]
    values = [row[name] for row in rows]
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return Column(name, "boolean")
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return Column(name, "integer")
    # Up to here, a floating point number tells integers apart.
    if float in kinds and kinds <= {int, float} and all(abs(value) <= 2**53 for value in values if type(value) is int):
        return Column(name, "number")
    for row in rows:
        row[name] = cell_text(row[name])
    return Column(name, "text")

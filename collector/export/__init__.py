"""Exports: what a query shows, in formats that others read.

An exporter takes the very object that the API answers with, so an export holds what the query shows, and nothing else.
The libraries behind a format are loaded when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collector.api.models import Graph
from collector.export.formats import FORMATS, ROW_FORMATS, Format, UnknownFormat, known
from collector.export.naming import vertex_id_of

__all__ = ["FORMATS", "ROW_FORMATS", "Format", "UnknownFormat", "export", "export_rows", "vertex_id_of"]


def export(graph: Graph, format: str, title: str = "threadline") -> bytes:
    """The graph as a document; `title` is kept where the format has a place for it (GraphML, Parquet)."""
    match known(format, FORMATS).name:
        case "prov-json":
            from collector.export.prov_document import prov_json

            return prov_json(graph)
        case "prov-n":
            from collector.export.prov_document import prov_n

            return prov_n(graph)
        case "openlineage":
            from collector.export.openlineage_events import event_lines

            return event_lines(graph)
        case "graphml":
            from collector.export.graphml import graphml

            return graphml(graph, title)
        case "csv":
            from collector.export.csv_text import csv_text
            from collector.export.table import graph_table

            return csv_text(graph_table(graph))
        case _:
            from collector.export.parquet import parquet
            from collector.export.table import graph_table

            return parquet(graph_table(graph), title)


def export_rows(rows: Sequence[Mapping[str, Any]], format: str, title: str = "threadline") -> bytes:
    """Rows that are no graph as a table; its columns are all keys, in the order in which they first appear."""
    from collector.export.table import row_table

    if known(format, ROW_FORMATS).name == "csv":
        from collector.export.csv_text import csv_text

        return csv_text(row_table(rows))
    from collector.export.parquet import parquet

    return parquet(row_table(rows), title)

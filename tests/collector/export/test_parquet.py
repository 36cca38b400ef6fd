"""Parquet, read by pyarrow, is the graph that was exported, with types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from collector.api.models import Graph
from collector.export import export, export_rows
from tests.collector.export.graphs import check, graphs, reading, showing, training, two_agents
from tests.collector.export.tables import graph_of_rows


def read(document: bytes) -> Any:
    return pq.read_table(pa.BufferReader(document))


@settings(max_examples=max(20, settings().max_examples // 10))
@given(graphs())
def test_read_again_it_is_the_graph(graph: Graph) -> None:
    check(graph_of_rows(read(export(graph, "parquet")).to_pylist()), graph)


@pytest.mark.parametrize("graph", [two_agents(), training(), showing()])
def test_graphs_as_they_are(graph: Graph) -> None:
    check(graph_of_rows(read(export(graph, "parquet")).to_pylist()), graph)


def test_columns_have_the_types_of_their_values() -> None:
    payloads: list[Any] = [
        {"int": -(2**63), "float": 2**53, "bool": True, "text": "x", "mixed": 1, "huge": 2**63, "inexact": 2**53 + 1},
        {"int": 2**63 - 1, "float": 0.5, "bool": None, "mixed": "y", "none": None, "inexact": 0.5, "list": [1]},
        [1, 2],
        None,
    ]
    table = read(export(showing(*[reading(n, payload=each) for n, each in enumerate(payloads)]), "parquet"))
    found = {name: (table[f"payload.{name}"].type, table[f"payload.{name}"].to_pylist()[:2]) for name in payloads[0]}
    assert found == {
        "int": (pa.int64(), [-(2**63), 2**63 - 1]),
        "float": (pa.float64(), [2.0**53, 0.5]),
        "bool": (pa.bool_(), [True, None]),
        "text": (pa.string(), ["x", None]),
        "mixed": (pa.string(), ["1", "y"]),
        "huge": (pa.string(), [str(2**63), None]),
        "inexact": (pa.string(), [str(2**53 + 1), "0.5"]),
    }
    assert table["payload.list"].to_pylist() == [None, "[1]", None, None]
    assert table["payload.none"].to_pylist() == [None] * 4
    assert table["payload"].to_pylist()[2:] == ["[1,2]", None]


def test_fields_have_the_same_types_whatever_they_hold() -> None:
    schema = read(export(showing(reading(ts=None, payload=None)), "parquet")).schema
    assert schema.field("ts").type == schema.field("origins").type == pa.int64()
    assert schema.field("state").type == schema.field("payload").type == pa.string()


def test_the_title_is_kept() -> None:
    assert (
        read(export(two_agents(), "parquet", title="alerts of today")).schema.metadata[b"title"] == b"alerts of today"
    )


def test_rows_that_are_no_graph() -> None:
    rows: list[dict[str, Any]] = [{"agent": "a", "elapsed_ms": 5}, {"agent": "b", "elapsed_ms": None, "share": 0.5}]
    table = read(export_rows(rows, "parquet"))
    assert table.to_pylist() == [
        {"agent": "a", "elapsed_ms": 5, "share": None},
        {"agent": "b", "elapsed_ms": None, "share": 0.5},
    ]
    assert table.schema.types == [pa.string(), pa.int64(), pa.float64()]
    assert read(export_rows([], "parquet")).num_rows == 0

"""CSV, read by Python's csv module and by pandas, is the graph that was exported; and it holds no formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings

from collector.api.models import Graph
from collector.export import export, export_rows
from tests.collector.export.graphs import SHARP, alert, check, graphs, reading, showing, task, training, two_agents
from tests.collector.export.tables import graph_of_rows

INTEGERS = {"epoch", "seq", "ts", "since_stamp", "since_written_ms", "origins", "begun_ms", "ended_ms", "elapsed_ms"}


def cells(document: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(document.decode(), newline=""), strict=True))


def rows(document: bytes) -> Iterator[dict[str, Any]]:
    """Rows as the guide says to read them: an empty cell is None, and one leading apostrophe goes."""
    names, *lines = cells(document)
    for line in lines:
        assert len(line) == len(names)
        told = {name: cell.removeprefix("'") if cell else None for name, cell in zip(names, line, strict=True)}
        yield {name: int(cell) if cell is not None and name in INTEGERS else cell for name, cell in told.items()}


@settings(max_examples=max(20, settings().max_examples // 10))
@given(graphs())
def test_read_again_it_is_the_graph(graph: Graph) -> None:
    check(graph_of_rows(rows(export(graph, "csv"))), graph)


@settings(max_examples=max(20, settings().max_examples // 10))
@given(graphs())
def test_no_cell_is_a_formula(graph: Graph) -> None:
    for line in cells(export(graph, "csv")):
        for cell in line:
            assert not cell.startswith(tuple("=+@\t\r\n\uff1d\uff0b\uff0d\uff20"))
            assert not cell.startswith("-") or float(cell) <= 0


@pytest.mark.parametrize("graph", [two_agents(), training(), showing()])
def test_graphs_as_they_are(graph: Graph) -> None:
    check(graph_of_rows(rows(export(graph, "csv"))), graph)


def test_a_list_of_tuples_is_a_flat_table() -> None:
    graph = showing(reading(1, payload={"speed": 0, "vid": 159}), reading(2, payload={"speed": 7}))
    assert export(graph, "csv").decode().splitlines() == [
        "record,id,kind,agent,epoch,stream,seq,ts,state,since_stamp,since_written_ms,origins,payload,payload.speed,payload.vid",
        'vertex,car-7/reports@3:1,source,car-7,3,reports,1,1001,alive,,,,"{""speed"":0,""vid"":159}",0,159',
        'vertex,car-7/reports@3:2,source,car-7,3,reports,2,1002,alive,,,,"{""speed"":7}",7,',
    ]


def test_columns_depend_on_the_kinds_of_things_shown() -> None:
    def names(graph: Graph) -> list[str]:
        return cells(export(graph, "csv"))[0]

    assert names(showing()) == ["record", "id", "kind"]
    tuples = names(showing(alert(payload=None)))
    assert {"stream", "since_stamp", "payload"} <= set(tuples)
    assert not {"status", "attributes", "relation"} & set(tuples)
    assert {"error", "transformation"} <= set(names(showing(task())))
    assert names(two_agents())[-4:] == ["origin", "derived", "relation", "flags"]


@pytest.mark.parametrize(
    ("mark", "said"),
    [({"truncated": True}, {"truncated": "true"}), ({"next": "abc"}, {"truncated": "false", "next": "abc"})],
)
def test_a_table_that_does_not_hold_all_says_so(mark: dict[str, Any], said: dict[str, str]) -> None:
    *_, last = rows(export(two_agents().model_copy(update=mark), "csv"))
    assert {name: cell for name, cell in last.items() if cell is not None} == {"record": "cut", **said}


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-x", "@SUM(A1)", "\t=1", "\r=1", "'quoted", "", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x"]
)
def test_text_of_a_device_gets_an_apostrophe_where_a_spreadsheet_would_calculate(text: str) -> None:
    *_, last = cells(export(showing(reading(payload={"note": text, "=key": 1, "t": "a"})), "csv"))
    assert f"'{text}" in last
    assert cells(export_rows([{text: text}], "csv")) == [[f"'{text}"], [f"'{text}"]]


def test_numbers_below_zero_stay_numbers() -> None:
    assert cells(export_rows([{"a": -1, "b": -0.5}], "csv")) == [["a", "b"], ["-1", "-0.5"]]


def test_pandas_reads_it() -> None:
    graph = showing(*[reading(seq, payload={"speed": seq / 2, "odd": SHARP}) for seq in range(3)])
    frame = pd.read_csv(io.BytesIO(export(graph, "csv")))
    assert frame["payload.speed"].tolist() == [0.0, 0.5, 1.0]
    assert frame["ts"].tolist() == [1000, 1001, 1002]
    edges = pd.read_csv(io.BytesIO(export(two_agents(), "csv"))).query("record == 'edge'")
    assert edges["origin"].tolist() == [reading(0).id, reading(1).id]


def test_rows_that_are_no_graph() -> None:
    found = export_rows([{"agent": "a", "elapsed_ms": 5}, {"agent": "b", "tags": ["x", {"y": None}]}], "csv")
    assert cells(found) == [["agent", "elapsed_ms", "tags"], ["a", "5", ""], ["b", "", '["x",{"y":null}]']]
    assert cells(export_rows([], "csv")) == [[]]

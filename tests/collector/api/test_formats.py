"""In whatever format an answer is asked for, it is the same graph, and the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree

import pytest

from collector.api.models import Graph
from collector.export import FORMATS, ROW_FORMATS
from tests.collector.api.rich_store import KNOWN
from tests.collector.api.served import Json, Served
from tests.collector.export import test_csv_text as csv_text
from tests.collector.export import test_graphml as graphml
from tests.collector.export import test_openlineage_events as openlineage
from tests.collector.export import test_parquet as parquet
from tests.collector.export import test_prov_document as prov
from tests.collector.export.graphs import Plain, check
from tests.collector.export.tables import graph_of_rows

READ: dict[str, Callable[[bytes], Plain]] = {
    "prov-json": lambda document: prov.graph_of(prov.read(document, "prov-json")),
    "prov-n": lambda document: prov.graph_of(prov.read(document, "prov-n")),
    "openlineage": lambda document: openlineage.graph_of(openlineage.read(document)),
    "graphml": graphml.graph_of,
    "csv": lambda document: graph_of_rows(csv_text.rows(document)),
    "parquet": lambda document: graph_of_rows(parquet.read(document).to_pylist()),
}
"""How others read what is exported."""
GRAPHS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/sinks", {"limit": 3}),
    ("/v1/sinks", {"state": "incomplete", "payload": False}),
    (f"/v1/vertices/{KNOWN.result}/backward", {"limit": 7, "payload": True}),
    (f"/v1/vertices/{KNOWN.late_result}/backward", {}),
    (f"/v1/vertices/{KNOWN.task}/backward", {"payload": True}),
    (f"/v1/vertices/{KNOWN.reading}/forward", {"payload": True}),
    (f"/v1/vertices/{KNOWN.result}/lineage", {"levels": 3, "direction": "both", "limit": 30}),
    (f"/v1/vertices/{KNOWN.data}/lineage", {"levels": 9, "direction": "both", "payload": True}),
    ("/v1/paths", {"from": KNOWN.reading, "to": KNOWN.result, "payload": True}),
    ("/v1/paths", {"from": "~pi-1/.*", "to": KNOWN.data}),
    ("/v1/impact", {"source": [KNOWN.reading, KNOWN.late_reading], "edges": True, "limit": 4}),
]
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/tasks", {"select": "used.rate,generated.loss,workflow.model", "limit": 4}),
    ("/v1/tasks", {"status": "failed"}),
    ("/v1/data", {"role": "generated", "select": "loss"}),
    ("/v1/workflows", {}),
    ("/v1/workflows", {"name": "nothing"}),
]


def document(served: Served, path: str, format: str, parameters: dict[str, Any], told: Json) -> bytes:
    """An answer as a document, of which the headers say what it is."""
    response = served.client.get(path, params={**parameters, "format": format})
    assert response.status_code == 200, response.text
    known = FORMATS[format]
    assert response.headers["content-type"] == known.media_type
    name = path.rpartition("/")[2]
    assert response.headers["content-disposition"] == f'attachment; filename="{name}{known.suffix}"'
    assert response.headers.get("next-cursor") == told["next"]
    return response.content


@pytest.mark.parametrize(("path", "parameters"), GRAPHS)
def test_a_graph_is_the_same_in_every_format(rich: Served, path: str, parameters: dict[str, Any]) -> None:
    told = rich.client.get(path, params=parameters).json()
    graph = Graph.model_validate(told)
    assert graph.vertices
    assert READ.keys() == FORMATS.keys()
    for format, read in READ.items():
        check(read(document(rich, path, format, parameters, told)), graph)


def test_a_posted_question_is_answered_in_every_format(rich: Served) -> None:
    body = {"sources": [KNOWN.reading]}
    graph = Graph.model_validate(rich.post("/v1/impact", body, edges=True))
    for format, read in READ.items():
        response = rich.client.post("/v1/impact", json=body, params={"edges": True, "format": format})
        check(read(response.content), graph)


def test_the_next_page_of_a_document(rich: Served) -> None:
    ids: list[str] = []
    cursor: str | None = None
    while cursor is not None or not ids:
        asked: dict[str, Any] = {"format": "csv", "limit": 4, **({} if cursor is None else {"cursor": cursor})}
        response = rich.client.get("/v1/sinks", params=asked)
        ids += graph_of_rows(csv_text.rows(response.content)).vertices
        cursor = response.headers.get("next-cursor")
    assert ids == [each["id"] for each in rich.every("/v1/sinks", "vertices", limit=4)]


@pytest.mark.parametrize(("path", "parameters"), ROWS)
def test_rows_are_the_same_in_every_format(rich: Served, path: str, parameters: dict[str, Any]) -> None:
    told = rich.client.get(path, params=parameters).json()
    expected = [_cells(row) for row in told["items"]]
    found = parquet.read(document(rich, path, "parquet", parameters, told)).to_pylist()
    assert [_cells(row) for row in found] == expected
    names, *lines = csv_text.cells(document(rich, path, "csv", parameters, told))
    rows = ({name: cell for name, cell in zip(names, line, strict=True) if cell} for line in lines)
    assert [_as_text(row) for row in rows] == [_as_text(row) for row in expected]
    assert set(ROW_FORMATS) == {"csv", "parquet"}


def _cells(row: Json) -> Json:
    """A row of a table: without what is not there, and with what is no number and no text as JSON."""
    told = {name: value for name, value in row.items() if value is not None}
    return {name: _compact(value) if isinstance(value, (dict, list)) else value for name, value in told.items()}


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _as_text(row: Json) -> dict[str, str]:
    return {name: str(value) for name, value in row.items()}


def test_a_plan_as_a_picture(rich: Served) -> None:
    nodes = {each["name"] for each in rich.get("/v1/plans/center/1")["nodes"]}
    drawn = rich.client.get("/v1/plans/center/1", params={"format": "svg"})
    assert drawn.headers["content-type"] == "image/svg+xml"
    picture = ElementTree.fromstring(drawn.text)
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    dot = rich.client.get("/v1/plans/center/1", params={"format": "dot"})
    assert dot.headers["content-type"].startswith("text/vnd.graphviz")
    assert dot.text.startswith("digraph")
    text = rich.client.get("/v1/plans/center/1", params={"format": "text"})
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert _all_in(nodes, "".join(picture.itertext())) and _all_in(nodes, dot.text) and _all_in(nodes, text.text)


def _all_in(names: Iterable[str], text: str) -> bool:
    return all(name in text for name in names)

"""`threadline export`: documents of exactly what queries show, and files that are whole or not there."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import networkx as nx  # type: ignore[import-untyped]
import prov.model
import pyarrow.parquet as pq
import pytest

from collector.api.models import Graph
from collector.export import FORMATS, export, export_rows
from tests.threadline.commands.served import Api, on_terminal, pipes, refused
from tests.threadline.commands.strangers import answering
from threadline.api_client import Client, path_of

QUERIES: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "lineage": (["center/alerts@1:5"], path_of("vertices", "center/alerts@1:5", "lineage"), {"levels": 1_000}),
    "backward": (["center/alerts@1:5"], path_of("vertices", "center/alerts@1:5", "backward"), {}),
    "forward": (["car/readings@1:3"], path_of("vertices", "car/readings@1:3", "forward"), {}),
    "impact": (["car/readings@1:3", "car/readings@1:30"], "impact", {"edges": True}),
    "sinks": (["--agent", "center", "--where", "$<6000"], "sinks", {"agent": "center", "where": "$<6000"}),
    "paths": (["~car/.*", "center/alerts@1:3"], "paths", {"from": "~car/.*", "to": "center/alerts@1:3"}),
}
ROWS = {
    "tasks": ["--transformation", "train", "--order-by=-begun_ms", "--select", "used.rate"],
    "data": ["--role", "generated", "--workflow-name", "training"],
    "workflows": ["--name", "training"],
}


def shown(api: Api, what: str) -> dict[str, Any]:
    """What the API shows on one page that has room for all of it."""
    _, path, parameters = QUERIES[what]
    posted = {"sources": ["car/readings@1:3", "car/readings@1:30"]} if what == "impact" else None
    with Client(api.url) as client:
        page = client.ask(path, {**parameters, "limit": 1_000, "payload": True}, posted=posted, has="vertices").body
    assert page["next"] is None and page["vertices"]
    return {name: page[name] for name in ("vertices", "edges", "next", "truncated")}


@pytest.mark.parametrize("what", QUERIES)
@pytest.mark.parametrize("size", [1_000, 4])
def test_an_export_is_what_the_query_shows_on_all_its_pages(
    api: Api, monkeypatch: pytest.MonkeyPatch, what: str, size: int
) -> None:
    monkeypatch.setattr("threadline.api_client.MOST_AT_ONCE", size)
    result = api.run("export", what, *QUERIES[what][0], "--json")
    found, truth = json.loads(result.stdout), shown(api, what)
    for part in ("vertices", "edges"):
        assert len(found[part]) == len(truth[part])
        assert all(each in truth[part] for each in found[part])
    assert found["next"] is None and found["truncated"] is False
    assert f"{len(truth['vertices']):,} vertices, {len(truth['edges']):,} edges, " in result.stderr


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_has_the_format_that_its_name_says(api: Api, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"graph{FORMATS[name].suffix}"
    result = api.run("export", "backward", "center/alerts@1:5", "-o", str(path))
    assert result.exit_code == 0 and result.stdout == "" and f"in {path}" in result.stderr
    graph = Graph.model_validate(shown(api, "backward"))
    ids = {vertex.id for vertex in graph.vertices}
    match name:
        case "prov-json" | "prov-n":
            expected = export(graph, name)
            assert sorted(path.read_bytes().splitlines()) == sorted(expected.splitlines())
            if name == "prov-json":
                document = prov.model.ProvDocument.deserialize(str(path))
                assert len(list(document.get_records(prov.model.ProvEntity))) == len(ids)
        case "openlineage":
            assert all("eventTime" in json.loads(line) for line in path.read_text().splitlines())
        case "graphml":
            assert set(nx.read_graphml(path, force_multigraph=True).nodes) == ids
        case "csv":
            rows = list(csv.DictReader(io.StringIO(path.read_text())))
            assert {row["id"] for row in rows if row["record"] == "vertex"} == ids
        case _:
            table = pq.read_table(path).to_pylist()
            assert {row["id"] for row in table if row["record"] == "vertex"} == ids
    assert api.run("export", "backward", "center/alerts@1:5", "-f", name, "-o", "-").exit_code == 0


@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("size", [1_000, 2])
def test_rows_are_exported_as_tables(api: Api, monkeypatch: pytest.MonkeyPatch, what: str, size: int) -> None:
    options = {each.removeprefix("--") for each in ROWS[what]}
    assert options
    truth = json.loads(api.run("export", what, *ROWS[what], "--json").stdout)["items"]
    assert truth
    monkeypatch.setattr("threadline.api_client.MOST_AT_ONCE", size)
    result = api.run("export", what, *ROWS[what], "--format", "csv")
    assert result.stdout_bytes == export_rows(truth, "csv")
    assert f"{len(truth)} row" in result.stderr


def test_an_export_may_leave_out_what_tuples_said(api: Api) -> None:
    found = json.loads(api.run("export", "sinks", "--no-payload", "--json").stdout)
    assert found["vertices"] and all(each["payload"] is None for each in found["vertices"])
    results = json.loads(api.run("export", "impact", "car/readings@1:3", "--no-edges", "--json").stdout)
    assert results["edges"] == [] and {each["kind"] for each in results["vertices"]} == {"sink"}


def test_what_the_api_could_not_walk_is_told(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadline.commands.export._MOST_VERTICES", 5)
    result = api.run("export", "lineage", "center/alerts@1:5", "--format", "csv")
    assert "the document says that it is cut" in result.stderr
    assert list(csv.DictReader(io.StringIO(result.stdout)))[-1]["record"] == "cut"


def test_an_empty_answer_is_a_document_too(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    assert api.run("export", "sinks", "--stream", "nothing", "-o", str(path)).exit_code == 1
    assert path.read_bytes() == b"record,id,kind\r\n"
    rows = api.run("export", "tasks", "--name", "nothing", "--json")
    assert rows.exit_code == 1 and json.loads(rows.stdout) == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sinks"], ["in which format?", "--format prov-json|", "parquet"]),
        (["sinks", "-o", "{0}/graph.foo"], ["in which format?"]),
        (["sinks", "--json", "--format", "csv"], ["--json and --format csv are two formats"]),
        (["tasks", "-o", "{0}/tasks.provn"], ["rows and no graph", "csv or parquet"]),
        (["sinks", "-f", "csv", "-o", "{0}"], ["is a folder"]),
        (["sinks", "-o", "{0}/none/graph.csv"], ["there is no folder", "make it first"]),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_asked_for(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    def answer(_: Any) -> None:
        raise AssertionError("it was asked")

    with answering(answer) as url:
        api = Api(tmp_path, tmp_path)
        api.port = int(url.rpartition(":")[2])
        refused(api.run("export", *(each.format(tmp_path) for each in arguments)), 2, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_overwritten_unless_that_is_wanted(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "graph.csv"
    path.write_text("precious")
    refused(api.run("export", "sinks", "-o", str(path)), 2, f"{path} is there already", "--force")
    assert path.read_text() == "precious"
    assert api.run("export", "sinks", "-o", str(path), "--force").exit_code == 0
    assert path.read_text().startswith("record,id")
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_for_whom_all_new_files_are(api: Api, tmp_path: Path) -> None:
    path, usual = tmp_path / "graph.csv", tmp_path / "usual"
    usual.touch()
    api.run("export", "sinks", "-o", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_a_link_stays_one(api: Api, tmp_path: Path) -> None:
    path, link = tmp_path / "graph.csv", tmp_path / "link.csv"
    path.write_text("old")
    link.symlink_to(path)
    assert api.run("export", "sinks", "-o", str(link), "--force").exit_code == 0
    assert link.is_symlink() and path.read_text().startswith("record,id")


def test_a_pipe_is_written_to_and_stays_one(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    assert api.run("export", "sinks", "-f", "csv", "-o", str(path), "--force").exit_code == 0
    reader.join(10)
    assert read[0].startswith("record,id") and path.is_fifo()


def test_nothing_is_left_of_an_export_that_fails(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "graph.csv"
    assert api.run("export", "backward", "center/alerts@1:999", "-o", str(path)).exit_code == 1
    assert list(tmp_path.iterdir()) == []

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(api.run("export", "sinks", "-o", str(path)), 1, "graph.csv cannot be written: No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_no_file(tmp_path: Path) -> None:
    asked = threading.Event()
    has_ended = threading.Event()

    def answer(_: Any) -> None:
        asked.set()
        has_ended.wait(20)

    with answering(answer) as url:
        api = Api(tmp_path, tmp_path)
        api.port = int(url.rpartition(":")[2])
        path = tmp_path / "graph.csv"
        with api.started("export", "sinks", "-o", str(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert asked.wait(20)
            process.send_signal(signal.SIGINT)
            assert pipes(process)[1].read() == b""
            assert process.wait(20) == 130
        has_ended.set()
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_gets_no_binary_document(api: Api) -> None:
    assert on_terminal(api, "export", "sinks", "-f", "parquet") == ""
    assert "record,id" in on_terminal(api, "export", "sinks", "-f", "csv")

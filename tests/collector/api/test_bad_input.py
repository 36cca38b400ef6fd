"""Whatever a caller gets wrong, the answer says what it is and where: never that the server has failed, and never much.

Regular expressions are RE2's, which takes time in proportion to the text: one that goes back and forth would be busy
with some of these for longer than anybody lives, so those tests would not end.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pytest

from collector.api import cursors
from collector.api.checked_route import MOST_BODY_BYTES
from protocol.records import Delivery
from tests.collector.api.rich_store import KNOWN
from tests.collector.api.served import Served, refused, refused_raw, serving
from tests.collector.store.graphs import graph_batch, tuple_id
from tests.collector.store.rows import AGENT, payload_row, register_row

HUGE = 10**30
LISTS: dict[str, dict[str, Any]] = {
    "/v1/sinks": {},
    f"/v1/vertices/{KNOWN.result}/backward": {},
    f"/v1/vertices/{KNOWN.reading}/forward": {},
    f"/v1/vertices/{KNOWN.task}/backward": {},
    "/v1/paths": {"from": "~car/.*", "to": "~center/.*"},
    "/v1/impact": {"source": KNOWN.reading},
    "/v1/tasks": {},
    "/v1/data": {},
    "/v1/workflows": {},
    "/v1/agents": {},
    "/v1/streams": {},
    "/v1/plans": {},
    "/v1/gaps": {},
    "/v1/late": {},
    "/v1/late/tuples": {},
    "/v1/refused": {},
}
"""All that comes in pages."""
SPANS = ("sinks", "tasks", "data", "workflows", "agents", "streams", "plans", "gaps", "late", "late/tuples", "refused")
JSON = {"content-type": "application/json"}


# Ids


@pytest.mark.parametrize("way", ["", "/backward", "/forward", "/lineage"])
@pytest.mark.parametrize(
    ("status", "id"),
    [
        (422, "x"),
        (422, " "),
        (422, "//"),
        (422, "\0"),
        (422, "\U0001f697"),
        (422, "a" * 2_048),
        (422, "a" * 60_000),
        (422, "car/readings@1"),
        (422, "car/readings@1:"),
        (422, "car/readings@1:-1"),
        (422, "car/readings@1:68719476736"),
        (422, "car/readings@9999999999999999999:0"),
        (422, "car/readings@~xyz:0"),
        (422, "task:pi-1@1:9999999999999999999"),
        (422, "task:pi-1@1"),
        (422, "data:a/b/c"),
        (404, "car/readings@1:99999"),
        (404, "car/readings@1:68719476735"),
        (404, "car/readings@2:0"),
        (404, "car/readings@~1f40:0"),
        (404, "car/\0readings@1:0"),
        (404, "nobody/readings@1:0"),
        (404, "é/ü@1:2"),
        (404, "task:pi-1@1:99"),
        (404, "task:nobody@1:1"),
        (404, "data:training/nothing"),
        (404, "data:pi-1@9:training/out-1"),
        (404, "data:/"),
        (404, "data:%00/%ff"),
    ],
)
def test_ids_of_nothing(rich: Served, way: str, status: int, id: str) -> None:
    if len(id) < 3_000:
        refused(rich, "GET", f"/v1/vertices/{quote(id)}{way}", status, "id")
    else:
        told = refused_raw(rich, f"/v1/vertices/{id}{way}")
        assert told["status"] == status
        assert [each["field"] for each in told["errors"]] == ["id"]


def test_a_workflow_has_no_lineage(rich: Served) -> None:
    for way in ("backward", "forward", "lineage"):
        told = refused(rich, "GET", f"/v1/vertices/{KNOWN.workflow}/{way}", 422, "id")
        assert "/v1/tasks?workflow=" in told["detail"]
    refused(rich, "GET", "/v1/vertices/workflow:pi-1@1:77", 404, "id")


def test_data_that_several_have_generated_is_not_one_vertex(rich: Served) -> None:
    told = refused(rich, "GET", "/v1/vertices/data:training/out-1", 404, "id")
    assert "data:pi-1@1:training/out-1" in told["detail"] and "data:pi-2@1:training/out-1" in told["detail"]


# Parameters


@pytest.mark.parametrize(
    ("path", "parameters", "status", "field"),
    [
        *(
            ("/v1/sinks", {"limit": each}, 422, "limit")
            for each in (0, -1, 1_001, HUGE, "1e9", "x", "", "NaN", "\uff11")
        ),
        ("/v1/tasks", {"limit": 1_001}, 422, "limit"),
        ("/v1/agents", {"limit": 0}, 422, "limit"),
        ("/v1/paths", {"from": "~a", "to": "~b", "limit": 1_001}, 422, "limit"),
        (f"/v1/vertices/{KNOWN.result}/lineage", {"limit": 5_001}, 422, "limit"),
        *((f"/v1/vertices/{KNOWN.result}/lineage", {"levels": each}, 422, "levels") for each in (0, -1, HUGE, "all")),
        (f"/v1/vertices/{KNOWN.result}/lineage", {"direction": "up"}, 422, "direction"),
        (f"/v1/vertices/{KNOWN.result}/lineage", {"cursor": "x"}, 422, "cursor"),
        *(("/v1/statistics", {"slots": each}, 422, "slots") for each in (0, -1, 1_001, HUGE, "x")),
        *(("/v1/tasks", {"epoch": each}, 422, "epoch") for each in (-1, HUGE, "x")),
        *((f"/v1/plans/car/{each}", {}, 422, "epoch") for each in (-1, HUGE, "x", "1.5")),
        *(
            ("/v1/sinks", {"from": each}, 422, "from")
            for each in ("", "x", "1e3", "2026-99-99", "NaN", "infinity", HUGE, -(2**63) - 1, 2**63)
        ),
        ("/v1/paths", {"from": "~a", "to": "~b", "since": "yesterday"}, 422, "since"),
        ("/v1/statistics", {"from": -(2**62), "to": 2**62}, 422, "from"),
        ("/v1/sinks", {"where": ["a=1"] * 21}, 422, "where"),
        ("/v1/sinks", {"stream": ["a"] * 51}, 422, "stream"),
        ("/v1/sinks", {"stream": ["alerts", ""]}, 422, "stream.1"),
        ("/v1/sinks", {"stream": "x" * 2_049}, 422, "stream.0"),
        ("/v1/sinks", {"agent": ""}, 422, "agent"),
        ("/v1/sinks", {"agent": "x" * 65}, 422, "agent"),
        ("/v1/sinks", {"state": "done"}, 422, "state"),
        ("/v1/sinks", {"order": "up"}, 422, "order"),
        ("/v1/sinks", {"payload": "maybe"}, 422, "payload"),
        ("/v1/sinks", {"format": "pdf"}, 422, "format"),
        ("/v1/tasks", {"format": "prov-json"}, 422, "format"),
        ("/v1/plans/car/1", {"format": "png"}, 422, "format"),
        ("/v1/agents", {"format": "csv"}, 422, "format"),
        ("/v1/tasks", {"status": "done"}, 422, "status"),
        ("/v1/tasks", {"workflow": "training"}, 422, "workflow"),
        ("/v1/tasks", {"workflow": KNOWN.task}, 422, "workflow"),
        ("/v1/tasks", {"workflow": "workflow:nobody@1:0"}, 404, "workflow"),
        ("/v1/tasks", {"workflow": "workflow:pi-1@1:99"}, 404, "workflow"),
        ("/v1/data", {"task": KNOWN.workflow}, 422, "task"),
        ("/v1/data", {"task": "task:pi-1@1:99"}, 404, "task"),
        ("/v1/data", {"role": "made"}, 422, "role"),
        ("/v1/tasks", {"order_by": "nothing"}, 422, "order_by"),
        ("/v1/tasks", {"order_by": "-"}, 422, "order_by"),
        ("/v1/tasks", {"order_by": "name,agent,epoch,status"}, 422, "order_by"),
        ("/v1/tasks", {"select": ",".join(f"used.a{n}" for n in range(21))}, 422, "select"),
        ("/v1/tasks", {"select": "used..x"}, 422, "select"),
        ("/v1/tasks", {"group_by": "name"}, 422, "group_by"),
        ("/v1/tasks", {"group_by": "nothing", "latest": "name"}, 422, "group_by"),
        ("/v1/tasks", {"group_by": "name", "latest": "nothing"}, 422, "latest"),
        ("/v1/tasks", {"group_by": "name", "least": "a..b"}, 422, "least"),
        ("/v1/tasks", {"latest": "name", "least": "name"}, 422, "least"),
        ("/v1/workflows/compare", {}, 422, "run"),
        ("/v1/workflows/compare", {"run": ["training"] * 21}, 422, "run"),
        ("/v1/workflows/compare", {"run": "x" * 2_049}, 422, "run.0"),
        ("/v1/workflows/compare", {"run": "nothing"}, 404, "run"),
        ("/v1/workflows/compare", {"run": "workflow:pi-1"}, 422, "run"),
        ("/v1/workflows/compare", {"run": "workflow:nobody@1:0"}, 404, "run"),
        ("/v1/workflows/compare", {"run": "workflow:pi-1@1:99"}, 404, "run"),
        ("/v1/agents/nobody", {}, 404, "name"),
        (f"/v1/agents/{'x' * 65}", {}, 422, "name"),
        ("/v1/plans/nobody/1", {}, 404, "epoch"),
        ("/v1/plans/pi-1/1", {"format": "svg"}, 404, "epoch"),
        ("/v1/impact", {}, 422, "source"),
        ("/v1/impact", {"source": KNOWN.reading, "stream": "car/readings"}, 422, "source"),
        ("/v1/impact", {"source": KNOWN.reading, "from": 0}, 422, "from"),
        ("/v1/impact", {"source": [KNOWN.reading, "x"]}, 422, "source.1"),
        ("/v1/impact", {"source": KNOWN.task}, 422, "source.0"),
        ("/v1/impact", {"source": [KNOWN.reading] * 1_001}, 422, "source"),
        ("/v1/impact", {"stream": "nothing"}, 404, "stream"),
        ("/v1/paths", {}, 422, "from"),
        ("/v1/paths", {"from": KNOWN.reading}, 422, "to"),
        ("/v1/paths", {"from": "x", "to": KNOWN.result}, 422, "from"),
        ("/v1/paths", {"from": KNOWN.reading, "to": "x"}, 422, "to"),
        ("/v1/paths", {"from": "nobody/x@1:1", "to": KNOWN.result}, 404, "from"),
        ("/v1/paths", {"from": "~.*", "to": "nobody/x@1:1"}, 404, "to"),
        ("/v1/paths", {"from": KNOWN.workflow, "to": "~.*"}, 422, "from"),
        ("/v1/graph/stream", {"since": "yesterday"}, 422, "since"),
        ("/v1/graph/stream", {"since": "1"}, 422, "since"),
        ("/v1/graph/stream", {"since": f"{HUGE}-1"}, 422, "since"),
        ("/v1/graph/stream", {"kind": "vertex"}, 422, "kind.0"),
        ("/metrics", {"name": "up"}, 422, "name"),
        ("/healthz", {"deep": 1}, 422, "deep"),
    ],
)
def test_parameters_that_mean_nothing(
    rich: Served, path: str, parameters: dict[str, Any], status: int, field: str
) -> None:
    refused(rich, "GET", path, status, field, params=parameters)


@pytest.mark.parametrize(
    "where",
    [
        *("a", "=1", ".a=1", "a..b=1", "a==1", "a?b", "a>[1]", "a>null", "a<", '"a=1', "$.a=1", "a=1e999"),
        *("a~(", "a~[", "a~*", "a~\\1", "a~(?=x)", "a~(?<=x)y", "a~(a{1000}){1000}", "a~((a{100}){100}){100}"),
        *("x" * 2_001, f"a={'x' * 1_001}", f"a~{'x' * 201}", f"{'a.' * 30}b=1", f"{'a' * 400}=1"),
    ],
)
def test_filters_that_mean_nothing(rich: Served, where: str) -> None:
    for path in ("/v1/sinks", "/v1/tasks", "/v1/data", "/v1/workflows"):
        refused(rich, "GET", path, 422, "where.1", params={"where": ["name=x", where]})


@pytest.mark.parametrize("pattern", ["(", "[", "*", "\\1", "(?=x)", "(a{1000}){1000}", "x" * 201])
def test_patterns_that_are_none(rich: Served, pattern: str) -> None:
    refused(rich, "GET", "/v1/paths", 422, "from", params={"from": f"~{pattern}", "to": "~.*"})
    refused(rich, "GET", "/v1/paths", 422, "to", params={"from": "~.*", "to": f"~{pattern}"})
    refused(rich, "GET", "/v1/paths", 422, "via", params={"from": "~.*", "to": "~.*", "via": pattern})


def test_a_time_that_ends_before_it_begins(rich: Served) -> None:
    backwards: list[dict[str, Any]] = [
        {"from": 5, "to": 4},
        {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00+00:00"},
    ]
    for times in backwards:
        for name in SPANS:
            refused(rich, "GET", f"/v1/{name}", 422, "to", params=times)
        refused(rich, "GET", "/v1/statistics", 422, "to", params=times)
        refused(rich, "GET", "/v1/impact", 422, "to", params={"stream": "car/readings", **times})
        refused(rich, "POST", "/v1/impact", 422, "to", json={"stream": "car/readings", **times})
    refused(rich, "GET", "/v1/paths", 422, "until", params={"from": "~.*", "to": "~.*", "since": 5, "until": 4})
    for name in SPANS:
        assert rich.get(f"/v1/{name}", from_=5, to=5)["next"] is None


def test_times_in_iso(rich: Served) -> None:
    found = [rich.get("/v1/sinks", from_=each)["vertices"] for each in ("7000", "1970-01-01T00:00:07Z")]
    assert found[0] == found[1] and {each["ts"] for each in found[0]} == {7_000, 8_000}
    for text in ("1970-01-01T00:00:07", "1970-01-01T01:00:07+01:00", "1970-01-01 00:00:07"):
        assert rich.get("/v1/sinks", from_=text)["vertices"] == found[0]
    # Even those that are a year before the first, or behind the last one.
    for text in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
        assert rich.get("/v1/sinks", from_=text)["next"] is None


@pytest.mark.parametrize("text", ["1_000", " 12 ", "\u0661\u0662", "\uff11", "--1", "1.5", "0x10", "9" * 5_000])
def test_numbers_that_are_no_times(rich: Served, text: str) -> None:
    refused(rich, "GET", "/v1/sinks", 422, "from", params={"from": text})
    refused(rich, "POST", "/v1/impact", 422, "from", json={"stream": "car/readings", "from": text})
    for signed in ("7000", "+7000", "-7000"):
        assert rich.get("/v1/sinks", from_=signed)["vertices"]


def test_runs_that_cannot_be_compared(rich: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/v1/workflows/compare"
    monkeypatch.setattr("collector.store.compared.MOST_RUNS", 1)
    both = {"run": [KNOWN.workflow, KNOWN.other_workflow]}
    assert "not 2" in refused(rich, "GET", path, 422, "run", params=both)["detail"]
    monkeypatch.setattr("collector.api.routes.captured._runs_meant", lambda view, text: [(1, 99)])
    refused(rich, "GET", path, 422, "run", params={"run": "gone"})


def test_parameters_that_are_not_there(rich: Served) -> None:
    for path in (*LISTS, "/v1/statistics", f"/v1/vertices/{KNOWN.result}", "/v1/agents/car", "/v1/plans/car/1"):
        told = refused(rich, "GET", path, 422, "nothing", params={"nothing": 1, **LISTS.get(path, {})})
        assert "'nothing'" in told["detail"]
    refused(rich, "POST", "/v1/impact", 422, "source", json={"sources": [KNOWN.reading]}, params={"source": "x"})
    refused(rich, "GET", "/v1/sinks?=1", 422, "query")
    refused(rich, "GET", "/v1/sinks?%ff=1", 422, "\ufffd")


def test_parameters_that_are_there_twice(rich: Served) -> None:
    for path, parameters in LISTS.items():
        twice = [*parameters.items(), ("limit", "1"), ("limit", "2")]
        refused(rich, "GET", path, 422, "limit", params=twice)
    twice = [("from", "~a"), ("to", "~b"), ("to", "~b")]
    refused(rich, "GET", "/v1/paths", 422, "to", params=twice)
    assert rich.get("/v1/sinks", where=["$>1000", "$<3000"], stream=["alerts", "reports"])["vertices"]


# Expressions


def test_expressions_that_keep_others_busy_for_ever(tmp_path: Path) -> None:
    stream = AGENT.stream("a" * 1_000)
    said = [Delivery(stream, seq, seq, "a" * 10_000 + "!", ()) for seq in range(20)]
    rows = [register_row(1, stream.name), payload_row({stream: 1}, said)]
    with serving(tmp_path / "graph.db") as served:
        with served.new_store() as writer:
            writer.write(graph_batch("q", 0, sinks={tuple_id(1, each.seq): each.ts for each in said}, rows=rows))
        for pattern in ("(a+)+$", "^(a|a)*$", "(a*)*b", "(.*a){12}$", "(a|aa)+$", "^(([a-z])+.)+[A-Z]$"):
            found = served.get("/v1/sinks", where=f"$~{pattern}", limit=1_000)
            assert (found["vertices"], found["examined"]) == ([], len(said))
            assert served.get("/v1/paths", from_=f"~{pattern}", to=f"~{pattern}", via=pattern)["paths"] == []
        assert len(served.get("/v1/sinks", where="$~(a+)+!$")["vertices"]) == len(said)


# Cursors


def _next(served: Served, path: str) -> str | None:
    found: str | None = served.get(path, limit=1, **LISTS[path])["next"]
    return found


def test_cursors_of_other_lists(rich: Served) -> None:
    found = {path: _next(rich, path) for path in LISTS}
    assert sum(cursor is not None for cursor in found.values()) >= len(LISTS) - 3
    for path, parameters in LISTS.items():
        for other, cursor in found.items():
            if cursor is not None and other.rpartition("/")[2] != path.rpartition("/")[2]:
                refused(rich, "GET", path, 400, "cursor", params={**parameters, "cursor": cursor})


def test_cursors_that_are_none(rich: Served) -> None:
    damaged = _next(rich, "/v1/sinks") or ""
    texts = ["", "x", "!", "é", "A" * 4_096, "=" * 10, "\0", damaged[:-1], damaged[1:], damaged[:8] + "A" + damaged[9:]]
    for path, parameters in LISTS.items():
        for text in texts:
            refused(rich, "GET", path, 400, "cursor", params={**parameters, "cursor": text})
        refused(rich, "GET", path, 422, "cursor", params={**parameters, "cursor": "A" * 4_097})


FORGED: list[tuple[Any, ...]] = [
    *((), (None,), (True,), (1.5,), ("x",), ([],), ({},), (1, 2, 3, 4, 5), (HUGE,), (-HUGE,), (HUGE, HUGE)),
    *((1, HUGE), (HUGE, 1, 1), (1, HUGE, 1), (None, None, HUGE), ("\ud800",), (1, "\ud800"), ([0, HUGE], 1, 2)),
    *(([9, 1], 1, 2), ([1, "\ud800"], 1, 2), ([[]], [[]], [[]]), (float("nan"), 1), (float("inf"),)),
]


@pytest.mark.parametrize("values", FORGED)
def test_cursors_that_somebody_has_made_up(rich: Served, values: tuple[Any, ...]) -> None:
    names = {"late/tuples": "late-tuples"}
    for path, parameters in LISTS.items():
        of = path.removeprefix("/v1/")
        of = names.get(of, of.rpartition("/")[2])
        for more in ({}, {"order_by": "name"} if of in ("tasks", "data", "workflows") else {}):
            asked = {**parameters, **more, "cursor": cursors.encode(of, *values)}
            response = rich.client.get(path, params=asked)
            assert response.status_code in (200, 400), (path, values, response.text)
            if response.status_code == 400:
                assert response.json()["errors"][0]["field"] == "cursor"


def test_a_cursor_that_is_a_deep_pit(rich: Served) -> None:
    body = b"[" * 3_000
    cursor = urlsafe_b64encode(crc32(body).to_bytes(4, "big") + body).decode().rstrip("=")
    for path, parameters in LISTS.items():
        refused(rich, "GET", path, 400, "cursor", params={**parameters, "cursor": cursor})


def test_behind_the_last_page_is_nothing(rich: Served) -> None:
    last = 2**63 - 1
    for name in ("streams", "plans", "gaps", "refused"):
        assert rich.get(f"/v1/{name}", cursor=cursors.encode(name, last)) == {"items": [], "next": None}
    assert rich.get("/v1/agents", cursor=cursors.encode("agents", "zzz"))["items"] == []
    assert rich.get("/v1/late", cursor=cursors.encode("late", last, last))["items"] == []
    assert rich.get("/v1/late/tuples", cursor=cursors.encode("late-tuples", last, 0))["items"] == []
    assert rich.get("/v1/sinks", cursor=cursors.encode("sinks", -1, 0))["vertices"] == []
    cursor = cursors.encode("impact", last)
    assert rich.get("/v1/impact", cursor=cursor, source=KNOWN.reading)["vertices"] == []
    for way, vertex in (("backward", KNOWN.result), ("forward", KNOWN.reading)):
        found = rich.get(f"/v1/vertices/{vertex}/{way}", cursor=cursors.encode(way, last))
        assert ([each["id"] for each in found["vertices"]], found["edges"]) == ([vertex], [])


def test_a_cursor_of_the_same_list_in_another_order(rich: Served) -> None:
    cursor = rich.get("/v1/tasks", order_by="name", limit=1)["next"]
    refused(rich, "GET", "/v1/tasks", 400, "cursor", params={"cursor": cursor})
    refused(rich, "GET", "/v1/tasks", 400, "cursor", params={"cursor": cursor, "order_by": "name,agent"})


# Bodies


def _deep(depth: int) -> bytes:
    return b'{"sources":' + b"[" * depth


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 422, "body"),
        (b"x", 422, "body"),
        (b"{", 422, "body"),
        (b"\xff\xfe", 422, "body"),
        (b"null", 422, "body"),
        (b"[]", 422, "body"),
        (b'"text"', 422, "body"),
        (b"{}", 422, "body"),
        (b'{"sources":null}', 422, "body"),
        (b'{"sources":5}', 422, "sources"),
        (b'{"sources":[]}', 422, "sources"),
        (b'{"sources":[5]}', 422, "sources.0"),
        (b'{"sources":[null]}', 422, "sources.0"),
        (b'{"sources":["car/readings@1:0","x"]}', 422, "sources.1"),
        (b'{"sources":["task:pi-1@1:1"]}', 422, "sources.0"),
        (b'{"sources":["\\ud800/x@1:1"]}', 422, "sources.0"),
        (b'{"sources":["' + b"x" * 100_000 + b'"]}', 422, "sources.0"),
        (b'{"sources":["car/readings@1:0"],"stream":"x"}', 422, "body"),
        (b'{"sources":["car/readings@1:0"],"from":1}', 422, "body"),
        (b'{"sources":["car/readings@1:0"],"limit":1}', 422, "limit"),
        (b'{"stream":"\\ud800"}', 422, "stream"),
        (b'{"stream":5}', 422, "stream"),
        (b'{"stream":"nothing"}', 404, "stream"),
        (b'{"stream":"car/readings","from":true}', 422, "from"),
        (b'{"stream":"car/readings","from":1.5}', 422, "from"),
        (b'{"stream":"car/readings","from":1e400}', 422, "from"),
        (b'{"stream":"car/readings","from":"soon"}', 422, "from"),
        (b'{"stream":"car/readings","from":' + b"9" * 5_000 + b"}", 400, "body"),
        (_deep(100_000), 400, "body"),
        (json.dumps({"sources": ["a/b@1:1"] * 10_001}).encode(), 422, "sources"),
        (json.dumps({"sources": [5] * 10_000}).encode(), 422, "sources.0"),
        (json.dumps({f"k{number}": 1 for number in range(10_000)}).encode(), 422, "k0"),
        (json.dumps({"x" * 1_000_000: 1, "sources": ["a/b@1:1"]}).encode(), 422, f"{'x' * 100}..."),
        (b" " * (MOST_BODY_BYTES + 1), 413, "body"),
    ],
)
def test_bodies_that_mean_nothing(rich: Served, body: bytes, status: int, field: str) -> None:
    refused(rich, "POST", "/v1/impact", status, field, content=body, headers=JSON)


def test_bodies_that_never_end_are_not_kept(rich: Served) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        while sent < 10 * MOST_BODY_BYTES:
            sent += 1 << 20
            yield b" " * (1 << 20)

    refused(rich, "POST", "/v1/impact", 413, "body", content=parts(), headers=JSON)


def test_as_many_readings_as_there_may_be(rich: Served) -> None:
    names = [f"car/readings@1:{number}" for number in range(10_000)]
    found = rich.post("/v1/impact", {"sources": names})
    assert found["sources"] == 70
    assert found["unknown_count"] == 10_000 - found["sources"]
    assert len(found["unknown"]) == 100


@pytest.mark.parametrize("kind", ["", "text/plain", "application/xml", "multipart/form-data", "application/msgpack"])
def test_bodies_of_another_type(rich: Served, kind: str) -> None:
    body = json.dumps({"sources": [KNOWN.reading]}).encode()
    headers = {"content-type": kind} if kind else {}
    refused(rich, "POST", "/v1/impact", 415, "content-type", content=body, headers=headers)
    if kind != "application/msgpack":
        refused(rich, "POST", "/v1/ingest", 415, "content-type", content=body, headers=headers)


def test_nothing_is_ingested_without_a_broker(rich: Served) -> None:
    told = refused(rich, "POST", "/v1/ingest", 503, None, content=b"{}", headers=JSON)
    assert "--mqtt" in told["detail"]

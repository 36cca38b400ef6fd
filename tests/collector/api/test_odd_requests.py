"""Requests that are odd as such: methods, paths, texts of any kind; and answers that would be too large."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collector.api.rich_store import KNOWN
from tests.collector.api.served import Served, refused, refused_raw
from tests.collector.store.graphs import delivery, graph_batch, tuple_id
from tests.collector.store.rows import register_row


def test_methods_that_are_not_there(rich: Served) -> None:
    for path in ("/v1/sinks", f"/v1/vertices/{KNOWN.reading}/backward", "/v1/agents/car", "/healthz", "/v1/ingest"):
        for method in ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "NONSENSE"):
            refused(rich, method, path, 405, None)
        refused(rich, "GET" if path == "/v1/ingest" else "POST", path, 405, None)
    figures = rich.client.get("/metrics").text
    assert 'method="other"' in figures and "NONSENSE" not in figures, "what callers make up is not remembered"
    assert rich.client.post("/v1/sinks").headers["allow"] == "GET, HEAD"
    response = rich.client.head("/v1/ingest")
    assert (response.status_code, response.headers["allow"], response.content) == (405, "POST", b"")


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/nothing", "/v2/sinks", "/V1/sinks", "/v1/sinks/x", "/v1/plans/car", "/v1/%00", "/v1/é"]
)
def test_paths_that_are_not_there(rich: Served, path: str) -> None:
    told = refused(rich, "GET", path, 404, None)
    assert "/docs" in told["detail"] and "/openapi.json" in told["detail"]


def test_whoever_begins_at_the_root_is_led_on(rich: Served) -> None:
    response = rich.client.get("/", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "/docs")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sinks",
        "/v1/sinks?limit=1&format=csv",
        f"/v1/vertices/{KNOWN.result}",
        f"/v1/vertices/{KNOWN.result}/backward?limit=1",
        *("/v1/agents", "/v1/plans/car/1?format=svg", "/healthz", "/readyz", "/openapi.json", "/docs"),
        *("/v1/sinks?limit=0", "/v1/vertices/nobody/x@1:1", "/v1/nothing"),
    ],
)
def test_head_is_answered_as_get_without_a_body(rich: Served, path: str) -> None:
    asked, got = rich.client.head(path), rich.client.get(path)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    assert asked.headers == got.headers
    if "etag" in got.headers:
        assert rich.client.head(path, headers={"if-none-match": got.headers["etag"]}).status_code == 304


def test_head_of_what_never_ends_ends(rich: Served) -> None:
    response = rich.client.head("/v1/graph/stream")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert 'method="HEAD",route="/v1/graph/stream",status="200"' in rich.client.get("/metrics").text


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"agent=" + b"x" * 100_000, "agent"),
        (b"x" * 100_000 + b"=1", f"{'x' * 100}..."),
        (b"where=" + b"a" * 100_000, "where.0"),
        (b"cursor=" + b"A" * 100_000, "cursor"),
        (b"limit=" + b"9" * 100_000, "limit"),
        (b"from=" + b"9" * 100_000, "from"),
        (b"&".join(b"where=a%3D1" for _ in range(10_000)), "where"),
        (b"&".join(b"p%d=1" % number for number in range(10_000)), "p0"),
        (b"&" * 100_000 + b"limit=0", "limit"),
    ],
)
def test_queries_of_100_kb(rich: Served, query: bytes, field: str) -> None:
    told = refused_raw(rich, "/v1/sinks", query)
    assert told["status"] == 422
    assert [each["field"] for each in told["errors"]] == [field]


ODD = st.text(st.characters(exclude_categories=["Cs"]), max_size=50) | st.text("~@:/%.0\0", max_size=12)


@given(ODD, ODD)
@settings(max_examples=max(25, settings().max_examples // 4))
def test_no_text_is_a_fault_of_the_server(rich: Served, one: str, other: str) -> None:
    client = rich.client
    for path, parameters in (
        ("/v1/sinks", {"stream": one, "agent": other}),
        ("/v1/sinks", {"where": one, "from": other}),
        ("/v1/tasks", {"order_by": one, "select": other}),
        ("/v1/data", {"group_by": one, "latest": other}),
        ("/v1/paths", {"from": one, "to": other}),
        ("/v1/paths", {"from": f"~{one}", "to": f"~{other}", "via": one}),
        ("/v1/impact", {"source": one}),
        ("/v1/gaps", {"stream": one, "cursor": other}),
        ("/v1/workflows/compare", {"run": [one, other]}),
        (f"/v1/agents/{quote(one, safe='')}", {}),
        (f"/v1/vertices/{quote(one, safe='')}/lineage", {}),
        (f"/v1/vertices/data:{quote(quote(one, safe=''))}/{quote(quote(other, safe=''))}", {}),
    ):
        response = client.get(path, params=parameters)
        assert response.status_code < 500, (path, parameters, response.text)


# Answers that would be too large


def dense(served: Served, sources: int, sinks: int, sent: int = 0) -> None:
    """Every result came from every reading; the first one also over tuples that were sent, each from every reading."""
    readings = [tuple_id(1, number) for number in range(sources)]
    results = [tuple_id(2, number) for number in range(sinks)]
    between = [tuple_id(3, number) for number in range(sent)]
    deliveries = [delivery(each, 0, [(reading, 0, 0) for reading in readings]) for each in between]
    if between:
        deliveries.append(delivery(results[0], 0, [(each, 0, 1) for each in between]))
    made = graph_batch(
        *("q", 0),
        sources=dict.fromkeys(readings, 0),
        sinks=dict.fromkeys(results, 0),
        edges=[(result, reading) for result in results for reading in readings],
        deliveries=deliveries,
        rows=[register_row(1, "in"), register_row(2, "out"), register_row(3, "between")],
    )
    with served.new_store() as writer:
        writer.write(made)


def test_a_page_of_touched_results_has_fewer_of_them_if_they_have_many_edges(other: Served) -> None:
    dense(other, sources=1_000, sinks=50)
    pages = other.pages("/v1/impact", stream="pump-7/in", edges=True, limit=1_000)
    assert [len(page["edges"]) for page in pages] == [20_000, 20_000, 10_000]
    assert {page["results"] for page in pages} == {50}
    edges = {(each["origin"], each["derived"]) for page in pages for each in page["edges"]}
    assert len(edges) == 50_000
    assert not any(page["truncated"] for page in pages)


def test_one_result_with_more_edges_than_an_answer_may_have(other: Served) -> None:
    dense(other, sources=20_001, sinks=2)
    pages = other.pages("/v1/impact", stream="pump-7/in", edges=True)
    assert [(len(page["edges"]), page["truncated"]) for page in pages] == [(20_000, True)] * 2
    assert other.get("/v1/impact", stream="pump-7/in")["truncated"] is False


def test_what_is_around_a_vertex_may_have_more_edges_than_vertices(other: Served) -> None:
    dense(other, sources=200, sinks=1, sent=150)
    found = other.get("/v1/vertices/pump-7/out@3:0/lineage", levels=2, limit=5_000)
    assert (len(found["edges"]), found["truncated"]) == (20_000, True)
    ends = {each[end] for each in found["edges"] for end in ("origin", "derived")}
    assert ends <= {each["id"] for each in found["vertices"]}
    found = other.get("/v1/vertices/pump-7/out@3:0/lineage", levels=1)
    assert (len(found["edges"]), found["truncated"]) == (150, False)

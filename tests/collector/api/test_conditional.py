"""Whoever has an answer of the store as it is need not be told it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collector.api.rich_store import KNOWN, fill
from tests.collector.api.served import Served, serving
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id

QUESTIONS = [
    "/v1/sinks?limit=2",
    f"/v1/vertices/{KNOWN.result}",
    f"/v1/vertices/{KNOWN.result}/backward",
    f"/v1/vertices/{KNOWN.reading}/forward?limit=1",
    f"/v1/vertices/{KNOWN.result}/lineage",
    f"/v1/paths?from={KNOWN.reading}&to={KNOWN.result}",
    f"/v1/impact?source={KNOWN.reading}",
    "/v1/tasks",
    "/v1/data",
    "/v1/workflows",
    "/v1/workflows/compare?run=training",
    "/v1/streams",
    "/v1/plans",
    "/v1/plans/car/1",
    "/v1/plans/car/1?format=svg",
    "/v1/gaps",
    "/v1/late",
    "/v1/late/tuples",
    "/v1/refused",
    "/v1/statistics",
    "/v1/sinks?limit=2&format=csv",
    f"/v1/vertices/{KNOWN.result}/backward?format=prov-json",
    "/v1/tasks?format=csv",
]


@pytest.fixture
def rich(served: Served) -> Served:
    with served.new_store() as writer:
        fill(writer)
    return served


def tag(served: Served, path: str) -> str:
    found: str = served.client.get(path).headers["etag"]
    return found


def status(served: Served, path: str, known: str) -> int:
    response = served.client.get(path, headers={"if-none-match": known})
    assert (response.status_code == 304) == (response.content == b"")
    return response.status_code


def test_an_answer_that_is_known_is_not_sent_again_until_something_is_written(rich: Served) -> None:
    known = {path: tag(rich, path) for path in QUESTIONS}
    for path, of in known.items():
        assert of.startswith('W/"') and of.endswith('"')
        assert tag(rich, path) == of
        assert status(rich, path, of) == 304
        assert status(rich, path, f'"another", {of}, W/"yet-another"') == 304
        assert status(rich, path, of.removeprefix("W/")) == status(rich, path, "*") == 304, "weakly, they are the same"
        assert status(rich, path, '"another"') == 200
    with QuickWriter(rich.path) as writer:
        writer.write(graph_batch("query", 1_000, sinks={tuple_id(77, 1): 5}))
    for path, of in known.items():
        assert status(rich, path, of) == 200
        assert tag(rich, path) != of


def test_answers_that_are_not_of_the_store_alone_have_no_tag(rich: Served) -> None:
    for path in ("/v1/agents", "/v1/agents/car", "/healthz", "/readyz", "/metrics"):
        assert "etag" not in rich.client.get(path).headers


def test_problems_have_no_tag(rich: Served) -> None:
    for path in ("/v1/sinks?limit=0", "/v1/vertices/nobody/x@1:1", "/v1/nothing"):
        for known in ({}, {"if-none-match": "*"}):
            response = rich.client.get(path, headers=known)
            assert response.status_code >= 400 and "etag" not in response.headers


def test_what_is_posted_is_always_answered(rich: Served) -> None:
    known = {"if-none-match": tag(rich, "/v1/sinks")}
    response = rich.client.post("/v1/impact", json={"sources": [KNOWN.reading]}, headers=known)
    assert response.status_code == 200 and response.json()["sources"] == 1
    response = rich.client.post("/v1/ingest", json={}, headers=known)
    assert response.status_code == 503


def test_a_parameter_that_is_wrong_is_wrong_though_the_answer_is_known(rich: Served) -> None:
    assert status(rich, "/v1/sinks?nothing=1", tag(rich, "/v1/sinks")) == 422


def test_another_store_in_its_place_is_something_else(rich: Served) -> None:
    known = tag(rich, "/v1/sinks")
    with rich.new_store() as writer:
        fill(writer)
    assert status(rich, "/v1/sinks", known) == 200


def test_another_process_does_not_know_what_this_one_has_told(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with serving(path) as one, serving(path) as other:
        with one.new_store() as writer:
            fill(writer)
        known = tag(one, "/v1/sinks")
        assert status(other, "/v1/sinks", known) == 200
        assert status(one, "/v1/sinks", known) == 304


def test_without_a_store_nothing_is_known(tmp_path: Path) -> None:
    with serving(tmp_path / "graph.db") as served:
        assert status(served, "/v1/sinks", 'W/"x"') == 503

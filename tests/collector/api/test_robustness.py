"""What a store that is damaged, replaced or unusual does to the API: it says so, and goes on when it can."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Gauge

from collector.api.metrics import Observed
from collector.api.readers import Readers
from collector.api.view import View
from collector.store import TooSlow
from protocol.plan import JSON, Node, PlanDocument
from protocol.records import Declared, Gap, Late, Lost
from tests.collector.agents import FakeAgent
from tests.collector.api.served import Served, serving
from tests.collector.store.graphs import QuickWriter, delivery, graph_batch, tuple_id
from tests.collector.store.rows import AGENT, record_row, register_row
from threadline.lab import ApiService

GHOST = FakeAgent("ghost", nonce=77, epoch=9)
STREAMS = {1: "readings", 2: "sent", 3: "alerts"}


def names() -> list[object]:
    return [register_row(number, name) for number, name in STREAMS.items()]


@pytest.fixture
def chain(served: Served) -> Served:
    """A reading, a tuple that was sent on, and the result that came of it."""
    with served.new_store() as writer:
        sent = delivery(tuple_id(2, 0), 20, [(tuple_id(1, 0), 5, 0)])
        direct = delivery(tuple_id(3, 0), 50, [(tuple_id(2, 0), 20, 1)])
        direct.sent[:] = 0
        writer.write(
            graph_batch(
                "q",
                0,
                sinks={tuple_id(3, 0): 50},
                sources={tuple_id(1, 0): 5},
                edges=[(tuple_id(3, 0), tuple_id(1, 0))],
                deliveries=[sent, direct],
                rows=names(),  # type: ignore[arg-type]
            )
        )
    return served


def test_a_damaged_store_is_unavailable_and_found_again_when_it_is_whole(tmp_path: Path) -> None:
    path, whole = tmp_path / "graph.db", tmp_path / "whole.db"
    with QuickWriter(path) as writer:
        for number in range(3):
            sinks = {tuple_id(3, 100 * number + each): 1 for each in range(100)}
            writer.write(graph_batch("q", number, sinks=sinks, rows=names() if not number else ()))  # type: ignore[arg-type]
    shutil.copy(path, whole)
    with ApiService(tmp_path, None, f"sqlite:///{path}") as api, httpx.Client(base_url=api.url, timeout=20) as client:
        assert client.get("/readyz").status_code == 200
        with path.open("r+b") as file:
            file.truncate(20_000)
        paths = ("/v1/sinks", "/v1/tasks", "/v1/statistics", "/v1/vertices/pump-7/alerts@3:0", "/readyz")
        for asked in (*paths, "/v1/graph/stream"):
            response = client.get(asked)
            assert response.status_code == 503, (asked, response.text)
        assert client.get("/metrics").status_code == 200
        with path.open("r+b") as file:
            file.write(whole.read_bytes())
        assert client.get("/v1/sinks").status_code == 200
        with client.stream("GET", "/v1/graph/stream") as response, QuickWriter(path) as writer:
            lines = response.iter_lines()
            assert any(line == "event: place" for line in lines)
            begun = time.monotonic()
            writer.write(graph_batch("q", 9, sinks={tuple_id(3, 999): 1}))
            assert any(line == "event: sink" for line in lines)
            assert time.monotonic() - begun < 10, "it was told by the quiet poll"


def test_an_id_that_is_not_there_is_not_found_wherever_it_would_be(chain: Served) -> None:
    for way in ("", "/backward", "/forward", "/lineage"):
        chain.get(f"/v1/vertices/pump-7/readings@3:1{way}", 404)
        chain.get(f"/v1/vertices/pump-7/readings@3:999999{way}", 404)
        chain.get(f"/v1/vertices/pump-7/readings@3:0{way}")


def test_what_a_sent_tuple_touched_is_followed(chain: Served) -> None:
    found = chain.get("/v1/impact", source="pump-7/sent@3:0", edges=True)
    assert [each["id"] for each in found["vertices"]][:1] == ["pump-7/alerts@3:0"]
    assert (found["results"], found["unknown"]) == (1, [])
    assert [(edge["origin"], edge["derived"]) for edge in found["edges"]] == [("pump-7/sent@3:0", "pump-7/alerts@3:0")]
    refused = chain.get("/v1/impact", 422, stream="pump-7/sent")
    assert refused["errors"][0]["field"] == "stream"


def test_where_a_reading_can_get_to_of_which_nothing_is_known(served: Served) -> None:
    time_window: JSON = {"kind": "time", "size_ms": 1_000, "advance_ms": 1_000, "offset_ms": 0}
    source: dict[str, JSON] = {"ids": "uid", "watermarks": "ordered", "disorder_ms": 0}
    plan = PlanDocument(
        "p",
        "segments",
        (
            Node("readings", "source", parameters=source),
            Node("w", "aggregate", ("readings",), {"window": time_window, "aggregators": ["x:y"]}),
            Node("alerts", "sink", ("w",)),
        ),
    )
    with served.new_store() as writer:
        rows = [*names(), record_row(Declared(plan.to_json()), seq=1)]
        writer.write(graph_batch("q", 0, rows=rows))  # type: ignore[arg-type]
    found = served.get("/v1/impact", source="pump-7/readings@3:7")
    assert found["unknown"] == ["pump-7/readings@3:7"]
    assert [each["sink"] for each in found["still_reached"]] == ["pump-7/alerts"]


def test_an_agent_that_only_others_have_named(served: Served) -> None:
    with served.new_store() as writer:
        writer.write(graph_batch("q", 0, rows=[register_row(8, "stuff", of=AGENT, stream_of=GHOST)]))
    found = served.get("/v1/impact", stream="ghost/stuff")
    assert (found["results"], [each["sink"] for each in found["still_reached"]]) == (0, ["*/*"])


def test_a_tag_is_of_one_question_and_one_store(served: Served) -> None:
    tags = set()
    for number in range(20):
        with served.new_store() as writer:
            writer.write(graph_batch("q", 0, sinks={tuple_id(3, number): 1}, rows=names()))  # type: ignore[arg-type]
        tags.add(served.client.get("/v1/sinks").headers["etag"])
    assert len(tags) == 20
    known = {"If-None-Match": served.client.get("/v1/sinks").headers["etag"]}
    same = served.client.get("/v1/sinks", headers=known)
    assert (same.status_code, same.headers["etag"]) == (304, known["If-None-Match"])
    for path, status in (
        ("/v1/sinks?limit=0", 422),
        ("/v1/sinks?limit=5", 200),
        ("/v1/vertices/no/such@1:1", 404),
        ("/v1/agents", 200),
        ("/healthz", 200),
        ("/metrics", 200),
    ):
        assert served.client.get(path, headers=known).status_code == status, path


def _for_ever(view: View) -> None:
    while True:
        view.reader.check_time()


def _store(path: Path) -> Path:
    with QuickWriter(path) as writer:
        writer.write(graph_batch("q", 0, sinks={tuple_id(3, 0): 1}))
    return path


def test_a_stop_ends_what_takes_long(tmp_path: Path) -> None:
    readers = Readers(_store(tmp_path / "graph.db"), longest_s=300)

    async def ask() -> None:
        asyncio.get_running_loop().call_later(0.1, readers.stop)
        await readers.ask(_for_ever)

    with pytest.raises(TooSlow):
        asyncio.run(ask())
    with pytest.raises(TooSlow, match="being stopped"):
        asyncio.run(readers.ask(lambda view: view.version))
    readers.close()


def test_a_question_that_others_have_kept_waiting_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.api.readers.MOST_READERS", 1)
    monkeypatch.setattr("collector.api.readers.MOST_WAITING", 1)
    readers = Readers(_store(tmp_path / "graph.db"), longest_s=0.3)

    async def ask() -> list[object]:
        asked = [asyncio.create_task(readers.ask(_for_ever)) for _ in range(3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    kinds = [type(error) for error in asyncio.run(ask())]
    assert sorted(kind.__name__ for kind in kinds) == ["StoreUnavailable", "TooSlow", "TooSlow"]
    readers.close()


PROBES = ("/healthz", "/readyz", "/metrics")


def test_too_many_questions_at_once_are_told_so_and_probes_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.api.metrics.MOST_QUESTIONS", 0)
    with serving(_store(tmp_path / "graph.db")) as served:
        response = served.client.get("/v1/sinks")
        assert (response.status_code, response.headers["content-type"]) == (503, "application/problem+json")
        assert (response.headers["retry-after"], response.json()["detail"][:10]) == ("1", "0 requests")
        assert [served.client.get(path).status_code for path in PROBES] == [200, 200, 200]
        assert "threadline_presence_gateways_online 0.0" in served.client.get("/metrics").text


def test_streams_of_events_take_the_places_of_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.api.metrics.MOST_QUESTIONS", 1)
    monkeypatch.setattr("collector.api.metrics.MOST_STREAMS", 2)
    told: dict[str, list[int]] = {}

    class Counting:
        running = Gauge("running", "", registry=None)

        def count(self, method: str, route: str, status: int, elapsed_s: float) -> None:
            pass

    async def ask() -> None:
        over = asyncio.Event()

        async def answers(scope: Any, receive: object, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200})
            await over.wait()
            await send({"type": "http.response.body", "body": b""})

        async def nothing() -> None:
            pass

        observed = Observed(answers, Counting())  # type: ignore[arg-type]

        async def one(path: str) -> None:
            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    told.setdefault(path, []).append(message["status"])

            scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
            await observed(scope, nothing, send)  # type: ignore[arg-type]

        paths = (*["/v1/graph/stream"] * 4, "/v1/sinks", "/v1/tasks", *PROBES)
        asked = [asyncio.create_task(one(path)) for path in paths]
        await asyncio.sleep(0)
        over.set()
        await asyncio.gather(*asked)
        await one("/v1/graph/stream")

    asyncio.run(ask())
    assert told["/v1/graph/stream"] == [200, 200, 503, 503, 200], "who goes leaves a place"
    assert (told["/v1/sinks"], told["/v1/tasks"]) == ([200], [503])
    assert [told[path] for path in PROBES] == [[200]] * 3


def test_an_epoch_in_a_filter_counts(served: Served) -> None:
    late, gap = Late(AGENT.stream("readings"), 5, {}, 9), Gap("crash", 3, AGENT.nonce, tuples=(Lost("readings", 1, 2),))
    with served.new_store() as writer:
        rows = [*names(), record_row(late, seq=1), record_row(gap, seq=2)]
        writer.write(graph_batch("q", 0, rows=rows))  # type: ignore[arg-type]
    for path in ("/v1/gaps", "/v1/late/tuples"):
        assert len(served.get(path, stream="pump-7/readings@3")["items"]) == 1
        assert served.get(path, stream="pump-7/readings@77")["items"] == []


def test_a_stream_of_events_is_no_long_request() -> None:
    """What counts is when the answer begins."""
    times: list[float] = []

    class Counting:
        running = Gauge("running", "", registry=None)

        def count(self, method: str, route: str, status: int, elapsed_s: float) -> None:
            times.append(elapsed_s)

    async def endless(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await asyncio.sleep(0.3)
        await send({"type": "http.response.body", "body": b""})

    async def nothing(*_: object) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/v1/graph/stream"}
    asyncio.run(Observed(endless, Counting())(scope, nothing, nothing))  # type: ignore[arg-type]
    assert times[0] < 0.2

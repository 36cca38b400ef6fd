"""Stores in which something is not as it should be, or as one would think: bytes that have changed, clocks that tell
nonsense, readings that came too late to be in the graph.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any, cast

import pytest

from collector.api.readers import Readers
from collector.api.watcher import Watcher
from collector.export import FORMATS
from collector.store import StoreWriter
from protocol.events import Event
from protocol.graph import Reason
from tests.collector.agents import FakeAgent
from tests.collector.api.rich_store import KNOWN, fill
from tests.collector.api.served import Served
from tests.collector.forwarding.captured import row_of
from tests.collector.store.captures import begun, data, ended, workflow_begun, workflow_ended
from tests.collector.store.graphs import graph_batch, tuple_id
from tests.collector.store.rows import record_row, register_row

PI = FakeAgent("pi-1", nonce=5, epoch=1)
FIRST, LAST = -9 * 10**18, 9 * 10**18


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with something of everything."""

    path = tmp_path_factory.mktemp("whole") / "graph.db"
    with StoreWriter(path) as writer:
        fill(writer)
    return path.read_bytes()


def put(served: Served, content: bytes, *statements: str) -> None:
    """Put another store behind the API, and change something in it."""
    served.new_store().close()
    for suffix in ("", "-wal", "-shm"):  # the API may have the one before open, and what it has not taken in stays then
        served.path.with_name(served.path.name + suffix).unlink(missing_ok=True)
    served.path.write_bytes(content)
    db = sqlite3.connect(served.path)
    for statement in statements:
        assert db.execute(statement).rowcount > 0, statement
    db.commit()
    db.close()


def test_a_table_that_is_no_text_is_damage(served: Served, content: bytes) -> None:
    put(served, content.replace(b"NOT NULL", b"NOT \xe6ULL", 1))
    for path in ("/v1/sinks", "/v1/agents", "/v1/statistics", f"/v1/vertices/{KNOWN.result}", "/v1/graph/stream"):
        assert "is damaged" in served.get(path, status=503)["detail"]
    assert served.get("/readyz", status=503)["checks"][0]["ready"] is False
    assert "threadline_store_up 0.0" in served.client.get("/metrics").text


@pytest.mark.parametrize(
    ("statement", "path"),
    [
        ("UPDATE starts SET status = '{' WHERE status IS NOT NULL", "/v1/agents"),
        ("UPDATE data SET attributes = '{'", "/v1/data"),
        ("UPDATE data SET attributes = '{'", "/v1/workflows/compare"),
        ("UPDATE workflows SET attributes = '[1'", "/v1/workflows"),
        ("UPDATE sinks SET edges = x'0102'", f"/v1/vertices/{KNOWN.result}/backward"),
    ],
)
def test_values_that_cannot_be_read_are_damage(served: Served, content: bytes, statement: str, path: str) -> None:
    put(served, content, statement)
    asked = {"run": KNOWN.workflow} if path.endswith("compare") else {}
    assert "is damaged" in served.get(path, status=503, **asked)["detail"]


def test_whatever_happens_it_goes_on_to_look_whether_something_was_written() -> None:
    async def look() -> None:
        looks = 0
        is_enough = asyncio.Event()

        class Faulty:
            def quick(self) -> Any:
                nonlocal looks
                looks += 1
                if looks == 3:
                    is_enough.set()
                raise RuntimeError("no store at all")

        watcher = Watcher(cast("Readers", Faulty()), look_s=0.001)
        watcher.start()
        async with asyncio.timeout(20):
            await is_enough.wait()
        watcher.stop()

    asyncio.run(look())


def test_what_a_time_of_a_stream_touched_only_too_late_is_told(served: Served) -> None:
    late = [
        (tuple_id(2, 0), tuple_id(1, 7), 50, Reason.AFTER_LABEL),
        (tuple_id(2, 1), tuple_id(1, 8), 60, Reason.PURGED),
    ]
    with served.new_store() as writer:
        writer.write(
            graph_batch(
                "q",
                0,
                sinks={tuple_id(2, 0): 100, tuple_id(2, 1): 200},
                sources={tuple_id(1, 0): 50},
                edges=[(tuple_id(2, 0), tuple_id(1, 0))],
                late=late,
                rows=[register_row(1, "readings"), register_row(2, "alerts")],
            )
        )

    def touched(**asked: Any) -> list[str]:
        return [each["id"] for each in served.get("/v1/impact", **asked)["vertices"]]

    assert touched(stream="readings", from_=60, to=60) == ["pump-7/alerts@3:1"] == touched(source="pump-7/readings@3:8")
    assert touched(stream="readings", from_=50, to=60) == ["pump-7/alerts@3:0", "pump-7/alerts@3:1"]
    found = served.get("/v1/impact", stream="readings", from_=50, to=50, edges=True)
    assert [(each["origin"], each["flags"]) for each in found["edges"]] == [
        ("pump-7/readings@3:0", []),
        ("pump-7/readings@3:7", ["late"]),
    ]
    assert (found["sources"], found["unknown"]) == (1, [])
    assert touched(stream="readings", agent="pump-7", from_=60, to=60) == ["pump-7/alerts@3:1"]
    served.get("/v1/impact", 404, stream="readings", agent="pump-8")
    served.get("/v1/impact", 404, stream="pump-7/readings", agent="pump-8")
    served.get("/v1/impact", 422, source="pump-7/readings@3:8", agent="pump-7")
    found = served.post("/v1/impact", {"stream": "readings", "agent": "pump-7", "from": 60, "to": 60})
    assert [each["id"] for each in found["vertices"]] == ["pump-7/alerts@3:1"]
    served.post("/v1/impact", {"sources": ["pump-7/readings@3:8"], "agent": "pump-7"}, 422)


@pytest.fixture(scope="module")
def odd_clocks(other: Served) -> Served:
    """Runs whose clocks have told the first and the last of all times."""
    told: list[Event] = [workflow_begun(0, "training", FIRST), workflow_begun(20, "training", LAST)]
    for key in (1, 2, 3):
        used = data(f"out-{key - 1}", {}, workflow="training")
        made = data(f"out-{key}", {"loss": key}, f"out-{key - 1}", workflow="training")
        told += [begun(key, f"step-{key}", used, ts=FIRST), ended(key, made, ts=LAST)]
    told += [begun(4, "step-4", ts=0, workflow=20), ended(4, ts=5), workflow_ended(0, LAST), workflow_ended(20, FIRST)]
    with other.new_store() as writer:
        rows = [register_row(1, "captured", of=PI, stream_of=PI), record_row(*map(row_of, told), seq=1, of=PI)]
        writer.write(graph_batch("q", 0, rows=rows))
    return other


def test_times_between_which_nothing_can_take_place_are_no_time(odd_clocks: Served) -> None:
    first, *others = odd_clocks.get("/v1/tasks", order_by="-elapsed_ms")["items"]
    assert (first["name"], first["elapsed_ms"]) == ("step-4", 5)
    assert [(each["begun_ms"], each["ended_ms"], each["elapsed_ms"]) for each in others] == [(FIRST, LAST, None)] * 3
    runs = odd_clocks.get("/v1/workflows")["items"]
    assert [each["elapsed_ms"] for each in runs] == [None, None]
    compared = odd_clocks.get("/v1/workflows/compare", run=[each["id"] for each in runs])["runs"]
    assert [each["transformations"][0]["total_ms"] for each in compared] == [None, 5]


@pytest.mark.parametrize("wanted", sorted(FORMATS))
def test_absurd_times_can_be_exported(odd_clocks: Served, wanted: str) -> None:
    path = "/v1/vertices/data:pi-1@1:training/out-3/lineage"
    response = odd_clocks.client.get(path, params={"levels": 9, "format": wanted})
    assert response.status_code == 200, response.text
    if wanted in ("csv", "parquet"):
        response = odd_clocks.client.get("/v1/tasks", params={"format": wanted})
        assert response.status_code == 200, response.text

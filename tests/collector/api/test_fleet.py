"""Agents, their streams and plans, on stores that are written row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from protocol.records import BEGINNING, END_OF_TIME, Declared, End, Status
from protocol.row import Row
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.collector.api.served import Json, Served
from tests.collector.store.graphs import QuickWriter, graph_batch
from tests.collector.store.rows import progress_row, record_row, register_row, row
from tests.spark_jobs.rows import document, receive, send, sink, source, window

CAR = FakeAgent("car-7", nonce=2**64 - 1, epoch=1)
CAR_AGAIN = FakeAgent("car-7", nonce=7, epoch=2)
HUB = FakeAgent("hub", nonce=1, epoch=1)
PUMP = FakeAgent("pump", nonce=0x1F40, epoch=5)
PLAN = document(source("reports"), window("w", "reports", 1_000), sink("stops", "w")).to_json()
Write = Callable[..., None]


@contextmanager
def writing(served: Served) -> Iterator[Write]:
    """A new store, and what writes rows into it at a time."""
    served.new_store().close()
    now_ms = 0
    with QuickWriter(served.path, clock_ms=lambda: now_ms) as writer:
        batches = iter(range(1_000))

        def write(at_ms: int, *rows: Row) -> None:
            nonlocal now_ms
            now_ms = at_ms
            assert writer.write(graph_batch("q", next(batches), rows=rows)) is not None

        yield write


@pytest.fixture(scope="module")
def fleet(served: Served) -> Served:
    """car-7 has started twice, hub has ended, of pump nobody knows the epoch, and it was given up."""
    with writing(served) as write:
        write(
            1_000,
            register_row(1, "reports", of=CAR, stream_of=CAR),
            register_row(2, "stops", of=CAR, stream_of=CAR),
            record_row(Declared(PLAN), of=CAR),
        )
        status = Status(5_500, 1, 2, 3, 4, 5, {"rtt_ms": 1.5, "bad": float("nan")}, {"w": (4, 3, 2, 1)})
        write(
            5_000,
            register_row(3, "stops", of=CAR_AGAIN, stream_of=CAR_AGAIN),
            register_row(4, "reports", of=CAR_AGAIN, stream_of=CAR_AGAIN),
            record_row(Declared("{not a plan"), of=CAR_AGAIN),
            progress_row(3, 4_000, 3_500, seq=1, of=CAR_AGAIN),
            progress_row(4, BEGINNING, END_OF_TIME, seq=1, of=CAR_AGAIN),
            record_row(status, seq=2, of=CAR_AGAIN),
        )
        write(
            2_000,
            register_row(5, "stops", of=HUB, stream_of=HUB),
            progress_row(5, END_OF_TIME, END_OF_TIME, seq=1, of=HUB),
            record_row(End(1_999), seq=2, of=HUB),
        )
        write(3_000, record_row(status, seq=3, of=PUMP), row(Kind.RETIRE, b"", seq=4, of=PUMP))
        # Of this stream, only another agent knows.
        write(3_500, register_row(6, "sent", seq=3, of=HUB, stream_of=FakeAgent("ghost", nonce=0xAB, epoch=0), epoch=0))
    return served


def names(found: list[Json]) -> list[str]:
    return [each["name"] for each in found]


def test_agents_by_name_as_their_last_start(fleet: Served) -> None:
    car, hub, pump = fleet.get("/v1/agents")["items"]
    assert car == {
        "name": "car-7",
        "presence": {"state": "unknown", "since_ms": None, "reason": "the API has no MQTT broker"},
        "epoch": 2,
        "state": "running",
        "last_seen_ms": 5_000,
        "clock_ahead_ms": 500,
        "spool_batches": 1,
        "spool_bytes": 2,
        "unacknowledged": 3,
        "dropped": 4,
        "replaced": 5,
        "link": {"rtt_ms": 1.5, "bad": "nan"},
        "operators": {"w": [4, 3, 2, 1]},
    }
    assert (hub["name"], hub["state"], hub["clock_ahead_ms"], hub["link"]) == ("hub", "ended", None, None)
    assert (pump["name"], pump["state"], pump["epoch"]) == ("pump", "retired", None)


def test_agents_that_are_asked_for(fleet: Served) -> None:
    def found(**asked: Any) -> list[str]:
        every = names(fleet.every("/v1/agents", "items", **asked))
        assert every == names(fleet.every("/v1/agents", "items", limit=1, **asked)), "by pages it is the same"
        return every

    assert found() == ["car-7", "hub", "pump"]
    assert found(agent="hub") == ["hub"]
    assert found(agent="nobody") == []
    assert found(stream="stops") == ["car-7", "hub"]
    assert found(stream="car-7/stops") == found(stream="reports") == ["car-7"]
    assert found(stream=["hub/stops@1", "reports@2"]) == ["car-7", "hub"]
    assert found(stream="hub/stops@2") == found(stream="nothing") == []
    assert found(from_=3_500) == ["car-7", "hub"]
    assert found(from_=3_000, to=3_500) == ["hub", "pump"]
    assert found(to=2_999) == []


def test_one_agent_with_its_starts_and_streams(fleet: Served) -> None:
    car = fleet.get("/v1/agents/car-7")
    first, second = car["starts"]
    assert first == {
        "epoch": 1,
        "nonce": "ffffffffffffffff",
        "state": "running",
        "last_seen_ms": 1_000,
        "batches": 1,
        "end_ts": None,
    }
    assert (second["epoch"], second["nonce"], second["batches"]) == (2, "0000000000000007", 3)
    stops, reports = car["streams"]
    assert (stops["stream"], stops["epoch"], stops["watermark"], stops["hold"]) == ("stops", 2, 4_000, 3_500)
    assert (reports["stream"], reports["watermark"], reports["hold"], reports["has_ended"]) == (
        *("reports", None, None),
        False,
    )
    hub = fleet.get("/v1/agents/hub")
    assert hub["starts"][0]["end_ts"] == 1_999
    assert (hub["streams"][0]["watermark"], hub["streams"][0]["has_ended"]) == (None, True)
    assert fleet.get("/v1/agents/pump")["starts"][0]["epoch"] is None
    assert "ghost" in fleet.get("/v1/agents/ghost", 404)["detail"]


def test_streams(fleet: Served) -> None:
    def found(**asked: Any) -> list[str]:
        every = fleet.every("/v1/streams", "items", **asked)
        assert every == fleet.every("/v1/streams", "items", limit=1, **asked)
        return [f"{each['agent']}/{each['stream']}@{each['epoch']}" for each in every]

    cars = ["car-7/reports@1", "car-7/stops@1", "car-7/stops@2", "car-7/reports@2"]
    assert found() == [*cars, "hub/stops@1", "ghost/sent@0"]
    assert found(agent="car-7") == cars
    assert found(epoch=2) == ["car-7/stops@2", "car-7/reports@2"]
    assert found(stream="stops") == ["car-7/stops@1", "car-7/stops@2", "hub/stops@1"]
    assert found(stream="stops", agent="hub") == ["hub/stops@1"]
    assert found(stream="car-7/stops", agent="hub") == []
    assert found(stream=["car-7/stops@2", "sent"]) == ["car-7/stops@2", "ghost/sent@0"]
    assert found(stream="stops", epoch=1, from_=2_000) == ["hub/stops@1"]
    assert found(from_=3_500) == ["car-7/stops@2", "car-7/reports@2", "hub/stops@1"]


def test_plans(fleet: Served) -> None:
    first, second = fleet.every("/v1/plans", "items", limit=1)
    assert (first["agent"], first["epoch"], first["seen_ms"], first["trouble"]) == ("car-7", 1, 1_000, None)
    assert [each["operator"] for each in first["nodes"]] == ["source", "aggregate", "sink"]
    assert (second["epoch"], second["nodes"], second["name"]) == (2, None, None)
    assert second["trouble"]
    assert fleet.get("/v1/plans/car-7/1") == first
    assert fleet.get("/v1/plans/car-7/2") == second
    assert fleet.get("/v1/plans", epoch=2)["items"] == [second]
    assert fleet.get("/v1/plans", agent="hub")["items"] == []
    assert fleet.get("/v1/plans", to=1_000)["items"] == [first]


def test_plans_that_have_a_stream(other: Served) -> None:
    roadside = document(source("reports"), window("w", "reports", 1_000), send("stopped", "w", "center")).to_json()
    center = document(receive("in", "roadside", "stopped"), window("w", "in", 1_000), sink("accidents", "w")).to_json()
    told = [("roadside", 1, roadside), ("roadside", 2, roadside), ("center", 1, center)]
    with writing(other) as write:
        for number, (name, epoch, plan) in enumerate(told, 1):
            of = FakeAgent(name, nonce=number, epoch=epoch)
            write(1_000, register_row(number, "x", of=of, stream_of=of), record_row(Declared(plan), of=of))
        write(2_000, record_row(Declared("{not a plan"), of=FakeAgent("bad", nonce=4, epoch=1)))

    def found(**asked: Any) -> list[str]:
        every = other.every("/v1/plans", "items", **asked)
        assert every == other.every("/v1/plans", "items", limit=1, **asked), "by pages it is the same"
        return [f"{each['agent']}@{each['epoch']}" for each in every]

    assert len(found()) == 4
    assert found(stream="reports") == found(stream="roadside/stopped") == ["roadside@1", "roadside@2"]
    assert found(stream="stopped@2") == found(stream="reports", epoch=2) == ["roadside@2"]
    assert found(stream=["accidents", "reports@~1"]) == ["roadside@1", "center@1"]
    assert found(stream="in") == found(stream="w") == found(stream="center/stopped") == found(stream="nothing") == []
    assert found(stream="accidents", agent="roadside") == found(stream="accidents", from_=1_500) == []


def test_a_plan_that_cannot_be_read_cannot_be_drawn(fleet: Served) -> None:
    for format in ("svg", "dot", "text"):
        told = fleet.get("/v1/plans/car-7/2", 404, format=format)
        assert told["errors"][0]["field"] == "format"
        assert "cannot be drawn" in told["detail"]


def test_an_agent_that_was_started_very_often(other: Served) -> None:
    with writing(other) as write:
        starts = [FakeAgent("car-7", nonce=number, epoch=number) for number in range(1, 1_102)]
        write(1_000, *[register_row(each.nonce, "out", of=each, stream_of=each) for each in starts])
    found = other.get("/v1/agents/car-7")
    assert [each["epoch"] for each in found["starts"]] == list(range(102, 1_102))
    assert found["epoch"] == 1_101

"""What went wrong is shown: gaps, what came too late, and what could not be read."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.graph import Reason
from protocol.records import BEGINNING, Delivery, Gap, Late, Lost
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.collector.api.served import Json, Served
from tests.collector.store.graphs import QuickWriter, delivery, graph_batch, tuple_id
from tests.collector.store.rows import AGENT, payload_row, record_row, register_row, row

CAR = FakeAgent("car-1", nonce=2**63, epoch=2)


@pytest.fixture(scope="module")
def trouble(served: Served) -> Served:
    """Gaps of two agents and of the log itself, late edges, late tuples, and rows that nobody can read."""
    served.new_store().close()
    now_ms = 1_000
    with QuickWriter(served.path, clock_ms=lambda: now_ms) as writer:
        names = [register_row(1, "in"), register_row(2, "out"), register_row(3, "in", of=CAR, stream_of=CAR)]
        full = Gap("full", AGENT.epoch, AGENT.nonce, (4, 6), (Lost("in", 3, 9),), (1, 2))
        crash = Gap("crash", 1, 7, progress=(("out", 5, 6),), next_seqs=(("in", 8), ("out", 9)), next_event=3)
        lost_log = Gap("segment 3 is missing", 0, 0)
        gaps = [record_row(full, seq=4), record_row(crash, seq=0, of=CAR)]
        lost = row(Kind.GAP, record_row(lost_log).data, 0, FakeAgent("", nonce=0, epoch=0))
        late = [Late(AGENT.stream("in"), ts, {"value": ts}, 10) for ts in range(3)]
        late_car = [Late(CAR.stream("in"), BEGINNING, None, BEGINNING)]
        kept = [record_row(*late, seq=7), record_row(*late_car, seq=1, of=CAR)]
        writer.write(graph_batch("q", 0, rows=[*names, *gaps, lost, *kept]))
        now_ms = 2_000
        bad = [row(Kind.PLAN, b"\xff", 8), row(Kind(Kind.STATUS), b"", 2, CAR)]
        sinks = {tuple_id(2, number): 100 + number for number in range(3)}
        sources = {tuple_id(1, number): number for number in range(3)}
        late_edges = [
            (tuple_id(2, 0), tuple_id(1, 0), 0, Reason.AFTER_LABEL),
            (tuple_id(2, 0), tuple_id(1, 1), 1, Reason.AFTER_LABEL),
            (tuple_id(2, 2), tuple_id(3, 5), 50, Reason.PURGED),
        ]
        sent = [delivery(tuple_id(3, 5), 50, [(tuple_id(1, 2), 2, 0)])]
        made = graph_batch("q", 1, sinks=sinks, sources=sources, late=late_edges, deliveries=sent, rows=bad)
        writer.write(made)
    return served


def every(served: Served, path: str, **asked: Any) -> list[Json]:
    found: list[Json] = served.every(path, "items", **asked)
    assert found == served.every(path, "items", limit=1, **asked), "by pages it is the same"
    return found


def test_gaps_in_the_order_in_which_they_were_told(trouble: Served) -> None:
    full, crash, log = every(trouble, "/v1/gaps")
    assert full == {
        "agent": "pump-7",
        "epoch": 3,
        "batch": 4,
        "reason": "full",
        "detail": {
            "epoch": 3,
            "batches": [4, 6],
            "tuples": [{"name": "in", "first": 3, "last": 9}],
            "events": [1, 2],
            "progress": [],
            "next_seqs": [],
            "next_event": None,
        },
        "seen_ms": 1_000,
    }
    assert (crash["agent"], crash["epoch"], crash["detail"]["next_seqs"]) == ("car-1", 1, [["in", 8], ["out", 9]])
    assert (log["agent"], log["reason"]) == (None, "segment 3 is missing")


def test_gaps_that_are_asked_for(trouble: Served) -> None:
    def reasons(**asked: Any) -> list[str]:
        return [each["reason"] for each in every(trouble, "/v1/gaps", **asked)]

    assert reasons(agent="pump-7") == ["full"]
    assert reasons(stream="in") == ["full", "crash"]
    assert reasons(stream="out") == ["crash"]
    assert reasons(stream="pump-7/in") == ["full"]
    assert reasons(stream=["nothing", "car-1/out"]) == ["crash"]
    assert reasons(stream="nothing") == []
    assert reasons(to=999) == reasons(from_=1_001) == []
    assert len(reasons(from_=1_000, to=1_000)) == 3


def test_late_edges_by_result(trouble: Served) -> None:
    first, second, resolved = every(trouble, "/v1/late")
    assert first == {
        "sink": "pump-7/out@3:0",
        "origin": "pump-7/in@3:0",
        "origin_ts": 0,
        "reason": "after_label",
        "via": None,
    }
    assert second["origin"] == "pump-7/in@3:1"
    assert (resolved["sink"], resolved["origin"]) == ("pump-7/out@3:2", "pump-7/in@3:2")
    assert (resolved["reason"], resolved["via"]) == ("purged", "car-1/in@2:5")
    assert every(trouble, "/v1/late", stream="out", agent="pump-7") == [first, second, resolved]
    assert every(trouble, "/v1/late", agent="car-1") == every(trouble, "/v1/late", stream="in") == []
    assert every(trouble, "/v1/late", from_=1, to=1) == [second]


def test_late_edges_are_beside_the_graph(trouble: Served) -> None:
    found = trouble.get("/v1/vertices/pump-7/out@3:0/backward")
    assert [(each["origin"], each["flags"]) for each in found["edges"]] == [
        ("pump-7/in@3:0", ["late"]),
        ("pump-7/in@3:1", ["late"]),
    ]
    assert found["vertices"][0]["origins"] == 0
    found = trouble.get("/v1/vertices/pump-7/in@3:1/forward")
    assert [(each["derived"], each["flags"]) for each in found["edges"]] == [("pump-7/out@3:0", ["late"])]
    assert trouble.get("/v1/impact", source="pump-7/in@3:1")["results"] == 1


def test_late_tuples_one_by_one(trouble: Served) -> None:
    *of_pump, of_car = every(trouble, "/v1/late/tuples")
    assert of_pump[1] == {
        "agent": "pump-7",
        "epoch": 3,
        "stream": "in",
        "ts": 1,
        "watermark": 10,
        "payload": {"value": 1},
        "seen_ms": 1_000,
    }
    assert [each["ts"] for each in of_pump] == [0, 1, 2]
    assert (of_car["agent"], of_car["ts"], of_car["watermark"], of_car["payload"]) == ("car-1", None, None, None)
    assert every(trouble, "/v1/late/tuples", agent="car-1") == [of_car]
    assert every(trouble, "/v1/late/tuples", stream="pump-7/in") == of_pump
    assert every(trouble, "/v1/late/tuples", stream="in") == [*of_pump, of_car]
    assert every(trouble, "/v1/late/tuples", stream="out") == []
    assert every(trouble, "/v1/late/tuples", from_=1_001) == []


def test_rows_that_could_not_be_read(trouble: Served) -> None:
    plan, status = every(trouble, "/v1/refused")
    assert (plan["agent"], plan["nonce"], plan["batch"], plan["kind"]) == ("pump-7", "f" * 16, 8, "plan")
    assert plan["reason"].startswith("MalformedBatch")
    assert (status["agent"], status["nonce"], status["kind"]) == ("car-1", f"{2**63:016x}", "status")
    assert status["seen_ms"] == 2_000
    assert every(trouble, "/v1/refused", agent="car-1") == [status]
    assert every(trouble, "/v1/refused", to=1_999) == []


def test_values_that_json_does_not_have(other: Served) -> None:
    said = {"half": "\ud800", "huge": 2**70, "none": float("nan"), "most": float("-inf"), "bytes": b"\x00\xff"}
    with other.new_store() as writer:
        late = Late(AGENT.stream("in"), 5, said, 10)
        result = Delivery(AGENT.stream("in"), 0, 5, said, ())
        rows = [register_row(1, "in"), record_row(late), payload_row({AGENT.stream("in"): 1}, [result])]
        writer.write(graph_batch("q", 0, sinks={tuple_id(1, 0): 5}, rows=rows))
    expected = {"half": "\\ud800", "huge": 2**70, "none": "nan", "most": "-inf", "bytes": "00ff"}
    assert other.get("/v1/late/tuples")["items"][0]["payload"] == expected
    assert other.get("/v1/sinks")["vertices"][0]["payload"] == expected

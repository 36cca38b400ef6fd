"""The engine as an object: calls in odd places, after failures, and what each step passes on."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from edge_agent.stream import Collect, Count, Engine, First, Loopback, Min, Plan, PlanError, StreamError, Watermark, run
from protocol.ids import StreamId
from protocol.records import Delivery, Late, Origin, OriginKind, Progress, Record
from tests.edge_agent.stream.expect import at, capturing_modes, every_mode


def nothing(record: Record) -> None:
    pass


def test_an_engine_is_not_fed_from_its_own_sink() -> None:
    plan = Plan("loop")
    plan.source("s").sink("out", lambda value: engine.feed("s", [(3, "again")]))
    engine = Engine(plan, nothing)
    with pytest.raises(StreamError, match="called from its own emit or sink"):
        engine.feed("s", at("a@1"))


@pytest.mark.parametrize("failing", ["function", "emit"])
def test_an_engine_that_failed_takes_nothing_more(failing: str) -> None:
    def emit(record: Record) -> None:
        if failing == "emit" and isinstance(record, Delivery):
            raise OSError("full")

    plan = Plan("failing")
    plan.source("s").map(lambda value: 1 / value if failing == "function" else value).sink("out")
    engine = Engine(plan, emit)
    with pytest.raises((StreamError, OSError)):
        engine.feed("s", [(1, 1), (2, 0)])
    with pytest.raises(RuntimeError, match="failed"):
        engine.feed("s", [(3, 1)])


def test_a_wrong_call_is_no_failure() -> None:
    plan = Plan("calls")
    plan.source("s").sink("out")
    engine = Engine(plan, nothing)
    with pytest.raises(PlanError, match="t"):
        engine.feed("t", [])
    for odd in (None, "3", True, 2.5, 2**63, float("inf")):
        with pytest.raises((TypeError, OverflowError)):
            engine.watermark("s", odd)
        with pytest.raises((TypeError, OverflowError)):
            Watermark(odd)
    engine.feed("s", at("a@1"))
    assert engine.metrics["out"].taken == 1


@every_mode
def test_two_receives_of_one_stream_both_get_it(mode: str) -> None:
    car = Plan("car", provenance=mode)
    car.source("s", at("a@1 b@2")).send("x", to=["hub"])
    hub = Plan("hub", provenance=mode)
    hub.receive("x", "car-7", name="one").sink("A")
    hub.receive("x", "car-7", name="two").sink("B")
    results = Loopback({"car-7": car, "hub": hub}).run()["hub"]
    for sink in ("A", "B"):
        assert [delivery.payload for delivery in results.of(sink)] == ["a", "b"]


@every_mode
def test_a_receive_keeps_its_promise_when_the_sender_does_not(mode: str) -> None:
    #      5         25        3 again
    # |---------|---------|---------|
    plan = Plan("hub", provenance=mode)
    plan.receive("x", "car-7").window(10).aggregate(Collect()).sink("out")
    records: list[Record] = []
    engine = Engine(plan, records.append)
    stream = StreamId("car-7", 0, "x")

    def send(ts: int, watermark: int) -> None:
        engine.receive(stream, [(ts, ts, Origin(OriginKind.REMOTE, stream, ts, ts))], watermark, 2**63 - 1, False)

    for ts, watermark in ((5, 5), (25, 25), (3, 3), (40, 40)):
        send(ts, watermark)
    assert [(each.ts, each.payload) for each in records if isinstance(each, Delivery)] == [(10, [5]), (30, [25])]
    assert [each.payload for each in records if isinstance(each, Late)] == [3]
    watermarks = [each.watermark for each in records if isinstance(each, Progress)]
    assert watermarks == sorted(watermarks)


@capturing_modes
def test_what_a_send_delivers_leaves_in_the_same_step(mode: str) -> None:
    plan = Plan("ties", provenance=mode)
    plan.source("s").send("x", to=["hub"])
    sent: list[Any] = []
    engine = Engine(plan, nothing, transmit=lambda stream, tuples, *promise: sent.extend(tuples))
    for number, letter in enumerate("abc", start=1):
        engine.feed("s", at(f"{letter}@5"))
        assert [value for _, value, _ in sent] == list("abc"[:number])


def test_loopback_runs_again_from_the_beginning() -> None:
    car = Plan("car")
    car.source("s", at("a@1")).send("x", to=["hub"])
    hub = Plan("hub")
    hub.receive("x", "car-7").sink("out")
    loopback = Loopback({"car-7": car, "hub": hub})
    for _ in range(2):
        results = loopback.run()
        assert [delivery.payload for delivery in results["hub"].deliveries] == ["a"]
        assert results["car-7"].late == []


@pytest.mark.parametrize("advance", [10, 5])
def test_a_tuple_without_the_field_is_skipped_however_the_window_is_cut(advance: int) -> None:
    plan = Plan("cut", on_error="skip")
    plan.source("s").window(10, advance).aggregate(Count(), First("x")).sink("out")
    results = run(plan, {"s": [(1, {"x": 1}), (6, {})]})
    assert [delivery.payload for delivery in results.deliveries if delivery.ts == 10] == [(1, 1)]
    assert [skipped.payload for skipped in results.skipped] == [{}]


def test_one_wrong_value_among_many_is_found_in_good_time() -> None:
    plan = Plan("mixed", on_error="skip")
    plan.source("s").window(100_000).aggregate(Min(), Count()).sink("out")
    items: list[Any] = [(ts, ts) for ts in range(20_000)]
    items[15_000] = (15_000, "odd")
    results = run(plan, {"s": items})
    assert [delivery.payload for delivery in results.deliveries] == [(0, 19_999)]
    assert [skipped.payload for skipped in results.skipped] == ["odd"]


@every_mode
@pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "timestamp"])
@pytest.mark.parametrize("items", [list, iter], ids=["list", "iterator"])
def test_what_came_before_an_error_is_delivered(mode: str, kind: str, items: Any) -> None:
    plan = Plan("stopping", provenance=mode)
    source = plan.source("s")
    given: list[Any] = [(ts, ts) for ts in range(1_000)]
    if kind == "timestamp":
        given[500] = (None, 500)
        source.sink("out")
    elif kind == "flat_map":
        source.flat_map(lambda value: [1 / (value - 500)]).sink("out")
    else:
        getattr(source, kind)(lambda value: 1 / (value - 500)).sink("out")
    delivered: list[Record] = []
    with pytest.raises(StreamError):
        run(plan, {"s": items(given)}, emit=delivered.append)
    assert sum(isinstance(record, Delivery) for record in delivered) == 500


def test_a_plan_may_be_as_long_as_plans_may_be() -> None:
    plan = Plan("long")
    stream = plan.source("s", [(1, 0)])
    for _ in range(4_000):
        stream = stream.map(lambda value: value + 1)
    stream.sink("out")
    assert [delivery.payload for delivery in run(plan).deliveries] == [4_000]


def test_many_failing_items_of_one_list_are_skipped_in_good_time() -> None:
    plan = Plan("failing", on_error="skip")
    plan.source("s").map(lambda value: 1 // value).sink("out")
    engine = Engine(plan, nothing)
    engine.feed("s", [(ts, ts % 2) for ts in range(100_000)])
    assert engine.metrics["map-1"].skipped == 50_000
    assert engine.metrics["out"].taken == 50_000


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


def cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@capturing_modes
@pytest.mark.parametrize("payload", [Unhashable(), bytearray(b"x"), cyclic()], ids=["object", "bytearray", "cycle"])
def test_what_cannot_be_told_apart_by_attributes_is_a_fault_of_the_item(mode: str, payload: Any) -> None:
    plan = Plan("attributes", provenance=mode, on_error="skip")
    plan.source("s", ids="attributes").window(10).aggregate(Count()).sink("out")
    results = run(plan, {"s": [(1, "fine"), (2, payload)]})
    assert [delivery.payload for delivery in results.deliveries] == [1]
    assert len(results.skipped) == 1


@capturing_modes
@pytest.mark.parametrize(
    ("one", "other", "origins"),
    [
        (float("nan"), float("nan"), 1),
        (Decimal("nan"), Decimal("nan"), 1),
        ([1, {"a": {2, 3}}], [1, {"a": {3, 2}}], 1),
        ({1, 2}, frozenset({1, 2}), 1),
        ([1], (1,), 2),
        (1, True, 2),
        ({"a": 1}, {"a": 2}, 2),
    ],
    ids=repr,
)
def test_what_is_one_by_attributes(one: Any, other: Any, origins: int, mode: str) -> None:
    plan = Plan("one", provenance=mode)
    plan.source("s", ids="attributes").window(10).aggregate(Count()).sink("out")
    [delivery] = run(plan, {"s": [(1, one), (1, other)]}).deliveries
    assert delivery.payload == 2
    assert len(delivery.origins) == origins


@pytest.mark.parametrize("watermarks", ["ordered", "explicit"])
def test_disorder_means_nothing_with_other_watermarks(watermarks: str) -> None:
    with pytest.raises(PlanError, match="disorder_ms"):
        Plan("odd").source("s", disorder_ms=5, watermarks=watermarks)

"""What a user can get wrong at run time: functions that raise, timestamps that are none, keys that cannot be keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edge_agent.stream import Collect, Count, Engine, Min, Plan, PlanError, Results, StreamError, Sum, Watermark, run
from protocol.records import Delivery, Record
from tests.edge_agent.stream.expect import every_mode, found

BAD = 13


def boom(value: Any) -> Any:
    """Lets everything pass but the bad value."""
    if value == BAD:
        raise ValueError("unlucky")
    return value


def boom_pair(left: Any, right: Any) -> Any:
    boom(right)
    return boom(left)


def constant(value: Any) -> int:
    return 0


class BadAdd:
    def initialise(self) -> list[int]:
        return []

    def add(self, state: list[int], value: int) -> list[int]:
        return [*state, boom(value)]

    def result(self, state: list[int]) -> Any:
        return list(state)


class BadResult(BadAdd):
    def add(self, state: list[int], value: int) -> list[int]:
        return [*state, value]

    def result(self, state: list[int]) -> Any:
        return [boom(value) for value in state]


class BadMerge(BadAdd):
    def add(self, state: list[int], value: int) -> list[int]:
        return [*state, value]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [boom(value) for value in one + other]


Build = Callable[[Any], Any]
"""From the stream of a source to the stream of the operator "faulty"."""

# Where the function sees one tuple: it is left out, and nothing else changes.
PER_TUPLE: dict[str, Build] = {
    "map": lambda s: s.map(boom, name="faulty"),
    "flat_map": lambda s: s.flat_map(lambda value: [boom(value), value], name="faulty"),
    "flat_map that raises late": lambda s: s.flat_map(yielding, name="faulty"),
    "filter": lambda s: s.filter(lambda value: boom(value) is not None, name="faulty"),
    "key of a window": lambda s: s.key_by(boom).window(10).aggregate(Collect(), name="faulty"),
    "key of a sliding window": lambda s: s.key_by(boom).window(10, 5).aggregate(Collect(), name="faulty"),
    "key of a recent window": lambda s: s.key_by(boom).recent(5).aggregate(Collect(), name="faulty"),
    "key of a length window": lambda s: s.key_by(boom).length_window(2).aggregate(Collect(), name="faulty"),
    "by": lambda s: s.window(10).aggregate(Count(), Sum(boom), Collect(), name="faulty"),
    "by in a sliding window": lambda s: s.window(10, 5).aggregate(Count(), Sum(boom), name="faulty"),
    "by in a recent window": lambda s: s.recent(5).aggregate(Count(), Sum(boom), name="faulty"),
    "by in a length window": lambda s: s.length_window(2).aggregate(Count(), Sum(boom), name="faulty"),
    "add": lambda s: s.window(10).aggregate(Count(), BadAdd(), name="faulty"),
    "add in a sliding window": lambda s: s.window(10, 5).aggregate(Count(), BadAdd(), name="faulty"),
    "add in a recent window": lambda s: s.recent(5).aggregate(Count(), BadAdd(), name="faulty"),
    "add in a length window": lambda s: s.length_window(3).aggregate(Count(), BadAdd(), name="faulty"),
    "left key": lambda s: s.key_by(boom).join_band(s.key_by(constant), 0, max, name="faulty"),
    "where": lambda s: s.key_by(constant).join_band(s.key_by(constant), 0, max, where=boom_pair, name="faulty"),
    "combine": lambda s: s.key_by(constant).join_band(s.key_by(constant), 0, boom_pair, name="faulty"),
    "combine of windows": lambda s: s.key_by(constant).join_window(
        s.key_by(constant), 10, combine=boom_pair, name="faulty"
    ),
    "combine of recent ones": lambda s: s.key_by(constant).join_recent(
        s.key_by(constant), 3, 3, boom_pair, name="faulty"
    ),
}


def yielding(value: int) -> Iterator[int]:
    yield value
    yield boom(value)


# Where it sees a whole window, or the last tuples: a result is left out.
PER_RESULT: dict[str, Build] = {
    "into": lambda s: s.window(10).aggregate(Sum(), into=lambda total: boom(total - 10), name="faulty"),
    "result": lambda s: s.window(10).aggregate(BadResult(), name="faulty"),
    "result of a sliding window": lambda s: s.window(10, 5).aggregate(BadResult(), name="faulty"),
    "merge": lambda s: s.window(10, 5).aggregate(BadMerge(), name="faulty"),
    "combine of length windows": lambda s: s.key_by(constant).join_length(
        s.key_by(constant), 1, 1, boom_pair, name="faulty"
    ),
}
ITEMS = [(1, 1), (2, 2), (4, BAD), (6, 3), (8, 4), (16, 5), (16, BAD), (17, 6), (27, 7)]


def faulty(build: Build, mode: str, on_error: str) -> Plan:
    plan = Plan("faulty", provenance=mode, on_error=on_error)
    build(plan.source("s")).sink("out")
    return plan


@every_mode
@pytest.mark.parametrize("build", [*PER_TUPLE.values(), *PER_RESULT.values()], ids=[*PER_TUPLE, *PER_RESULT])
def test_a_function_that_raises_stops_the_plan_and_is_named(build: Build, mode: str) -> None:
    with pytest.raises(StreamError) as caught:
        run(faulty(build, mode, "stop"), {"s": ITEMS})
    error = caught.value
    assert error.operator == "faulty"
    assert any(word in error.function for word in ("boom", "Bad", "lambda", "yielding"))
    assert isinstance(error.ts, int)
    assert isinstance(error.__cause__, ValueError)
    for part in ("faulty", error.function, "unlucky", str(error.ts)):
        assert part in str(error)


@every_mode
@pytest.mark.parametrize("name", ["map", "filter", "key of a window", "by", "add", "by in a length window"])
def test_the_error_names_the_tuple(name: str, mode: str) -> None:
    with pytest.raises(StreamError) as caught:
        run(faulty(PER_TUPLE[name], mode, "stop"), {"s": ITEMS})
    assert (caught.value.ts, caught.value.payload) == (4, BAD)
    assert str(BAD) in str(caught.value)


@every_mode
@pytest.mark.parametrize("build", PER_TUPLE.values(), ids=PER_TUPLE)
def test_skipping_a_tuple_is_as_if_it_had_never_come(build: Build, mode: str) -> None:
    """Also in the provenance: what was left out is not there."""
    skipping = run(faulty(build, mode, "skip"), {"s": ITEMS})
    without = run(faulty(build, mode, "skip"), {"s": [item for item in ITEMS if item[1] != BAD]})
    assert found(skipping) == found(without)
    assert not without.skipped
    assert skipping.skipped
    assert {(each.operator, each.error) for each in skipping.skipped} == {("faulty", "ValueError: unlucky")}
    assert skipping.metrics["faulty"].skipped == len(skipping.skipped)


@every_mode
@pytest.mark.parametrize(
    "name", ["map", "flat_map", "flat_map that raises late", "filter", "key of a window", "by", "add", "left key"]
)
def test_every_skipped_tuple_is_reported(name: str, mode: str) -> None:
    results = run(faulty(PER_TUPLE[name], mode, "skip"), {"s": ITEMS})
    assert [(each.ts, each.payload) for each in results.skipped] == [(4, BAD), (16, BAD)]


@every_mode
@pytest.mark.parametrize("build", PER_RESULT.values(), ids=PER_RESULT)
def test_the_plan_goes_on_behind_a_skipped_result(build: Build, mode: str) -> None:
    skipping = run(faulty(build, mode, "skip"), {"s": ITEMS})
    assert skipping.skipped
    assert {each.operator for each in skipping.skipped} == {"faulty"}
    assert skipping.of("out")
    assert skipping.of("out")[-1].ts >= 27, "the plan goes on"


@every_mode
def test_skipping_results_leaves_the_right_ones(mode: str) -> None:
    results = run(faulty(PER_RESULT["result of a sliding window"], mode, "skip"), {"s": ITEMS})
    #  windows [-5, 5) [0, 10) [5, 15) [10, 20) [15, 25) [20, 30) [25, 35): those with a 13 are left out
    expected = [(15, [3, 4]), (30, [7]), (35, [7])]
    assert [(ts, payload) for ts, payload, _ in found(results)] == expected
    if mode != "none":
        assert [causes for _, _, causes in found(results)] == [payload for _, payload in expected]
    assert len(results.skipped) == 4


@every_mode
def test_a_sinks_function_that_raises(mode: str) -> None:
    seen: list[int] = []

    def note(value: int) -> None:
        seen.append(boom(value))

    def plan(on_error: str) -> Plan:
        made = Plan("noting", provenance=mode, on_error=on_error)
        made.source("s").sink("faulty", note)
        return made

    with pytest.raises(StreamError) as caught:
        run(plan("stop"), {"s": ITEMS})
    assert (caught.value.operator, caught.value.ts, caught.value.payload) == ("faulty", 4, BAD)
    assert "note" in caught.value.function
    seen.clear()
    results = run(plan("skip"), {"s": ITEMS})
    assert seen == [value for _, value in ITEMS if value != BAD]
    assert [each.payload for each in results.skipped] == [BAD, BAD]


@every_mode
def test_an_operator_may_decide_for_itself(mode: str) -> None:
    plan = Plan("mixed", provenance=mode, on_error="stop")
    plan.source("s").map(boom, name="lenient", on_error="skip").sink("out")
    assert len(run(plan, {"s": ITEMS}).skipped) == 2
    plan = Plan("mixed", provenance=mode, on_error="skip")
    plan.source("s").map(boom, name="strict", on_error="stop").sink("out")
    with pytest.raises(StreamError, match="strict"):
        run(plan, {"s": ITEMS})


# ---------------------------------------------------------------------- timestamps and items


class Whole:
    """A whole number of another type, as numpy has them."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


BAD_TIMES: dict[str, Any] = {
    "None": None,
    "float": 3.0,
    "NaN": math.nan,
    "infinity": math.inf,
    "text": "3",
    "bool": True,
    "2**62": 2**62,
    "2**63": 2**63,
    "-2**62": -(2**62),
    "-2**63": -(2**63),
    "list": [3],
}
bad_times = pytest.mark.parametrize("ts", BAD_TIMES.values(), ids=BAD_TIMES)


@every_mode
@bad_times
def test_a_bad_timestamp_in_a_pair(ts: Any, mode: str) -> None:
    assert_source_refuses((ts, "bad"), mode, ts=None, good=(3, "good"))


@every_mode
@bad_times
def test_a_bad_timestamp_in_a_field(ts: Any, mode: str) -> None:
    assert_source_refuses({"at": ts}, mode, ts="at", good={"at": 3})


@every_mode
@pytest.mark.parametrize("item", [{}, {"At": 3}, None, 3], ids=repr)
def test_a_missing_timestamp(item: Any, mode: str) -> None:
    assert_source_refuses(item, mode, ts="at", good={"at": 3})


@every_mode
@pytest.mark.parametrize("item", [(), (1,), (1, 2, 3), None, 5, "", "ab", object()], ids=lambda item: repr(item)[:9])
def test_an_item_that_is_no_pair(item: Any, mode: str) -> None:
    assert_source_refuses(item, mode, ts=None, good=(3, "good"))


@every_mode
def test_a_function_for_timestamps_that_raises(mode: str) -> None:
    def when(value: int) -> int:
        return int(boom(value))

    assert_source_refuses(BAD, mode, ts=when, good=3, function="when")


def assert_source_refuses(item: Any, mode: str, *, ts: Any, good: Any, function: str = "") -> None:
    """As an item among good ones: it stops the plan, or is left out and nothing else."""

    def plan(on_error: str) -> Plan:
        made = Plan("times", provenance=mode)
        made.source("s", ts=ts, on_error=on_error).sink("out")
        return made

    with pytest.raises(StreamError) as caught:
        run(plan("stop"), {"s": [good, item, good]})
    assert caught.value.operator == "s"
    assert caught.value.payload is item
    assert function in caught.value.function
    results = run(plan("skip"), {"s": [good, item, good]})
    assert [delivery.ts for delivery in results.of("out")] == [3, 3]
    [skipped] = results.skipped
    assert (skipped.operator, skipped.payload) == ("s", item)
    assert results.metrics["s"].skipped == 1
    assert not results.late


@every_mode
def test_the_largest_and_smallest_timestamps(mode: str) -> None:
    most = 2**62 - 1
    plan = Plan("range", provenance=mode)
    source = plan.source("s")
    source.sink("out")
    source.window(10).aggregate(Count()).sink("windows")
    source.recent(10).aggregate(Count()).sink("recent")
    results = run(plan, {"s": [(-most, "a"), (most, "b")]})
    assert [delivery.ts for delivery in results.of("out")] == [-most, most]
    assert [delivery.payload for delivery in results.of("windows")] == [1, 1]
    assert [delivery.ts for delivery in results.of("recent")] == [-most, most]


@every_mode
def test_whole_numbers_of_other_types_become_ints(mode: str) -> None:
    plan = Plan("whole", provenance=mode)
    plan.source("s").sink("out")
    results = run(plan, {"s": [(Whole(3), "a"), (Whole(4), "b")]})
    assert [(type(delivery.ts), delivery.ts) for delivery in results.of("out")] == [(int, 3), (int, 4)]
    assert all(type(source.ts) is int for source in results.sources.values())


@every_mode
def test_late_tuples_are_told_and_not_an_error(mode: str) -> None:
    plan = Plan("late", provenance=mode, on_error="stop")
    plan.source("s").sink("out")
    results = run(plan, {"s": [(5, "a"), (4, "b"), (-5, "c"), (6, "d")]})
    assert [delivery.payload for delivery in results.of("out")] == ["a", "d"]
    assert [late.payload for late in results.late] == ["b", "c"]


@pytest.mark.parametrize("ts", [None, 3.0, math.nan, "3", True], ids=repr)
def test_a_watermark_needs_a_whole_number(ts: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Watermark(ts)


@every_mode
def test_a_generator_that_raises_names_its_source(mode: str) -> None:
    def items() -> Iterator[tuple[int, str]]:
        yield 1, "a"
        yield 2, "b"
        raise OSError("unplugged")

    plan = Plan("unplugged", provenance=mode)
    plan.source("sensor", items).sink("out")
    records: list[Record] = []
    with pytest.raises(StreamError, match="unplugged") as caught:
        run(plan, emit=records.append)
    assert caught.value.operator == "sensor"
    assert isinstance(caught.value.__cause__, OSError)
    assert [record.payload for record in records if isinstance(record, Delivery)] == ["a", "b"]


# ---------------------------------------------------------------------- keys

KEYED: dict[str, Callable[[Any], Any]] = {
    "window": lambda keyed: keyed.window(10).aggregate(Count(), name="faulty"),
    "sliding window": lambda keyed: keyed.window(10, 5).aggregate(Count(), name="faulty"),
    "recent window": lambda keyed: keyed.recent(10).aggregate(Count(), name="faulty"),
    "length window": lambda keyed: keyed.length_window(2).aggregate(Count(), name="faulty"),
    "band join": lambda keyed: keyed.join_band(keyed, 0, lambda left, right: (left, right), name="faulty"),
    "window join": lambda keyed: keyed.join_window(keyed, 5, combine=lambda left, right: (left, right), name="faulty"),
    "length join": lambda keyed: keyed.join_length(keyed, 1, 1, lambda left, right: (left, right), name="faulty"),
}
keyed_operators = pytest.mark.parametrize("build", KEYED.values(), ids=KEYED)


@every_mode
@keyed_operators
@pytest.mark.parametrize("key", [[1], {}, math.nan], ids=repr)
def test_a_key_that_cannot_be_one(build: Callable[[Any], Any], key: Any, mode: str) -> None:
    """One that cannot be hashed, or one that is not even equal to itself."""

    def key_of(value: int) -> Any:
        return key if value == BAD else value

    def results(on_error: str, items: list[tuple[int, int]]) -> Results:
        plan = Plan("keys", provenance=mode, on_error=on_error)
        build(plan.source("s").key_by(key_of)).sink("out")
        return run(plan, {"s": items})

    with pytest.raises(StreamError) as caught:
        results("stop", ITEMS)
    assert (caught.value.operator, caught.value.ts, caught.value.payload) == ("faulty", 4, BAD)
    assert "key_of" in caught.value.function
    skipping, without = results("skip", ITEMS), results("skip", [item for item in ITEMS if item[1] != BAD])
    assert found(skipping) == found(without)
    assert {each.payload for each in skipping.skipped} == {BAD}


# ---------------------------------------------------------------------- the engine's own interface


@every_mode
def test_the_engine_refuses_what_it_does_not_know(mode: str) -> None:
    plan = Plan("small", provenance=mode)
    plan.source("s").sink("out")
    engine = Engine(plan, lambda record: None)
    calls: list[Callable[[], None]] = [
        lambda: engine.feed("other", []),
        lambda: engine.watermark("other", 3),
        lambda: engine.idle("other"),
        lambda: engine.close("other"),
    ]
    for call in calls:
        with pytest.raises(PlanError, match="other"):
            call()


# --- what was finished before -------------------------------------------------------------


def bad_key(value: int) -> int:
    return boom(value) % 2  # type: ignore[no-any-return]


FINISHED: dict[str, tuple[Callable[[Any], Any], int]] = {
    # |---10---|---10---|-- 13     two windows of one key each per parity: [0, 10) is over
    "window": (lambda s: s.key_by(bad_key).window(10).aggregate(Count()), 2),
    "sliding window": (lambda s: s.key_by(bad_key).window(10, 5).aggregate(Count()), 4),
    "recent": (lambda s: s.key_by(bad_key).recent(2).aggregate(Count()), 13),
    "length": (lambda s: s.key_by(bad_key).length_window(2).aggregate(Count()), 13),
    "join": (lambda s: s.key_by(constant).join_band(s.key_by(bad_key), 0, lambda left, right: left), 7),
}


@every_mode
@pytest.mark.parametrize("name", FINISHED)
@pytest.mark.parametrize("cut", [1, 3, 100])
def test_results_that_were_finished_before_an_error_are_delivered(name: str, cut: int, mode: str) -> None:
    build, finished = FINISHED[name]
    plan = Plan("finished", provenance=mode)
    build(plan.source("s")).sink("out")
    told: list[Record] = []
    engine = Engine(plan, told.append)
    items = [(ts, ts) for ts in range(20)]
    with pytest.raises(StreamError, match="unlucky"):
        for start in range(0, len(items), cut):
            engine.feed("s", items[start : start + cut])
    assert len([each for each in told if isinstance(each, Delivery)]) == finished


class Appending:
    """Changes the state that it is given, as `add` may."""

    def initialise(self) -> list[Any]:
        return []

    def add(self, state: list[Any], value: Any) -> list[Any]:
        state.append(value)
        return state

    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return earlier + later

    def result(self, state: list[Any]) -> Any:
        return list(state)


class NoText(Appending):
    """Raises too late."""

    def add(self, state: list[Any], value: Any) -> list[Any]:
        state.append(value)
        if len(state) > 1 and isinstance(value, str):
            raise TypeError("text behind other things")
        return state


@every_mode
@pytest.mark.parametrize("window", [(10, 10), (20, 10)], ids=["tumbling", "sliding"])
@pytest.mark.parametrize("aggregators", [(Appending(), Min()), (NoText(),)], ids=["another raises", "raises itself"])
def test_what_is_skipped_is_in_no_result(aggregators: Any, window: tuple[int, int], mode: str) -> None:
    plan = Plan("appending", provenance=mode, on_error="skip")
    plan.source("s", [(1, 1), (2, "a"), (3, 2)]).window(*window).aggregate(*aggregators, into=first_of).sink("out")
    results = run(plan)
    assert [each.payload for each in results.skipped] == ["a"]
    for delivery in results.deliveries:
        assert delivery.payload == [1, 2]
        if mode != "none":
            assert [cause.payload for cause in results.causes(delivery)] == [1, 2]


def first_of(result: Any, *_: Any) -> Any:
    return result


@every_mode
def test_items_that_can_be_read_only_once(mode: str) -> None:
    plan = Plan("once", provenance=mode)
    plan.source("s", ids="uid").sink("out")
    items = [map(int, line.split()) for line in ("1 10", "5 11", "2 12", "7 13")]
    results = run(plan, {"s": items})
    assert [delivery.payload for delivery in results.deliveries] == [10, 11, 13]
    assert [late.payload for late in results.late] == [12]


def test_the_items_before_a_bad_one_are_counted_as_taken() -> None:
    plan = Plan("counted")
    plan.source("s").sink("out")
    engine = Engine(plan, lambda record: None)
    with pytest.raises(StreamError):
        engine.feed("s", [*((ts, ts) for ts in range(30)), (5.5, "bad"), (40, "never seen")])
    assert engine.metrics["s"].taken == 31
    assert engine.metrics["out"].given == 30


@every_mode
def test_a_sink_may_decide_for_itself(mode: str) -> None:
    plan = Plan("sinks", provenance=mode)
    plan.source("s", [(1, 1), (2, BAD), (3, 3)]).sink("out", boom, on_error="skip")
    results = run(plan)
    assert [delivery.payload for delivery in results.deliveries] == [1, BAD, 3]
    assert [each.payload for each in results.skipped] == [BAD]

"""Each aggregator against the obvious function on the list of a window's values, over tumbling and sliding windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.stream import Collect, Count, Distinct, First, Last, Max, Mean, Min, Plan, Sum, Top, run
from tests.edge_agent.stream.expect import capturing_modes, every_mode, expect

NAN = math.nan
Items = list[tuple[int, Any]]


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def known(values: list[Any]) -> list[Any]:
    return [value for value in values if not is_nan(value)]


PLAIN: dict[type, Callable[[list[Any]], Any]] = {
    Count: len,
    Sum: sum,
    Min: lambda values: min(known(values), default=NAN),
    Max: lambda values: max(known(values), default=NAN),
    Mean: lambda values: sum(values) / len(values),
    Distinct: lambda values: len(set(known(values))) + any(map(is_nan, values)),
    First: lambda values: values[0],
    Last: lambda values: values[-1],
    Collect: list,
}


def same(one: Any, other: Any) -> bool:
    """Equal, where NaN is equal to NaN."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(is_nan(one) and is_nan(other)) or bool(one == other)


def assert_windows_are(
    items: Items, aggregators: Sequence[Any], plain: Callable[[list[Any]], tuple[Any, ...]], panes: int
) -> None:
    """Windows of `panes` panes of 3 ms each, by definition and by the engine; `into` makes a tuple of the results."""
    advance, size = 3, 3 * panes
    plan = Plan("panes", provenance="segments")
    windows = plan.source("s", disorder_ms=10**6).window(size, advance)
    windows.aggregate(*aggregators, into=lambda *results: results).sink("out")
    results = run(plan, {"s": items})
    in_order = sorted(items, key=lambda item: item[0])
    expected = []
    if items:
        left = (in_order[0][0] - size) // advance * advance
        while left <= in_order[-1][0]:
            values = [value for ts, value in in_order if left <= ts < left + size]
            if values:
                expected.append((left + size, plain(values)))
            left += advance
    found = [(delivery.ts, delivery.payload) for delivery in results.of("out")]
    assert [ts for ts, _ in found] == [ts for ts, _ in expected]
    for (ts, value), (_, wanted) in zip(found, expected, strict=True):
        assert same(value, wanted), f"window that ends at {ts}: {value!r}, not {wanted!r}"


def all_plain(values: list[Any]) -> tuple[Any, ...]:
    return tuple(plain(values) for plain in PLAIN.values())


def all_aggregators() -> list[Any]:
    return [kind() for kind in PLAIN]


def streams(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Items]:
    return st.lists(st.tuples(st.integers(-20, 40), values), max_size=25)


# Quarters of moderate size add up exactly in any order, so sums need no tolerance.
exact_floats = st.integers(-(2**20), 2**20).map(lambda quarters: quarters / 4)
numbers = st.one_of(
    st.integers(-5, 5),
    exact_floats,
    st.sampled_from((NAN, math.inf, -math.inf, 0.0, -0.0)),
)
huge = st.integers(-(2**200), 2**200) | st.integers(-3, 3)
pane_counts = st.integers(1, 20)


@given(items=streams(numbers), panes=pane_counts)
def test_numbers_with_nan_and_infinity(items: Items, panes: int) -> None:
    assert_windows_are(items, all_aggregators(), all_plain, panes)


@given(items=streams(huge), panes=pane_counts)
def test_huge_whole_numbers(items: Items, panes: int) -> None:
    assert_windows_are(items, all_aggregators(), all_plain, panes)


@given(items=streams(numbers), panes=pane_counts, k=st.integers(1, 5))
def test_top(items: Items, panes: int, k: int) -> None:
    assert_windows_are(items, [Top(k)], lambda values: (sorted(known(values), reverse=True)[:k],), panes)


@given(
    items=streams(st.floats(-1e12, 1e12)),
    panes=pane_counts,
)
def test_sums_of_fractions_stay_close_to_the_true_sum(items: Items, panes: int) -> None:
    """What slid out of a window leaves no trace in it, however large it was."""
    size = 3 * panes
    plan = Plan("sums", provenance="none")
    plan.source("s", disorder_ms=10**6).window(size, 3).aggregate(Sum(), Mean()).sink("out")
    for delivery in run(plan, {"s": items}).of("out"):
        values = [value for ts, value in items if delivery.ts - size <= ts < delivery.ts]
        total = sum(map(Fraction, values))
        close = 1e-12 * sum(map(abs, values))
        assert abs(delivery.payload[0] - float(total)) <= close
        assert abs(delivery.payload[1] - float(total / len(values))) <= close


@given(
    items=st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9)), min_size=1, max_size=20),
    count=st.integers(1, 6),
)
def test_length_and_recent_windows(items: Items, count: int) -> None:
    items = sorted(items, key=lambda item: item[0])
    plan = Plan("short", provenance="segments")
    source = plan.source("s", items)
    source.length_window(count).aggregate(*all_aggregators()).sink("length")
    source.recent(count).aggregate(*all_aggregators()).sink("recent")
    results = run(plan)
    values = [value for _, value in items]
    last = [all_plain(values[max(0, place + 1 - count) : place + 1]) for place in range(len(items))]
    recent = [all_plain([value for ts, value in items if now - count <= ts <= now]) for now, _ in items]
    assert [delivery.payload for delivery in results.of("length")] == last
    assert [delivery.payload for delivery in results.of("recent")] == recent


# ---------------------------------------------------------------------- the rules, one by one


@every_mode
@pytest.mark.parametrize(
    ("aggregator", "values", "result"),
    [
        (Count(), [NAN, 1], 2),
        (Sum(), [1, NAN, 2], NAN),
        (Sum(), [math.inf, -math.inf], NAN),
        (Sum(), [10**300, -(10**300), 1], 1),
        (Mean(), [NAN, 1], NAN),
        (Mean(), [1, 2], 1.5),
        (Min(), [NAN, 3, 1, NAN, 2], 1),
        (Max(), [NAN, 1, 3, NAN, 2], 3),
        (Min(), [NAN, NAN], NAN),
        (Max(), [NAN], NAN),
        (Max(), [NAN, -math.inf], -math.inf),
        (Top(2), [1, NAN, 3, 2], [3, 2]),
        (Top(3), [NAN], []),
        (Top(5), [1, 2], [2, 1]),
        (Top(2), [3, 1, 3], [3, 3]),
        (Distinct(), [NAN, float("nan"), 1, 1], 2),
        (First(), [NAN, 1], NAN),
        (Last(), [1, NAN], NAN),
        (Collect(), [1, NAN], [1, NAN]),
        (Min(), ["pear", "apple"], "apple"),
        (Max(), [(1, 2), (1, 3)], (1, 3)),
        (Distinct(), ["a", "b", "a"], 2),
    ],
    ids=repr,
)
def test_nan_and_other_rules(mode: str, aggregator: Any, values: list[Any], result: Any) -> None:
    for size, advance in ((10, 10), (10, 5)):
        plan = Plan("rules", provenance=mode)
        plan.source("s").window(size, advance).aggregate(aggregator).sink("out")
        for delivery in run(plan, {"s": [(6, value) for value in values]}).of("out"):
            assert same(delivery.payload, result)


@dataclass(frozen=True)
class Car:
    speed: int


@every_mode
@pytest.mark.parametrize("values", [[{"speed": 3}, {"speed": 9}], [Car(3), Car(9)]], ids=["dicts", "objects"])
def test_by_takes_a_field_or_a_function(mode: str, values: list[Any]) -> None:
    fields = [Sum, Min, Max, Mean, Distinct, First, Last, Collect]

    def speed(value: Any) -> int:
        return int(value["speed"] if isinstance(value, dict) else value.speed)

    for by in ("speed", speed):
        plan = Plan("by", provenance=mode)
        aggregators: list[Any] = [kind(by) for kind in fields]
        plan.source("s").window(10).aggregate(*aggregators, Top(1, by)).sink("out")
        results = run(plan, {"s": list(enumerate(values))})
        expect(results, mode, [(10, (12, 3, 9, 6, 2, 3, 9, [3, 9], [9]), values)])


@capturing_modes
def test_first_last_and_collect_follow_time_then_the_order_of_the_stream(mode: str) -> None:
    plan = Plan("order", provenance=mode)
    plan.source("s", disorder_ms=10).window(10).aggregate(First(), Last(), Collect()).sink("out")
    results = run(plan, {"s": [(5, "c"), (1, "a"), (5, "d"), (1, "b")]})
    expect(results, mode, [(10, ("a", "d", ["a", "b", "c", "d"]), ["a", "b", "c", "d"])])


@capturing_modes
def test_a_collected_list_belongs_to_its_receiver(mode: str) -> None:
    """Changing one window's result must not show in another's."""
    plan = Plan("lists", provenance=mode)
    lists = plan.source("s").window(4, 2).aggregate(Collect())
    lists.map(lambda values: [values.pop(), len(values)]).sink("out")
    results = run(plan, {"s": [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]})
    assert [delivery.payload for delivery in results.of("out")] == [[1, 1], [3, 3], [4, 2], [4, 0]]


@capturing_modes
def test_two_collected_lists_of_one_window_are_two(mode: str) -> None:
    plan = Plan("lists", provenance=mode)
    plan.source("s").window(4).aggregate(Collect(), Collect(), into=lambda one, two: [one.pop(), two]).sink("out")
    results = run(plan, {"s": [(0, 0), (1, 1)]})
    assert [delivery.payload for delivery in results.of("out")] == [[1, [0, 1]]]


# ---------------------------------------------------------------------- the user's own


class Text:
    """Three methods and a state that changes in place."""

    def initialise(self) -> list[str]:
        return []

    def add(self, state: list[str], value: int) -> list[str]:
        state.append(str(value))
        return state

    def result(self, state: list[str]) -> str:
        return " ".join(state)


class MergedText(Text):
    """The optional fourth; the earlier state comes first."""

    def merge(self, one: list[str], other: list[str]) -> list[str]:
        return one + other


class Product:
    """A state that does not change in place."""

    def initialise(self) -> int:
        return 1

    def add(self, state: int, value: int) -> int:
        return state * value

    def result(self, state: int) -> int:
        return state


@pytest.mark.parametrize("kind", [Text, MergedText])
@given(items=streams(st.integers(-9, 9)), panes=pane_counts)
def test_your_own_aggregator_with_or_without_merge(kind: Any, items: Items, panes: int) -> None:
    assert_windows_are(items, [kind()], lambda values: (" ".join(map(str, values)),), panes)


@given(items=streams(st.integers(-9, 9)), panes=pane_counts)
def test_your_own_aggregator_with_an_unchanging_state(items: Items, panes: int) -> None:
    assert_windows_are(items, [Product()], lambda values: (math.prod(values),), panes)


@every_mode
def test_your_own_aggregator_works_in_every_kind_of_window_and_per_key(mode: str) -> None:
    plan = Plan("own", provenance=mode)
    keyed = plan.source("s").key_by(lambda value: value % 2)
    keyed.recent(1).aggregate(Text(), into=lambda key, text: text).sink("recent")
    keyed.length_window(2).aggregate(MergedText(), Text(), into=lambda key, one, two: (one, two)).sink("length")
    results = run(plan, {"s": [(1, 1), (2, 3), (3, 5), (3, 2)]})
    assert sorted(delivery.payload for delivery in results.of("recent")) == ["1", "1 3", "2", "3 5"]
    assert [delivery.payload for delivery in results.of("length")] == [
        (text, text) for text in ("1", "1 3", "3 5", "2")
    ]


@capturing_modes
def test_one_aggregator_object_may_serve_several_plans_and_operators(mode: str) -> None:
    text, total = MergedText(), Sum()
    plan = Plan("shared", provenance=mode)
    source = plan.source("s", [(1, 1), (2, 2)])
    source.window(10).aggregate(text, total).sink("one")
    source.window(2).aggregate(text, total).sink("two")
    for _ in range(2):
        results = run(plan)
        expect(results, mode, [(10, ("1 2", 3), [1, 2])], "one")
        expect(results, mode, [(2, ("1", 1), [1]), (4, ("2", 2), [2])], "two")

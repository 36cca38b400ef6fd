"""Backward provenance operator by operator: who contributes to what."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from edge_agent.stream import Collect, Count, Distinct, Last, Max, Plan, Results, Sum, hours, run, seconds
from protocol.records import Delivery, OriginKind, Record
from tests.edge_agent.stream.expect import at, capturing_modes, every_mode, expect, found, run_on

# ---------------------------------------------------------------------- filter, union, map


@every_mode
def test_filter_and_union_forward_and_do_not_wrap(mode: str) -> None:
    plan = Plan("forward", provenance=mode)
    left, right = plan.source("left"), plan.source("right")
    left.filter(lambda value: value != "x").union(right).sink("out")
    results = run_on(plan, left="a@1 x@2 c@3", right="b@2")
    expect(results, mode, [(1, "a", ["a"]), (2, "b", ["b"]), (3, "c", ["c"])])


@capturing_modes
def test_a_sink_tuple_that_is_a_source_tuple_has_it_as_its_only_origin(mode: str) -> None:
    plan = Plan("unchanged", provenance=mode)
    plan.source("s").filter(lambda value: True).sink("out")
    results = run_on(plan, s="a@1")
    [delivery] = results.of("out")
    [origin] = delivery.origins
    assert origin.kind is OriginKind.SOURCE
    assert (origin.id.stream.name, origin.id.seq, origin.ts) == ("s", 0, 1)
    assert (delivery.id.stream.name, delivery.id.seq) == ("out", 0)
    assert results.sources[origin.id].payload == "a"


@every_mode
def test_each_output_of_a_flat_map_comes_from_its_input_and_none_is_legal(mode: str) -> None:
    plan = Plan("flat", provenance=mode)
    plan.source("s").flat_map(lambda value: [value + "1", value + "2"] if value != "b" else []).sink("out")
    results = run_on(plan, s="a@1 b@2 c@2")
    expect(results, mode, [(1, "a1", ["a"]), (1, "a2", ["a"]), (2, "c1", ["c"]), (2, "c2", ["c"])])


@every_mode
def test_a_map_keeps_the_timestamp(mode: str) -> None:
    plan = Plan("map", provenance=mode)
    plan.source("s").map(str.upper).sink("out")
    expect(run_on(plan, s="a@-7 b@7"), mode, [(-7, "A", ["a"]), (7, "B", ["b"])])


@every_mode
def test_the_order_of_a_union_is_time_then_input_then_arrival(mode: str) -> None:
    plan = Plan("union", provenance=mode)
    first, second, third = (plan.source(name) for name in ("first", "second", "third"))
    first.union(second, third).sink("out")
    results = run_on(plan, first="b@2 d@2", second="a@2 c@2", third="e@1 a@2")
    assert [payload for _, payload, _ in found(results)] == ["e", "b", "d", "a", "c", "a"]


# ---------------------------------------------------------------------- multiplex


@every_mode
@pytest.mark.parametrize("explicit", [False, True])
def test_two_aggregates_behind_a_multiplex_do_not_disturb_each_other(mode: str, explicit: bool) -> None:
    plan = Plan("multiplex", provenance=mode)
    source = plan.source("s")
    one, two = source.multiplex(2) if explicit else (source, source)
    one.window(4).aggregate(Collect()).sink("all")
    two.key_by(lambda value: value % 2).window(4).aggregate(Collect()).sink("by parity")
    results = run(plan, {"s": [(0, 0), (1, 1), (2, 2), (3, 3)]})
    #   0   1   2   3
    #  [--------------)     all
    #  [0       2     )     even
    #  [    1       3 )     odd
    expect(results, mode, [(4, [0, 1, 2, 3], [0, 1, 2, 3])], "all")
    expected = [(4, (0, [0, 2]), [0, 2]), (4, (1, [1, 3]), [1, 3])]
    if mode == "none":
        expected = [(ts, payload, []) for ts, payload, _ in expected]
    assert sorted(found(results, "by parity")) == expected


@every_mode
def test_two_aggregates_behind_a_multiplex_do_not_disturb_each_other_even_if_they_are_unfolded_later(mode: str) -> None:
    plan = Plan("multiplex", provenance=mode)
    source = plan.source("s")
    for name, by in (("all", lambda value: 0), ("by parity", lambda value: value % 2)):
        windows = source.key_by(by).window(4).aggregate(Collect(), into=lambda key, values: values)
        windows.window(8).aggregate(Count()).sink(name)
    results = run(plan, {"s": [(0, 0), (1, 1), (2, 2), (3, 3), (5, 5)]})
    #   0  1  2  3  4  5      8         16
    #  [-----------)[--------)              all, and even and odd, as above
    #  [        4            )[  8     )    unfolded when both have linked the tuples in their own way
    expect(results, mode, [(8, 1, [0, 1, 2, 3]), (16, 1, [5])], "all")
    expect(results, mode, [(8, 2, [0, 1, 2, 3]), (16, 1, [5])], "by parity")


# ---------------------------------------------------------------------- identity


@every_mode
def test_tuples_are_told_apart_by_identity_and_not_by_equality(mode: str) -> None:
    plan = Plan("parity", provenance=mode)
    plan.source("s").map(lambda value: value % 2).window(10).aggregate(Collect()).sink("out")
    results = run(plan, {"s": [(1, 1), (2, 3)]})
    expect(results, mode, [(10, [1, 1], [1, 3])])


@capturing_modes
@pytest.mark.parametrize(("ids", "vertices"), [("uid", 2), ("attributes", 1)])
def test_equal_source_tuples_are_two_by_uid_and_one_by_attributes(mode: str, ids: str, vertices: int) -> None:
    plan = Plan("equal", provenance=mode)
    plan.source("s", ids=ids).window(4, 2).aggregate(Collect()).sink("out")
    results = run_on(plan, s="r@5 r@5 r@6")
    #    2   4   6   8   10
    #    [ r r   )           [2, 6)
    #        [ r r r )       [4, 8)
    #            [ r     )   [6, 10)
    ids_of = [[origin.id for origin in delivery.origins] for delivery in results.of("out")]
    assert [delivery.payload for delivery in results.of("out")] == [["r", "r"], ["r", "r", "r"], ["r"]]
    assert [len(each) for each in ids_of] == [vertices, vertices + 1, 1]
    assert ids_of[1][:vertices] == ids_of[0], "the same source has the same id in every sink tuple"
    assert ids_of[1][vertices:] == ids_of[2]
    assert len(results.sources) == vertices + 1


@capturing_modes
def test_equal_payloads_at_other_times_or_of_other_sources_are_other_tuples_by_attributes(mode: str) -> None:
    plan = Plan("equal", provenance=mode)
    left, right = plan.source("left", ids="attributes"), plan.source("right", ids="attributes")
    left.union(right).window(10).aggregate(Count()).sink("out")
    results = run_on(plan, left="r@1 r@1 r@2", right="r@1 r@2 r@2")
    [delivery] = results.of("out")
    assert delivery.payload == 6
    assert sorted((origin.id.stream.name, origin.ts) for origin in delivery.origins) == [
        ("left", 1),
        ("left", 2),
        ("right", 1),
        ("right", 2),
    ]


@capturing_modes
def test_payloads_that_cannot_be_hashed_have_ids_by_attributes(mode: str) -> None:
    plan = Plan("unhashable", provenance=mode)
    plan.source("s", ids="attributes").window(10).aggregate(Count()).sink("out")
    results = run(plan, {"s": [(1, {"x": [1]}), (1, {"x": [1]}), (1, {"x": [2]})]})
    [delivery] = results.of("out")
    assert (delivery.payload, len(delivery.origins)) == (3, 2)


# ---------------------------------------------------------------------- joins


def pair(left: str, right: str) -> str:
    return left + right


def constant(value: Any) -> int:
    return 0


@every_mode
def test_a_join_of_equal_timestamps_comes_from_both(mode: str) -> None:
    plan = Plan("tie", provenance=mode)
    left, right = plan.source("left"), plan.source("right")
    left.key_by(constant).join_band(right.key_by(constant), 1, pair).sink("out")
    results = run_on(plan, left="l@5", right="r@5")
    assert [(ts, payload, sorted(causes)) for ts, payload, causes in found(results)] == [
        (5, "lr", [] if mode == "none" else ["l", "r"])
    ]


@every_mode
def test_a_band_join_includes_its_distance_and_is_stamped_with_the_later_input(mode: str) -> None:
    plan = Plan("band", provenance=mode)
    left, right = plan.source("left"), plan.source("right")
    left.key_by(constant).join_band(right.key_by(constant), 3, pair).sink("out")
    results = run_on(plan, left="l@0 m@8", right="r@3 s@4 t@5")
    #   0   1   2   3   4   5   6   7   8
    #   l           r   s   t           m
    #   [-----------]                        l meets r (3 away), not s (4 away)
    #                       [-----------]    m meets t (3 away), not s
    expect(results, mode, [(3, "lr", ["l", "r"]), (8, "mt", ["t", "m"])])


@every_mode
def test_a_window_join_gives_one_output_per_common_window(mode: str) -> None:
    plan = Plan("windows", provenance=mode)
    left, right = plan.source("left"), plan.source("right")
    left.key_by(constant).join_window(right.key_by(constant), 4, 2, combine=pair).sink("out")
    results = run_on(plan, left="l@5", right="r@5")
    #    2   4   6   8
    #    [     x )         [2, 6)
    #        [ x     )     [4, 8)
    assert [(delivery.ts, delivery.payload) for delivery in results.of("out")] == [(6, "lr"), (8, "lr")]
    if mode != "none":
        assert [sorted(causes) for _, _, causes in found(results)] == [["l", "r"], ["l", "r"]]
        assert len(results.sources) == 2


@every_mode
def test_a_window_join_needs_the_same_key_and_where(mode: str) -> None:
    plan = Plan("where", provenance=mode)
    left, right = plan.source("left"), plan.source("right")
    left.key_by(lambda value: value[0]).join_window(
        right.key_by(lambda value: value[0]), 10, combine=pair, where=lambda one, two: one[1] < two[1]
    ).sink("out")
    results = run_on(plan, left="a1@1 a3@2 b1@3 a1@10", right="a2@4 b0@5 c9@6 a9@20")
    #   [0        10)[10       20)[20       30)
    #    a1 a3 b1     a1                          left
    #    a2 b0 c9                  a9             right
    expect(results, mode, [(10, "a1a2", ["a1", "a2"])])


@every_mode
def test_a_recent_join_looks_back_on_each_side_by_its_own_length(mode: str) -> None:
    plan = Plan("recent", provenance=mode)
    left, right = plan.source("left"), plan.source("right")
    left.key_by(constant).join_recent(right.key_by(constant), 5, 2, pair).sink("out")
    results = run_on(plan, left="l@0 m@7", right="r@5 s@6")
    #   0 . . . . 5 6 7
    #   l         r s m
    #   [---------]           r looks back 5 on the left and finds l; s does not
    #             [---]       m looks back 2 on the right and finds r and s
    assert found(results)[0] == (5, "lr", [] if mode == "none" else ["l", "r"])
    assert sorted(payload for _, payload, _ in found(results)) == ["lr", "mr", "ms"]


@every_mode
def test_a_length_join_meets_the_last_tuples_of_the_other_side(mode: str) -> None:
    plan = Plan("length", provenance=mode)
    left, right = plan.source("left"), plan.source("right")
    left.key_by(constant).join_length(right.key_by(constant), 2, 1, pair).sink("out")
    results = run_on(plan, left="a@1 b@2 c@3 d@6", right="r@3 s@5")
    #   left   a b c       d      the last 2 are kept
    #   right      r   s          the last 1 is kept; at 3 the left one comes first
    #   r meets b, c; s meets b, c; d meets s
    assert sorted((ts, payload) for ts, payload, _ in found(results)) == [
        (3, "br"),
        (3, "cr"),
        (5, "bs"),
        (5, "cs"),
        (6, "ds"),
    ]
    if mode != "none":
        assert all(sorted(causes) == sorted(payload) for _, payload, causes in found(results))


@every_mode
def test_a_source_that_meets_itself_in_a_join_appears_once(mode: str) -> None:
    plan = Plan("diamond", provenance=mode)
    both = plan.source("s").flat_map(lambda value: [("left", value), ("right", value)])
    lefts = both.filter(lambda value: value[0] == "left").key_by(lambda value: value[1])
    rights = both.filter(lambda value: value[0] == "right").key_by(lambda value: value[1])
    lefts.join_band(rights, 2, lambda one, two: one[0] + two[0]).sink("out")
    expect(run_on(plan, s="p@1"), mode, [(1, "leftright", ["p"])])


@every_mode
def test_a_reading_that_is_in_the_daily_sum_and_in_the_join_counts_once(mode: str) -> None:
    plan = Plan("anomaly", provenance=mode)
    readings = plan.source("readings")
    days = readings.window(hours(24)).aggregate(Sum())
    last = readings.filter(lambda value: value == 23)
    days.key_by(constant).join_band(last.key_by(constant), hours(1), lambda day, value: day - value).sink("out")
    results = run(plan, {"readings": [(hours(hour), hour) for hour in range(24)]})
    # [0h                         23h) 24h       the sum of the day, stamped 24h, is one hour from the last reading
    expect(results, mode, [(hours(24), sum(range(23)), list(range(24)))])


# ---------------------------------------------------------------------- aggregates


@every_mode
def test_the_whole_window_contributes_to_a_maximum(mode: str) -> None:
    plan = Plan("max", provenance=mode)
    plan.source("s").window(10).aggregate(Max()).sink("out")
    expect(run(plan, {"s": [(1, 3), (2, 9), (3, 4)]}), mode, [(10, 9, [3, 9, 4])])


class Report(NamedTuple):
    car: str
    position: int
    number: int


@every_mode
def test_an_accident_of_two_cars_comes_from_four_reports_of_each(mode: str) -> None:
    plan = Plan("accident", provenance=mode)
    stopped = (
        plan.source("reports")
        .key_by("car")
        .window(seconds(120), seconds(30))
        .aggregate(Count(), Last("position"))
        .filter(lambda stop: stop[1] == 4)
    )
    cars = stopped.key_by(lambda stop: stop[2]).window(seconds(30)).aggregate(Distinct(lambda stop: stop[0]))
    cars.filter(lambda place: place[1] > 1).sink("accidents")
    reports = [(seconds(30 * tick), Report(car, 7, tick)) for tick in range(4) for car in ("x", "y")]
    results = run(plan, {"reports": reports})
    #   0   30   60   90   120  150
    #   [ x  x    x    x   )            x stopped @120
    #   [ y  y    y    y   )            y stopped @120
    #                      [ x y )      accident @150
    expect(results, mode, [(seconds(150), (7, 2), [report for _, report in reports])], "accidents")


@every_mode
def test_results_have_the_key_first_and_take_the_shape_that_into_gives(mode: str) -> None:
    plan = Plan("shapes", provenance=mode)
    source = plan.source("s")
    source.window(10).aggregate(Count()).sink("one")
    source.window(10).aggregate(Count(), Last()).sink("two")
    source.window(10).aggregate(Count(), Last(), into=lambda count, last: {"count": count, "last": last}).sink("into")
    keyed = source.key_by(str.lower).window(10)
    keyed.aggregate(Count()).sink("keyed")
    results = run_on(plan, s="a@1 A@2")
    expect(results, mode, [(10, 2, ["a", "A"])], "one")
    expect(results, mode, [(10, (2, "A"), ["a", "A"])], "two")
    expect(results, mode, [(10, {"count": 2, "last": "A"}, ["a", "A"])], "into")
    expect(results, mode, [(10, ("a", 2), ["a", "A"])], "keyed")


# ---------------------------------------------------------------------- sinks and sources


@every_mode
def test_a_sink_calls_its_function_per_tuple_in_order(mode: str) -> None:
    seen: list[str] = []
    plan = Plan("sink", provenance=mode)
    plan.source("s").sink("out", seen.append)
    run_on(plan, s="a@1 b@1 c@2")
    assert seen == ["a", "b", "c"]


@every_mode
def test_items_may_be_made_by_a_function_when_the_plan_runs(mode: str) -> None:
    calls: list[int] = []

    def items() -> list[tuple[int, str]]:
        calls.append(1)
        return at("a@1 b@2")

    plan = Plan("lazy", provenance=mode)
    plan.source("s", items).sink("out")
    assert not calls
    assert found(run(plan)) == found(run(plan))
    assert len(calls) == 2


@every_mode
def test_timestamps_come_from_a_field_or_a_function(mode: str) -> None:
    plan = Plan("ts", provenance=mode)
    fields = plan.source("fields", [{"at": 3, "x": 1}], ts="at")
    functions = plan.source("functions", ["22", "333"], ts=len)
    fields.map(lambda value: value["x"]).union(functions).sink("out")
    results = run(plan)
    assert [(delivery.ts, delivery.payload) for delivery in results.of("out")] == [(2, "22"), (3, 1), (3, "333")]


@every_mode
def test_a_live_source_gives_what_the_same_items_give_otherwise(mode: str) -> None:
    def results(live: bool) -> Results:
        plan = Plan("live", provenance=mode)
        live_one, other = plan.source("live", at("a@1 b@12 c@30"), live=live), plan.source("other", at("x@2 y@25"))
        live_one.union(other).window(10).aggregate(Collect()).sink("out")
        return run(plan)

    assert found(results(True)) == found(results(False)) != []


@every_mode
def test_with_emit_the_records_go_there_and_only_the_counters_stay(mode: str) -> None:
    plan = Plan("emitting", provenance=mode)
    plan.source("s").sink("out")
    records: list[Record] = []
    results = run(plan, {"s": at("a@1 b@0")}, emit=records.append)
    assert not (results.deliveries or results.sources or results.late or results.progress)
    assert (results.metrics["s"].late, results.metrics["out"].taken) == (1, 1)
    assert [record.payload for record in records if isinstance(record, Delivery)] == ["a"]

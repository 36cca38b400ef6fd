"""Windows: what is in them, when disorder, ties and overlap meet, and what comes too late."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.stream import Collect, Plan, Watermark, run
from tests.edge_agent.stream.expect import every_mode, expect, found, run_on


def windowed(mode: str, size: int, advance: int | None = None, *, offset: int = 0, disorder: int = 0) -> Plan:
    plan = Plan("windowed", provenance=mode)
    plan.source("s", disorder_ms=disorder).window(size, advance, offset).aggregate(Collect()).sink("out")
    return plan


def whole(*windows: tuple[int, str]) -> list[tuple[int, list[str], list[str]]]:
    """Windows as (right boundary, its tuples): each tuple in it is collected and is in the provenance."""
    return [(right, list(content), list(content)) for right, content in windows]


# ---------------------------------------------------------------------- boundaries


@every_mode
def test_a_window_of_one_tuple_has_only_it_although_its_key_goes_on(mode: str) -> None:
    results = run_on(windowed(mode, 2, 1), s="1@1 2@2 3@3")
    #   0   1   2   3   4   5
    #   [   1   )               [0, 2)
    #       [ 1   2 )           [1, 3)
    #           [ 2   3 )       [2, 4)
    #               [ 3     )   [3, 5)
    expect(results, mode, whole((2, "1"), (3, "12"), (4, "23"), (5, "3")))


@every_mode
def test_a_window_of_one_tuple_has_only_it_even_if_it_is_unfolded_much_later(mode: str) -> None:
    plan = Plan("later", provenance=mode)
    windows = plan.source("s").window(2, 1).aggregate(Collect()).key_by(lambda value: 0)
    windows.join_band(plan.source("t").key_by(lambda value: 0), 10, lambda left, right: [*left, right]).sink("out")
    results = run_on(plan, s="1@1 2@2 3@3", t="t@9")
    # as above, and each of the four results meets t@9 only when 1, 2 and 3 have long been linked in the windows
    assert sorted(causes for _, _, causes in found(results)) == (
        [[]] * 4 if mode == "none" else [["1", "2", "t"], ["1", "t"], ["2", "3", "t"], ["3", "t"]]
    )
    assert sorted(payload for _, payload, _ in found(results)) == [
        ["1", "2", "t"],
        ["1", "t"],
        ["2", "3", "t"],
        ["3", "t"],
    ]


@every_mode
def test_provenance_ends_at_the_windows_last_tuple_although_more_are_linked_behind_it(mode: str) -> None:
    results = run_on(windowed(mode, 4, 2), s="0@0 1@1 2@2 3@3 4@4 5@5")
    #  -2   0   2   4   6   8
    #   [   0 1 )                [-2, 2)
    #       [0 1 2 3)            [0, 4)
    #           [2 3 4 5)        [2, 6)
    #               [4 5    )    [4, 8)
    expect(results, mode, whole((2, "01"), (4, "0123"), (6, "2345"), (8, "45")))


@every_mode
def test_the_left_boundary_is_in_the_window_and_the_right_one_is_not(mode: str) -> None:
    results = run_on(windowed(mode, 10), s="a@0 b@9 c@10")
    #   0         10        20
    #   [a       b)[c        )
    expect(results, mode, whole((10, "ab"), (20, "c")))


@every_mode
def test_overlapping_windows_may_start_before_zero(mode: str) -> None:
    results = run_on(windowed(mode, 4, 2), s="a@1 b@3 c@5")
    #  -2   0   2   4   6   8
    #   [     a )                [-2, 2)
    #       [ a   b )            [0, 4)
    #           [ b   c )        [2, 6)
    #               [ c     )    [4, 8)
    expect(results, mode, whole((2, "a"), (4, "ab"), (6, "bc"), (8, "c")))


@every_mode
def test_negative_timestamps_fall_into_windows_below_zero(mode: str) -> None:
    results = run_on(windowed(mode, 10), s="a@-11 b@-10 c@-1 d@0")
    #  -20       -10        0         10
    #   [       a)[b       c)[d        )
    expect(results, mode, whole((-10, "a"), (0, "bc"), (10, "d")))


@every_mode
@pytest.mark.parametrize(
    ("size", "advance", "ts", "starts"),
    [
        (3, 2, 100, [98, 100]),
        (10, 8, 117, [112]),
        (10, 8, 89, [80, 88]),
        (10, 9, 1234, [1233]),
        (10, 9, 90, [81, 90]),
        (10, 9, -1, [-9]),
        (10, 9, 0, [-9, 0]),
        (3, 7, 2, [0]),
        (3, 7, 3, []),
        (3, 7, 6, []),
        (3, 7, 7, [7]),
    ],
)
def test_an_advance_that_does_not_divide_the_size(
    mode: str, size: int, advance: int, ts: int, starts: list[int]
) -> None:
    results = run(windowed(mode, size, advance), {"s": [(ts, "a")]})
    expect(results, mode, whole(*((start + size, "a") for start in starts)))


@every_mode
@pytest.mark.parametrize(("offset", "right"), [(0, 10), (3, 13), (8, 8), (13, 13), (-7, 13), (10, 10)])
def test_windows_are_aligned_to_their_offset(mode: str, offset: int, right: int) -> None:
    expect(run_on(windowed(mode, 10, offset=offset), s="a@5"), mode, whole((right, "a")))


@every_mode
def test_each_key_has_its_own_windows(mode: str) -> None:
    plan = Plan("cars", provenance=mode)
    plan.source("s").key_by(lambda value: value[0]).window(10).aggregate(Collect()).sink("out")
    results = run_on(plan, s="x1@1 y1@2 x2@3 y2@4")
    #   0   1   2   3   4       10
    #   [   x1      x2           )
    #   [       y1      y2       )
    windows = sorted(found(results))
    assert [(ts, payload) for ts, payload, _ in windows] == [(10, ("x", ["x1", "x2"])), (10, ("y", ["y1", "y2"]))]
    if mode != "none":
        assert [causes for _, _, causes in windows] == [["x1", "x2"], ["y1", "y2"]]


# ---------------------------------------------------------------------- disorder


@every_mode
@pytest.mark.parametrize(
    ("size", "advance", "arrival", "windows"),
    [
        #   0   1   2   3      10
        #   [   1   2   3       )
        pytest.param(10, 10, "3@3 1@1 2@2", [(10, "123")], id="in one window"),
        #  -1   0   1   2   3   4
        #   [   0   )                [-1, 1)
        #       [ 0 1   )            [0, 2)
        #           [ 1 2   )        [1, 3)
        #               [ 2     )    [2, 4)
        pytest.param(2, 1, "1@1 0@0 2@2", [(1, "0"), (2, "01"), (3, "12"), (4, "2")], id="overlapping by half"),
        #  -2   0   2   4   6
        #   [   0 1 )                [-2, 2)
        #       [0 1 2  )            [0, 4)
        #           [2      )        [2, 6)
        pytest.param(4, 2, "2@2 0@0 1@1", [(2, "01"), (4, "012"), (6, "2")], id="the latest first"),
        #  -1   0   1   2   3
        #   [   bc  )                [-1, 1)
        #       [bc a   )            [0, 2)
        #           [ a     )        [1, 3)
        pytest.param(2, 1, "a@1 b@0 c@0", [(1, "bc"), (2, "bca"), (3, "a")], id="with ties"),
    ],
)
def test_out_of_order_tuples_are_in_the_windows_of_their_time(
    mode: str, size: int, advance: int, arrival: str, windows: list[tuple[int, str]]
) -> None:
    results = run_on(windowed(mode, size, advance, disorder=10), s=arrival)
    expect(results, mode, whole(*windows))
    assert not results.late


@every_mode
def test_a_tuple_below_the_watermark_is_in_no_result_and_no_provenance(mode: str) -> None:
    plan = Plan("late", provenance=mode)
    plan.source("s", watermarks="explicit").window(10).aggregate(Collect()).sink("out")
    results = run(plan, {"s": [(1, "a"), (13, "b"), Watermark(12), (3, "z"), (12, "c")]})
    #   0        10        20
    #   [a        )[   c b  )
    #       z                    W=12: too late
    expect(results, mode, [(10, ["a"], ["a"]), (20, ["c", "b"], ["c", "b"])])
    [late] = results.late
    assert (late.stream.name, late.ts, late.payload, late.watermark) == ("s", 3, "z", 12)
    assert results.metrics["s"].late == 1
    assert "z" not in [source.payload for source in results.sources.values()]


@every_mode
def test_timestamps_of_an_ordered_source_must_not_decrease(mode: str) -> None:
    results = run_on(windowed(mode, 10), s="a@5 b@4 c@5")
    expect(results, mode, whole((10, "ac")))
    assert [(late.ts, late.payload, late.watermark) for late in results.late] == [(4, "b", 5)]


@every_mode
def test_bounded_disorder_includes_its_bound(mode: str) -> None:
    results = run_on(windowed(mode, 100, disorder=3), s="a@10 b@7 c@6 d@8")
    expect(results, mode, whole((100, "bda")))
    assert [(late.ts, late.watermark) for late in results.late] == [(6, 7)]


@every_mode
def test_a_late_tuple_does_not_move_time(mode: str) -> None:
    plan = Plan("promise", provenance=mode)
    plan.source("s").sink("out")
    results = run(plan, {"s": [(1, "a"), Watermark(10), (9, "b"), Watermark(4), (10, "c"), (9, "d")]})
    assert [delivery.payload for delivery in results.of("out")] == ["a", "c"]
    assert [(late.payload, late.watermark) for late in results.late] == [("b", 10), ("d", 10)]


# ---------------------------------------------------------------------- by age and by number


@every_mode
def test_a_recent_window_includes_both_ends_and_ties_that_come_later(mode: str) -> None:
    plan = Plan("recent", provenance=mode)
    plan.source("s").recent(3).aggregate(Collect()).sink("out")
    results = run_on(plan, s="a@0 b@3 c@3 d@4")
    #   0   1   2   3   4
    #   [a]                   of a
    #   [a          bc]       of b, and of c: c has b's time
    #      [        bc  d]    of d: [1, 4]
    expect(results, mode, whole((0, "a"), (3, "abc"), (3, "abc"), (4, "bcd")))


@every_mode
def test_a_recent_window_of_no_length_holds_one_instant(mode: str) -> None:
    plan = Plan("instant", provenance=mode)
    plan.source("s").recent(0).aggregate(Collect()).sink("out")
    expect(run_on(plan, s="a@0 b@1 c@1"), mode, whole((0, "a"), (1, "bc"), (1, "bc")))


@every_mode
def test_a_length_window_ends_with_its_tuple_and_is_partial_at_the_start(mode: str) -> None:
    plan = Plan("length", provenance=mode)
    plan.source("s", disorder_ms=9).length_window(2).aggregate(Collect()).sink("out")
    results = run_on(plan, s="c@5 a@1 b@1 d@9")
    #   a b c d       in the order of time, then arrival
    #   [a]
    #   [a b]
    #     [b c]
    #       [c d]
    expect(results, mode, whole((1, "a"), (1, "ab"), (5, "bc"), (9, "cd")))


@every_mode
def test_length_windows_count_per_key(mode: str) -> None:
    plan = Plan("length", provenance=mode)
    keyed = plan.source("s").key_by(lambda value: value[0])
    keyed.length_window(2).aggregate(Collect(), into=lambda key, values: values).sink("out")
    results = run_on(plan, s="x1@1 y1@2 x2@3 x3@4 y2@50")
    expect(
        results,
        mode,
        [
            (ts, content, content)
            for ts, content in [(1, ["x1"]), (2, ["y1"]), (3, ["x1", "x2"]), (4, ["x2", "x3"]), (50, ["y1", "y2"])]
        ],
    )


# ---------------------------------------------------------------------- metrics


@every_mode
def test_operators_count_what_they_take_and_give(mode: str) -> None:
    plan = Plan("counts", provenance=mode)
    source = plan.source("s")
    odd = source.filter(lambda value: value % 2 == 1, name="odd")
    odd.flat_map(lambda value: [value] * value, name="many").sink("out")
    results = run(plan, {"s": [(1, 1), (2, 2), (3, 3), (1, 5)]})
    counts: dict[str, Any] = results.metrics
    assert (counts["s"].given, counts["s"].late) == (3, 1)
    assert (counts["odd"].taken, counts["odd"].given) == (3, 2)
    assert (counts["many"].taken, counts["many"].given) == (2, 4)
    assert counts["out"].taken == 4

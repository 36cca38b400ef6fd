"""What the stream benchmark compares must give the same answers, and its statistics must say what they claim."""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import pytest

from bench._annotation import Annotation
from bench._sliding import GROUPS as SLIDING_GROUPS
from bench._sliding import SlidingWindows
from bench._statistics import estimate, ratios
from bench._stream_peers import Alert, bytewax_stopped, streamz_stopped
from bench._stream_worker import QUERIES, Worker, generate, plan_of
from bench._traversal import results_over
from bench.stream_engine import GROUPS, QUICK, Variant, overhead, query, run_group, worst_growth
from edge_agent.stream import Results, run

SMALL: dict[str, dict[str, Any]] = {
    "sparse": {"cars": 60, "rounds": 40},
    "dense": {"cars": 60, "rounds": 40},
    "meters": {"meters": 40, "days": 5},
}

needs_bytewax = pytest.mark.skipif(find_spec("bytewax") is None, reason="bytewax has no wheel for this machine")


def results_of(query: str, mode: str) -> Results:
    items = list(generate(QUERIES[query].data, SMALL[QUERIES[query].data]))
    with plan_of(query, mode) as plan:
        return run(plan, {QUERIES[query].source: items})


# --- statistics ---------------------------------------------------------------------------


def test_the_bounds_are_the_sixth_smallest_and_largest_of_21_rounds() -> None:
    values = [float(value) for value in range(21)]
    random.Random(1).shuffle(values)
    assert estimate(values) == (10, 5, 15)


@pytest.mark.parametrize("rounds", [9, 21, 41])
def test_the_bounds_hold_the_median_in_19_of_20_cases(rounds: int) -> None:
    rng = random.Random(rounds)
    cases = [estimate([rng.expovariate(1) for _ in range(rounds)]) for _ in range(2_000)]
    held = sum(case.low <= 0.6931 <= case.high for case in cases)  # ln 2 is the median
    assert held >= 0.94 * len(cases)


def test_too_few_rounds_give_the_extremes() -> None:
    assert estimate([3.0, 1.0, 2.0]) == (2, 1, 3)


def test_a_ratio_is_taken_within_a_round() -> None:
    assert ratios([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == (2, 2, 2)


def test_overhead_is_in_percent_of_mode_none_in_the_same_build() -> None:
    times: dict[Variant, list[float]] = {
        query("pure", "Q1", "none"): [1.0] * 21,
        query("pure", "Q1", "segments"): [1.04] * 21,
        query("compiled", "Q1", "none"): [0.5] * 21,
    }
    assert overhead(times, "pure", "Q1", "segments").median == pytest.approx(4)


def test_a_build_without_figures_misses_its_goals() -> None:
    assert not overhead({}, "compiled", "Q1", "segments").median <= 5
    assert not worst_growth({}, "compiled", "count", QUICK.window_tuples) <= 1.2


# --- what is compared ---------------------------------------------------------------------


@pytest.mark.parametrize("name", QUERIES)
def test_annotations_tell_the_same_origins_as_segments(name: str) -> None:
    segments, annotation = results_of(name, "segments"), results_of(name, "annotation")
    assert segments.deliveries
    assert told(annotation) == told(segments)


def told(results: Results) -> list[Any]:
    """Every delivery with the sources it names; their numbers and their order within one instant are left open."""
    return [
        (each.ts, each.payload, sorted((cause.ts, repr(cause.payload)) for cause in results.causes(each)))
        for each in results.deliveries
    ]


def test_annotated_sources_are_stored_until_no_result_can_name_them() -> None:
    lineage = Annotation(delay_ms=100)
    kept = []
    for ts in range(0, 1_000, 50):
        lineage.born([(ts, "value", None)])
        kept.append(lineage.stored)
    assert kept[-1] == max(kept) == 4


def our_alerts() -> list[Alert]:
    return [(each.ts, each.payload) for each in results_of("Q1", "none").deliveries]


def in_order(alerts: list[Alert]) -> list[tuple[int, int, str]]:
    return sorted((ts, car.vid, repr(car)) for ts, car in alerts)


@pytest.mark.parametrize("batch", [1, 7, 1_024])
def test_streamz_raises_the_same_alerts(batch: int) -> None:
    items = list(generate("sparse", SMALL["sparse"]))
    assert in_order(streamz_stopped(items, batch)) == in_order(our_alerts())


@needs_bytewax
@pytest.mark.parametrize("batch", [100, 1_024])
def test_bytewax_raises_the_same_alerts(batch: int) -> None:
    items = list(generate("sparse", SMALL["sparse"]))
    assert in_order(bytewax_stopped(items, batch)) == in_order(our_alerts())


@pytest.mark.parametrize("group", GROUPS)
def test_a_sliding_window_gives_one_result_per_tuple_whatever_the_overlap(group: str) -> None:
    assert tuple(SLIDING_GROUPS) == GROUPS
    stream = SlidingWindows(2_000)
    for overlap in (4, 120):
        engine = stream.engine(group, overlap)
        stream.feed(engine)
        results = next(counts.given for name, counts in engine.metrics.items() if "aggregate" in name)
        assert results == 2_000 - 10  # but for the last pane of each of the ten keys


@pytest.mark.parametrize("mode", ["segments", "genealog"])
@pytest.mark.parametrize("size", [1, 4, 192])
def test_each_result_to_be_traversed_has_just_its_own_sources(mode: str, size: int) -> None:
    lineage, results = results_over(mode, size, 3)
    found: list[Any] = [[origin.ts for origin in lineage.origins(result)] for result in results]
    assert found == [list(range(number * size, (number + 1) * size)) for number in range(3)]


def test_a_worker_runs_what_it_is_asked_and_tells_of_errors() -> None:
    with Worker("pure") as worker:
        assert worker.ask("engine")["file"].endswith(".py")
        worker.ask("prepare", **SMALL)
        answer = worker.ask("query", query="Q1", mode="segments", relaxed=True)
        assert answer["units"] >= 60 * 40
        assert answer["cpu_s"] > 0
        assert worker.ask("peak", query="Q1", mode="input", size=SMALL["sparse"])["peak_kb"] > 1_000
        with pytest.raises(Exception, match="no such mode"):
            worker.ask("query", query="Q1", mode="no such mode", relaxed=True)


class Noting(Worker):
    """A worker that notes which modes it was given."""

    def __init__(self, build: str) -> None:
        super().__init__(build)
        self.modes: list[str] = []

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        if what == "begin":
            self.modes.append(arguments["mode"])
        return super().ask(what, **arguments)


def test_side_by_side_each_variant_runs_to_its_end_once_in_each_process() -> None:
    with Noting("pure") as one, Noting("pure") as other:
        for worker in (one, other):
            worker.ask("prepare", **SMALL)
        whole = one.ask("query", query="Q1", mode="segments", relaxed=True)
        group = [query("pure", "Q1", mode) for mode in ("none", "segments")]
        answers = run_group({"pure": [one, other]}, group)
        assert (one.modes, other.modes) == (["none", "segments"], ["segments", "none"])
    assert [len(answers[variant]) for variant in group] == [2, 2]
    for answer in answers[group[1]]:
        assert (answer["units"], answer["records"]) == (whole["units"], whole["records"])
        assert answer["cpu_s"] > 0
    assert all(answer["records"] < whole["records"] for answer in answers[group[0]])

"""The replay property: a query run on nothing but the union of all provenance gives the same results again, with the
same provenance.

It cannot hold for every query. A result needs the tuples of its own provenance, but an aggregate that sees only some
of a window's tuples (those that another result needed) may make a result that was not there before. So:

- `queries(replayable=True)`: filters, time joins and everything else monotone before the first aggregate; after it
  only operators that lose nothing, so that every window ends up whole in the union. No length joins: which tuples are
  the last n depends on those that are missing. Ids by `uid`: two equal tuples that share one id come back as one.
- chains of tumbling windows with filters anywhere: a source tuple is in one window only, which comes back whole or
  not at all. No flat_map and no branches, by which a tuple could be in two windows.
- Linear Road and Smart Grid, on input where a part of a window never passes the filter behind it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.stream import Count, Distinct, Last, Plan, Results, Sum, Watermark, hours, run, seconds
from tests.edge_agent.stream.random_plans import (
    Case,
    Told,
    all_readings,
    assert_same_rows,
    build,
    cases,
    inputs_for,
)
from tests.support import oracle
from tests.support.oracle import Aggregate, Filter, Map, Node, Sink, Source, Time

capturing = st.sampled_from(("genealog", "segments"))


def assert_same_again(case: Case, mode: str) -> None:
    inputs = all_readings(case.inputs)
    told = told_about(case, inputs, mode)
    sinks = [node.name for node in case.query if isinstance(node, Sink)]
    needed = {(cause.source, cause.which) for sink in sinks for row in told.rows(sink) for cause in row.causes}
    union = {
        name: [item for item in items if isinstance(item, Watermark) or (name, item[1].number) in needed]
        for name, items in inputs.items()
    }
    again = told_about(case, union, mode)
    assert not again.late
    in_order = oracle.ordered(case.query)
    for sink in sinks:
        assert_same_rows(again.rows(sink), told.rows(sink), sink in in_order)


def told_about(case: Case, inputs: dict[str, list[Any]], mode: str) -> Told:
    records: list[Any] = []
    run(build(case.query, mode), inputs, emit=records.append)
    return Told(records)


@given(cases(replayable=True), capturing)
def test_queries_that_lose_nothing_after_their_first_aggregate(case: Case, mode: str) -> None:
    assert_same_again(case, mode)


@st.composite
def chains(draw: st.DrawFn) -> Case:
    """A chain of tumbling windows (or windows with gaps), with filters and maps anywhere."""
    nodes: list[Node] = [Source("s", disorder_ms=draw(st.integers(0, 4)))]
    for number in range(draw(st.integers(1, 6))):
        name, before = f"n{number}", nodes[-1].name
        match draw(st.sampled_from(("window", "filter", "map"))):
            case "window":
                size = draw(st.integers(1, 6))
                window = Time(size, size + draw(st.integers(0, 2)), draw(st.integers(0, 3)))
                key = draw(st.sampled_from((None, "parity", "third")))
                nodes.append(Aggregate(name, before, window, (draw(st.sampled_from(("sum", "count", "max"))),), key))
            case "filter":
                nodes.append(Filter(name, before, draw(st.sampled_from(("even", "positive", "no third")))))
            case _:
                nodes.append(Map(name, before, draw(st.sampled_from(("negated", "plus one")))))
    query = (*nodes, Sink("k", nodes[-1].name))
    return Case(query, draw(inputs_for(query, items=16)))


@given(chains(), capturing)
def test_chains_of_windows_that_do_not_overlap(case: Case, mode: str) -> None:
    assert_same_again(case, mode)


# ---------------------------------------------------------------------- the queries of the papers


def assert_plan_gives_the_same_again(plan: Plan, source: str, items: list[tuple[int, Any]]) -> None:
    results = run(plan, {source: items})
    needed = {id(cause.payload) for delivery in results.deliveries for cause in results.causes(delivery)}
    again = run(plan, {source: [item for item in items if id(item[1]) in needed]})
    assert outcome(again) == outcome(results)


def outcome(results: Results) -> list[Any]:
    """Sorted: which car comes first at one moment is not laid down, and depends on reports that are gone."""
    return sorted(
        (
            delivery.id.stream.name,
            delivery.ts,
            delivery.payload,
            sorted(cause.payload for cause in results.causes(delivery)),
        )
        for delivery in results.deliveries
    )


class Report(NamedTuple):
    car: int
    speed: int
    position: int
    ts: int


class Stopped(NamedTuple):
    car: int
    reports: int
    positions: int
    last_position: int


def linear_road(mode: str) -> Plan:
    plan = Plan("linear-road", provenance=mode)
    stopped = (
        plan.source("reports")
        .filter(lambda report: report.speed == 0)
        .key_by("car")
        .window(seconds(120), seconds(30))
        .aggregate(Count(), Distinct("position"), Last("position"), into=Stopped)
        .filter(lambda stop: stop.reports == 4 and stop.positions == 1)
    )
    stopped.sink("stopped")
    stopped.key_by("last_position").window(seconds(30)).aggregate(Distinct("car")).filter(
        lambda pair: pair[1] > 1
    ).sink("accidents")
    return plan


@given(st.lists(st.lists(st.sampled_from((None, (0, 1), (0, 1), (0, 2), (9, 1))), min_size=3, max_size=3), max_size=12))
def test_linear_road(ticks: list[list[tuple[int, int] | None]]) -> None:
    """One report per car and half minute, so that only a whole window has the four that make a stopped car."""
    reports = []
    for tick, cars in enumerate(ticks):
        for car, report in enumerate(cars):
            if report is not None:
                ts = seconds(30) * tick
                reports.append((ts, Report(car, *report, ts)))
    for mode in ("genealog", "segments"):
        assert_plan_gives_the_same_again(linear_road(mode), "reports", reports)


class Meter(NamedTuple):
    meter: int
    value: int
    hour: int


def blackout(mode: str) -> Plan:
    plan = Plan("blackout", provenance=mode)
    days = plan.source("readings").key_by("meter").window(hours(24)).aggregate(Sum("value"))
    silent = days.filter(lambda day: day[1] == 0)
    silent.window(hours(24)).aggregate(Count()).filter(lambda count: count > 1).sink("blackouts")
    return plan


def anomaly(mode: str) -> Plan:
    plan = Plan("anomaly", provenance=mode)
    readings = plan.source("readings")
    days = readings.key_by("meter").window(hours(24)).aggregate(Sum("value")).filter(lambda day: day[1] > 200)
    midnight = readings.filter(lambda reading: reading.hour % 24 == 0)
    days.key_by(lambda day: day[0]).join_window(
        midnight.key_by("meter"), hours(1), combine=lambda day, reading: abs(day[1] - reading.value)
    ).filter(lambda difference: difference > 200).sink("anomalies")
    return plan


@pytest.mark.parametrize("query", [blackout, anomaly])
@given(days=st.lists(st.lists(st.sampled_from((None, 0, 0, 8, 40)), min_size=3, max_size=3), min_size=1, max_size=4))
def test_smart_grid(query: Any, days: list[list[int | None]]) -> None:
    """No single reading exceeds 200: the midnight one alone, without the rest of its day, must not look like a day."""
    readings = [
        (hours(24 * day + hour), Meter(meter, value, 24 * day + hour))
        for day, meters in enumerate(days)
        for hour in range(0, 24, 3)
        for meter, value in enumerate(meters)
        if value is not None
    ]
    for mode in ("genealog", "segments"):
        assert_plan_gives_the_same_again(query(mode), "readings", readings)

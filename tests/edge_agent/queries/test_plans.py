"""What holds for all eight queries: their delay U, their names, their own data, and two of them in one plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edge_agent.queries import (
    linear_road,
    linear_road_accidents,
    linear_road_stopped,
    object_annotation,
    object_annotation_crossings,
    object_annotation_cycles,
    smart_grid,
    smart_grid_anomaly,
    smart_grid_blackout,
    vehicle_tracking,
    vehicle_tracking_highspeed,
    vehicle_tracking_in_area,
)
from edge_agent.stream import Plan, hours, run, seconds
from protocol.plan import PlanDocument, delays
from tests.edge_agent.queries.alerts import Items, alerts, delivered

Build = Callable[[str], Plan]
Generator = Callable[..., Iterator[tuple[int, Any]]]

# query, source, its generator, sink, U(source, sink)
QUERIES: list[tuple[Build, str, Generator, str, int]] = [
    (linear_road_stopped.build, "reports", linear_road.reports, "stopped", seconds(120)),
    (linear_road_accidents.build, "reports", linear_road.reports, "accidents", seconds(150)),
    (smart_grid_blackout.build, "readings", smart_grid.readings, "blackouts", hours(48)),
    (smart_grid_anomaly.build, "readings", smart_grid.readings, "anomalies", hours(25)),
    (vehicle_tracking_highspeed.build, "fixes", vehicle_tracking.fixes, "highspeed", seconds(135)),
    (vehicle_tracking_in_area.build, "fixes", vehicle_tracking.fixes, "in-area", seconds(300)),
    (object_annotation_cycles.build, "frames", object_annotation.frames, "cycles-in-front", seconds(6)),
    (object_annotation_crossings.build, "frames", object_annotation.frames, "crossed-pedestrians", seconds(2)),
]
NAMES = [query[3] for query in QUERIES]
every_query = pytest.mark.parametrize(("build", "source", "generator", "sink", "delay_ms"), QUERIES, ids=NAMES)
every_generator = pytest.mark.parametrize("generator", [query[2] for query in QUERIES[::2]])


@every_query
def test_u_follows_from_the_plan(build: Build, source: str, generator: Generator, sink: str, delay_ms: int) -> None:
    document = build("segments").document()
    assert delays(document) == {source: {sink: delay_ms}}
    assert PlanDocument.from_json(document.to_json()) == document


@every_query
def test_user_functions_have_names(build: Build, source: str, generator: Generator, sink: str, delay_ms: int) -> None:
    functions = [name for node in build("segments").document().nodes for name in node.functions.values()]
    assert functions
    assert not [name for name in functions if "<" in name]


@every_query
def test_a_query_brings_its_own_data(build: Build, source: str, generator: Generator, sink: str, delay_ms: int) -> None:
    own = run(build("segments")).of(sink)
    given = run(build("segments"), {source: generator()}).of(sink)
    assert own
    assert [(one.ts, one.payload, one.origins) for one in own] == [(one.ts, one.payload, one.origins) for one in given]
    assert max(one.ts - one.origins[0].ts for one in own) <= delay_ms


@every_generator
def test_generators_are_lazy_seeded_and_in_time_order(generator: Generator) -> None:
    assert next(generator())[0] == 0
    items = list(generator())
    times = [ts for ts, _ in items]
    assert times == sorted(times)
    assert items == list(generator(seed=1))
    assert items != list(generator(seed=2))


def both_linear_road(plan: Plan) -> None:
    stopped = linear_road.stopped_cars(plan.source("reports"))
    stopped.sink("stopped")
    linear_road_accidents.accidents(stopped).sink("accidents")


def both_smart_grid(plan: Plan) -> None:
    readings = plan.source("readings")
    totals = smart_grid.daily_totals(readings)
    smart_grid_blackout.blackouts(totals).sink("blackouts")
    smart_grid_anomaly.anomalies(totals, readings).sink("anomalies")


def both_vehicle_tracking(plan: Plan) -> None:
    fixes = plan.source("fixes")
    vehicle_tracking_highspeed.fast_cars(fixes).sink("highspeed")
    vehicle_tracking_in_area.long_stays(fixes).sink("in-area")


def both_object_annotation(plan: Plan) -> None:
    frames = plan.source("frames")
    object_annotation_cycles.cycles_in_front(frames).sink("cycles-in-front")
    object_annotation_crossings.crossed_pedestrians(frames).sink("crossed-pedestrians")


@pytest.mark.parametrize("mode", ["segments", "genealog"])
@pytest.mark.parametrize(
    ("both", "first"),
    [(both_linear_road, 0), (both_smart_grid, 2), (both_vehicle_tracking, 4), (both_object_annotation, 6)],
)
def test_two_queries_in_one_plan_do_not_disturb_each_other(both: Callable[[Plan], None], first: int, mode: str) -> None:
    """They share a source, and what they can of the operators: neither takes the other's tuples for its own."""
    _, source, generator, _, _ = QUERIES[first]
    items: Items = list(generator())
    plan = Plan("both", provenance=mode)
    both(plan)
    results = run(plan, {source: items})
    for build, _, _, sink, delay_ms in QUERIES[first : first + 2]:
        assert delays(plan.document())[source][sink] == delay_ms
        assert alerts(results, items, sink) == delivered(build("segments"), source, items, sink)

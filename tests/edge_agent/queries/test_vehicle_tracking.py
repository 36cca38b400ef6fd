"""High speed and stays in the area: what was planted, and a brute-force evaluation, against the engine."""

from __future__ import annotations

import math

import pytest

from edge_agent.queries import vehicle_tracking_highspeed, vehicle_tracking_in_area
from edge_agent.queries.vehicle_tracking import Fix, fixes, sprints, visits
from edge_agent.queries.vehicle_tracking_highspeed import fast_cars
from edge_agent.stream import Plan
from tests.edge_agent.queries.alerts import Alert, Items, check, check_replay, delivered, ends

SIZES = [(36, 900, 1), (15, 1_800, 7)]


def highspeed_by_brute_force(items: Items) -> list[Alert]:
    legs: dict[tuple[int, int], list[int]] = {}
    for index, (ts, fix) in enumerate(items):
        for end in ends(ts, 15_000, 5_000):
            legs.setdefault((end, fix.car), []).append(index)
    means: dict[tuple[int, int], list[tuple[float, list[int]]]] = {}
    for (ts, car), members in legs.items():
        (first_ms, first), (last_ms, last) = items[members[0]], items[members[-1]]
        if last_ms > first_ms:
            metres = math.hypot((last.lat - first.lat) * 110_574.307, (last.lon - first.lon) * 111_132.954)
            for end in ends(ts, 120_000, 60_000):
                means.setdefault((end, car), []).append((metres * 3_600 / (last_ms - first_ms), members))
    found: list[Alert] = []
    for (end, car), speeds in means.items():
        mean = math.fsum(kmh for kmh, _ in speeds) / len(speeds)
        if mean > 70:
            causes = {cause for _, members in speeds for cause in members}
            found.append((end, (car, round(mean, 6)), tuple(sorted(causes))))
    return found


def in_area_by_brute_force(items: Items) -> list[Alert]:
    groups: dict[tuple[int, int], list[int]] = {}
    for index, (ts, fix) in enumerate(items):
        if 39.912915 < fix.lat < 39.9206835 and 116.299221 < fix.lon < 116.3188575:
            for end in ends(ts, 300_000, 150_000):
                groups.setdefault((end, fix.car), []).append(index)
    return [(end, (car, len(members)), tuple(members)) for (end, car), members in groups.items() if len(members) > 9]


def fixes_of(items: Items, car: int, from_ms: int, to_ms: int) -> tuple[int, ...]:
    return tuple(index for index, (ts, fix) in enumerate(items) if fix.car == car and from_ms <= ts < to_ms)


def planted_highspeed(items: Items, cars: int, duration_s: int, seed: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """(timestamp, car, causes); the speeds themselves are only known to be between 70 and 91 km/h.

    The two minutes that end at T hold the speeds stamped T - 120 s to T - 5 s; the first begins 15 s earlier.
    """
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for sprint in sprints(cars, duration_s, seed):
        for end in range(sprint.from_ms + 120_000, sprint.to_ms + 1, 60_000):
            found.append((end, sprint.car, fixes_of(items, sprint.car, end - 135_000, end - 5_000)))
    return sorted(found)


def planted_in_area(items: Items, cars: int, duration_s: int, seed: int) -> list[Alert]:
    found: list[Alert] = []
    for visit in visits(cars, duration_s, seed):
        for end in range(150_000, duration_s * 1_000 + 300_000, 150_000):
            causes = fixes_of(items, visit.car, max(visit.from_ms, end - 300_000), min(visit.to_ms, end))
            if len(causes) > 9:
                found.append((end, (visit.car, len(causes)), causes))
    return found


@pytest.mark.parametrize(("cars", "duration_s", "seed"), SIZES)
def test_high_speed(cars: int, duration_s: int, seed: int) -> None:
    items = list(fixes(cars, duration_s, seed))
    expected = highspeed_by_brute_force(items)
    planted = planted_highspeed(items, cars, duration_s, seed)
    assert len(planted) >= 3
    assert sorted((ts, car, causes) for ts, (car, _), causes in expected) == planted
    assert all(70 < kmh < 91 and len(causes) >= 26 for _, (_, kmh), causes in expected)
    check(vehicle_tracking_highspeed.build, "fixes", "highspeed", items, expected)


@pytest.mark.parametrize(("cars", "duration_s", "seed"), SIZES)
def test_in_area(cars: int, duration_s: int, seed: int) -> None:
    items = list(fixes(cars, duration_s, seed))
    expected = planted_in_area(items, cars, duration_s, seed)
    assert len(expected) >= 3
    assert (
        len({alert[0] for _, alert, _ in expected}) < len({visit.car for visit in visits(cars, duration_s, seed)})
        or seed != 1
    )
    assert sorted(in_area_by_brute_force(items)) == sorted(expected)
    check(vehicle_tracking_in_area.build, "fixes", "in-area", items, expected)
    check_replay(vehicle_tracking_in_area.build, "fixes", "in-area", items, expected)


def northbound(kmh: float, times_s: list[int]) -> list[tuple[int, Fix]]:
    degrees_per_s = kmh / 3.6 / 110_574.307
    return [(second * 1_000, Fix(second * 1_000, 1, 40 + second * degrees_per_s, 116.3)) for second in times_s]


def test_one_fix_in_a_window_has_no_speed() -> None:
    # Fixes 20 s apart: no 15 s hold two of them.
    items = northbound(100, list(range(0, 240, 20)))
    assert delivered(vehicle_tracking_highspeed.build(), "fixes", items, "highspeed") == []


def test_first_and_last_are_by_event_time() -> None:
    """Fixes that come in pairs the wrong way round make no car turn back."""
    items = northbound(100, list(range(0, 240, 5)))
    swapped = [items[index ^ 1] for index in range(len(items))]
    results = []
    for arrival, disorder_ms in ((items, 0), (swapped, 5_000)):
        plan = Plan("disorder")
        fast_cars(plan.source("fixes", disorder_ms=disorder_ms)).sink("highspeed")
        results.append(delivered(plan, "fixes", arrival, "highspeed"))
    assert [(ts, alert) for ts, alert, _ in results[0]] == [(ts, alert) for ts, alert, _ in results[1]]
    assert {kmh for _, (_, kmh), _ in results[0]} == {100.0}

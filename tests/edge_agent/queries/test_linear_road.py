"""Stopped cars and accidents: the planted stops, and a brute-force evaluation, against the engine."""

from __future__ import annotations

import pytest

from edge_agent.queries import linear_road_accidents, linear_road_stopped
from edge_agent.queries.linear_road import (
    BALANCE_REQUEST,
    POSITION_REPORT,
    ROUND_MS,
    Place,
    Report,
    place_of_report,
    reports,
    stops,
)
from tests.edge_agent.queries.alerts import Alert, Items, check, check_replay, ends

SIZES = [(200, 60, 1), (45, 80, 7), (97, 120, 2024)]


def stopped_by_brute_force(items: Items) -> list[Alert]:
    groups: dict[tuple[int, int], list[int]] = {}
    for index, (ts, report) in enumerate(items):
        if report.type == 0 and report.speed == 0:
            for end in ends(ts, 120_000, 30_000):
                groups.setdefault((end, report.vid), []).append(index)
    found: list[Alert] = []
    for (end, vid), members in groups.items():
        places = {place_of_report(items[index][1]) for index in members}
        if len(members) == 4 and len(places) == 1:
            found.append((end, (vid, 4, 1, *places.pop()), tuple(members)))
    return found


def accidents_by_brute_force(items: Items) -> list[Alert]:
    groups: dict[tuple[int, Place], list[Alert]] = {}
    for alert in stopped_by_brute_force(items):
        ts, (_, _, _, *place), _ = alert
        for end in ends(ts, 30_000, 30_000):
            xway, lane, direction, segment, position = place
            groups.setdefault((end, (xway, lane, direction, segment, position)), []).append(alert)
    found: list[Alert] = []
    for (end, where), members in groups.items():
        vids = {vid for _, (vid, *_), _ in members}
        if len(vids) > 1:
            causes = {cause for _, _, causes in members for cause in causes}
            found.append((end, (*where, len(vids)), tuple(sorted(causes))))
    return found


def index_of_reports(items: Items) -> dict[tuple[int, int], int]:
    return {(report.vid, ts): i for i, (ts, report) in enumerate(items) if report.type == POSITION_REPORT}


def planted_stopped(items: Items, cars: int, rounds: int, seed: int) -> list[Alert]:
    at = index_of_reports(items)
    found: list[Alert] = []
    for stop in stops(cars, rounds, seed):
        for number in range(stop.reports - 3):
            first_ms = stop.first_ms + number * ROUND_MS
            end = first_ms // ROUND_MS * ROUND_MS + 4 * ROUND_MS
            causes = tuple(at[stop.vid, first_ms + k * ROUND_MS] for k in range(4))
            found.append((end, (stop.vid, 4, 1, *stop.place), causes))
    return found


def planted_accidents(items: Items, cars: int, rounds: int, seed: int) -> list[Alert]:
    at = index_of_reports(items)
    planted = stops(cars, rounds, seed)
    found: list[Alert] = []
    for number, one in enumerate(planted):
        for other in planted[:number]:
            if one.place != other.place:
                continue
            begin = max(one.first_ms // ROUND_MS, other.first_ms // ROUND_MS)
            end = min(one.first_ms // ROUND_MS + one.reports, other.first_ms // ROUND_MS + other.reports)
            for first in range(begin, end - 3):
                moments = [
                    (stop.vid, (first + k) * ROUND_MS + stop.first_ms % ROUND_MS)
                    for stop in (one, other)
                    for k in range(4)
                ]
                causes = tuple(sorted(at[moment] for moment in moments))
                found.append(((first + 5) * ROUND_MS, (*one.place, 2), causes))
    return found


@pytest.mark.parametrize(("cars", "rounds", "seed"), SIZES)
def test_stopped_cars(cars: int, rounds: int, seed: int) -> None:
    items = list(reports(cars, rounds, seed))
    expected = planted_stopped(items, cars, rounds, seed)
    assert len(expected) >= 10
    assert all(len(causes) == 4 for _, _, causes in expected)
    assert sorted(stopped_by_brute_force(items)) == sorted(expected)
    check(linear_road_stopped.build, "reports", "stopped", items, expected)
    check_replay(linear_road_stopped.build, "reports", "stopped", items, expected)


@pytest.mark.parametrize(("cars", "rounds", "seed"), SIZES)
def test_accidents(cars: int, rounds: int, seed: int) -> None:
    items = list(reports(cars, rounds, seed))
    expected = planted_accidents(items, cars, rounds, seed)
    assert expected
    assert all(len(causes) == 8 for _, _, causes in expected)
    assert sorted(accidents_by_brute_force(items)) == sorted(expected)
    check(linear_road_accidents.build, "reports", "accidents", items, expected)
    check_replay(linear_road_accidents.build, "reports", "accidents", items, expected)


def standing(vid: int, first_ms: int, count: int, direction: int = 0) -> list[tuple[int, Report]]:
    times = [first_ms + k * ROUND_MS for k in range(count)]
    return [(ts, Report(POSITION_REPORT, vid, 0, 0, 1, direction, 10, 52_900)) for ts in times]


def in_time_order(*tracks: list[tuple[int, Report]]) -> list[tuple[int, Report]]:
    merged: list[tuple[int, Report]] = []
    for track in tracks:
        merged += track
    return sorted(merged, key=lambda item: item[0])


def test_a_report_on_the_boundary_belongs_to_the_window_that_it_opens() -> None:
    # |0        |30       |60       |90       |120
    #  a         b         c         d        [ 0 s, 120 s) holds all four; d @ 120 s would make the next window
    items = standing(1, 0, 4)
    check(
        linear_road_stopped.build,
        "reports",
        "stopped",
        items,
        [(120_000, (1, 4, 1, 0, 1, 0, 10, 52_900), (0, 1, 2, 3))],
    )


def test_a_window_with_a_repeated_report_has_five_and_is_no_stop() -> None:
    # |-30     |0       |30      |60      |90      |120
    #           a b      c        d        e              [-30 s, 90 s) holds four, [0 s, 120 s) five
    items = in_time_order(standing(1, 0, 4), standing(1, 5_000, 1))
    expected = [(90_000, (1, 4, 1, 0, 1, 0, 10, 52_900), (0, 1, 2, 3))]
    check(linear_road_stopped.build, "reports", "stopped", items, expected)


def test_a_balance_request_is_no_report_of_a_standing_car() -> None:
    request = [(95_000, Report(BALANCE_REQUEST, 1, 0, 0, 1, 0, 10, 52_900))]
    check(linear_road_stopped.build, "reports", "stopped", in_time_order(standing(1, 0, 3), request), [])


def test_three_cars_in_one_accident() -> None:
    items = in_time_order(standing(1, 1_000, 4), standing(2, 2_000, 4), standing(3, 2_000, 4))
    expected = [(150_000, (0, 1, 0, 10, 52_900, 3), tuple(range(12)))]
    check(linear_road_accidents.build, "reports", "accidents", items, expected)


def test_cars_on_opposite_sides_of_one_position_are_no_accident() -> None:
    items = in_time_order(standing(1, 1_000, 6), standing(2, 2_000, 6, direction=1))
    check(linear_road_accidents.build, "reports", "accidents", items, [])


def test_cars_that_stopped_one_after_the_other_are_no_accident() -> None:
    items = in_time_order(standing(1, 1_000, 4), standing(2, 32_000, 4))
    check(linear_road_accidents.build, "reports", "accidents", items, [])


def test_about_one_report_in_seventy_is_of_a_standing_car() -> None:
    items = list(reports(300, 100))
    still = sum(report.type == POSITION_REPORT and report.speed == 0 for _, report in items)
    assert 0.01 < still / len(items) < 0.02


def test_stops_need_room() -> None:
    with pytest.raises(ValueError, match="at least 30 cars and 30 rounds, not 5 and 60"):
        stops(cars=5)

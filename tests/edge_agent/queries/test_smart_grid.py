"""Blackouts and anomalies: the planted days, and a brute-force evaluation, against the engine."""

from __future__ import annotations

import pytest

from edge_agent.queries import smart_grid_anomaly, smart_grid_blackout
from edge_agent.queries.smart_grid import CATCH_UP, DARK, HIGH, Day, Reading, planted, readings
from tests.edge_agent.queries.alerts import Alert, Items, check, check_replay, ends

HOUR = 3_600_000
DAY = 24 * HOUR
SIZES = [(60, 8, 1), (20, 5, 7), (77, 5, 2024)]


def totals_by_brute_force(items: Items) -> list[Alert]:
    groups: dict[tuple[int, int], list[int]] = {}
    for index, (ts, reading) in enumerate(items):
        for end in ends(ts, DAY, DAY):
            groups.setdefault((end, reading.meter), []).append(index)
    return [
        (end, (meter, sum(items[index][1].value for index in members)), tuple(members))
        for (end, meter), members in groups.items()
    ]


def blackouts_by_brute_force(items: Items) -> list[Alert]:
    groups: dict[int, list[Alert]] = {}
    for total in totals_by_brute_force(items):
        ts, (_, value), _ = total
        if value == 0:
            for end in ends(ts, DAY, DAY):
                groups.setdefault(end, []).append(total)
    return [
        (end, (len(members),), tuple(sorted(cause for _, _, causes in members for cause in causes)))
        for end, members in groups.items()
        if len(members) > 7
    ]


def anomalies_by_brute_force(items: Items) -> list[Alert]:
    midnights: dict[int, list[int]] = {}
    for index, (_, reading) in enumerate(items):
        if (reading.hour + 1) % 24 == 0:
            midnights.setdefault(reading.meter, []).append(index)
    found: list[Alert] = []
    for ts, (meter, value), causes in totals_by_brute_force(items):
        for index in midnights.get(meter, []):
            midnight_ts, reading = items[index]
            difference = abs(value - reading.value)
            if value > 200 and abs(ts - midnight_ts) <= HOUR and difference > 200:
                found.append((max(ts, midnight_ts), (meter, difference), tuple(sorted({*causes, index}))))
    return found


def readings_of(items: Items, days: list[Day]) -> tuple[int, ...]:
    wanted = {(day.day, day.meter) for day in days}
    return tuple(index for index, (_, reading) in enumerate(items) if (reading.hour // 24, reading.meter) in wanted)


def planted_blackouts(items: Items, meters: int, days: int, seed: int) -> list[Alert]:
    found: list[Alert] = []
    for number in range(days):
        dark = [day for day in planted(meters, days, seed) if day.day == number and day.kind == DARK]
        if len(dark) >= 8:
            found.append(((number + 2) * DAY, (len(dark),), readings_of(items, dark)))
    return found


def planted_anomalies(items: Items, meters: int, days: int, seed: int) -> list[Alert]:
    found: list[Alert] = []
    for day in planted(meters, days, seed):
        if day.kind == HIGH:
            causes = readings_of(items, [day])
            other_hours = sum(items[index][1].value for index in causes[:23])
            found.append(((day.day + 1) * DAY, (day.meter, other_hours), causes))
    return found


@pytest.mark.parametrize(("meters", "days", "seed"), SIZES)
def test_blackouts(meters: int, days: int, seed: int) -> None:
    items = list(readings(meters, days, seed))
    expected = planted_blackouts(items, meters, days, seed)
    assert len(expected) >= 2
    assert all(len(causes) == 24 * count for _, (count,), causes in expected)
    assert len(expected[0][2]) == 192
    assert sorted(blackouts_by_brute_force(items)) == sorted(expected)
    check(smart_grid_blackout.build, "readings", "blackouts", items, expected)
    check_replay(smart_grid_blackout.build, "readings", "blackouts", items, expected)


@pytest.mark.parametrize(("meters", "days", "seed"), SIZES)
def test_anomalies(meters: int, days: int, seed: int) -> None:
    items = list(readings(meters, days, seed))
    expected = planted_anomalies(items, meters, days, seed)
    assert len(expected) == days
    assert all(len(causes) == 24 for _, _, causes in expected)
    assert sorted(anomalies_by_brute_force(items)) == sorted(expected)
    check(smart_grid_anomaly.build, "readings", "anomalies", items, expected)
    check_replay(smart_grid_anomaly.build, "readings", "anomalies", items, expected)


def days_of(*values: list[int], meter: int = 3) -> list[tuple[int, Reading]]:
    hourly = [value for day in values for value in day]
    return [(hour * HOUR, Reading(hour, meter, value)) for hour, value in enumerate(hourly)]


def test_the_first_reading_of_the_next_day_is_not_the_midnight_of_this_one() -> None:
    # hour 22  23  24(=0)  1      the total of the first day is stamped 24:00, where hour 0 of the next day lies
    items = days_of([10] * 23 + [5], [190] + [0] * 23)
    check(smart_grid_anomaly.build, "readings", "anomalies", items, [(DAY, (3, 230), tuple(range(24)))])


def test_a_meter_that_only_catches_up_at_midnight_is_high_but_no_anomaly() -> None:
    check(smart_grid_anomaly.build, "readings", "anomalies", days_of([0] * 23 + [240]), [])
    assert any(day.kind == CATCH_UP for day in planted())


def test_seven_dark_meters_are_no_blackout() -> None:
    dark = [(hour * HOUR, Reading(hour, meter, 0)) for hour in range(24) for meter in range(8)]
    check(smart_grid_blackout.build, "readings", "blackouts", dark, [(2 * DAY, (8,), tuple(range(192)))])
    seven = [item for item in dark if item[1].meter < 7]
    check(smart_grid_blackout.build, "readings", "blackouts", seven, [])


def test_dark_meters_on_two_days_are_not_added_up() -> None:
    items = [
        (hour * HOUR, Reading(hour, meter, 0)) for hour in range(48) for meter in range(8) if (meter < 4) == (hour < 24)
    ]
    check(smart_grid_blackout.build, "readings", "blackouts", items, [])


def test_planted_days_need_room() -> None:
    with pytest.raises(ValueError, match="at least 20 meters, not 19"):
        planted(meters=19)

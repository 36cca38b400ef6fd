"""Smart Grid: hourly readings of electricity meters, and the daily total that both queries begin with.

All meters report on the hour. An ordinary meter uses 1 to 8 units an hour, so at most 192 a day and never nothing. The
planted days are the others; `Day` says what they look like.

`readings(meters=1_000, days=21)` makes half a million tuples.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from edge_agent.stream import Stream, Sum, hours

HOUR_MS: Final = 3_600_000
HOURS: Final = 24
LAST_HOUR: Final = 23

# Ordinary use, least and most, for every hour of the day.
LEAST: Final = (1, 1, 1, 1, 1, 1, 2, 3, 3, 2, 2, 2, 3, 3, 2, 2, 3, 4, 4, 4, 4, 3, 2, 1)
MOST: Final = (2, 2, 2, 2, 2, 3, 5, 7, 7, 5, 4, 5, 6, 6, 5, 5, 6, 8, 8, 8, 8, 7, 5, 3)

# What a planted day of one meter is.
DARK: Final = 1  # no consumption at all
FLICKER: Final = 2  # dark but for one hour: not a blackout
HIGH: Final = 3  # more than 200 units without the last hour: an anomaly
CATCH_UP: Final = 4  # more than 200 units, nearly all of them in the last hour: a total above 200, yet no anomaly

# How many meters are dark on the first day, the second, ...; seven are one too few for a blackout.
DARK_METERS: Final = (8, 7, 2, 10)


@dataclass
class Reading:
    hour: int
    meter: int
    value: int


@dataclass
class DayTotal:
    meter: int
    value: int


@dataclass
class Day:
    """A planted day of one meter; `kind` is one of DARK, FLICKER, HIGH and CATCH_UP."""

    day: int
    meter: int
    kind: int


def meter_of(reading: Reading) -> int:
    return reading.meter


def value_of(reading: Reading) -> int:
    return reading.value


def total_of_day(meter: int, value: int) -> DayTotal:
    return DayTotal(meter, value)


def daily_totals(readings: Stream[Reading]) -> Stream[DayTotal]:
    """What every meter used in a day, stamped with the midnight that ends the day."""
    return (
        readings.key_by(meter_of)
        .window(hours(24))
        .aggregate(Sum(value_of), into=total_of_day, name="per meter and day")
    )


def planted(meters: int = 60, days: int = 8, seed: int = 1) -> list[Day]:
    """What `readings` of the same arguments plants; a meter has at most one of these kinds on a day."""
    if meters < 20:
        raise ValueError(f"a blackout needs room: at least 20 meters, not {meters}")
    rng = random.Random(seed)
    found: list[Day] = []
    few = 1 + meters // 500
    for day in range(days):
        dark = DARK_METERS[day % len(DARK_METERS)]
        kinds = [DARK] * dark + [FLICKER] * few + [HIGH] * few + [CATCH_UP] * few
        for kind, meter in zip(kinds, rng.sample(range(meters), len(kinds)), strict=True):
            found.append(Day(day, meter, kind))
    return found


def readings(meters: int = 60, days: int = 8, seed: int = 1) -> Iterator[tuple[int, Reading]]:
    """Whole days, hour by hour, meter by meter."""
    kinds: list[dict[int, int]] = [{} for _ in range(days)]
    for item in planted(meters, days, seed):
        kinds[item.day][item.meter] = item.kind
    rng = random.Random(seed)
    for hour in range(days * HOURS):
        ts = hour * HOUR_MS
        of_day = hour % HOURS
        least = LEAST[of_day]
        spread = MOST[of_day] - least + 1
        today = kinds[hour // HOURS]
        for meter in range(meters):
            value = least + int(spread * rng.random())
            if meter in today:
                value = _planted_value(today[meter], of_day, value)
            yield ts, Reading(hour, meter, value)


def _planted_value(kind: int, of_day: int, ordinary: int) -> int:
    if kind == DARK:
        return 0
    if kind == FLICKER:
        return 1 if of_day == 12 else 0
    if kind == HIGH:
        return 9 + ordinary if of_day < LAST_HOUR else 30 + ordinary
    return 0 if of_day < LAST_HOUR else 200 + ordinary

"""Vehicle Tracking: GPS fixes of a fleet in Beijing.

A car sends a fix every 1, 2, 3 or 5 seconds. Every ninth car is a visitor of the area around Yuyuantan Park that the
second query watches: it waits south of it, drives in, stays, and drives out again. Every ninth is a speeder: now and
then it takes the ring road. All the others, and the speeders between their sprints, crawl through the city north of
the area, stand at lights, and never exceed 35 km/h.

Distances are reckoned as Ananke's code does it, with a degree of longitude as long as at the equator. At Beijing's
latitude it is a quarter shorter, so on real traces eastbound speeds come out too high; the constants are kept to stay
comparable.

`fixes(cars=1_000, duration_s=1_000)` makes half a million tuples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

METRES_PER_LAT: Final = 110_574.307
METRES_PER_LON: Final = 111_132.954

# The area of the second query, borders excluded.
AREA_SOUTH: Final = 39.912915
AREA_NORTH: Final = 39.9206835
AREA_WEST: Final = 116.299221
AREA_EAST: Final = 116.3188575

# Where the traffic is.
CITY_SOUTH: Final = 39.93
CITY_NORTH: Final = 40.03
CITY_WEST: Final = 116.2
CITY_EAST: Final = 116.45

INTERVALS_S: Final = (1, 2, 3, 5)
SLOT_S: Final = 900  # a visitor visits and a speeder speeds once per slot
VISITOR: Final = 4
SPEEDER: Final = 7
KINDS: Final = 9


@dataclass
class Fix:
    ts_ms: int
    car: int
    lat: float
    lon: float


@dataclass
class Sprint:
    """A planted stretch of 85 to 91 km/h, straight on, from one full minute to another."""

    car: int
    from_ms: int
    to_ms: int


@dataclass
class Visit:
    """A planted stay: exactly the car's fixes with from_ms <= ts < to_ms are inside the area."""

    car: int
    from_ms: int
    to_ms: int


def interval_s(car: int) -> int:
    return INTERVALS_S[car % len(INTERVALS_S)]


def sprints(cars: int = 36, duration_s: int = 900, seed: int = 1) -> list[Sprint]:
    """What `fixes` of the same arguments plants for the first query.

    Sprints begin and end on full minutes, and are so fast, and everything else so slow, that the mean of two minutes
    is above 70 km/h if they lie inside a sprint, and below if they only overlap with one.
    """
    rng = random.Random(seed)
    found: list[Sprint] = []
    for slot in range(0, duration_s - SLOT_S + 1, SLOT_S):
        for car in range(SPEEDER, cars, KINDS):
            start = slot + 60 * rng.randrange(2, 5)
            found.append(Sprint(car, start * 1_000, (start + 60 * rng.randrange(1, 7)) * 1_000))
    return found


def visits(cars: int = 36, duration_s: int = 900, seed: int = 1) -> list[Visit]:
    """What `fixes` of the same arguments plants for the second query: some visits are long, some a few fixes only."""
    rng = random.Random(seed)
    found: list[Visit] = []
    for slot in range(0, duration_s - SLOT_S + 1, SLOT_S):
        for car in range(VISITOR, cars, KINDS):
            start = slot + rng.randrange(100, 200)
            length = rng.randrange(8, 30) if rng.random() < 0.4 else rng.randrange(60, 480)
            found.append(Visit(car, start * 1_000, (start + length) * 1_000))
    return found


def fixes(cars: int = 36, duration_s: int = 900, seed: int = 1) -> Iterator[tuple[int, Fix]]:
    """The fleet's fixes, second by second, car by car."""
    sprinting: dict[int, list[Sprint]] = {}
    for sprint in sprints(cars, duration_s, seed):
        sprinting.setdefault(sprint.car, []).append(sprint)
    visiting: dict[int, list[Visit]] = {}
    for visit in visits(cars, duration_s, seed):
        visiting.setdefault(visit.car, []).append(visit)
    rng = random.Random(seed)
    fleet = [CityCar(car, sprinting.get(car, []), rng) for car in range(cars)]
    # After 30 seconds the same cars are due again.
    due = [[car for car in range(cars) if second % interval_s(car) == car % interval_s(car)] for second in range(30)]
    for second in range(duration_s):
        ts = second * 1_000
        for car in due[second % 30]:
            if car % KINDS == VISITOR:
                yield ts, Fix(ts, car, _visitor_lat(visiting.get(car, []), ts), (AREA_WEST + AREA_EAST) / 2)
            else:
                city_car = fleet[car]
                city_car.drive(ts)
                yield ts, Fix(ts, car, city_car.lat, city_car.lon)


def _visitor_lat(visits: list[Visit], ts: int) -> float:
    """A visitor crosses the southern border at 25 km/h, half a second before `from_ms` and before `to_ms`."""
    depth_m = -300.0
    for visit in visits:
        inside_s = min(ts - visit.from_ms + 500, visit.to_ms - 500 - ts) / 1_000
        depth_m = max(depth_m, min(inside_s * 25 / 3.6, 430.0))
    return AREA_SOUTH + depth_m / METRES_PER_LAT


class CityCar:
    """A car in the city's traffic: a heading and a speed that change now and then."""

    def __init__(self, car: int, sprints: list[Sprint], rng: random.Random) -> None:
        self.rng = rng
        self.sprints = sprints
        self.step_s = interval_s(car)
        self.lat = CITY_SOUTH + (CITY_NORTH - CITY_SOUTH) * rng.random()
        self.lon = CITY_WEST + (CITY_EAST - CITY_WEST) * rng.random()
        self.speed_kmh = 0.0
        self.heading = 0.0
        self.sprinting = False

    def drive(self, ts: int) -> None:
        """Go as far as one does between two fixes, to where the car is at `ts`."""
        was_sprinting = self.sprinting
        self.sprinting = False
        for sprint in self.sprints:
            if sprint.from_ms < ts <= sprint.to_ms:
                self.sprinting = True
        if self.sprinting:
            if not was_sprinting:  # to where there is more road
                self.heading = 0.0 if self.lon < (CITY_WEST + CITY_EAST) / 2 else math.pi
            self.speed_kmh = 85 + 6 * self.rng.random()
        elif was_sprinting or self.rng.random() < 0.1:
            self.heading = 2 * math.pi * self.rng.random()
            self.speed_kmh = max(0.0, 50 * self.rng.random() - 15)
        if self.speed_kmh > 0:
            metres = self.speed_kmh / 3.6 * self.step_s
            lat = self.lat + metres * math.sin(self.heading) / METRES_PER_LAT
            lon = self.lon + metres * math.cos(self.heading) / METRES_PER_LON
            self.lat = min(max(lat, CITY_SOUTH), CITY_NORTH)
            self.lon = min(max(lon, CITY_WEST), CITY_EAST)

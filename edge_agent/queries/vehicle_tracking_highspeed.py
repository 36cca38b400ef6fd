"""Vehicle Tracking, high speed: cars whose mean speed over two minutes is above 70 km/h (Ananke's Q1).

Each 15 s of a car's fixes give one speed, from the first fix to the last by event time; Ananke's code takes them by
arrival, so that a late fix turns a car back or makes it infinitely fast, which is a bug and not kept. A window with
one fix, or with several at one moment, has no speed and is dropped. The speeds of a standing car are equal values at
different times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge_agent.queries.vehicle_tracking import METRES_PER_LAT, METRES_PER_LON, Fix, fixes
from edge_agent.stream import First, Last, Mean, Plan, Stream, seconds


@dataclass
class Leg:
    first: Fix
    last: Fix


@dataclass
class Speed:
    car: int
    kmh: float


def car_of(fix: Fix) -> int:
    return fix.car


def leg(car: int, first: Fix, last: Fix) -> Leg:
    return Leg(first, last)


def takes_time(leg: Leg) -> bool:
    return leg.last.ts_ms > leg.first.ts_ms


def speed(leg: Leg) -> Speed:
    north_m = (leg.last.lat - leg.first.lat) * METRES_PER_LAT
    east_m = (leg.last.lon - leg.first.lon) * METRES_PER_LON
    metres = math.sqrt(north_m * north_m + east_m * east_m)
    return Speed(leg.first.car, metres / (leg.last.ts_ms - leg.first.ts_ms) * 1_000 * 3.6)


def mean_speed(car: int, kmh: float) -> Speed:
    return Speed(car, kmh)


def is_fast(speed: Speed) -> bool:
    return speed.kmh > 70


def fast_cars(fixes: Stream[Fix]) -> Stream[Speed]:
    return (
        fixes.key_by(car_of)
        .window(seconds(15), seconds(5))
        .aggregate(First(), Last(), into=leg, name="legs")
        .filter(takes_time, name="takes time")
        .map(speed, name="speed")
        .key_by("car")
        .window(seconds(120), seconds(60))
        .aggregate(Mean("kmh"), into=mean_speed, name="mean speed")
        .filter(is_fast, name="fast")
    )


def build(provenance: str = "segments") -> Plan:
    plan = Plan("vehicle-tracking-highspeed", provenance=provenance)
    fast_cars(plan.source("fixes", fixes)).sink("highspeed")
    return plan

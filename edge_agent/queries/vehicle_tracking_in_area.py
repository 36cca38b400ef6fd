"""Vehicle Tracking, in area: more than nine fixes around Yuyuantan Park within five minutes (Ananke's Q2).

The map drops the time of a fix, as in Ananke's code, so the positions of a car that stands in the area are equal
values.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.queries.vehicle_tracking import AREA_EAST, AREA_NORTH, AREA_SOUTH, AREA_WEST, Fix, fixes
from edge_agent.stream import Count, Plan, Stream, seconds


@dataclass
class Position:
    car: int
    lat: float
    lon: float


@dataclass
class Stay:
    car: int
    fixes: int


def position(fix: Fix) -> Position:
    return Position(fix.car, fix.lat, fix.lon)


def is_inside(position: Position) -> bool:
    return AREA_SOUTH < position.lat < AREA_NORTH and AREA_WEST < position.lon < AREA_EAST


def stay(car: int, fixes: int) -> Stay:
    return Stay(car, fixes)


def is_long(stay: Stay) -> bool:
    return stay.fixes > 9


def long_stays(fixes: Stream[Fix]) -> Stream[Stay]:
    return (
        fixes.map(position, name="position")
        .filter(is_inside, name="inside")
        .key_by("car")
        .window(seconds(300), seconds(150))
        .aggregate(Count(), into=stay, name="per car")
        .filter(is_long, name="long stay")
    )


def build(provenance: str = "segments") -> Plan:
    plan = Plan("vehicle-tracking-in-area", provenance=provenance)
    long_stays(plan.source("fixes", fixes)).sink("in-area")
    return plan

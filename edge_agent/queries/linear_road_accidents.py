"""Linear Road, accidents: two or more cars stopped at one place at the same time (GeneaLog's Q2).

The cars are grouped by their whole place. Ananke's code groups by the position alone and so merges cars that stand on
other expressways, in other lanes or on the other side of the road; that is a bug and not kept.

A stopped car is stamped with the end T of its two minutes, which opens the window [T, T + 30 s): only cars that were
seen standing through the same two minutes meet, and the accident is stamped T + 30 s. Two cars make eight sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.queries.linear_road import Place, StoppedCar, reports, stopped_cars
from edge_agent.stream import Distinct, Plan, Stream, seconds


@dataclass
class Accident:
    xway: int
    lane: int
    direction: int
    segment: int
    position: int
    cars: int


def place_of_stop(car: StoppedCar) -> Place:
    return (car.xway, car.lane, car.direction, car.segment, car.position)


def at_place(place: Place, cars: int) -> Accident:
    xway, lane, direction, segment, position = place
    return Accident(xway, lane, direction, segment, position, cars)


def is_accident(accident: Accident) -> bool:
    return accident.cars > 1


def accidents(stopped: Stream[StoppedCar]) -> Stream[Accident]:
    return (
        stopped.key_by(place_of_stop)
        .window(seconds(30))
        .aggregate(Distinct("vid"), into=at_place, name="per place")
        .filter(is_accident, name="several cars")
    )


def build(provenance: str = "segments") -> Plan:
    plan = Plan("linear-road-accidents", provenance=provenance)
    accidents(stopped_cars(plan.source("reports", reports))).sink("accidents")
    return plan

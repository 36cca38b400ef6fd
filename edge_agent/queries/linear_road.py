"""Linear Road: position reports of cars on expressways, and the operators that both queries begin with.

Every car reports once per round of 30 s, in the second of the round that its number gives it. Most cars move; the
planted stops say which do not, where, and for how long. A standing car repeats itself, so its reports are equal
values: only identity tells them apart. Real traces hold requests for the account balance as well; a few are mixed in.

`reports(cars=1_000, rounds=500)` makes half a million tuples.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from edge_agent.stream import Count, Distinct, Last, Stream, seconds

POSITION_REPORT: Final = 0
BALANCE_REQUEST: Final = 2

ROUND_MS: Final = 30_000
FEET_PER_SEGMENT: Final = 5_280
ROAD_FEET: Final = 100 * FEET_PER_SEGMENT
XWAYS: Final = 2
LANES: Final = 3
STANDING_SHARE: Final = 0.015
REQUEST_SHARE: Final = 0.01

# (xway, lane, direction, segment, position): all of it. A position alone is the same number on every road and side.
Place = tuple[int, int, int, int, int]


@dataclass
class Report:
    """One tuple of the trace; its time is the tuple's."""

    type: int
    vid: int
    speed: int
    xway: int
    lane: int
    direction: int
    segment: int
    position: int


@dataclass
class StoppedCar:
    """A car's standing reports in one window, and where the last of them was."""

    vid: int
    reports: int
    places: int
    xway: int
    lane: int
    direction: int
    segment: int
    position: int


@dataclass
class Stop:
    """A planted stop: `reports` reports of speed zero, from `first_ms` on. Two cars at one place are an accident."""

    vid: int
    first_ms: int
    reports: int
    place: Place


def is_standing(report: Report) -> bool:
    return report.type == POSITION_REPORT and report.speed == 0


def place_of_report(report: Report) -> Place:
    return (report.xway, report.lane, report.direction, report.segment, report.position)


def summarise(vid: int, reports: int, places: int, last: Report) -> StoppedCar:
    return StoppedCar(vid, reports, places, last.xway, last.lane, last.direction, last.segment, last.position)


def is_stopped(car: StoppedCar) -> bool:
    return car.reports == 4 and car.places == 1


def stopped_cars(reports: Stream[Report]) -> Stream[StoppedCar]:
    """Cars with exactly four standing reports, all at one place, in 120 s; looked at every 30 s."""
    return (
        reports.filter(is_standing, name="standing")
        .key_by("vid")
        .window(seconds(120), seconds(30))
        .aggregate(Count(), Distinct(place_of_report), Last(), into=summarise, name="per car")
        .filter(is_stopped, name="four at one place")
    )


def phase_ms(vid: int) -> int:
    """When in its round a car reports; whole seconds, as in the benchmark's own traces."""
    return vid % 30 * 1_000


def stops(cars: int = 200, rounds: int = 60, seed: int = 1, standing: float = STANDING_SHARE) -> list[Stop]:
    """What `reports` of the same arguments plants.

    Stops of four reports and more raise alerts, alone or as the accident of two cars. Three kinds must not: halts of
    one to three reports, a car that creeps on (two and two reports at two places), and two cars on opposite sides of
    the same position, which are stopped but no accident.
    """
    if cars < 30 or rounds < 30:
        raise ValueError(f"the stops need room: at least 30 cars and 30 rounds, not {cars} and {rounds}")
    rng = random.Random(seed)
    planted: list[Stop] = []
    busy: set[tuple[int, int]] = set()
    spots: set[int] = set()
    wanted = int(cars * rounds * standing)
    kind = 0
    tries = 0
    while wanted > 0:
        tries += 1
        if tries > 100 * cars * rounds:
            raise ValueError(f"no room for so many stops: {standing:.0%} of {cars} cars x {rounds} rounds")
        first = rng.randrange(1, rounds - 16)
        one, other = rng.sample(range(cars), 2)
        spot = rng.randrange(ROAD_FEET)
        # With a free round on either side, so that no window of four rounds sees two stops of one car.
        rounds_taken = {(vid, near) for vid in (one, other) for near in range(first - 1, first + 16)}
        if spot in spots or spot + 50 in spots or rounds_taken & busy:
            continue
        xway, lane, direction = rng.randrange(XWAYS), rng.randrange(1, LANES + 1), rng.randrange(2)
        place = (xway, lane, direction, spot // FEET_PER_SEGMENT, spot)
        length = rng.randrange(4, 11)
        fresh: list[Stop] = []
        if kind == 0:  # an accident: the second car runs into the first, up to two rounds later
            gap = rng.randrange(3)
            fresh.append(_stop(one, first, length + gap, place))
            fresh.append(_stop(other, first + gap, length, place))
        elif kind == 1:
            fresh.append(_stop(one, first, rng.randrange(1, 4), place))
        elif kind == 2:
            fresh.append(_stop(one, first, 2, place))
            ahead = (spot + 50) % ROAD_FEET
            fresh.append(_stop(one, first + 2, 2, (xway, lane, direction, ahead // FEET_PER_SEGMENT, ahead)))
            spots.add(ahead)
        elif kind == 3:
            fresh.append(_stop(one, first, length, place))
            fresh.append(_stop(other, first, length, (xway, lane, 1 - direction, spot // FEET_PER_SEGMENT, spot)))
        else:
            fresh.append(_stop(one, first, length, place))
        kind = (kind + 1) % 6
        planted += fresh
        busy |= rounds_taken
        spots.add(spot)
        for stop in fresh:
            wanted -= stop.reports
    return planted


def _stop(vid: int, first_round: int, length: int, place: Place) -> Stop:
    return Stop(vid, first_round * ROUND_MS + phase_ms(vid), length, place)


def reports(
    cars: int = 200, rounds: int = 60, seed: int = 1, standing: float = STANDING_SHARE
) -> Iterator[tuple[int, Report]]:
    """The traffic, in time order; `standing` is the share of reports that come from planted stops.

    A car that stops is put at its planted place and drives on from there.
    """
    beginning: dict[int, list[Stop]] = {}
    for stop in stops(cars, rounds, seed, standing):
        beginning.setdefault(stop.first_ms // ROUND_MS, []).append(stop)
    rng = random.Random(seed)
    order = sorted(range(cars), key=phase_ms)
    cruising = [rng.randrange(35, 90) for _ in range(cars)]
    xway = [rng.randrange(XWAYS) for _ in range(cars)]
    lane = [rng.randrange(1, LANES + 1) for _ in range(cars)]
    direction = [rng.randrange(2) for _ in range(cars)]
    position = [rng.randrange(ROAD_FEET) for _ in range(cars)]
    still = [0] * cars  # reports still to come from where the car stands
    for index in range(rounds):
        for stop in beginning.get(index, []):
            vid = stop.vid
            xway[vid], lane[vid], direction[vid], _, position[vid] = stop.place
            still[vid] = stop.reports
        round_ms = index * ROUND_MS
        for vid in order:
            ts = round_ms + phase_ms(vid)
            if still[vid]:
                still[vid] -= 1
                speed = 0
            else:
                chance = rng.random()
                speed = cruising[vid] + int(chance * 10)
                # miles per hour for 30 s, in feet
                moved = speed * 44 if direction[vid] == 0 else -speed * 44
                position[vid] = (position[vid] + moved) % ROAD_FEET
                if chance < 0.05:
                    lane[vid] = lane[vid] % LANES + 1
                if chance > 1 - REQUEST_SHARE:
                    yield ts, Report(BALANCE_REQUEST, vid, -1, -1, -1, -1, -1, -1)
            feet = position[vid]
            segment = feet // FEET_PER_SEGMENT
            yield ts, Report(POSITION_REPORT, vid, speed, xway[vid], lane[vid], direction[vid], segment, feet)

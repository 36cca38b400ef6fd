"""Linear Road as it happens: position reports for ever, whose times are those of the clock.

The traffic is a function of the time alone: one replay of the benchmark follows the other, each with stops of its own,
and the clock says where in them we are. So an agent that is started again goes on where the clock is; it repeats
nothing, and its times only rise, as those of sensors do.

A round of reports takes 30 s in the benchmark, and an accident shows after five of them. Here a round takes 2 s, or as
long as THREADLINE_LAB_ROUND_MS says, and all windows are shorter by as much. Both agents must have the same round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import count

from edge_agent.queries.linear_road import (
    ROUND_MS,
    Report,
    StoppedCar,
    is_standing,
    is_stopped,
    place_of_report,
    reports,
    summarise,
)
from edge_agent.queries.linear_road_accidents import Accident, at_place, is_accident, place_of_stop
from edge_agent.stream import Count, Distinct, Last, Stream

SETTING = "THREADLINE_LAB_ROUND_MS"
CARS = 100
ROUNDS = 60
STANDING = 0.05
"""Of a replay. More stand than in the benchmark, so that there is something to see."""


def round_ms() -> int:
    """How long a round takes here."""
    text = os.environ.get(SETTING, "2000")
    if not text.isdecimal() or not 30 <= int(text) <= ROUND_MS:
        raise ValueError(f"{SETTING} is a number of milliseconds from 30 to {ROUND_MS}, not {text!r}")
    return int(text)


def live_reports(
    clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> Iterator[tuple[int, Report]]:
    """The reports from now on, each when it is due."""
    here_ms = round_ms()
    begun_ms = int(clock() * 1000)
    for replay in count(begun_ms // (ROUNDS * here_ms)):
        for ts, report in reports(CARS, ROUNDS, replay, STANDING):
            due_ms = replay * ROUNDS * here_ms + ts * here_ms // ROUND_MS
            if due_ms < begun_ms:
                continue
            ahead_s = due_ms / 1000 - clock()
            if ahead_s > 0:
                sleep(ahead_s)
            yield due_ms, report


def stopped_cars(live: Stream[Report]) -> Stream[StoppedCar]:
    """Cars with exactly four standing reports, all at one place, in four rounds; looked at every round."""
    return (
        live.filter(is_standing, name="standing")
        .key_by("vid")
        .window(4 * round_ms(), round_ms())
        .aggregate(Count(), Distinct(place_of_report), Last(), into=summarise, name="per car")
        .filter(is_stopped, name="four at one place")
    )


def accidents(stopped: Stream[StoppedCar]) -> Stream[Accident]:
    """Two or more cars that stand at one place in the same round."""
    return (
        stopped.key_by(place_of_stop)
        .window(round_ms())
        .aggregate(Distinct("vid"), into=at_place, name="per place")
        .filter(is_accident, name="several cars")
    )

"""What a tuple costs as its window overlaps more and more others: the built-in aggregators over one fixed stream.

A key reports once per advance, so a window of size/advance = n holds n of its tuples and every tuple is in n windows,
while there is one result per tuple whatever n is. All results are filtered away: telling a window's origins takes
their number by nature. So does the result of Collect, which is why it is not among the groups.
"""

from __future__ import annotations

import random
from typing import Any

from bench._stream_worker import Tally
from edge_agent.stream import Count, Distinct, Engine, First, Last, Max, Mean, Min, Plan, Sum, Top

ADVANCE_MS = 30_000
KEYS = 10
BATCH = 1_000
GROUPS: dict[str, list[type[Any]]] = {
    "count": [Count],
    "sum_mean": [Sum, Mean],
    "min_max": [Min, Max],
    "distinct": [Distinct],
    "first_last": [First, Last],
    "top3": [Top],
}


def key_of(value: tuple[int, int]) -> int:
    return value[0]


def number_of(value: tuple[int, int]) -> int:
    return value[1]


def nothing(value: object) -> bool:
    return False


class SlidingWindows:
    """The stream, and engines to feed it to. The engine is not finished: the windows that are still open at the end
    are more the longer they are."""

    def __init__(self, tuples: int) -> None:
        rng = random.Random(7)
        items = [
            (index // KEYS * ADVANCE_MS + index % KEYS, (index % KEYS, rng.randrange(1_000))) for index in range(tuples)
        ]
        self._batches = [items[start : start + BATCH] for start in range(0, tuples, BATCH)]

    def engine(self, group: str, overlap: int) -> Engine:
        plan = Plan("sliding")
        windows = plan.source("numbers").key_by(key_of).window(overlap * ADVANCE_MS, ADVANCE_MS)
        windows.aggregate(*[_aggregator(each) for each in GROUPS[group]]).filter(nothing).sink("none")
        return Engine(plan, Tally().add)

    def feed(self, engine: Engine) -> None:
        for batch in self._batches:
            engine.feed("numbers", batch)


def _aggregator(kind: type[Any]) -> Any:
    if kind is Count:
        return Count()
    return Top(3, number_of) if kind is Top else kind(number_of)

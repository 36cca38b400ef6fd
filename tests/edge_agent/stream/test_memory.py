"""Memory: what contributes to nothing is returned at once, and a held result keeps its own sources only.

Payloads count themselves, so the tests see exactly which source tuples are alive. The collector is off:
whatever goes, goes because nothing refers to it any more.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from edge_agent.stream import Collect, Count, Engine, Last, Plan, Sum
from protocol.records import Delivery, Record

KEYS = 4
WINDOW_MS = 400
ADVANCE_MS = 100
LIST = 250


class Reading:
    """A payload that counts how many of its kind are alive."""

    __slots__ = ("key", "number")
    alive = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.key = number % KEYS
        Reading.alive += 1

    def __del__(self) -> None:
        Reading.alive -= 1


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    Reading.alive = 0
    yield
    gc.enable()


def key(reading: Reading) -> int:
    return reading.key


def number(reading: Reading) -> int:
    return reading.number


class Held:
    """Keeps one delivery and lets all other records go."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.delivery: Delivery | None = None

    def take(self, record: Record) -> None:
        if isinstance(record, Delivery) and record.seq == self.seq:
            self.delivery = record


@pytest.mark.parametrize(
    ("mode", "tuples"),
    [
        ("segments", 1_000_000),
        ("none", 100_000),
        ("genealog", 100_000),
        pytest.param("none", 1_000_000, marks=pytest.mark.soak),
        pytest.param("genealog", 1_000_000, marks=pytest.mark.soak),
    ],
)
def test_many_tuples_with_one_result_held_stay_within_two_windows(mode: str, tuples: int) -> None:
    # every reading is in four windows, all of which reach the sink:
    #   |---------------|            400 ms
    #       |---------------|        every 100 ms, one reading per ms
    plan = Plan("million", provenance=mode)
    windows = plan.source("readings").key_by(key).window(WINDOW_MS, ADVANCE_MS)
    windows.aggregate(Count(), Sum(number), Last()).sink("results")
    held = Held(20)
    engine = Engine(plan, held.take)
    most = 0
    for first in range(0, tuples, LIST):
        engine.feed("readings", [(ts, Reading(ts)) for ts in range(first, first + LIST)])
        most = max(most, Reading.alive)
    assert held.delivery is not None
    assert len(held.delivery.origins) == (0 if mode == "none" else WINDOW_MS // KEYS)
    assert most <= 2 * WINDOW_MS + 2 * LIST + WINDOW_MS // KEYS  # two windows, a list on its way in, the held sources
    assert gc.collect() == 0
    engine.finish()
    del engine
    own = 1 if mode == "none" else WINDOW_MS // KEYS  # Last() put a reading into the payload
    assert Reading.alive == own
    del held
    assert Reading.alive == 0


@pytest.mark.parametrize("mode", ["none", "genealog", "segments"])
def test_what_a_filter_drops_is_gone_with_its_list(mode: str) -> None:
    plan = Plan("dropped", provenance=mode)
    plan.source("readings").filter(lambda reading: reading.number < 3).sink("few")
    engine = Engine(plan, lambda record: None)
    for first in range(0, 100_000, LIST):
        engine.feed("readings", [(ts, Reading(ts)) for ts in range(first, first + LIST)])
        assert Reading.alive <= 3
    assert gc.collect() == 0


@pytest.mark.parametrize("mode", ["genealog", "segments"])
@pytest.mark.parametrize("kind", ["recent", "length", "join"])
def test_results_of_other_windows_let_go_as_well(mode: str, kind: str) -> None:
    plan = Plan("others", provenance=mode)
    keyed = plan.source("readings").key_by(key)
    if kind == "recent":
        keyed.recent(100).aggregate(Count()).sink("results")
    elif kind == "length":
        keyed.length_window(25).aggregate(Count()).sink("results")
    else:
        keyed.join_band(keyed, 20, combine=lambda left, right: left.number).sink("results")
    held = Held(1_000)
    engine = Engine(plan, held.take)
    most = 0
    for first in range(0, 20_000, LIST):
        engine.feed("readings", [(ts, Reading(ts)) for ts in range(first, first + LIST)])
        most = max(most, Reading.alive)
    assert held.delivery is not None
    assert most <= 3 * 101 + 2 * LIST
    assert gc.collect() == 0


@pytest.mark.parametrize("mode", ["genealog", "segments"])
def test_a_long_chain_of_one_key_is_freed_without_recursion(mode: str) -> None:
    plan = Plan("chain", provenance=mode)
    plan.source("readings").window(1_000_000, 500_000).aggregate(Collect(number)).filter(lambda _: False).sink("none")
    engine = Engine(plan, lambda record: None)
    engine.feed("readings", [(ts, Reading(ts)) for ts in range(300_000)])
    assert Reading.alive == 300_000
    engine.finish()
    del engine
    assert Reading.alive == 0


@pytest.mark.parametrize("mode", ["none", "genealog", "segments"])
@pytest.mark.parametrize("kind", ["window", "join"])
def test_what_falls_between_two_windows_is_let_go(mode: str, kind: str) -> None:
    # |-10-|                    |-10-|      every 1,000,000 ms
    plan = Plan("gaps", provenance=mode)
    keyed = plan.source("readings").key_by(key)
    if kind == "window":
        keyed.window(10, 1_000_000).aggregate(Count()).sink("results")
    else:
        keyed.join_window(keyed, 10, 1_000_000, combine=lambda left, right: 1).sink("results")
    engine = Engine(plan, lambda record: None)
    for first in range(0, 10_000, LIST):
        engine.feed("readings", [(ts, Reading(ts)) for ts in range(first, first + LIST)])
    assert Reading.alive <= 2 * LIST


@pytest.mark.parametrize("mode", ["genealog", "segments"])
def test_a_key_that_never_comes_again_keeps_only_its_own(mode: str) -> None:
    plan = Plan("rare", provenance=mode)
    plan.source("readings").key_by(lambda reading: reading.number > 0).length_window(2).aggregate(Count()).sink("out")
    engine = Engine(plan, lambda record: None)
    for first in range(0, 20_000, LIST):
        engine.feed("readings", [(ts, Reading(ts)) for ts in range(first, first + LIST)])
    assert Reading.alive <= 1 + 2 * LIST


@pytest.mark.parametrize("ids", ["uid", "attributes"])
@pytest.mark.parametrize("mode", ["genealog", "segments"])
def test_ids_are_forgotten_when_no_result_can_name_them(mode: str, ids: str) -> None:
    plan = Plan("ids", provenance=mode)
    plan.source("readings", ids=ids).key_by(key).window(20, 10).aggregate(Count()).sink("results")
    engine = Engine(plan, lambda record: None)
    for first in range(0, 20_000, LIST):
        engine.feed("readings", [(ts, Reading(ts)) for ts in range(first, first + LIST)])
        assert Reading.alive <= 2 * LIST + 2 * 20


class Refusing:
    """An aggregator without a result."""

    def initialise(self) -> int:
        return 0

    def add(self, state: int, value: Reading) -> int:
        return state

    def result(self, state: int) -> int:
        raise ValueError("no")


def test_results_that_fail_leave_nothing_behind() -> None:
    class Weighty:
        """A state that keeps what was added."""

        def initialise(self) -> list[Reading]:
            return []

        def add(self, state: list[Reading], value: Reading) -> list[Reading]:
            return [*state, value]

        def merge(self, earlier: list[Reading], later: list[Reading]) -> list[Reading]:
            return earlier + later

        def result(self, state: list[Reading]) -> int:
            return len(state)

    plan = Plan("failing", on_error="skip")
    plan.source("readings").window(20, 10).aggregate(Refusing(), Weighty()).sink("out")
    engine = Engine(plan, lambda record: None)
    for first in range(0, 20_000, LIST):
        engine.feed("readings", [(ts, Reading(ts)) for ts in range(first, first + LIST)])
    assert Reading.alive <= 2 * LIST

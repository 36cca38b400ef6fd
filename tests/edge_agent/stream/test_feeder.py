"""Reading sources: live ones wait without holding anybody up, the others take turns by time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from edge_agent.stream import IDLE, Count, Engine, Feeder, Loopback, Plan, StreamError, run
from edge_agent.stream.feeder import LIST_SIZE, MANY_WAITING
from protocol.records import Delivery, Record
from tests.support.waiting import wait_until


class Sensor:
    """An iterable that waits for what the test says."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        while (item := self.items.get()) is not None:
            self.read += 1
            yield item


def passing(*names: str, live: bool = True) -> Plan:
    plan = Plan("passing")
    for name in names:
        plan.source(name, live=live).sink(f"{name} out")
    return plan


class Arrival(threading.Condition):
    """What a feeder and the threads of its sources wait for; knows who waits and has not been woken since."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[str] = set()

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting.add(threading.current_thread().name)
        return super().wait(timeout)

    def notify_all(self) -> None:
        self.waiting.clear()
        super().notify_all()


class Started:
    """A plan that runs in a thread; what it delivers comes out one by one."""

    def __init__(self, plan: Plan, inputs: dict[str, Any]) -> None:
        self.delivered: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.engine = Engine(plan, self._emit)
        self._arrival = Arrival()
        self._feeder = Feeder(plan, self.engine, inputs, arrival=self._arrival)
        self._thread = threading.Thread(target=self._feeder.run, name="feeder", daemon=True)
        self._thread.start()

    def _emit(self, record: Record) -> None:
        if isinstance(record, Delivery):
            self.delivered.put(record.payload)

    def next(self) -> Any:
        return self.delivered.get(timeout=30)

    def wait_until_waiting(self, *threads: str) -> None:
        """Until these wait for others: "feeder", or "source " and a name."""
        wait_until(lambda: self._arrival.waiting.issuperset(threads), f"{' and '.join(threads)} waiting", 30)

    def stop(self) -> None:
        self._feeder.stop()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_an_item_of_a_live_source_is_processed_while_it_waits_for_the_next() -> None:
    sensor = Sensor()
    started = Started(passing("s"), {"s": sensor})
    for number in range(3):
        sensor.items.put((number, number))
        assert started.next() == number
    sensor.items.put(None)
    started.join()


def test_a_live_source_that_waits_holds_up_no_other() -> None:
    silent, busy = Sensor(), Sensor()
    started = Started(passing("silent", "busy"), {"silent": silent, "busy": busy})
    for number in range(3):
        busy.items.put((number, number))
        assert started.next() == number
    for sensor in (silent, busy):
        sensor.items.put(None)
    started.join()


def test_a_live_source_next_to_data_at_hand() -> None:
    plan = passing("live")
    plan.source("stored", [(ts, ts) for ts in range(5_000)]).sink("stored out")
    sensor = Sensor()
    started = Started(plan, {"live": sensor})
    assert [started.next() for _ in range(5_000)] == list(range(5_000))
    sensor.items.put((1, "live"))
    assert started.next() == "live"
    sensor.items.put(None)
    started.join()


def test_a_live_source_is_not_read_further_than_can_be_processed() -> None:
    sensor = Sensor()
    for number in range(5_000):
        sensor.items.put((number, number))
    waiting, go = threading.Event(), threading.Event()

    def slow(number: int) -> bool:
        waiting.set()
        assert go.wait(30)
        return True

    plan = Plan("slow")
    plan.source("s", live=True).filter(slow).sink("out")
    started = Started(plan, {"s": sensor})
    assert waiting.wait(30)
    started.wait_until_waiting("source s")
    assert sensor.read <= 2_100  # what is being processed, what waits for that, and one in hand
    go.set()
    assert [started.next() for _ in range(5_000)] == list(range(5_000))
    sensor.items.put(None)
    started.join()


@pytest.mark.parametrize("live", [False, True])
def test_what_came_before_a_source_failed_is_processed(live: bool) -> None:
    def failing() -> Iterator[Any]:
        yield from ((ts, ts) for ts in range(7))
        raise OSError("no sensor")

    delivered: list[Any] = []
    with pytest.raises(StreamError, match=r"operator 's'.*no sensor"):
        run(passing("s", live=live), {"s": failing()}, emit=delivered.append)
    assert [record.payload for record in delivered if isinstance(record, Delivery)] == list(range(7))


def test_the_source_that_is_furthest_behind_is_read_next() -> None:
    plan = Plan("union")
    plan.source("slow").union(plan.source("fast")).window(10).aggregate(Count()).sink("out")
    read = {"slow": 0, "fast": 0}
    furthest_apart = 0

    def counted(name: str, step: int) -> Iterator[Any]:
        nonlocal furthest_apart
        for ts in range(0, 60_000, step):
            read[name] = ts
            furthest_apart = max(furthest_apart, abs(read["slow"] - read["fast"]))
            yield ts, ts

    run(plan, {"slow": counted("slow", 1), "fast": counted("fast", 10)}, emit=lambda record: None)
    assert furthest_apart <= 2 * 1024 * 10


def test_a_slow_source_is_read_in_short_lists() -> None:
    arrived: list[float] = []
    sent: list[float] = []

    def slow() -> Iterator[Any]:
        for ts in range(4):
            time.sleep(0.05)  # longer than READING_S: this is what makes it slow
            sent.append(time.monotonic())
            yield ts, ts

    plan = Plan("slow")
    plan.source("s").sink("out", lambda _: arrived.append(time.monotonic()))
    run(plan, {"s": slow()})
    assert len(arrived) == len(sent) == 4
    assert all(late < early for late, early in zip(arrived[:-1], sent[1:], strict=True)), (
        "each before the next was read"
    )


def test_a_stopped_feeder_leaves_the_rest_unread() -> None:
    sensor = Sensor()
    plan = passing("s")
    delivered: list[Any] = []
    feeder = Feeder(plan, Engine(plan, delivered.append), {"s": sensor})
    sensor.items.put((1, "first"))
    while not any(isinstance(record, Delivery) for record in delivered):
        feeder.feed()
    feeder.stop()
    sensor.items.put((2, "second"))
    sensor.items.put((3, "third"))
    for thread in threading.enumerate():
        if thread.name == "source s":
            thread.join(30)
    assert sensor.read == 2


def test_an_exit_in_a_live_source_is_an_exit() -> None:
    def leaving() -> Iterator[Any]:
        yield 1, 1
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run(passing("s"), {"s": leaving()}, emit=lambda record: None)


def test_a_silent_agent_does_not_keep_another_from_working() -> None:
    sensor = Sensor()
    done = threading.Event()
    plans = {"silent": passing("s"), "busy": passing("b", live=False)}

    def last(record: Record) -> None:
        if isinstance(record, Delivery) and record.payload == 4_999:
            done.set()

    thread = threading.Thread(
        target=Loopback(plans, emit=last).run,
        args=({"silent": {"s": sensor}, "busy": {"b": [(ts, ts) for ts in range(5_000)]}},),
        daemon=True,
    )
    thread.start()
    assert done.wait(30)
    sensor.items.put(None)
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("live", [False, True])
def test_a_fast_source_is_held_back_by_a_slow_one_that_it_meets(live: bool) -> None:
    sensor = Sensor()
    read = 0

    def fast() -> Iterator[Any]:
        nonlocal read
        for read in range(10**9):
            yield read, read

    plan = Plan("meet")
    plan.source("slow", live=True).union(plan.source("fast", live=live)).sink("out")
    started = Started(plan, {"slow": sensor, "fast": fast()})
    started.wait_until_waiting(*(["feeder", "source fast"] if live else ["feeder"]))
    assert started.engine.waiting >= MANY_WAITING
    assert read <= MANY_WAITING + 5 * LIST_SIZE
    sensor.items.put((10, "slow"))
    assert [started.next() for _ in range(10)] == list(range(10))
    started.stop()


STORED = range(2 * MANY_WAITING)
SLOW = range(0, 2 * MANY_WAITING, MANY_WAITING // 25)


def assert_all_comes_when_the_slow_source_speaks(started: Started, slow: Sensor) -> None:
    """Where it meets what is stored; it has said the first of SLOW."""
    started.wait_until_waiting("feeder")
    assert started.engine.waiting >= MANY_WAITING
    for ts in SLOW[1:]:
        slow.items.put((ts, ts))
    slow.items.put(None)
    everything = sorted([*STORED, *SLOW])
    assert [started.next() for _ in everything] == everything


def test_a_silent_source_that_is_idle_holds_nobody_back() -> None:
    silent, slow = Sensor(), Sensor()
    plan = Plan("idle")
    stored = plan.source("stored", [(ts, ts) for ts in STORED])
    plan.source("silent", live=True).union(plan.source("slow", live=True), stored).sink("out")
    silent.items.put(IDLE)
    slow.items.put((0, 0))
    started = Started(plan, {"silent": silent, "slow": slow})
    assert_all_comes_when_the_slow_source_speaks(started, slow)
    silent.items.put(None)
    started.join()


@pytest.mark.parametrize("said", [[], [IDLE]])
def test_a_silent_source_holds_nobody_back_that_it_does_not_meet(said: list[Any]) -> None:
    silent, slow = Sensor(), Sensor()
    plan = passing("silent")
    plan.source("slow", live=True).union(plan.source("stored", [(ts, ts) for ts in STORED])).sink("out")
    for item in said:
        silent.items.put(item)
    slow.items.put((0, 0))
    started = Started(plan, {"silent": silent, "slow": slow})
    assert_all_comes_when_the_slow_source_speaks(started, slow)
    silent.items.put(None)
    started.join()


def test_of_two_unions_one_goes_on_while_the_other_is_held_back() -> None:
    silent, slow = Sensor(), Sensor()
    read = 0

    def fast() -> Iterator[Any]:
        nonlocal read
        for read in STORED:
            yield read, read

    plan = Plan("apart")
    plan.source("silent", live=True).union(plan.source("fast")).sink("held back")
    plan.source("slow", live=True).union(plan.source("stored", [(ts, ts) for ts in STORED])).sink("out")
    slow.items.put((0, 0))
    started = Started(plan, {"silent": silent, "fast": fast(), "slow": slow})
    assert_all_comes_when_the_slow_source_speaks(started, slow)
    started.wait_until_waiting("feeder")
    assert started.engine.waiting >= MANY_WAITING
    assert read <= MANY_WAITING + 5 * LIST_SIZE
    silent.items.put(None)
    assert [started.next() for _ in STORED] == list(STORED)
    started.join()


def test_a_source_is_ahead_only_of_those_that_it_meets() -> None:
    plan = Plan("meet")
    a, b, c = (plan.source(name) for name in "abc")
    a.union(b).map(str).union(c.filter(bool)).sink("out")
    plan.source("d").union(plan.source("e")).sink("other")
    plan.source("alone").sink("third")
    engine = Engine(plan, lambda record: None)
    assert engine.ahead(1) == set()
    for ts, name in enumerate("abcde", 1):
        engine.feed(name, [(ts, ts)])
    engine.feed("alone", [(9, 9)])
    assert engine.ahead(1) == {"b", "c", "e"}
    assert engine.ahead(10) == set()
    engine.idle("a")
    assert engine.ahead(1) == {"c", "e"}
    engine.watermark("a", 3)
    assert engine.ahead(1) == {"a", "c", "e"}
    engine.close("d")
    assert "e" not in engine.ahead(1)

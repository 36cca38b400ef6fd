"""A plan in an agent: fed by its sources and by other agents, one crossing at a time, until all of them have ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent.agent import Agent, AgentFailed
from edge_agent.config import Settings
from edge_agent.exchange import Exchange
from edge_agent.plan_run import PlanRun
from edge_agent.spool import Spool
from edge_agent.stream import Collect, Plan, StreamError
from edge_agent.transport import Client, Message
from protocol.ids import StreamId
from protocol.records import END_OF_TIME, Delivery, Origin, OriginKind, Received
from protocol.topics import down_topic
from protocol.wire.answers import Taken, decode_answer
from protocol.wire.batch import frame
from protocol.wire.crossing import Crossing, decode_crossing, whose_crossing
from tests.edge_agent.spooled import NOWHERE, has_ended, spooled
from tests.protocol.wire.strategies import encoded_crossing
from tests.support.waiting import wait_until

SPOOL = 4711


@pytest.fixture(autouse=True)
def no_long_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody to say it to."""
    close = Client.close
    monkeypatch.setattr(Client, "close", lambda client, timeout: close(client, timeout=0.0))


class Running:
    """A plan that runs in an agent, and what other agents send it. Nobody answers."""

    def __init__(self, folder: Path, plan: Plan, many_waiting: int = 50_000) -> None:
        self.folder = folder
        self.agent = Agent(Settings(name="hub", gateway=NOWHERE, spool=str(folder), fsync="never"), plan.document())
        self.agent.start()
        self.run = PlanRun(self.agent, plan, many_waiting)
        self.error: BaseException | None = None
        self.cpu_s = 0.0
        self._next: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.run.run()
        except BaseException as error:
            self.error = error
        finally:
            self.cpu_s = time.thread_time()

    def crosses(self, stream: str, *values: Any, watermark: int | None = None) -> None:
        """A message with these values, which are their times as well."""
        seq = self._next.setdefault(stream, 0)
        self._next[stream] += 1
        sender = StreamId("car-7", 1, stream, 77)
        tuples = [(value, value, Origin(OriginKind.REMOTE, sender, value, value)) for value in values]
        promised = max(values, default=0) if watermark is None else watermark
        with self.exchange.arrival:
            self.exchange.arrived.append(Crossing(sender, SPOOL, seq, tuples, promised, promised, False))
            self.exchange.arrival.notify_all()

    @property
    def exchange(self) -> Exchange:
        assert self.agent.exchange is not None, "the plan receives nothing"
        return self.agent.exchange

    def ends(self, timeout_s: float = 10.0) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the plan has not ended"

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def taken(self) -> int:
        return sum(counts.taken for name, counts in self.run.engine.metrics.items() if name.startswith("from"))

    def records(self) -> list[Any]:
        """What is on disk in the end."""
        self.agent.close(0.0)
        return spooled(self.folder, "hub")


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def new(plan: Plan, **options: Any) -> Running:
        started.append(Running(tmp_path, plan, **options))
        return started[-1]

    yield new
    for each in started:
        each.run.stop()
        each.agent.close(0.0)


def squares() -> Plan:
    plan = Plan("squares")
    plan.receive("numbers", "car-7", name="from car").map(lambda value: value * value).sink("squares")
    return plan


def delivered(records: list[Any], sink: str = "squares") -> list[Any]:
    return [each.payload for each in records if isinstance(each, Delivery) and each.stream.name == sink]


def test_it_ends_when_the_sender_has_ended_and_says_what_it_took(start: Start) -> None:
    running = start(squares())
    running.crosses("numbers", 1, 2)
    running.crosses("numbers", 3)
    running.crosses("numbers", watermark=END_OF_TIME)
    running.ends()
    assert not running.error
    records = running.records()
    assert delivered(records) == [1, 4, 9]
    taken = [each for each in records if isinstance(each, Received)]
    assert taken == [Received("car-7", "numbers", SPOOL, next_seq, 77) for next_seq in (1, 2, 3)]
    assert has_ended(records)


def test_what_comes_after_the_end_is_left_for_the_next_start(start: Start) -> None:
    """The sender has started again, while there is more to come of another one."""
    plan = squares()
    plan.receive("letters", "car-7", name="from other").sink("letters")
    running = start(plan)
    running.crosses("numbers", 1, watermark=END_OF_TIME)
    running.crosses("numbers", 2)
    running.crosses("letters", 5)
    running.crosses("letters", watermark=END_OF_TIME)
    running.ends()
    records = running.records()
    assert delivered(records) == [1] and delivered(records, "letters") == [5]
    taken = [(each.stream, each.next_seq) for each in records if isinstance(each, Received)]
    assert taken == [("numbers", 1), ("letters", 1), ("letters", 2)]


def test_it_ends_when_its_sources_have_ended_as_well(start: Start) -> None:
    gate = threading.Event()

    def own() -> Iterator[tuple[int, int]]:
        yield 5, 5
        gate.wait(10)
        yield 6, 6

    plan = squares()
    plan.source("own", own, live=True).sink("own values")
    running = start(plan)
    running.crosses("numbers", 2, watermark=END_OF_TIME)
    wait_until(lambda: running.taken() == 1, "the crossing is taken while the source waits")
    assert running.is_running
    gate.set()
    running.ends()
    records = running.records()
    assert (delivered(records), delivered(records, "own values")) == ([4], [5, 6])


def test_while_nothing_comes_it_costs_nothing(start: Start) -> None:
    running = start(squares())
    running.crosses("numbers", 1)
    time.sleep(0.5)
    running.run.stop()
    running.ends()
    assert running.cpu_s < 0.1


def union() -> Plan:
    plan = Plan("union")
    fast, slow = (plan.receive(name, "car-7", name=f"from {name}") for name in ("fast", "slow"))
    fast.union(slow).sink("all")
    return plan


def test_a_stream_that_is_far_ahead_is_held_back_until_the_other_one_follows(start: Start) -> None:
    running = start(union(), many_waiting=10)
    running.crosses("slow", 0)
    for at in range(0, 100, 5):  # some at once, some one after the other
        running.crosses("fast", *range(at, at + 5))
        time.sleep(0.005 * (at % 2))
    wait_until(lambda: not running.exchange.arrived, "everything was looked at")
    time.sleep(0.3)
    assert running.run.engine.waiting <= 15
    held_back_at = running.taken()
    running.crosses("slow", watermark=END_OF_TIME)
    wait_until(lambda: running.taken() == 101, "what was held back is taken")
    running.crosses("fast", watermark=END_OF_TIME)
    running.ends()
    assert held_back_at < 20
    assert delivered(running.records(), "all") == [0, *range(100)]
    assert running.cpu_s < 0.3, "it did not look again and again"


def test_what_is_held_back_is_not_overtaken(start: Start) -> None:
    running = start(union(), many_waiting=4)
    running.crosses("slow", 0)
    for at in range(0, 20, 5):
        running.crosses("fast", *range(at, at + 5))
        wait_until(lambda: not running.exchange.arrived, "it was looked at")
    with running.exchange.arrival:  # they come together
        running.crosses("slow", watermark=END_OF_TIME)
        running.crosses("fast", *range(20, 25))
        running.crosses("fast", watermark=END_OF_TIME)
    running.ends()
    records = running.records()
    assert delivered(records, "all") == [0, *range(25)]
    said = [each.next_seq for each in records if isinstance(each, Received) and each.stream == "fast"]
    assert said == list(range(1, 7))


def test_what_is_held_back_is_not_said_to_be_taken(start: Start) -> None:
    running = start(union(), many_waiting=2)
    for at in range(10):
        running.crosses("fast", 2 * at, 2 * at + 1)
        time.sleep(0.01)
    wait_until(lambda: not running.exchange.arrived, "everything was looked at")
    running.run.stop()
    running.ends()
    said = [each.next_seq for each in running.records() if isinstance(each, Received)]
    assert said == list(range(1, running.taken() // 2 + 1))
    assert len(said) < 5


@pytest.mark.parametrize("live", [True, False])
def test_stop_ends_it_whatever_its_sources_do(start: Start, live: bool) -> None:
    plan = squares()
    plan.source("own", lambda: ((n, n) for n in range(10**9)), live=live).filter(lambda n: n < 3).sink("own values")
    running = start(plan)
    wait_until(lambda: running.run.engine.metrics["own"].taken > 5_000, "it runs")
    running.run.stop()
    running.ends()
    records = running.records()
    assert delivered(records, "own values") == [0, 1, 2]
    assert has_ended(records)


def test_nothing_comes_of_a_crossing_that_fails_so_that_it_can_come_again(start: Start) -> None:
    plan = Plan("inverse")
    received = plan.receive("numbers", "car-7", name="from car")
    received.sink("seen")
    received.map(lambda value: 12 // (value - 3)).sink("inverse")
    running = start(plan)
    running.crosses("numbers", 1, 2)
    running.crosses("numbers", 3, 4)
    running.ends()
    assert isinstance(running.error, StreamError)
    records = running.records()
    assert (delivered(records, "inverse"), delivered(records, "seen")) == ([-6, -12], [1, 2])
    assert [each.next_seq for each in records if isinstance(each, Received)] == [1]


def test_payloads_are_told_as_they_were_when_they_came(start: Start) -> None:
    seen: list[Any] = []

    def spoil(values: list[int]) -> None:
        values.clear()
        seen.append(values)

    plan = Plan("lists")
    plan.receive("numbers", "car-7", name="from car").window(10).aggregate(Collect()).sink("lists", spoil)
    running = start(plan)
    running.crosses("numbers", 1, 2)
    running.crosses("numbers", watermark=END_OF_TIME)
    running.ends()
    assert seen == [[]]
    assert delivered(running.records(), "lists") == [[1, 2]]


def test_a_relay_passes_on_what_it_receives(start: Start, tmp_path: Path) -> None:
    plan = Plan("relay")
    plan.receive("numbers", "car-7", name="from car").map(lambda value: -value).send("negative", to=["lab"])
    running = start(plan)
    running.crosses("numbers", 1, 2)
    running.crosses("numbers", 3, watermark=END_OF_TIME)
    running.ends()
    records = running.records()
    with Spool.open(tmp_path / "send-negative") as spool:
        crossings = [decode_crossing(entry.data, "hub", "negative") for entry in spool.entries()]
    sent = [(value, origin.seq) for each in crossings for _, value, origin in each.tuples]
    assert (
        sent
        == [(each.payload, each.seq) for each in records if isinstance(each, Delivery)]
        == [(-1, 0), (-2, 1), (-3, 2)]
    )
    assert crossings[-1].watermark == END_OF_TIME


def test_what_comes_of_a_crossing_is_on_its_way_to_the_disk_before_anything_goes_to_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would know a tuple of which its own agent may have no delivery."""
    plan = Plan("relay")
    plan.receive("numbers", "car-7").send("passed on", to=["lab"])
    said: list[str] = []
    for name in ("took", "transmit"):
        monkeypatch.setattr(Exchange, name, lambda *_, name=name: said.append(name))
    running = start(plan)
    running.crosses("numbers", 1, watermark=END_OF_TIME)
    running.ends()
    assert said == ["took", "transmit"]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Taken]:
    """What is said to the senders, in order, beginning with the greeting."""
    said: list[Taken] = []
    publish = Client.publish

    def noted(client: Client, topic: str, data: bytes, qos: int) -> Any:
        if topic == down_topic("car-7"):
            answer = decode_answer(data, "car-7")
            assert isinstance(answer, Taken)
            said.append(answer)
        return publish(client, topic, data, qos)

    monkeypatch.setattr(Client, "publish", noted)
    return said


def test_senders_are_told_once_for_all_that_is_on_disk(start: Start, answers: list[Taken]) -> None:
    running = start(squares())
    for number in range(5):
        running.crosses("numbers", number)
    wait_until(lambda: answers and answers[-1].next_seq == 5, "the answer")
    assert {(each.receiver, each.stream, each.nonce) for each in answers} == {("hub", "numbers", SPOOL)}
    assert len(answers) <= 2


def test_what_comes_again_is_answered_only_if_nothing_of_it_is_still_under_way(
    start: Start, answers: list[Taken]
) -> None:
    running = start(union(), many_waiting=2)
    fast = StreamId("car-7", 1, "fast", 77)

    def arrives(seq: int) -> None:
        tuples = [(at, at, Origin(OriginKind.REMOTE, fast, at, at)) for at in (4 * seq, 4 * seq + 1)]
        body = encoded_crossing(Crossing(fast, SPOOL, seq, tuples, 4 * seq, 4 * seq, False), running.agent.packer)
        message = Message("tuples", frame(body, whose_crossing("car-7", "fast"), seq == 0), 1, False)
        running.exchange._on_crossing("car-7", "fast", message)

    arrives(0)
    wait_until(lambda: answers and answers[-1].next_seq == 1, "the first is taken")
    told = len(answers)
    arrives(0)
    wait_until(lambda: len(answers) == told + 1, "it is said again that it was taken")
    arrives(1)
    time.sleep(0.3)
    arrives(2)
    time.sleep(0.3)
    held_back = len(answers)
    for _ in range(3):
        arrives(2)
    time.sleep(0.3)
    assert len(answers) == held_back, "that it is held back is no reason to send it again"
    running.crosses("slow", watermark=END_OF_TIME)
    wait_until(lambda: any(each.stream == "fast" and each.next_seq == 3 for each in answers), "all of it is taken")


def test_a_plan_whose_records_go_nowhere_ends(start: Start) -> None:
    running = start(squares())
    running.agent.failure = ZeroDivisionError("a defect")
    running.agent.on_failure()
    running.ends()
    assert isinstance(running.error, AgentFailed)


def test_a_plan_that_waits_for_its_own_sources_ends_as_well(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def own() -> Iterator[tuple[int, int]]:
        yield 1, 1
        gate.wait(10)

    plan = Plan("alone")
    plan.source("own", own, live=True).sink("own values")
    running = start(plan)
    assert running.agent.exchange is None
    wait_until(lambda: running.run.engine.metrics["own"].taken == 1, "it waits for more")
    time.sleep(0.05)
    monkeypatch.setattr(running.agent._uplink, "step", lambda now: 1 // 0)
    running.agent._outbox.wake()
    running.ends()
    gate.set()
    assert isinstance(running.error, AgentFailed)

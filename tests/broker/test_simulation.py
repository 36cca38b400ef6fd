"""Our client against our gateway over a bad network, in simulated time: the promises of QoS 1 and 2, end to end.

Datagrams are lost, copied, delayed and overtaken; the broker comes and goes; the client moves to other addresses and
sleeps; in some runs the gateway crashes. Then everything is mended, and what was promised must have come true. A run
is decided by its seed alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random

import pytest

from broker.outputs import MqttPublish, Peer
from edge_agent.transport import ClientSession, Delivery, Message, Pending, SessionConfig, State
from protocol.mqttsn import encode
from tests.support.machine import Machine, at

CLIENT = "dev"
DOWN = "down/#"


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad things are. Chances are per datagram, rates per second. Without jitter nothing is overtaken."""

    loss: float = 0.0
    copies: float = 0.0
    jitter_s: float = 0.05
    outages: float = 0.0
    moves: float = 0.0
    naps: float = 0.0
    crashes: float = 0.0


class ForgetfulInbox:
    """Receipt of QoS 2 to the letter of the specification: an id is known from its PUBLISH to its PUBREL.

    It stands in for the client's own inbox, which remembers for longer, and so would hide faults of the gateway.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()

    def is_new(self, msg_id: int, topic: str | int, payload: bytes, now: float) -> bool:
        known = msg_id in self._open
        self._open.add(msg_id)
        return not known

    def released(self, msg_id: int, now: float) -> None:
        self._open.discard(msg_id)


class Simulation:
    """One client, one gateway, one broker and the network between them. Everything happens at a time in `_events`."""

    def __init__(self, seed: int, weather: Weather, folder: Path | None = None) -> None:
        self.random = Random(seed)
        self.weather = weather
        self.machine = Machine(folder)
        self.now = self.machine.now
        self.client = ClientSession(SessionConfig(CLIENT, keep_alive_s=20), Random(seed + 1))
        self.deliveries: dict[bytes, Delivery] = {}
        self.arrived: Counter[bytes] = Counter()
        """What the broker has, by payload."""
        self.received: Counter[bytes] = Counter()
        """What the client's application has, by payload."""
        self._events: list[tuple[float, int, object]] = []
        self._order = count()
        self._peer: Peer = at(1)
        self._moves = 1
        self._broker_is_up = True

    # ------------------------------------------------------------------ what is to happen

    def later(self, delay_s: float, event: object) -> None:
        heappush(self._events, (self.now + delay_s, next(self._order), event))

    def run(self, seconds: float) -> None:
        """Let time pass; anything that is due happens in its order."""
        end = self.now + seconds
        while True:
            client_at = self.client.next_deadline()
            due = min(
                self._events[0][0] if self._events else end,
                self.machine.gateway.next_deadline,
                client_at if client_at is not None else end,
            )
            if due >= end:
                break
            self.now = max(self.now, due)
            self._happen()
            self._let_out()
        self.now = end

    def _happen(self) -> None:
        machine = self.machine
        machine.now = self.now
        if self._events and self._events[0][0] <= self.now:
            event = heappop(self._events)[2]
            if callable(event):
                event()
        machine.gateway.tick(self.now)
        self.client.tick(self.now)

    # ------------------------------------------------------------------ network

    def _let_out(self) -> None:
        """Carry away what client and gateway want to send, until both are quiet."""
        while True:
            if self.client.state is State.SEEKING:
                self.client.opened(self.now)
            out, self.client.datagrams[:] = list(self.client.datagrams), []
            for datagram in out:
                self._carry(lambda datagram=datagram, peer=self._peer: self.machine.receive(datagram, peer))
            for message, routes in self.client.delivered:
                for on_message in routes:
                    on_message(message)
            self.client.delivered.clear()
            self.client.settled.clear()
            self.client.notices.clear()
            if not self.client.backlog and self.client.state is not State.SEEKING:
                break
            self.client.tick(self.now)
        self.machine._collect()
        for peer, messages in self.machine.mail.items():
            for answer in messages:
                self._carry(lambda answer=answer, peer=peer: self._to_client(encode(answer), peer))
        self.machine.mail.clear()
        self._broker_works()

    def _carry(self, deliver: object) -> None:
        weather, random = self.weather, self.random
        for _ in range(2 if random.random() < weather.copies else 1):
            if random.random() >= weather.loss:
                self.later(0.005 + random.random() * weather.jitter_s, deliver)

    def _to_client(self, datagram: bytes, peer: Peer) -> None:
        if peer == self._peer:  # an address the client has left leads nowhere
            self.client.receive(datagram, self.now)

    def move(self) -> None:
        """The client's datagrams come from another address from now on."""
        self._moves += 1
        self._peer = at(self._moves)

    # ------------------------------------------------------------------ broker

    def _broker_works(self) -> None:
        machine = self.machine
        if self._broker_is_up:
            for subscribe in machine.subscribes:
                self.later(0.01, lambda name=subscribe.topic_filter, m=machine: self._subscribed(name, m))
            machine.subscribes.clear()
        for action in machine.published:
            self._arrive(action)
        machine.published.clear()
        machine.uploads.clear()

    def _arrive(self, action: MqttPublish) -> None:
        self.arrived[action.payload] += 1
        if action.upload is not None:
            self.later(self.random.random() * 0.1, lambda m=self.machine: self._acknowledge(action, m))

    def _acknowledge(self, action: MqttPublish, machine: Machine) -> None:
        """The broker's acknowledgement gets through as soon as there is a connection, unless the gateway died."""
        if machine is not self.machine:
            return
        if not self._broker_is_up:
            self.later(0.1, lambda: self._acknowledge(action, machine))
            return
        assert action.upload is not None
        machine.gateway.broker_published(action.upload, True)

    def _subscribed(self, topic_filter: str, machine: Machine) -> None:
        if machine is self.machine and self._broker_is_up:
            machine.gateway.broker_subscribed(topic_filter, True, self.now)

    def outage(self, seconds: float) -> None:
        if self._broker_is_up:
            self._broker_is_up = False
            self.machine.broker_down()
            self.later(seconds, self._broker_back)

    def _broker_back(self) -> None:
        self._broker_is_up = True
        self.machine.broker_up()

    def from_broker(self, topic: str, payload: bytes) -> None:
        """The broker keeps a message until the gateway has subscribed to it, and is there to take it."""
        if self._broker_is_up and DOWN in self.machine.gateway.subscriptions:
            self.machine.publish_from_broker(topic, payload, through=DOWN)
        else:
            self.later(0.1, lambda: self.from_broker(topic, payload))

    # ------------------------------------------------------------------ client and gateway process

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        self.deliveries[payload] = Delivery()
        self.client.publish(topic, payload, qos, False, self.deliveries[payload], self.now)

    def subscribe(self, qos: int) -> None:
        self.client.subscribe(DOWN, qos, self._on_message, Pending(), self.now)

    def _on_message(self, message: Message) -> None:
        self.received[message.payload] += 1

    def nap(self) -> None:
        if self.client.state is State.CONNECTED:
            self.client.sleep(10, 2.0, 1.0, Pending(), self.now)
            self.later(8.0, lambda: self.client.wake(Pending(), self.now))

    def crash(self) -> None:
        """The gateway dies; the next process begins from the journal."""
        self.machine.now = self.now
        self.machine = self.machine.restarted(broker=False, away_s=0.0)
        if self._broker_is_up:
            self.machine.broker_up()

    def start_bad_weather(self, seconds: float) -> None:
        random, weather = self.random, self.weather
        for rate, event in (
            (weather.outages, lambda: self.outage(random.random() * 5)),
            (weather.moves, self.move),
            (weather.naps, self.nap),
            (weather.crashes, self.crash),
        ):
            at_s = random.expovariate(rate) if rate else seconds
            while at_s < seconds:
                self.later(at_s, event)
                at_s += random.expovariate(rate)

    def mend(self) -> None:
        """Good weather from now on, and time enough for everything that is still under way."""
        self.weather = Weather()
        self.run(60)
        if self.client.state is not State.CONNECTED:
            self.client.wake(Pending(), self.now)
        self.run(240)


def simulate(
    seed: int, weather: Weather, folder: Path | None = None, messages: int = 60, forgetful: bool = False
) -> Simulation:
    """Sixty messages each way at QoS 1 and 2, over half a minute of bad weather, and then a good end."""
    simulation = Simulation(seed, weather, folder)
    if forgetful:
        simulation.client._inbox = ForgetfulInbox()  # type: ignore[assignment]
    simulation.client.connect(simulation.now)
    down_qos = 1 + seed % 2
    simulation.subscribe(down_qos)
    simulation._let_out()
    simulation.start_bad_weather(30)
    for number in range(messages):
        at_s = simulation.random.random() * 30
        topic, payload, qos = f"up/{number % 3}", b"up %d" % number, 1 + number % 2
        simulation.later(at_s, lambda t=topic, p=payload, q=qos: simulation.publish(t, p, q))
        down = f"down/{number % 4}" if number % 5 else "down"
        simulation.later(at_s + 1, lambda t=down, p=b"down %d" % number: simulation.from_broker(t, p))
    simulation.run(32)
    simulation.mend()
    simulation.machine.check_bounds()
    return simulation


def check(simulation: Simulation, seed: int, messages: int = 60, uplink_exact: bool = True) -> None:
    for number in range(messages):
        payload, qos = b"up %d" % number, 1 + number % 2
        delivery = simulation.deliveries[payload]
        assert delivery.done(), payload
        assert delivery.exception() is None, payload
        times = simulation.arrived[payload]
        assert times == 1 if qos == 2 and uplink_exact else times >= 1, f"{payload!r} at QoS {qos}: {times} times"
    for number in range(messages):
        times = simulation.received[b"down %d" % number]
        assert times == 1 if seed % 2 else times >= 1, f"down {number} at QoS {1 + seed % 2}: {times} times"
    assert set(simulation.received) == {b"down %d" % number for number in range(messages)}
    assert simulation.machine.gateway.buffered_bytes == 0
    assert simulation.machine.gateway._uplink.pending == 0
    assert simulation.client.idle


WEATHERS = {
    "calm": Weather(),
    "loss": Weather(loss=0.2),
    "copies": Weather(copies=0.5, jitter_s=2.0),
    "storm": Weather(loss=0.3, copies=0.3, jitter_s=1.5),
    "outages": Weather(loss=0.05, copies=0.1, jitter_s=0.5, outages=0.3),
    "moving": Weather(loss=0.1, copies=0.2, jitter_s=0.5, moves=0.3),
    "naps": Weather(loss=0.1, copies=0.2, jitter_s=0.5, naps=0.1),
    "all of it": Weather(loss=0.15, copies=0.2, jitter_s=1.0, outages=0.15, moves=0.1, naps=0.05),
}
CRASHES = Weather(loss=0.1, copies=0.2, jitter_s=0.5, outages=0.1, naps=0.05, crashes=0.2)
IN_ORDER = Weather(loss=0.25, jitter_s=0.0, outages=0.1, moves=0.05, naps=0.05, crashes=0.1)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", WEATHERS)
def test_qos_2_arrives_exactly_once_and_qos_1_at_least_once(name: str, seed: int) -> None:
    check(simulate(seed, WEATHERS[name]), seed)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_acknowledged_is_lost_when_the_gateway_crashes(seed: int, tmp_path: Path) -> None:
    simulation = simulate(seed, CRASHES, tmp_path)
    check(simulation, seed, uplink_exact=False)
    simulation.machine.close()


@pytest.mark.parametrize("seed", [1, 3])
def test_a_client_that_remembers_no_longer_than_it_must_still_gets_qos_2_exactly_once(
    seed: int, tmp_path: Path
) -> None:
    simulation = simulate(seed, IN_ORDER, tmp_path, forgetful=True)
    check(simulation, seed, uplink_exact=False)
    simulation.machine.close()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (simulate(7, WEATHERS["storm"]) for _ in range(2))
    assert first.machine.gateway.outputs.counters == second.machine.gateway.outputs.counters
    assert first.arrived == second.arrived


def test_the_bad_weather_is_bad() -> None:
    """If nothing had to be sent again, the simulation would prove nothing."""
    counters = simulate(1, WEATHERS["storm"]).machine.gateway.outputs.counters
    assert counters["duplicates", "qos 2 publish"] > 0
    assert counters["retransmitted", "publish"] > 0
    assert counters["retransmitted", "pubrel"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", WEATHERS)
def test_qos_holds_in_many_storms(name: str) -> None:
    for seed in range(100, 400):
        with named(seed):
            check(simulate(seed, WEATHERS[name]), seed)


@pytest.mark.soak
@pytest.mark.parametrize("forgetful", [False, True])
def test_nothing_acknowledged_is_lost_in_many_crashes(tmp_path: Path, forgetful: bool) -> None:
    for seed in range(100, 400):
        with named(seed):
            simulation = simulate(seed, IN_ORDER if forgetful else CRASHES, tmp_path / str(seed), forgetful=forgetful)
            check(simulation, seed, uplink_exact=False)
            simulation.machine.close()


@contextmanager
def named(seed: int) -> Iterator[None]:
    """Say which seed it was."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error

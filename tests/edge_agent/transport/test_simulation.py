"""Client and reference gateway over a simulated bad network, in simulated time: what is promised holds.

Every run is a pure function of its parameters, so hypothesis can shrink and replay a failure.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.transport import ClientSession, Delivery, Message, Pending, SessionConfig, State
from tests.edge_agent.transport.reference_gateway import REPEAT_S, ReferenceGateway

_TOPICS = ("a/b", "c/d", "ab")
_LONGEST_S = 20_000.0


@dataclass(frozen=True)
class Network:
    """The faults of both directions."""

    loss: float
    duplicate: float
    delay_s: float


class Simulation:
    """An event loop over one heap."""

    def __init__(self, seed: int, network: Network, clean: bool, window: int) -> None:
        self.dice = Random(seed)
        self.network = network
        self.now = 50.0
        self.gateway = ReferenceGateway()
        self.session = ClientSession(SessionConfig("car-7", clean=clean, window=window), Random(seed + 1))
        self.received: list[Message] = []
        self.sessions = 0
        self._events: list[tuple[float, int, str, bytes]] = []
        self._number = 0
        self._gateway_tick = self.now
        self.granted: Pending[int] = Pending()
        self.session.subscribe("down/#", 2, self.received.append, self.granted, self.now)

    def _post(self, direction: str, datagram: bytes) -> None:
        copies = 2 if self.dice.random() < self.network.duplicate else 1
        for _ in range(copies):
            if self.dice.random() >= self.network.loss:
                self._number += 1
                at = self.now + self.dice.random() * self.network.delay_s
                heapq.heappush(self._events, (at, self._number, direction, datagram))

    def step(self) -> None:
        """Everything that happens at the next moment at which anything does."""
        session = self.session
        deadline = session.next_deadline()
        self.now = max(
            self.now,
            min(
                self._events[0][0] if self._events else _LONGEST_S,
                deadline if deadline is not None else _LONGEST_S,
                self._gateway_tick,
            ),
        )
        while self._events and self._events[0][0] <= self.now:
            _, _, direction, datagram = heapq.heappop(self._events)
            if direction == "up":
                for answer in self.gateway.receive(datagram, self.now):
                    self._post("down", answer)
            else:
                session.receive(datagram, self.now)
        if self.now >= self._gateway_tick:
            self._gateway_tick = self.now + REPEAT_S
            for packet in self.gateway.tick(self.now):
                self._post("down", packet)
        session.tick(self.now)
        if session.state is State.SEEKING:
            session.opened(self.now)
            self.sessions += 1
        for message, routes in session.delivered:
            for route in routes:
                route(message)
        session.delivered.clear()
        for datagram in session.datagrams:
            self._post("up", datagram)
        session.datagrams.clear()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    network=st.builds(
        Network, loss=st.floats(0, 0.35), duplicate=st.floats(0, 0.35), delay_s=st.sampled_from([0.001, 0.05, 0.5, 3.0])
    ),
    clean=st.booleans(),
    window=st.sampled_from([1, 4, 16]),
    qualities=st.lists(st.sampled_from([0, 1, 1, 2, 2]), min_size=1, max_size=40),
    restarts=st.lists(st.integers(0, 400), max_size=4),
)
def test_every_qos_2_message_arrives_exactly_once_and_every_qos_1_message_at_least_once(
    seed: int, network: Network, clean: bool, window: int, qualities: list[int], restarts: list[int]
) -> None:
    simulation = Simulation(seed, network, clean, window)
    session, gateway = simulation.session, simulation.gateway
    deliveries: list[Delivery] = []
    for number, qos in enumerate(qualities):
        delivery: Delivery = Pending()
        session.publish(_TOPICS[number % 3], b"%d" % number, qos, False, delivery, simulation.now)
        deliveries.append(delivery)
        if qos:
            gateway.hand_out(f"down/{number % 2}", b"%d" % number, qos)
    steps = 0
    while not (all(d.done() for d in deliveries) and gateway.handed_out and simulation.granted.done()):
        assert simulation.now < _LONGEST_S, session.stats()
        simulation.step()
        steps += 1
        if steps in restarts:
            gateway.restart()
    for delivery in deliveries:
        assert delivery.exception(0) is None

    expected = {(_TOPICS[n % 3], b"%d" % n, qos) for n, qos in enumerate(qualities)}
    taken = Counter(gateway.taken)
    assert set(taken) <= expected
    assert {m for m in expected if m[2] > 0} <= set(taken)
    assert all(count == 1 for (_, _, qos), count in taken.items() if qos == 2)

    wanted = {(f"down/{n % 2}", b"%d" % n, qos) for n, qos in enumerate(qualities) if qos}
    got = Counter((m.topic, m.payload, m.qos) for m in simulation.received)
    assert set(got) == wanted
    if not clean or simulation.sessions == 1:
        assert all(count == 1 for (_, _, qos), count in got.items() if qos == 2)
    assert session.stats().queued == session.stats().queued_bytes == session.stats().in_flight == 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), loss=st.floats(0, 0.3), checks=st.integers(1, 4))
def test_a_sleeping_client_gets_everything_it_missed(seed: int, loss: float, checks: int) -> None:
    simulation = Simulation(seed, Network(loss, loss, 0.1), clean=False, window=4)
    session, gateway = simulation.session, simulation.gateway
    while not simulation.granted.done():
        simulation.step()
    asleep: Pending[None] = Pending()
    session.sleep(60, None, 10.0, asleep, simulation.now)
    while not asleep.done():
        simulation.step()
    number = 0
    for _ in range(checks):
        for _ in range(5):
            gateway.hand_out("down/x", b"%d" % number, 1 + number % 2)
            number += 1
        while not gateway.handed_out:
            assert simulation.now < _LONGEST_S
            simulation.step()
    got = Counter(message.payload for message in simulation.received)
    assert set(got) == {b"%d" % n for n in range(number)}
    assert all(got[b"%d" % n] == 1 for n in range(1, number, 2))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), congestion=st.integers(1, 30), qos=st.sampled_from([1, 2]))
def test_a_congested_gateway_gets_everything_in_the_end(seed: int, congestion: int, qos: int) -> None:
    simulation = Simulation(seed, Network(0.1, 0.1, 0.05), clean=False, window=8)
    simulation.gateway.congested = congestion
    deliveries: list[Delivery] = []
    for number in range(20):
        delivery: Delivery = Pending()
        simulation.session.publish("a/b", b"%d" % number, qos, False, delivery, simulation.now)
        deliveries.append(delivery)
    while not all(delivery.done() for delivery in deliveries):
        assert simulation.now < _LONGEST_S
        simulation.step()
    taken = Counter(payload for _, payload, _ in simulation.gateway.taken)
    assert set(taken) == {b"%d" % n for n in range(20)}
    assert qos == 1 or set(taken.values()) == {1}


def test_first_transmissions_keep_the_order_of_publishing_over_a_bad_network() -> None:
    simulation = Simulation(3, Network(0.2, 0.1, 0.2), clean=False, window=8)
    deliveries: list[Delivery] = []
    for number in range(200):
        delivery: Delivery = Pending()
        simulation.session.publish("a/b", b"%03d" % number, 1, False, delivery, simulation.now)
        deliveries.append(delivery)
    first: dict[bytes, None] = {}
    post = simulation._post

    def spy(direction: str, datagram: bytes) -> None:
        if direction == "up" and datagram[1] == 0x0C:
            first[datagram[7:]] = None
        post(direction, datagram)

    simulation._post = spy  # type: ignore[method-assign]
    while not all(delivery.done() for delivery in deliveries):
        simulation.step()
    assert list(first) == sorted(first) and len(first) == 200

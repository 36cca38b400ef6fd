"""Our client and gateway over a bad link: nothing is missing, and QoS 2 arrives once, also when processes are killed.

A message is only excused for arriving twice at QoS 2 if it was under way when a process was killed: taken by the
sender, and not yet through, at that moment.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from time import monotonic

import pytest

from edge_agent.transport import Client, Delivery, Message
from tests.support.peers import Recorder
from tests.support.waiting import wait_until
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto
from threadline.lossy_link import LossyLink

LOSS, DUPLICATES, DELAY_S = 0.20, 0.10, (0.05, 0.30)
WINDOW = 16
HANDSHAKE_S = 5.0
"""How long after its arrival at the device the rest of a QoS 2 exchange may still be under way on this link."""
PATIENCE_S = 3600.0
"""Far beyond need: pytest's own time limit is what ends a hanging test."""


@dataclass
class Sent:
    """A message's life as its sender sees it."""

    taken_at: float
    done_at: float = float("inf")


@dataclass
class Traffic:
    """Publishes from several devices at two QoS levels, and what came of each message."""

    clients: list[Client]
    prefix: str
    sent: dict[bytes, Sent] = field(default_factory=dict)

    def publish(self, per_qos: int) -> None:
        """Hand all messages to the clients, each as soon as it has room."""
        threads = [threading.Thread(target=self._feed, args=(client, per_qos)) for client in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in self.clients:
            client.flush(PATIENCE_S)

    def _feed(self, client: Client, per_qos: int) -> None:
        number = self.clients.index(client)
        share = per_qos // len(self.clients) + (number < per_qos % len(self.clients))
        # A message is taken only when the client can send it at once: one that waits in a queue is not under way.
        room = threading.Semaphore(WINDOW)
        for index in range(share):
            for qos in (1, 2):
                payload = f"q{qos}-{number}-{index}".encode()
                room.acquire()
                life = self.sent[payload] = Sent(monotonic())
                delivery = client.publish(f"{self.prefix}/{number}/{qos}", payload, qos, timeout=PATIENCE_S)
                delivery.add_done_callback(_note_end(life, room))


def _note_end(life: Sent, room: threading.Semaphore) -> Callable[[Delivery], None]:
    def done(_: Delivery) -> None:
        life.done_at = monotonic()
        room.release()

    return done


@pytest.fixture
def link(own_gateway: GatewayService) -> Iterator[LossyLink]:
    with LossyLink(own_gateway.address, loss=LOSS, duplicate=DUPLICATES, delay_s=DELAY_S, seed=20261116) as made:
        yield made


def check_arrivals(received: list[bytes], sent: dict[bytes, Sent], kills: list[float]) -> tuple[int, int]:
    """Everything came; at QoS 2 once, or else it was under way at a kill. Returns the duplicates (QoS 1, QoS 2)."""
    counts = Counter(received)
    missing = sorted(set(sent) - set(counts))
    assert not missing, f"{len(missing)} of {len(sent)} never came, e.g. {missing[:5]}"
    assert set(counts) == set(sent), "something came that nobody sent"
    twice = [payload for payload, count in counts.items() if count > 1 and payload.startswith(b"q2")]
    unexcused = [
        payload
        for payload in twice
        if not any(sent[payload].taken_at <= kill <= sent[payload].done_at for kill in kills)
    ]
    assert not unexcused, f"{len(unexcused)} QoS 2 messages came twice without a kill, e.g. {unexcused[:5]}"
    return sum(counts[payload] - 1 for payload in sent if payload.startswith(b"q1")), sum(
        counts[payload] - 1 for payload in twice
    )


@contextmanager
def fleet(link: LossyLink, name: str, devices: int) -> Iterator[list[Client]]:
    """Devices on the lossy link. They leave all at once: each goodbye takes its time there."""
    clients = [
        Client(link.url, client_id=f"{name}-{n}", window=WINDOW, random=Random(n)).start() for n in range(devices)
    ]
    try:
        yield clients
    finally:
        link.set(loss=0.0, duplicate=0.0, delay_s=(0.0, 0.0))
        with ThreadPoolExecutor(devices) as pool:
            list(pool.map(Client.close, clients))


def run_uplink(link: LossyLink, broker: Mosquitto, messages: int, devices: int, kills: list[float]) -> tuple[int, int]:
    with Recorder(broker.port, "up/#") as recorder, fleet(link, "lossy", devices) as clients:
        traffic = Traffic(clients, "up")
        traffic.publish(messages)
        recorder.wait_for(
            lambda received: {each.payload for each in received} >= set(traffic.sent), "every message", timeout_s=60
        )
        duplicates = check_arrivals(recorder.payloads(), traffic.sent, kills)
    assert link.up.dropped > messages * 0.2, "the link was not lossy"
    assert link.up.duplicated > messages * 0.1
    return duplicates


def test_uplink_over_a_lossy_link_is_complete_and_qos_2_arrives_once(own_mosquitto: Mosquitto, link: LossyLink) -> None:
    run_uplink(link, own_mosquitto, messages=300, devices=12, kills=[])


@pytest.mark.soak
def test_ten_thousand_of_each_over_a_lossy_link(own_mosquitto: Mosquitto, link: LossyLink) -> None:
    duplicates = run_uplink(link, own_mosquitto, messages=10_000, devices=32, kills=[])
    print(f"duplicates: {duplicates[0]} at QoS 1, {duplicates[1]} at QoS 2")


class Killer(threading.Thread):
    """Kills the gateway and restarts Mosquitto cleanly, at random moments, until stopped or done."""

    def __init__(
        self, gateway: GatewayService, broker: Mosquitto, gateway_kills: int, restarts: int, pause_s: float
    ) -> None:
        super().__init__()
        self._gateway, self._broker, self._pause_s = gateway, broker, pause_s
        self._plan = ["kill"] * gateway_kills + ["restart"] * restarts
        self._random = Random(11)
        self._random.shuffle(self._plan)
        self._done = threading.Event()
        self.kills: list[float] = []
        self.restarts = 0

    def run(self) -> None:
        for action in self._plan:
            if self._done.wait(self._pause_s * (0.5 + self._random.random())):
                return
            if action == "kill":
                self.kills.append(monotonic())
                self._gateway.kill()
                self._gateway.start()
            else:
                self._broker.stop()
                self._broker.start()
                self.restarts += 1

    def stop(self) -> None:
        self._done.set()
        self.join()

    def check_finished(self) -> None:
        done = len(self.kills) + self.restarts
        assert done == len(self._plan), "the messages were through before the kills were: send more"


def run_with_kills(link: LossyLink, broker: Mosquitto, messages: int, devices: int, killer: Killer) -> None:
    killer.start()
    try:
        duplicates = run_uplink(link, broker, messages, devices, killer.kills)
    finally:
        killer.stop()
    print(f"{len(killer.kills)} kills, {killer.restarts} broker restarts, duplicates: {duplicates[0]} at QoS 1, "
          f"{duplicates[1]} at QoS 2, all under way at a kill")  # fmt: skip
    killer.check_finished()


def test_nothing_is_missing_after_kills_of_the_gateway_and_restarts_of_the_broker(
    own_mosquitto: Mosquitto, own_gateway: GatewayService, link: LossyLink
) -> None:
    killer = Killer(own_gateway, own_mosquitto, gateway_kills=2, restarts=1, pause_s=1.5)
    run_with_kills(link, own_mosquitto, messages=400, devices=12, killer=killer)


@pytest.mark.soak
def test_ten_kills_and_five_restarts_under_ten_thousand_of_each(
    own_mosquitto: Mosquitto, own_gateway: GatewayService, link: LossyLink
) -> None:
    killer = Killer(own_gateway, own_mosquitto, gateway_kills=10, restarts=5, pause_s=4.0)
    run_with_kills(link, own_mosquitto, messages=10_000, devices=32, killer=killer)


def run_downlink(
    link: LossyLink, broker: Mosquitto, gateway: GatewayService, messages: int, devices: int, killer: Killer | None
) -> tuple[int, int]:
    """The broker publishes to devices that subscribe through the lossy link."""
    arrived: list[bytes] = []
    sent: dict[bytes, Sent] = {}

    def note(message: Message) -> None:
        arrived.append(message.payload)
        life = sent[message.payload]
        life.done_at = min(life.done_at, monotonic() + HANDSHAKE_S)

    with fleet(link, "down", devices) as clients, Recorder(broker.port) as publisher:
        subscribed = [
            client.subscribe(f"down/{number}/{qos}/+", note, qos)
            for number, client in enumerate(clients)
            for qos in (1, 2)
        ]
        for subscription in subscribed:
            subscription.result(timeout=PATIENCE_S)
        if killer is not None:
            killer.start()
        for index in range(messages):
            number = index % devices
            for qos in (1, 2):
                payload = f"q{qos}-{index}".encode()
                sent[payload] = Sent(monotonic())
                publisher.publish(f"down/{number}/{qos}/{index % 3}", payload, qos)
        wait_until(lambda: set(sent) <= set(arrived), "every message", timeout_s=600, every_s=0.1)
        if killer is not None:
            killer.stop()
            killer.check_finished()
        wait_until(lambda: scrape(gateway).value("buffered_bytes") == 0, "every exchange to end", timeout_s=60)
        duplicates = check_arrivals(arrived, sent, killer.kills if killer is not None else [])
    assert link.down.dropped > messages * 0.2, "the link was not lossy"
    return duplicates


def test_downlink_over_a_lossy_link_is_complete_and_qos_2_arrives_once(
    own_mosquitto: Mosquitto, own_gateway: GatewayService, link: LossyLink
) -> None:
    run_downlink(link, own_mosquitto, own_gateway, messages=120, devices=12, killer=None)


@pytest.mark.soak
def test_downlink_survives_kills_of_the_gateway_and_restarts_of_the_broker(
    own_mosquitto: Mosquitto, own_gateway: GatewayService, link: LossyLink
) -> None:
    killer = Killer(own_gateway, own_mosquitto, gateway_kills=5, restarts=3, pause_s=3.0)
    duplicates = run_downlink(link, own_mosquitto, own_gateway, messages=2_000, devices=16, killer=killer)
    print(f"{len(killer.kills)} kills, duplicates: {duplicates[0]} at QoS 1, {duplicates[1]} at QoS 2")

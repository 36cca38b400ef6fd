"""Simulated agents for the translator: real batches on real MQTT, made before the clock starts.

An agent's query is the papers' usual one: every result comes from 50 readings, a quarter of which it shares with the
result before it; every reading is told once, with its payload. Like a real agent it keeps a window of batches in flight
and goes on when the translator acknowledges them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from protocol.ids import StreamId
from protocol.records import END_OF_TIME, Delivery, Progress, SourcePayload
from protocol.topics import down_topic, up_topic
from protocol.wire.answers import Logged, decode_answer
from protocol.wire.batch import Header, encode_batch, frame
from protocol.wire.packer import Packer
from protocol.wire.sections import Pending, pending

ORIGINS = 50
SHARED = 12
BATCH_BYTES = 1_200
WINDOW = 16


@dataclass(slots=True)
class SimulatedAgent:
    """One agent's batches, and how far they have come."""

    name: str
    nonce: int
    batches: list[bytes]
    records: int
    origins: int
    sent: int = 0
    acknowledged: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def simulated_agent(number: int, results: int) -> SimulatedAgent:
    """An agent that has so many results to tell."""
    random = Random(number)
    name, nonce = f"sim-{number}", random.getrandbits(64)
    packer = Packer()
    rows: list[Pending] = []
    batches: list[bytes] = []
    records = 0
    for group in _results(name, nonce, results, random):
        records += len(group)
        rows += [pending(record, packer) for record in group]
        data = encode_batch(Header(1, nonce, len(batches)), rows, name)
        if len(data) >= BATCH_BYTES:
            batches.append(frame(data, name, not batches))
            rows = []
    if rows:
        batches.append(frame(encode_batch(Header(1, nonce, len(batches)), rows, name), name, not batches))
    return SimulatedAgent(name, nonce, batches, records, results * ORIGINS)


def _results(name: str, nonce: int, count: int, random: Random) -> Iterator[list[SourcePayload | Delivery | Progress]]:
    readings = StreamId(name, 1, "readings", nonce)
    alerts = StreamId(name, 1, "alerts", nonce)
    recent: list[SourcePayload] = []
    ts, seq = 1_700_000_000_000, 0
    for number in range(count):
        fresh: list[SourcePayload] = []
        for _ in range(ORIGINS - (SHARED if recent else 0)):
            ts += random.randrange(5, 35)
            payload = {"sensor": random.randrange(40), "value": random.randrange(10_000) / 100}
            fresh.append(SourcePayload(readings, seq, ts, payload))
            seq += 1
        origins = (*recent[-SHARED:], *fresh)
        recent = fresh
        mean = sum(each.payload["value"] for each in origins) / ORIGINS
        delivery = Delivery(alerts, number, ts, {"mean": mean, "readings": ORIGINS}, origins)
        yield [*fresh, delivery, Progress(alerts, ts, END_OF_TIME)]


class Fleet:
    """All simulated agents behind one MQTT connection."""

    def __init__(self, port: int, agents: list[SimulatedAgent]) -> None:
        self.agents = {agent.name: agent for agent in agents}
        self.done = threading.Event()
        self._left = len(agents)
        self._connected = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="fleet")
        self._client.max_queued_messages_set(0)
        self._client.max_inflight_messages_set(65_535)
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: self._connected.set()
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([(down_topic(agent.name), 0) for agent in agents])
        self._client.loop_start()
        self._connected.wait(10)

    def start(self) -> None:
        """Send the first window of every agent; acknowledgements keep it going."""
        for agent in self.agents.values():
            self._send(agent)

    def _send(self, agent: SimulatedAgent) -> None:
        while agent.sent < min(len(agent.batches), agent.acknowledged + WINDOW):
            self._client.publish(up_topic(agent.name), agent.batches[agent.sent], qos=1)
            agent.sent += 1

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        agent = self.agents[message.topic.split("/")[2]]
        answer = decode_answer(bytes(message.payload), agent.name)
        if not isinstance(answer, Logged) or answer.nonce != agent.nonce:
            return
        with agent.lock:
            finished = agent.acknowledged == len(agent.batches)
            agent.acknowledged = max(agent.acknowledged, answer.next_seq)
            self._send(agent)
            if not finished and agent.acknowledged == len(agent.batches):
                self._left -= 1
                if not self._left:
                    self.done.set()

    def close(self) -> None:
        self._client.loop_stop()
        self._client.disconnect()

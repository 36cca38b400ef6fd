"""What the session machine has decided and the shell has still to carry out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protocol.mqttsn import Message, encapsulate, encode

if TYPE_CHECKING:
    from broker.session import Upload

Address = tuple[Any, ...]
"""A socket address as the socket module gives it."""

Peer = tuple[Address, tuple[bytes, ...]]
"""Where a client is: the address datagrams come from and, behind forwarders, the wireless node ids on the way."""

NOWHERE: Peer = ((), ())
"""The peer of a client that is at no known address: what is sent there is not sent."""


@dataclass(slots=True)
class MqttPublish:
    """Publish to the broker. With an upload, its acknowledgement is owed to a device."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    upload: Upload | None = None


@dataclass(slots=True)
class MqttSubscribe:
    """Subscribe, or subscribe again to have the retained messages sent (`retained`)."""

    topic_filter: str
    qos: int
    retained: bool


@dataclass(slots=True)
class MqttUnsubscribe:
    topic_filter: str


MqttAction = MqttPublish | MqttSubscribe | MqttUnsubscribe


@dataclass(slots=True)
class Outputs:
    """Filled by the machine, emptied by the shell. Counters are (what, why) -> how often, and are never emptied."""

    datagrams: list[tuple[bytes, Address]] = field(default_factory=list)
    mqtt: list[MqttAction] = field(default_factory=list)
    broadcasts: list[bytes] = field(default_factory=list)
    counters: Counter[tuple[str, str]] = field(default_factory=Counter)

    def send(self, message: Message, peer: Peer) -> None:
        """Queue a packet for a client, wrapped for the forwarders it came through."""
        address, route = peer
        if not address:
            return
        datagram = encode(message)
        for node_id in route:
            datagram = encapsulate(datagram, node_id)
        self.datagrams.append((datagram, address))

    def count(self, what: str, why: str = "") -> None:
        self.counters[what, why] += 1

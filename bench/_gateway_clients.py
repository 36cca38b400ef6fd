"""Many MQTT-SN clients on raw sockets, one message in flight each: the load generator of the gateway benchmark.

It writes bytes directly and builds no objects, so that it keeps one core free for what is measured.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from struct import Struct

from protocol.mqttsn import (
    MAX_PACKET_BYTES,
    ConnAck,
    Connect,
    Disconnect,
    Message,
    RegAck,
    Register,
    TopicType,
    decode,
    encode,
)
from protocol.mqttsn.messages import AnyMessage

_HEADER = Struct("!BBBHH")
_FLAGS = {0: 0x00, 1: 0x20, 2: 0x40}
_STARTS_PER_TURN = 32
_PINGREQ = b"\x02\x16"
_PUBACK, _PUBREC, _PUBCOMP, _PINGRESP = 0x0D, 0x0F, 0x0E, 0x17
QOS_0_BURST = 8
"""At QoS 0 nothing answers, so a PINGREQ behind each burst shows that the gateway has worked it off."""


class _Client:
    __slots__ = ("msg_id", "sent_at", "sock", "topic_id")

    def __init__(self, address: tuple[str, int], client_id: str) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.connect(address)
        self.sock.settimeout(10)
        self.msg_id = 0
        self.sent_at = 0.0
        self.topic_id = 0
        self.ask(Connect(client_id, 600), ConnAck)

    def ask(self, message: Message, answer: type[AnyMessage]) -> AnyMessage:
        """Send and wait for the answer; loopback loses nothing, so a missing one is an error."""
        self.sock.send(encode(message))
        reply = decode(self.sock.recv(MAX_PACKET_BYTES))
        assert type(reply) is answer, f"{reply} instead of {answer.__name__}"
        return reply

    def register(self, topic: str) -> None:
        reply = self.ask(Register(0, 1, topic), RegAck)
        assert isinstance(reply, RegAck)
        self.topic_id = reply.topic_id


class Fleet:
    """`count` connected clients."""

    def __init__(self, address: tuple[str, int], count: int, prefix: str) -> None:
        self._clients = [_Client(address, f"{prefix}-{number}") for number in range(count)]
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.sock.setblocking(True)
            client.sock.send(encode(Disconnect()))
            client.sock.close()
        self._selector.close()

    def publish(self, qos: int, messages: int, payload: bytes) -> list[float]:
        """Publish so many messages in all, and return the seconds each exchange (at QoS 0, each burst) took."""
        for client in self._clients:
            if not client.topic_id:
                client.register("bench/up")
            client.sock.setblocking(False)
            self._selector.register(client.sock, selectors.EVENT_READ, client)
        to_start = max(messages // (QOS_0_BURST if qos == 0 else 1), len(self._clients))
        to_finish = to_start
        latencies: list[float] = []
        idle = deque(self._clients)
        while to_finish:
            # A few at a time: a socket buffer of ordinary size cannot hold what 512 clients send at once.
            for _ in range(min(_STARTS_PER_TURN, to_start, len(idle))):
                self._start(idle.popleft(), qos, payload)
                to_start -= 1
            events = self._selector.select(10)
            assert events, f"{to_finish} exchanges unanswered"
            for key, _ in events:
                client = key.data
                answer = client.sock.recv(64)
                if answer[1] == _PUBREC:
                    client.sock.send(b"\x04\x10" + answer[2:4])
                    continue
                if answer[1] not in (_PUBACK, _PUBCOMP, _PINGRESP):
                    continue
                assert answer[1] != _PUBACK or answer[6] == 0, f"publish refused with {answer[6]}"
                latencies.append(time.perf_counter() - client.sent_at)
                to_finish -= 1
                idle.append(client)
        for client in self._clients:
            self._selector.unregister(client.sock)
        return latencies

    @staticmethod
    def _start(client: _Client, qos: int, payload: bytes) -> None:
        client.sent_at = time.perf_counter()
        size = _HEADER.size + len(payload)
        if qos:
            client.msg_id = client.msg_id % 0xFFFF + 1
            head = _HEADER.pack(size, 0x0C, _FLAGS[qos] | TopicType.NORMAL, client.topic_id, client.msg_id)
            client.sock.send(head + payload)
        else:
            packet = _HEADER.pack(size, 0x0C, 0, client.topic_id, 0) + payload
            for _ in range(QOS_0_BURST):
                client.sock.send(packet)
            client.sock.send(_PINGREQ)


def echo_round(address: tuple[str, int], count: int, messages: int, datagram: bytes) -> None:
    """The same pattern against an echo server."""
    selector = selectors.DefaultSelector()
    idle: deque[socket.socket] = deque()
    for _ in range(count):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(address)
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, sock)
        idle.append(sock)
    to_start = to_finish = max(messages, count)
    while to_finish:
        for _ in range(min(_STARTS_PER_TURN, to_start, len(idle))):
            idle.popleft().send(datagram)
            to_start -= 1
        events = selector.select(10)
        assert events, f"{to_finish} datagrams unanswered"
        for key, _ in events:
            key.data.recv(2048)
            to_finish -= 1
            idle.append(key.data)
    for sock in idle:
        sock.close()
    selector.close()

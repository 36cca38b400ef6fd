"""A small gateway that is obviously right, to test the client against: one client, no MQTT behind it.

It takes messages (`taken`), hands out those put in with `hand_out`, repeats what is not answered, keeps for a sleeping
client, and can forget its client (`restart`). Topic ids are never used twice, so a stale id is always found out.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from protocol.mqttsn import (
    AnyMessage,
    ConnAck,
    Connect,
    Disconnect,
    GwInfo,
    MalformedPacket,
    Message,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SearchGw,
    SubAck,
    Subscribe,
    TopicType,
    UnsubAck,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    decode,
    encode,
    short_topic_name,
)

REPEAT_S = 0.4


class ReferenceGateway:
    """Bytes and time in, bytes out."""

    def __init__(self) -> None:
        self.taken: list[tuple[str | int, bytes, int]] = []
        self.heard: list[AnyMessage] = []
        self.will: tuple[str, bytes] | None = None
        self.connected = False
        self.asleep = False
        self.awake = False
        self.congested = 0
        self._will_topic = ""
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._number = 0
        self._seen: set[tuple[int, bytes]] = set()
        self._queue: deque[tuple[str, bytes, int]] = deque()
        self._message_id = 100
        self._leg: Message | None = None
        self._leg_at = 0.0
        self._handlers: dict[type, Callable[[Any], list[Message]]] = {
            Connect: self._on_connect,
            WillTopic: self._on_will_topic,
            WillMsg: self._on_will_msg,
            Register: lambda m: [RegAck(self._id_of(m.topic), m.msg_id, 0)],
            Publish: self._on_publish,
            PubRel: lambda m: [PubComp(m.msg_id)],
            Subscribe: self._on_subscribe,
            Unsubscribe: lambda m: [UnsubAck(m.msg_id)],
            PingReq: self._on_pingreq,
            Disconnect: self._on_disconnect,
            RegAck: self._on_regack,
            PubAck: self._on_puback,
            PubRec: self._on_pubrec,
            PubComp: self._on_pubcomp,
            SearchGw: lambda m: [GwInfo(1)],
        }

    def restart(self) -> None:
        """Lose the connection and the topic ids; what was taken and what is to be handed out stays."""
        self.connected = self.asleep = False
        self._forget()

    def hand_out(self, topic: str, payload: bytes, qos: int) -> None:
        self._queue.append((topic, payload, qos))

    @property
    def handed_out(self) -> bool:
        return not self._queue

    def receive(self, datagram: bytes, now: float) -> list[bytes]:
        try:
            message = decode(datagram)
        except MalformedPacket:
            return []
        self.heard.append(message)
        if not self.connected and not self._needs_no_connection(message):
            return [encode(Disconnect())]
        answers = self._handlers[type(message)](message)
        return [encode(answer) for answer in answers] + self.tick(now)

    def tick(self, now: float) -> list[bytes]:
        """What is to be handed out now, or again."""
        if not self.connected or (self.asleep and not self.awake):
            return []
        if self._leg is None and self._queue:
            topic, payload, qos = self._queue[0]
            number = self._ids.get(topic)
            if number is None:
                self._leg = Register(self._id_of(topic), self._message_id, topic)
            else:
                self._leg = Publish(TopicType.NORMAL, number, self._message_id if qos else 0, payload, qos)
            self._leg_at = now
        if self._leg is None:
            if self.awake:
                self.awake = False
                return [encode(PingResp())]
            return []
        if now < self._leg_at:
            return []
        packet = encode(self._leg)
        self._leg_at = now + REPEAT_S
        if isinstance(self._leg, Publish) and self._leg.qos == 0:
            self._done()
            return [packet, *self.tick(now)]
        return [packet]

    def _needs_no_connection(self, message: AnyMessage) -> bool:
        return isinstance(message, Connect | WillTopic | WillMsg | Disconnect | SearchGw) or (
            isinstance(message, Publish) and message.qos == -1
        )

    def _id_of(self, name: str) -> int:
        if name not in self._ids:
            self._number += 1
            self._ids[name] = self._number
            self._names[self._number] = name
        return self._ids[name]

    def _forget(self) -> None:
        self._ids.clear()
        self._names.clear()
        if not isinstance(self._leg, PubRel):
            self._leg = None
        self._leg_at = 0.0

    def _done(self) -> None:
        self._queue.popleft()
        self._message_id = self._message_id % 0xFFFF + 1
        self._leg = None

    def _on_connect(self, message: Connect) -> list[Message]:
        self.asleep = self.awake = False
        self._forget()
        if message.will:
            return [WillTopicReq()]
        return self._welcome()

    def _welcome(self) -> list[Message]:
        self.connected = True
        return [ConnAck(0)]

    def _on_will_topic(self, message: WillTopic) -> list[Message]:
        self._will_topic = message.topic
        return [WillMsgReq()]

    def _on_will_msg(self, message: WillMsg) -> list[Message]:
        self.will = (self._will_topic, message.payload)
        return self._welcome()

    def _on_publish(self, message: Publish) -> list[Message]:
        if self.congested and message.qos >= 0:
            self.congested -= 1
            return [PubAck(message.topic_id, message.msg_id, ReturnCode.CONGESTION)]
        topic: str | int | None = message.topic_id
        if message.topic_type == TopicType.NORMAL:
            topic = self._names.get(message.topic_id)
        elif message.topic_type == TopicType.SHORT:
            topic = short_topic_name(message.topic_id)
        if topic is None:
            return [PubAck(message.topic_id, message.msg_id, ReturnCode.INVALID_TOPIC)]
        key = (message.msg_id, message.payload)
        if message.qos != 2 or key not in self._seen:
            self.taken.append((topic, message.payload, message.qos))
            self._seen.add(key)
        if message.qos == 1:
            return [PubAck(message.topic_id, message.msg_id, 0)]
        return [PubRec(message.msg_id)] if message.qos == 2 else []

    def _on_subscribe(self, message: Subscribe) -> list[Message]:
        return [SubAck(0, message.msg_id, 0, message.qos)]

    def _on_pingreq(self, message: PingReq) -> list[Message]:
        if self.asleep:
            self.awake = True
            self._leg_at = 0.0
            return []
        return [PingResp()]

    def _on_disconnect(self, message: Disconnect) -> list[Message]:
        if not self.connected:
            return [Disconnect()]
        self.asleep = message.duration_s is not None
        self.connected = self.asleep
        return [Disconnect()]

    def _on_regack(self, message: RegAck) -> list[Message]:
        if isinstance(self._leg, Register) and self._leg.msg_id == message.msg_id:
            self._leg = None
        return []

    def _on_puback(self, message: PubAck) -> list[Message]:
        leg = self._leg
        if isinstance(leg, Publish) and leg.msg_id == message.msg_id:
            if message.return_code == ReturnCode.INVALID_TOPIC:
                self._leg = Register(leg.topic_id, leg.msg_id, self._names[leg.topic_id])
                self._leg_at = 0.0
            elif leg.qos == 1:
                self._done()
        return []

    def _on_pubrec(self, message: PubRec) -> list[Message]:
        if isinstance(self._leg, Publish) and self._leg.msg_id == message.msg_id and self._leg.qos == 2:
            self._leg = PubRel(message.msg_id)
            self._leg_at = 0.0
        return []

    def _on_pubcomp(self, message: PubComp) -> list[Message]:
        if isinstance(self._leg, PubRel) and self._leg.msg_id == message.msg_id:
            self._done()
        return []


class UdpGateway:
    """A `ReferenceGateway` at a UDP port, in a thread."""

    def __init__(self) -> None:
        self.gateway = ReferenceGateway()
        self.silent = False
        self.changed = threading.Condition()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._peer: tuple[str, int] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> UdpGateway:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stopper:
            stopper.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def wait_for(self, what: Callable[[], object]) -> None:
        """Wait until something is true of the gateway."""
        with self.changed:
            assert self.changed.wait_for(what, 10), "the gateway never saw it"

    def send(self, message: Message) -> None:
        """Say something unasked to the client that spoke last."""
        assert self._peer is not None
        self._socket.sendto(encode(message), self._peer)

    def hand_out(self, topic: str, payload: bytes, qos: int) -> None:
        with self.changed:
            self.gateway.hand_out(topic, payload, qos)
            for packet in self.gateway.tick(0.0):
                assert self._peer is not None
                self._socket.sendto(packet, self._peer)

    def _run(self) -> None:
        while True:
            datagram, peer = self._socket.recvfrom(65_535)
            if not datagram:
                return
            if self.silent:
                continue
            with self.changed:
                self._peer = peer
                for answer in self.gateway.receive(datagram, 0.0):
                    self._socket.sendto(answer, peer)
                self.changed.notify_all()

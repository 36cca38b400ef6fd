"""The two ends a gateway stands between, for tests: a raw MQTT-SN device and a recording MQTT client.

A `Device` sends what it is told to and hands out what comes in, one packet at a time. It repeats nothing and answers
nothing on its own unless a method says so, so a test sees every packet of the gateway. A `Recorder` is an ordinary
MQTT client on the broker's side; its session outlives a restart of the broker.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from protocol.mqttsn import (
    AnyMessage,
    ConnAck,
    Connect,
    Disconnect,
    Message,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicType,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    decode,
    encode,
    short_topic_name,
)
from tests.support.waiting import WAIT_S

T = TypeVar("T")


class Delivered(NamedTuple):
    """A PUBLISH the gateway sent, with the topic's name."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool


class Device:
    """A UDP socket that speaks MQTT-SN to one gateway."""

    def __init__(self, gateway: tuple[str, int], client_id: str = "") -> None:
        self.gateway = gateway
        self.client_id = client_id or f"dev-{secrets.token_hex(4)}"
        self.topics: dict[int, str] = {}
        self.predefined: dict[int, str] = {}
        self._msg_id = 0
        self._put_back: deque[bytes] = deque()
        self._open()

    def _open(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        self._socket.bind(("127.0.0.1", 0))

    def close(self) -> None:
        """Leave without a word."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def move(self) -> None:
        """Go on from another UDP port, as behind a NAT that has forgotten its mapping."""
        left = self.port
        old = self._socket
        self._open()
        old.close()
        assert self.port != left

    def swap_ports(self, other: Device) -> None:
        """Go on from the other's port, and the other from this one's."""
        self._socket, other._socket = other._socket, self._socket

    # ------------------------------------------------------------------ packets

    def send(self, message: Message) -> None:
        self.send_bytes(encode(message))

    def send_bytes(self, datagram: bytes) -> None:
        self._socket.sendto(datagram, self.gateway)

    def receive_bytes(self, timeout_s: float = WAIT_S) -> bytes:
        """The next datagram; TimeoutError if none comes."""
        if self._put_back:
            return self._put_back.popleft()
        self._socket.settimeout(max(timeout_s, 0.000_1))
        try:
            return self._socket.recv(65_535)
        except TimeoutError:
            raise TimeoutError(f"{self.client_id}: the gateway sent nothing for {timeout_s:g} s") from None

    def receive(self, timeout_s: float = WAIT_S) -> AnyMessage:
        """The next packet, decoded."""
        return decode(self.receive_bytes(timeout_s))

    def expect(self, kind: type[T], timeout_s: float = WAIT_S) -> T:
        """The next packet, which has to be of this type."""
        message = self.receive(timeout_s)
        assert isinstance(message, kind), f"{self.client_id}: {kind.__name__} expected, {message!r} came"
        return message

    def skip_to(self, kind: type[T], timeout_s: float = WAIT_S) -> T:
        """The next packet of this type; those before it are thrown away."""
        give_up = time.monotonic() + timeout_s
        while True:
            message = self.receive(give_up - time.monotonic())
            if isinstance(message, kind):
                return message

    def pending(self) -> list[AnyMessage]:
        """All that has come in and was not read yet."""
        messages = []
        while True:
            try:
                messages.append(self.receive(0))
            except TimeoutError:
                return messages

    def next_msg_id(self) -> int:
        self._msg_id = self._msg_id % 0xFFFF + 1
        return self._msg_id

    # ------------------------------------------------------------------ whole exchanges, on a link that loses nothing

    def connect(self, *, clean: bool = True, keep_alive_s: int = 60, will: WillTopic | None = None) -> Self:
        """CONNECT, with the will handshake if there is a will (its message is "gone: " and the client id)."""
        self.send(Connect(self.client_id, keep_alive_s, clean, will is not None))
        if will is not None:
            self.expect(WillTopicReq)
            self.send(will)
            self.expect(WillMsgReq)
            self.send(WillMsg(f"gone: {self.client_id}".encode()))
        code = self.expect(ConnAck).return_code
        assert code == ReturnCode.ACCEPTED, f"{self.client_id}: CONNACK {code}"
        return self

    def disconnect(self) -> None:
        self.send(Disconnect())
        self.skip_to(Disconnect)

    def sleep(self, duration_s: int = 600) -> None:
        self.send(Disconnect(duration_s))
        self.expect(Disconnect)

    def register(self, topic: str) -> int:
        msg_id = self.next_msg_id()
        self.send(Register(0, msg_id, topic))
        answer = self.expect(RegAck)
        assert (answer.msg_id, answer.return_code) == (msg_id, ReturnCode.ACCEPTED), answer
        self.topics[answer.topic_id] = topic
        return answer.topic_id

    def subscribe(self, topic: str | int, qos: int = 0, topic_type: int | None = None) -> SubAck:
        """SUBSCRIBE to a filter or a predefined id."""
        if topic_type is None:
            topic_type = TopicType.PREDEFINED if isinstance(topic, int) else TopicType.NORMAL
        msg_id = self.next_msg_id()
        self.send(Subscribe(topic_type, topic, msg_id, qos))
        answer = self.expect(SubAck)
        assert (answer.msg_id, answer.return_code) == (msg_id, ReturnCode.ACCEPTED), answer
        if answer.topic_id and isinstance(topic, str):
            self.topics[answer.topic_id] = topic
        return answer

    def publish(
        self,
        topic_id: int,
        payload: bytes,
        qos: int = 0,
        *,
        retain: bool = False,
        topic_type: int = TopicType.NORMAL,
    ) -> None:
        """PUBLISH and, at QoS 1 and 2, the answers until it is done."""
        msg_id = self.next_msg_id() if qos > 0 else 0
        self.send(Publish(topic_type, topic_id, msg_id, payload, qos, retain))
        if qos == 1:
            assert self.expect(PubAck) == PubAck(topic_id, msg_id, ReturnCode.ACCEPTED)
        elif qos == 2:
            assert self.expect(PubRec) == PubRec(msg_id)
            self.send(PubRel(msg_id))
            assert self.expect(PubComp) == PubComp(msg_id)

    def topic_of(self, message: Publish) -> str:
        if message.topic_type == TopicType.SHORT:
            return short_topic_name(message.topic_id)
        return (self.predefined if message.topic_type == TopicType.PREDEFINED else self.topics)[message.topic_id]

    def deliver(self, timeout_s: float = WAIT_S) -> Delivered:
        """The next message for this device, with its REGISTER before and its QoS 1 or 2 exchange after it answered."""
        give_up = time.monotonic() + timeout_s
        while True:
            message = self.receive(give_up - time.monotonic())
            match message:
                case Register(topic_id, msg_id, topic):
                    self.topics[topic_id] = topic
                    self.send(RegAck(topic_id, msg_id, ReturnCode.ACCEPTED))
                case PubRel(msg_id):
                    self.send(PubComp(msg_id))
                case Publish():
                    self._answer(message)
                    return Delivered(self.topic_of(message), message.payload, message.qos, message.retain, message.dup)
                case _:
                    raise AssertionError(f"{self.client_id}: a message expected, {message!r} came")

    def _answer(self, message: Publish) -> None:
        if message.qos == 1:
            self.send(PubAck(message.topic_id, message.msg_id, ReturnCode.ACCEPTED))
        elif message.qos == 2:
            self.send(PubRec(message.msg_id))
            others: list[bytes] = []
            while (other := decode(datagram := self.receive_bytes())) != PubRel(message.msg_id):
                # A gateway that has waited for long sends it again: it is the same message until PUBREL.
                if not (isinstance(other, Publish) and other.dup and other.msg_id == message.msg_id):
                    others.append(datagram)
            self._put_back.extendleft(reversed(others))
            self.send(PubComp(message.msg_id))


class Recorded(NamedTuple):
    """What came from the broker."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Recorder:
    """An MQTT client that keeps everything it receives, in order, and comes back after a restart of the broker."""

    def __init__(self, port: int, *filters: str, qos: int = 2) -> None:
        self._changed = threading.Condition()
        self._received: list[Recorded] = []
        self._is_connected = False
        self._answers: dict[int, bool] = {}
        self._acknowledged: set[int] = set()
        self._filters: list[str] = []
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=f"recorder-{secrets.token_hex(4)}", clean_session=False
        )
        self._client.max_inflight_messages_set(0)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_publish = self._on_publish
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self.wait_until_connected()
        for each in filters:
            self.subscribe(each, qos)

    def close(self) -> None:
        """Leave, and leave nothing behind at the broker."""
        if self._is_connected and self._filters:
            self._client.unsubscribe(self._filters)
        self._client.disconnect()
        self._client.loop_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ paho's thread

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        with self._changed:
            self._is_connected = not code.is_failure
            self._changed.notify_all()

    def _on_disconnect(self, *_: Any) -> None:
        with self._changed:
            self._is_connected = False

    def _on_subscribe(self, _client: Any, _data: Any, mid: int, codes: Any, _properties: Any) -> None:
        with self._changed:
            self._answers[mid] = not any(code.is_failure for code in codes)
            self._changed.notify_all()

    def _on_publish(self, _client: Any, _data: Any, mid: int, _code: Any, _properties: Any) -> None:
        with self._changed:
            self._acknowledged.add(mid)
            self._changed.notify_all()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self._received.append(Recorded(message.topic, bytes(message.payload), message.qos, bool(message.retain)))
            self._changed.notify_all()

    # ------------------------------------------------------------------ the test's thread

    def wait_until_connected(self) -> None:
        """Wait until the client is connected (again)."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_connected, WAIT_S):
                raise TimeoutError(f"the broker has not let the recorder in within {WAIT_S:g} s")

    def subscribe(self, topic_filter: str, qos: int = 2) -> None:
        """Subscribe, and wait for the broker's answer."""
        error, mid = self._client.subscribe(topic_filter, qos)
        assert error is MQTTErrorCode.MQTT_ERR_SUCCESS, error
        with self._changed:
            answered = self._changed.wait_for(lambda: mid in self._answers, WAIT_S)
        assert answered and mid is not None and self._answers[mid], f"the broker refuses {topic_filter}"
        self._filters.append(topic_filter)

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Publish, and wait until the broker has it; if the broker is away, until it is back."""
        self._await_acknowledgement(self._client.publish(topic, payload, qos, retain).mid, topic)

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int = 1) -> None:
        """Publish without waiting in between, then wait until the broker has everything."""
        for mid in [self._client.publish(topic, payload, qos).mid for payload in payloads]:
            self._await_acknowledgement(mid, topic)

    def _await_acknowledgement(self, mid: int, topic: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: mid in self._acknowledged, WAIT_S):
                raise TimeoutError(f"{topic}: not taken by the broker within {WAIT_S:g} s")
            self._acknowledged.discard(mid)

    @property
    def received(self) -> list[Recorded]:
        """Everything so far."""
        with self._changed:
            return list(self._received)

    def payloads(self, topic: str | None = None) -> list[bytes]:
        """The payloads so far, of one topic or of all."""
        return [each.payload for each in self.received if topic is None or each.topic == topic]

    def wait_for(self, condition: Callable[[list[Recorded]], T | None], what: str, timeout_s: float = WAIT_S) -> T:
        """Wait until the condition holds for what was received, and return its value."""
        value: T | None = None

        def holds() -> bool:
            nonlocal value
            value = condition(self._received)
            return bool(value)

        with self._changed:
            if not self._changed.wait_for(holds, timeout_s):
                last = ", ".join(f"{each.topic}={each.payload[:40]!r}" for each in self._received[-5:])
                raise TimeoutError(f"not within {timeout_s:g} s: {what}; {len(self._received)} received, last {last}")
        assert value is not None
        return value

    def wait_for_count(self, count: int, timeout_s: float = WAIT_S) -> list[Recorded]:
        """Wait until so many messages have come, and return all."""
        self.wait_for(lambda received: len(received) >= count, f"{count} messages", timeout_s)
        return self.received

    def wait_for_message(self, topic: str, payload: bytes, timeout_s: float = WAIT_S) -> Recorded:
        """Wait until this message has come, and return it."""
        return self.wait_for(
            lambda received: next((each for each in received if each[:2] == (topic, payload)), None),
            f"{topic}={payload[:40]!r}",
            timeout_s,
        )


def retained(port: int, topic_filter: str) -> dict[str, bytes]:
    """The retained messages behind a filter, by topic."""
    with Recorder(port) as recorder:
        recorder.subscribe(topic_filter, qos=0)
        # QoS 0 messages of one connection come in order, so the marker comes after the retained ones.
        marker = f"marker/{secrets.token_hex(4)}"
        recorder.subscribe(marker, qos=0)
        recorder.publish(marker, b"here")
        recorder.wait_for_message(marker, b"here")
        return {each.topic: each.payload for each in recorder.received if each.retain}


def client_states(port: int) -> dict[str, str]:
    """The retained state topics of clients."""
    return {topic: state.decode() for topic, state in retained(port, "tl/+/+/state").items()}

"""REGISTER, SUBSCRIBE and UNSUBSCRIBE: requests with a message id, each repeated until answered.

Several may be in flight, but never two about the same topic, so that a lost SUBSCRIBE cannot be repeated after the
UNSUBSCRIBE that was to undo it. Requests of a lost connection are made again with new ids: an answer to an old one
would say what the gateway knew before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from edge_agent.transport.pending import DeliveryFailed, Message, Pending, QueueFull, Refused
from edge_agent.transport.topics import Topic, TopicBook
from edge_agent.transport.wire import Flight, Wire
from protocol.mqttsn import (
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicType,
    UnsubAck,
    Unsubscribe,
    has_wildcard,
)

OnMessage = Callable[[Message], object]
_WINDOW = 8
_MAX_WAITING = 1_000


class Kind(Enum):
    REGISTER = "register"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


class Request(Flight):
    """One request. A renewed subscription after a reconnect has no pending."""

    __slots__ = ("kind", "msg_id", "pending", "qos", "topic")

    def __init__(self, kind: Kind, topic: Topic, qos: int = 0, pending: Pending[Any] | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.topic = topic
        self.qos = qos
        self.pending = pending
        self.msg_id = 0

    def packet(self) -> Register | Subscribe | Unsubscribe:
        """The packet, with DUP where the message has that flag and it was sent before."""
        topic = self.topic
        if self.kind is Kind.REGISTER:
            return Register(0, self.msg_id, topic.name)
        if self.kind is Kind.SUBSCRIBE:
            return Subscribe(topic.kind, topic.field, self.msg_id, self.qos, self.attempts > 0)
        return Unsubscribe(topic.kind, topic.field, self.msg_id)


class Subscription:
    """A subscription the application wants to have, connected or not."""

    __slots__ = ("on_message", "qos", "topic")

    def __init__(self, topic: Topic, qos: int, on_message: OnMessage) -> None:
        self.topic = topic
        self.qos = qos
        self.on_message = on_message


class Requests:
    """The requests of a session and the subscriptions that come of them."""

    def __init__(self, wire: Wire, book: TopicBook) -> None:
        self._wire = wire
        self._book = book
        self._waiting: deque[Request] = deque()
        self._busy: set[Topic] = set()
        self._registering: set[Topic] = set()
        self.by_id: dict[int, Request] = {}
        self.subscriptions: dict[Topic, Subscription] = {}

    @property
    def idle(self) -> bool:
        return not self._waiting and not self.by_id

    def register(self, topic: Topic) -> None:
        """Ask for the id of a normal name, unless it is being asked for."""
        if topic not in self._registering:
            self._registering.add(topic)
            self._waiting.append(Request(Kind.REGISTER, topic))

    def subscribe(self, topic: Topic, qos: int, on_message: OnMessage, pending: Pending[int]) -> None:
        """Subscribe, or replace the callback and QoS of an older subscription to the same filter."""
        self._check_room()
        self.subscriptions[topic] = Subscription(topic, qos, on_message)
        self._waiting.append(Request(Kind.SUBSCRIBE, topic, qos, pending))

    def unsubscribe(self, topic: Topic, pending: Pending[None]) -> None:
        """Stop the callback now, and the gateway when it hears of it."""
        self._check_room()
        self.subscriptions.pop(topic, None)
        self._waiting.append(Request(Kind.UNSUBSCRIBE, topic, 0, pending))

    def _check_room(self) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            raise QueueFull(f"{_MAX_WAITING} subscriptions and unsubscriptions wait for the gateway")

    def routes(self, topic: str | int) -> list[OnMessage]:
        """The callbacks of all subscriptions that cover a topic."""
        return [entry.on_message for entry in self.subscriptions.values() if entry.topic.covers(topic)]

    def pump(self, now: float) -> None:
        """Send what may be sent now, in order."""
        wire = self._wire
        while self._waiting and len(self.by_id) < _WINDOW and now >= wire.paused_until:
            request = self._waiting[0]
            if request.topic in self._busy:
                return
            self._waiting.popleft()
            self._busy.add(request.topic)
            request.msg_id = wire.next_id()
            self.by_id[request.msg_id] = request
            self._send(request, now)

    def _send(self, request: Request, now: float) -> None:
        self._wire.send(request.packet(), now)
        self._wire.supervise(request, now)

    def timers(self, now: float) -> bool:
        """Send again what got no answer in time. False if the gateway is gone."""
        wire = self._wire
        for request in self.by_id.values():
            if request.deadline <= now:
                if wire.gave_up(request):
                    return False
                self._send(request, now)
            wire.sooner(request.deadline)
        return True

    def online(self, now: float) -> None:
        """The connection stands: every subscription is made again, whether the gateway still has it or not."""
        asked = {r.topic for r in (*self.by_id.values(), *self._waiting) if r.kind is Kind.SUBSCRIBE}
        for entry in self.subscriptions.values():
            if entry.topic not in asked:
                self._waiting.append(Request(Kind.SUBSCRIBE, entry.topic, entry.qos))

    def offline(self) -> None:
        """The connection is gone. Requests someone waits for are kept in order; the others are made anew if needed."""
        kept = [r for r in (*self.by_id.values(), *self._waiting) if r.pending is not None]
        for request in kept:
            request.rest()
        self._waiting = deque(kept)
        self.by_id.clear()
        self._busy.clear()
        self._registering.clear()

    def on_regack(self, message: RegAck, now: float) -> Topic | None:
        """The topic if the gateway refused it for good."""
        request = self._answered(message.msg_id, Kind.REGISTER, now)
        if request is None:
            return None
        if message.return_code == ReturnCode.CONGESTION:
            self._again(request, now)
            return None
        self._registering.discard(request.topic)
        if message.return_code != ReturnCode.ACCEPTED or message.topic_id == 0:
            return request.topic
        self._wire.uncongested()
        self._book.registered(request.topic.name, message.topic_id)
        return None

    def on_suback(self, message: SubAck, now: float) -> None:
        request = self._answered(message.msg_id, Kind.SUBSCRIBE, now)
        if request is None:
            return
        topic = request.topic
        if message.return_code == ReturnCode.CONGESTION:
            self._again(request, now)
        elif message.return_code == ReturnCode.ACCEPTED:
            if topic.kind == TopicType.NORMAL and message.topic_id and not has_wildcard(topic.name):
                self._book.announced(topic.name, message.topic_id)
            self._wire.uncongested()
            self._wire.succeed(request.pending, message.qos)
        elif request.pending is None:
            self._wire.stats.count_unexpected("subscription not renewed")
        else:
            if not any(r.topic == topic and r.kind is Kind.SUBSCRIBE for r in self._waiting):
                self.subscriptions.pop(topic, None)
            self._wire.fail(request.pending, Refused(f"a subscription to {topic}", message.return_code))

    def on_unsuback(self, message: UnsubAck, now: float) -> None:
        request = self._answered(message.msg_id, Kind.UNSUBSCRIBE, now)
        if request is not None:
            self._wire.succeed(request.pending, None)

    def fail_all(self, reason: str) -> None:
        """The end of the session."""
        for request in (*self.by_id.values(), *self._waiting):
            self._wire.fail(request.pending, DeliveryFailed(f"{request.kind.value} {request.topic}: {reason}"))
        self.by_id.clear()
        self._waiting.clear()

    def _answered(self, msg_id: int, kind: Kind, now: float) -> Request | None:
        request = self.by_id.get(msg_id)
        if request is None or request.kind is not kind:
            self._wire.stats.duplicates += 1
            return None
        del self.by_id[msg_id]
        self._busy.discard(request.topic)
        self._wire.answered(request, now)
        return request

    def _again(self, request: Request, now: float) -> None:
        """The gateway was congested: first in the queue after the pause."""
        request.rest()
        self._waiting.appendleft(request)
        self._wire.congested(now)

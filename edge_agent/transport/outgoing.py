"""Messages on their way out: queued, in flight, waiting for the second leg of QoS 2.

Every accepted message is in exactly one place until its pending is settled:

    waiting   a queue in the order of the publish calls, nothing sent yet
    flying    sent, a timer runs (`deadline` is set); first PUBLISH, then for QoS 2 PUBREL
    resting   sent, no timer: the connection is away, the gateway was congested or did not know the topic id

Resting PUBLISHes go before waiting ones, in their old order, with their old message id and DUP set. A message that is
past PUBREC belongs to the gateway: from then on only PUBREL is ever sent for it.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from edge_agent.transport.pending import Delivery, DeliveryFailed, QueueFull, Refused
from edge_agent.transport.requests import Requests
from edge_agent.transport.topics import Topic, TopicBook
from edge_agent.transport.wire import NEVER, Flight, Wire
from protocol.mqttsn import PUBLISH_OVERHEAD_BYTES, PubAck, PubComp, Publish, PubRec, PubRel, ReturnCode, TopicType

BURST = 64
_MOST_INVALID_TOPIC = 8
_OVERTAKEN = 3


class Outgoing(Flight):
    """One accepted message."""

    __slots__ = (
        "done",
        "invalid",
        "msg_id",
        "order",
        "overtaken",
        "payload",
        "pending",
        "qos",
        "released",
        "retain",
        "topic",
    )

    def __init__(self, order: int, topic: Topic, payload: bytes, qos: int, retain: bool, pending: Delivery) -> None:
        super().__init__()
        self.order = order
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.pending = pending
        self.msg_id = 0
        self.invalid = 0
        self.overtaken = 0
        self.released = False
        self.done = False

    @property
    def size(self) -> int:
        return len(self.payload) + len(self.topic.name)


class Outbox:
    """All accepted messages of a session. Bounded in number and bytes."""

    def __init__(self, wire: Wire, book: TopicBook, requests: Requests) -> None:
        self._wire = wire
        self._book = book
        self._requests = requests
        self._waiting: deque[Outgoing] = deque()
        self._resting: list[tuple[int, Outgoing]] = []
        self._order = 0
        self._online = False
        self.by_id: dict[int, Outgoing] = {}
        self.count = 0
        self.bytes = 0
        self.backlog = False

    @property
    def idle(self) -> bool:
        """Whether every accepted message is settled."""
        return self.count == 0

    def check(self, topic: Topic, payload: bytes, qos: int) -> None:
        """ValueError if this can never be sent."""
        config = self._wire.config
        size = len(payload) + PUBLISH_OVERHEAD_BYTES
        if size > config.max_packet_bytes:
            most = config.max_packet_bytes - PUBLISH_OVERHEAD_BYTES
            raise ValueError(f"a payload of {len(payload)} bytes does not fit in a packet: at most {most}")
        if len(payload) + len(topic.name) > config.max_queued_bytes:
            raise ValueError(f"a payload of {len(payload)} bytes exceeds max_queued_bytes={config.max_queued_bytes}")
        if qos not in (-1, 0, 1, 2):
            raise ValueError(f"QoS is -1, 0, 1 or 2, not {qos!r}")
        if qos == -1 and topic.kind == TopicType.NORMAL:
            raise ValueError(f"QoS -1 needs a short or predefined topic, not {topic.name!r}: it registers nothing")

    def add(self, topic: Topic, payload: bytes, qos: int, retain: bool, pending: Delivery) -> None:
        """Take a message. QueueFull if there is no room for it."""
        config = self._wire.config
        size = len(payload) + len(topic.name)
        if self.count >= config.max_queued or self.bytes + size > config.max_queued_bytes:
            raise QueueFull(
                f"{self.count} messages of {self.bytes} bytes are undelivered; "
                f"the limits are {config.max_queued} and {config.max_queued_bytes}"
            )
        self._order += 1
        self._waiting.append(Outgoing(self._order, topic, payload, qos, retain, pending))
        self.count += 1
        self.bytes += size
        if self._online and self._book.number_of(topic) is None:
            self._requests.register(topic)

    def send_unconnected(self, topic: Topic, payload: bytes, retain: bool, pending: Delivery) -> None:
        """QoS -1: on the way at once, connected or not. It is no sign of life, so it does not put off a ping."""
        wire = self._wire
        if len(wire.datagrams) >= wire.config.max_queued:
            raise QueueFull(f"{len(wire.datagrams)} packets wait for the network")
        wire.send(Publish(topic.kind, topic.number, 0, payload, -1, retain), wire.last_sent)
        wire.stats.delivered[-1] += 1
        wire.succeed(pending, None)

    def pump(self, now: float) -> None:
        """Send what may be sent now, oldest first. `backlog` is set if only the burst limit stopped it."""
        wire = self._wire
        window = wire.config.window
        resting, waiting, by_id = self._resting, self._waiting, self.by_id
        self.backlog = False
        while now >= wire.paused_until:
            if resting:
                item = resting[0][1]
                if item.done or item.released:
                    heappop(resting)
                    continue
            elif waiting and (len(by_id) < window or waiting[0].qos == 0 or waiting[0].done):
                item = waiting[0]
                if item.done:
                    waiting.popleft()
                    continue
            else:
                return
            if self._book.number_of(item.topic) is None:
                self._requests.register(item.topic)
                self._requests.pump(now)
                return
            if len(wire.datagrams) >= BURST:
                self.backlog = True
                return
            if resting:
                heappop(resting)
            else:
                waiting.popleft()
            self._launch(item, now)

    def _launch(self, item: Outgoing, now: float) -> None:
        """Send a PUBLISH for the first time or again. Its topic has an id."""
        wire = self._wire
        number = self._book.number_of(item.topic) or 0
        if item.qos == 0:
            wire.send(Publish(item.topic.kind, number, 0, item.payload, 0, item.retain), now)
            self._finish(item)
            return
        again = item.msg_id != 0
        if not again:
            item.msg_id = wire.next_id()
            self.by_id[item.msg_id] = item
        elif item.attempts == 0:
            wire.stats.resent += 1
        wire.send(Publish(item.topic.kind, number, item.msg_id, item.payload, item.qos, item.retain, again), now)
        wire.supervise(item, now)
        item.overtaken = 0

    def _release(self, item: Outgoing, now: float) -> None:
        self._wire.send(PubRel(item.msg_id), now)
        self._wire.supervise(item, now)
        item.overtaken = 0

    def _rest(self, item: Outgoing) -> None:
        """Put a flying PUBLISH back: it goes again before anything newer does."""
        if item.deadline < NEVER:
            item.rest()
            heappush(self._resting, (item.order, item))

    def _answered(self, acked: Outgoing, now: float) -> None:
        """An answer came. A packet that answers to later ones overtook, one after the other, is most likely lost: it
        need not wait as long as one of which nothing is known."""
        wire = self._wire
        if wire.answered(acked, now):
            for item in self.by_id.values():
                if item.deadline < NEVER:
                    item.deadline = min(item.deadline, max(now, item.sent_at + wire.round_trip.least_wait_s()))
                    wire.sooner(item.deadline)
        if acked.attempts != 1:
            return
        sent_at = acked.sent_at
        for item in self.by_id.values():
            if item.sent_at < sent_at and item.deadline < NEVER:
                item.overtaken += 1
                if item.overtaken == _OVERTAKEN:
                    item.deadline = min(item.deadline, item.sent_at + wire.round_trip.least_wait_s())
                    wire.sooner(item.deadline)

    def timers(self, now: float) -> bool:
        """Send again what got no answer in time. False if the gateway is gone."""
        wire = self._wire
        for item in list(self.by_id.values()):
            if item.deadline <= now:
                if wire.gave_up(item):
                    return False
                if item.released:
                    self._release(item, now)
                elif self._book.number_of(item.topic) is None:
                    self._rest(item)
                else:
                    self._launch(item, now)
            wire.sooner(item.deadline)
        if now < wire.paused_until:
            wire.sooner(wire.paused_until)
        return True

    def online(self, now: float) -> None:
        """The connection stands: PUBRELs go at once, PUBLISHes as soon as their topics have ids."""
        self._online = True
        for item in self.by_id.values():
            if item.released:
                if item.deadline == NEVER:
                    self._wire.stats.resent += 1
                    self._release(item, now)
            elif self._book.number_of(item.topic) is None:
                self._requests.register(item.topic)

    def offline(self) -> None:
        """The connection is gone: all timers stop, nothing is forgotten."""
        self._online = False
        self.backlog = False
        for item in self.by_id.values():
            if item.released:
                item.rest()
            else:
                self._rest(item)

    def on_puback(self, message: PubAck, now: float) -> None:
        wire = self._wire
        code = message.return_code
        if message.msg_id == 0:
            self._on_puback_of_qos_0(message, now)
            return
        item = self.by_id.get(message.msg_id)
        if item is None:
            wire.stats.duplicates += 1
        elif code == ReturnCode.ACCEPTED:
            if item.qos == 1:
                self._answered(item, now)
                wire.uncongested()
                self._finish(item)
            else:
                wire.stats.count_unexpected("puback for qos 2")
        elif item.released or item.deadline == NEVER:
            wire.stats.duplicates += 1  # a refusal of a copy, late: another copy was taken, or the case is known
        elif code == ReturnCode.CONGESTION:
            wire.answered(item, now)
            wire.congested(now)
            self._rest(item)
        elif code == ReturnCode.INVALID_TOPIC and item.topic.kind == TopicType.NORMAL:
            item.invalid += 1
            if item.invalid > _MOST_INVALID_TOPIC:
                self._fail(item, Refused(f"the topic id of {item.topic} again and again", code))
                return
            wire.answered(item, now)
            if self._book.number_of(item.topic) == message.topic_id:
                self._book.forget(item.topic.name)
            self._rest(item)
        else:
            self._fail(item, Refused(f"a message to {item.topic}", code))

    def _on_puback_of_qos_0(self, message: PubAck, now: float) -> None:
        """The message is gone, as QoS 0 messages may be; the next ones need not be."""
        if message.return_code == ReturnCode.CONGESTION:
            self._wire.congested(now)
        elif message.return_code == ReturnCode.INVALID_TOPIC:
            self._book.forget_number(message.topic_id)
        else:
            self._wire.stats.count_unexpected("puback for qos 0")

    def on_pubrec(self, message: PubRec, now: float) -> None:
        wire = self._wire
        item = self.by_id.get(message.msg_id)
        if item is None:
            wire.stats.duplicates += 1
            if self._online:
                wire.send(PubRel(message.msg_id), now)  # so that the gateway can forget it too
        elif item.qos != 2:
            wire.stats.count_unexpected("pubrec for qos 1")
        elif item.released:
            wire.stats.duplicates += 1
        else:
            if item.deadline < NEVER:
                self._answered(item, now)
            wire.uncongested()
            item.released = True
            item.rest()
            if self._online:
                self._release(item, now)

    def on_pubcomp(self, message: PubComp, now: float) -> None:
        item = self.by_id.get(message.msg_id)
        if item is None:
            self._wire.stats.duplicates += 1
        elif not item.released:
            self._wire.stats.count_unexpected("pubcomp before pubrec")
        else:
            self._answered(item, now)
            self._finish(item)

    def topic_refused(self, topic: Topic, code: int) -> None:
        """The gateway will not give this topic an id: no message for it can go."""
        for item in [*self.by_id.values(), *self._waiting]:
            if item.topic == topic and not item.released and not item.done:
                self._fail(item, Refused(f"topic {topic}", code))

    def fail_all(self, reason: str) -> None:
        """The end of the session."""
        for item in [*self.by_id.values(), *self._waiting]:
            if not item.done:
                self._fail(item, DeliveryFailed(f"message to {item.topic}, QoS {item.qos}: {reason}"))
        self._waiting.clear()
        self._resting.clear()

    def _finish(self, item: Outgoing) -> None:
        self._forget(item)
        self._wire.stats.delivered[item.qos] += 1
        self._wire.succeed(item.pending, None)

    def _fail(self, item: Outgoing, error: Exception) -> None:
        self._forget(item)
        self._wire.fail(item.pending, error)

    def _forget(self, item: Outgoing) -> None:
        if item.msg_id:
            del self.by_id[item.msg_id]
        item.done = True
        self.count -= 1
        self.bytes -= item.size

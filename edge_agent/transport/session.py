"""The MQTT-SN client without a socket: datagrams and time in, datagrams, messages and settled pendings out.

Theory of operation. The shell around a session (`client.Client`) calls `receive` for every datagram from the gateway,
and `tick` when `next_deadline` has come and after every call that gave the session work. Then it carries away what is
in `datagrams` (to send), `delivered` (messages and the callbacks they go to), `settled` (pendings whose callbacks are
to be run) and `notices` (lines for the log). In State.SEEKING it looks up the gateway's address and calls `opened` or
`unreachable`. The session never blocks, never reads a clock, takes its chance from the given `Dice`, and never fails
on what the network brings.

The work is divided by what has to be remembered: `link` the state of the connection, `outgoing` the messages on their
way to the gateway, `requests` the subscriptions and topic registrations, `wills` the will, `inbox` which QoS 2 messages
have been seen, `topics` which ids mean which names, `wire` the timers and what is ready to be sent. Here every kind of
message finds its handler, in one table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_agent.transport.config import SessionConfig, Will
from edge_agent.transport.inbox import Inbox
from edge_agent.transport.link import LISTENING, Link, State
from edge_agent.transport.outgoing import Outbox
from edge_agent.transport.pending import Delivery, Message, Pending, Stats, TransportError
from edge_agent.transport.requests import OnMessage, Requests
from edge_agent.transport.topics import TopicBook
from edge_agent.transport.wills import WillKeeper
from edge_agent.transport.wire import NEVER, Wire
from protocol.dice import Dice, SystemDice
from protocol.mqttsn import (
    Advertise,
    AnyMessage,
    ConnAck,
    Disconnect,
    GwInfo,
    MalformedPacket,
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
    SubAck,
    UnsubAck,
    WillMsgReq,
    WillMsgResp,
    WillTopicReq,
    WillTopicResp,
    decode,
    is_topic_id,
    is_topic_name,
)

_DEAF = frozenset((State.IDLE, State.CLOSED))


class ClientSession:
    """One client's conversation with one gateway at a time. Not thread-safe: the shell holds a lock."""

    def __init__(self, config: SessionConfig, random: Dice | None = None) -> None:
        random = random or SystemDice()
        self.config = config
        self.delivered: list[tuple[Message, list[OnMessage]]] = []
        self._wire = wire = Wire(config, random)
        self._book = TopicBook(config)
        self._requests = Requests(wire, self._book)
        self._wills = WillKeeper(wire, config.will)
        self._outbox = Outbox(wire, self._book, self._requests)
        self._link = link = Link(wire, random, self._requests, self._wills, self._outbox)
        self._inbox = Inbox()
        wire.ids_in_use = (self._outbox.by_id, self._requests.by_id)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            ConnAck: self._on_connack,
            WillTopicReq: link.on_will_topic_req,
            WillMsgReq: link.on_will_msg_req,
            WillTopicResp: self._wills.on_topic_resp,
            WillMsgResp: self._wills.on_msg_resp,
            Register: self._on_register,
            RegAck: self._on_regack,
            Publish: self._on_publish,
            PubAck: self._outbox.on_puback,
            PubRec: self._outbox.on_pubrec,
            PubRel: self._on_pubrel,
            PubComp: self._outbox.on_pubcomp,
            SubAck: self._requests.on_suback,
            UnsubAck: self._requests.on_unsuback,
            PingReq: link.on_pingreq,
            PingResp: link.on_pingresp,
            Disconnect: link.on_disconnect,
            Advertise: self._ignore,
            GwInfo: self._ignore,
        }

    # What the application asks for

    def connect(self, now: float) -> None:
        """Begin to connect, and stay connected until closed."""
        self._link.connect(now)

    def publish(self, topic: str | int, payload: bytes, qos: int, retain: bool, pending: Delivery, now: float) -> None:
        """Take a message. ValueError: it can never be sent. QueueFull: not now. ClientClosed: not any more."""
        resolved = self._book.to_publish(topic)
        self._outbox.check(resolved, payload, qos)
        self._link.refuse_if_closing()
        if qos == -1:
            self._outbox.send_unconnected(resolved, payload, retain, pending)
        else:
            self._outbox.add(resolved, payload, qos, retain, pending)
            self._link.need_connection(now)

    def subscribe(self, topic: str | int, qos: int, on_message: OnMessage, pending: Pending[int], now: float) -> None:
        """Subscribe now and after every reconnect."""
        if qos not in (0, 1, 2):
            raise ValueError(f"a subscription has QoS 0, 1 or 2, not {qos!r}")
        resolved = self._book.to_subscribe(topic)
        self._link.refuse_if_closing()
        self._requests.subscribe(resolved, qos, on_message, pending)
        self._link.need_connection(now)

    def unsubscribe(self, topic: str | int, pending: Pending[None], now: float) -> None:
        """End a subscription."""
        resolved = self._book.to_subscribe(topic)
        self._link.refuse_if_closing()
        self._requests.unsubscribe(resolved, pending)
        self._link.need_connection(now)

    def set_will(self, will: Will | None, pending: Pending[None], now: float) -> None:
        """Change the will at the gateway, or take it away."""
        self._link.refuse_if_closing()
        self._wills.change(will, pending)
        self._link.need_connection(now)

    def sleep(
        self, duration_s: int, check_every_s: float | None, drain_s: float, pending: Pending[None], now: float
    ) -> None:
        """Sleep until `wake`; see `Link.sleep`."""
        self._link.refuse_if_closing()
        self._link.sleep(duration_s, check_every_s, drain_s, pending, now)

    def check(self, pending: Pending[int], now: float) -> None:
        """Fetch what the gateway keeps for this sleeping client; the result is how many messages came."""
        self._link.refuse_if_closing()
        self._link.check(pending, now)

    def wake(self, pending: Pending[None], now: float) -> None:
        """End the sleep."""
        self._link.refuse_if_closing()
        self._link.wake(pending, now)

    def renew(self, now: float) -> None:
        """Connect anew; topics are registered and subscriptions made again."""
        self._link.renew(now)

    def close(self, drain_s: float, now: float) -> None:
        """Take nothing new, finish what is in flight (for `drain_s` at most), say goodbye."""
        self._link.close(drain_s, now)

    def abort(self, reason: str) -> None:
        """End at once: everything that was not done fails with this reason."""
        self._link.abort(reason)

    # What the shell asks for

    @property
    def state(self) -> State:
        return self._link.state

    @property
    def gateway(self) -> int:
        """In SEEKING: the number of the gateway to look up."""
        return self._link.gateway

    @property
    def connections(self) -> int:
        """How often a connection came about."""
        return self._link.connections

    @property
    def refusal(self) -> TransportError | None:
        """Why the gateway will not have us, if that is what it said last."""
        return self._link.last_error if self._link.refused else None

    @property
    def last_error(self) -> TransportError | None:
        """Why there is no connection, if there is none."""
        return self._link.last_error

    @property
    def idle(self) -> bool:
        """Whether every accepted message is settled."""
        return self._outbox.idle

    @property
    def backlog(self) -> bool:
        """Whether `tick` has more to send as soon as `datagrams` is taken away."""
        return self._outbox.backlog

    @property
    def datagrams(self) -> list[bytes]:
        """What is to be sent. The shell empties it."""
        return self._wire.datagrams

    @property
    def settled(self) -> list[Pending[object]]:
        """Pendings whose callbacks are to be run. The shell empties it."""
        return self._wire.settled

    @property
    def notices(self) -> list[str]:
        """Lines for the log. The shell empties it."""
        return self._link.notices

    def take_news(self) -> bool:
        """Whether anything was settled, or the state changed, since the last call: wake those who wait."""
        news, self._wire.news = self._wire.news, False
        return news

    def stats(self) -> Stats:
        """The live counters, with the present state filled in. Copy before keeping."""
        stats = self._wire.stats
        stats.state = self.state.value
        stats.queued = self._outbox.count
        stats.queued_bytes = self._outbox.bytes
        stats.in_flight = len(self._outbox.by_id)
        smoothed_s = self._wire.round_trip.smoothed_s
        stats.round_trip_s = smoothed_s if smoothed_s >= 0 else None
        return stats

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called at the latest; it may then find that there is nothing to do yet."""
        wake_at = self._wire.wake_at
        return None if wake_at == NEVER else wake_at

    def opened(self, now: float) -> None:
        """In SEEKING: there is an address to send to."""
        if self._link.opened(now):
            self._book.forget_all()
            if self._link.clean:
                self._inbox.clear()

    def unreachable(self, reason: str, now: float) -> None:
        """In SEEKING: there is no such gateway at the moment."""
        self._link.unreachable(reason, now)

    def tick(self, now: float) -> None:
        """Do what is due, and send what may be sent."""
        self._link.tick(now)

    def receive(self, datagram: bytes, now: float) -> None:
        """Take in a datagram from the gateway's address. Never raises, whatever it is."""
        wire = self._wire
        if self._link.state in _DEAF:
            wire.stats.count_unexpected("no connection wanted")
            return
        try:
            message = decode(datagram)
            handler = self._handlers.get(type(message))
            if handler is None:
                wire.stats.count_unexpected(f"{message.TYPE.name.lower()} from a gateway")
                return
            wire.stats.received += 1
            wire.last_received = now
            handler(message, now)
        except MalformedPacket as error:
            wire.stats.count_malformed(error.reason)
        else:
            self._link.heard(now)

    # What the gateway sends

    def _on_connack(self, message: ConnAck, now: float) -> None:
        state = self._link.state
        if state is State.CONNECTING:
            self._link.on_connack(message, now)
        elif state is State.CONNECTED:
            # A second copy of our CONNECT got through. It may have come after our first packets and undone them.
            self._wire.stats.duplicates += 1
            self._book.forget_numbers()
            if self._link.clean:
                self._requests.online(now)
        else:
            self._wire.stats.count_unexpected("connack")

    def _on_register(self, message: Register, now: float) -> None:
        if self._link.state not in LISTENING:
            self._wire.stats.count_unexpected("register")
            return
        code = ReturnCode.INVALID_TOPIC
        if is_topic_name(message.topic) and is_topic_id(message.topic_id):
            self._book.announced(message.topic, message.topic_id)
            code = ReturnCode.ACCEPTED
        self._wire.send(RegAck(message.topic_id, message.msg_id, code), now)

    def _on_regack(self, message: RegAck, now: float) -> None:
        refused = self._requests.on_regack(message, now)
        if refused is not None:
            self._outbox.topic_refused(refused, message.return_code or ReturnCode.INVALID_TOPIC)

    def _on_publish(self, message: Publish, now: float) -> None:
        wire = self._wire
        if self._link.state not in LISTENING or message.qos < 0:
            wire.stats.count_unexpected("publish")
            return
        topic = self._book.name_of(message.topic_type, message.topic_id)
        if topic is None:
            wire.stats.count_unexpected("publish to an unknown topic id")
            wire.send(PubAck(message.topic_id, message.msg_id, ReturnCode.INVALID_TOPIC), now)
            return
        if message.qos == 1:
            wire.send(PubAck(message.topic_id, message.msg_id, ReturnCode.ACCEPTED), now)
        elif message.qos == 2:
            wire.send(PubRec(message.msg_id), now)
            if not self._inbox.is_new(message.msg_id, topic, message.payload, now):
                wire.stats.duplicates += 1
                return
        self._link.received += 1
        routes = self._requests.routes(topic)
        if routes:
            self.delivered.append((Message(topic, message.payload, message.qos, message.retain), routes))
        else:
            wire.stats.count_unexpected("publish without a subscription")

    def _on_pubrel(self, message: PubRel, now: float) -> None:
        if self._link.state not in LISTENING:
            self._wire.stats.count_unexpected("pubrel")
            return
        self._inbox.released(message.msg_id, now)
        self._wire.send(PubComp(message.msg_id), now)

    def _ignore(self, message: AnyMessage, now: float) -> None:
        """ADVERTISE and GWINFO are for those who search a gateway."""

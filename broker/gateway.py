"""The gateway's session machine. Theory of operation:

Bytes, broker events and the time go in through `receive`, `broker_*` and `tick`; packets, MQTT actions and counters
come out in `outputs`. Nothing here reads a clock, a socket or a file. Whatever changes a session's state is in this
module (`session.TRANSITIONS` is the table); the two directions of publishing are in `uplink` and `downlink`, what
clients ask about topics in `registrations` and `subscriptions`.

A peer is an address (and, behind forwarders, node ids); a session belongs to a client id. CONNECT ties a session to a
peer. A packet from a peer without a session is answered with DISCONNECT, which is how clients learn of a restart.

Hearing from a client only moves `last_heard`; `_attend` looks at each session in time (`timers`) and works out what its
silence means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, inf
from random import Random
from typing import Any

from broker.config import GatewayConfig
from broker.downlink import Downlink
from broker.journal import Journal
from broker.outputs import NOWHERE, Address, MqttPublish, Outputs, Peer
from broker.presence import Presence
from broker.registrations import Registrations
from broker.session import REACHABLE, Event, Session, State, Upload, Will
from broker.subscriptions import Subscriptions
from broker.timers import Timers
from broker.uplink import Uplink
from protocol.mqttsn import (
    Advertise,
    AnyMessage,
    ConnAck,
    Connect,
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
    SearchGw,
    Subscribe,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillMsgResp,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
    decapsulate,
    decode,
    encode,
    is_encapsulated,
    is_topic_name,
)

_MAX_FORWARDERS = 4
_WILL_RETRY_S = 1.0
_GOODBYE_S = 10.0
_MAX_GOODBYES = 1_024
_HANDSHAKE_S = 60.0
_HANDSHAKE = (State.WILL_TOPIC, State.WILL_MSG)
_HANDSHAKE_MESSAGES = (WillTopic, WillMsg, Disconnect)

_Handler = Callable[[Session, Any, float], None]


class Gateway:
    """All sessions of one gateway."""

    def __init__(self, config: GatewayConfig, journal: Journal, random: Random) -> None:
        self.outputs = Outputs()
        self._config = config
        self._journal = journal
        registrations = Registrations(config, self.outputs, journal)
        self._uplink = Uplink(config, self.outputs)
        self._downlink = Downlink(config, self.outputs, journal, registrations, random)
        self.subscriptions = Subscriptions(config, self.outputs, journal, registrations)
        self._by_client: dict[str, Session] = {}
        self._by_peer: dict[Peer, Session] = {}
        self._unconfirmed: dict[Session, None] = {}
        self._timers = Timers()
        self._presence = Presence(self.outputs, journal, config.max_departed)
        self._advertise_at = -inf if config.advertise_every_s else inf
        self._goodbyes: dict[Peer, float] = {}
        self._handlers: dict[type, _Handler] = {
            Publish: self._uplink.publish,
            PubRel: self._uplink.release,
            PubAck: self._downlink.acknowledged,
            PubRec: self._downlink.received,
            PubComp: self._downlink.completed,
            RegAck: self._downlink.registered,
            Register: registrations.register,
            Subscribe: self.subscriptions.subscribe,
            Unsubscribe: self.subscriptions.unsubscribe,
            PingReq: self._ping,
            Disconnect: self._disconnect,
            WillTopic: self._will_topic,
            WillMsg: self._will_msg,
            WillTopicUpd: self._will_topic_update,
            WillMsgUpd: self._will_msg_update,
        }

    # ------------------------------------------------------------------ what the outside may ask

    def sessions_by_state(self) -> dict[str, int]:
        """How many sessions there are, by state, for the metrics."""
        counts = dict.fromkeys((state.name.lower() for state in State if state is not State.GONE), 0)
        for session in list(self._by_client.values()):
            counts[session.state.name.lower()] += 1
        return counts

    @property
    def buffered_bytes(self) -> int:
        return self._downlink.buffered_bytes

    @property
    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        return min(self._timers.next_at, self._advertise_at)

    # ------------------------------------------------------------------ start and stop

    def restore(self, sessions: Iterable[Session], announced: dict[str, str], now: float) -> None:
        """Take over what a former process left; tell those who were connected that they have to connect again."""
        for session in sessions:
            if session.state in (State.ASLEEP, State.AWAKE):
                session.state = State.ASLEEP
                if session.peer != NOWHERE and self._by_peer.setdefault(session.peer, session) is not session:
                    session.peer = NOWHERE
            elif session.state is not State.OFFLINE:
                session.state = State.RETURNING
                self.outputs.send(Disconnect(), session.peer)
                session.peer = NOWHERE
            self._by_client[session.client_id] = session
            session.announced = announced.get(session.client_id, "")
            self.subscriptions.adopt(session)
            self._downlink.adopt(session)
            self._timers.schedule(session, now)
        for client_id, state in announced.items():
            restored = self._by_client.get(client_id)
            if restored is None:
                self._presence.depart(client_id, state)
            elif restored.state is not State.ASLEEP:
                self._presence.announce(restored, "offline")

    def stop(self) -> None:
        """Tell connected clients that the gateway goes away; what they left with us stays in the journal."""
        for session in self._by_client.values():
            if session.state is State.ASLEEP and self._journal.keeps and not session.clean:
                continue
            if session.state is not State.ASLEEP:
                self.outputs.send(Disconnect(), session.peer)
            self._presence.announce(session, "offline" if session.announced else "")

    # ------------------------------------------------------------------ the broker's side

    def broker_up(self) -> None:
        """MQTT is connected: publishes may flow, and what could not be told is told."""
        self._uplink.broker_is_up = True
        self.subscriptions.broker_back()
        self._presence.broker_up()

    def broker_down(self) -> None:
        """MQTT is away: devices are told of congestion until it is back."""
        self._uplink.broker_is_up = False
        self._presence.broker_down()
        self.subscriptions.broker_lost()

    def broker_published(self, upload: Upload, accepted: bool) -> None:
        self._uplink.published(upload, accepted)

    def broker_subscribed(self, topic_filter: str, accepted: bool, now: float) -> None:
        self.subscriptions.answered(topic_filter, accepted, now)

    def broker_message(
        self, topic_filter: str, topic: str, payload: bytes, qos: int, retained: bool, now: float
    ) -> None:
        """A message that came in through one filter; through two filters it comes twice."""
        for session, subscribed_qos in self.subscriptions.recipients(topic_filter, topic, retained, now):
            self._downlink.deliver(session, topic, payload, subscribed_qos if qos else 0, retained, now)
            self._after_downlink(session)

    # ------------------------------------------------------------------ the devices' side

    def receive(self, datagram: bytes, address: Address, now: float) -> None:
        """One datagram, whatever it is: it never raises, and what is wrong with it is counted."""
        out = self.outputs
        out.counters["received", ""] += 1
        try:
            route: tuple[bytes, ...] = ()
            while is_encapsulated(datagram):
                node_id, datagram = decapsulate(datagram)
                route = (node_id, *route)
                if len(route) > _MAX_FORWARDERS:
                    raise MalformedPacket("too many forwarders")
            message = decode(datagram)
        except MalformedPacket as error:
            out.count("malformed", error.reason)
            return
        peer = (address, route)
        session = self._by_peer.get(peer)
        if type(message) is Connect:
            self._connect(message, peer, now)
        elif session is None:
            self._stranger(message, peer, now)
        else:
            session.last_heard = now
            handler = self._handlers.get(type(message))
            if handler is None:
                self._sessionless(message, peer)
                return
            if session.state in _HANDSHAKE and type(message) not in _HANDSHAKE_MESSAGES:
                out.count("refused", "connect not finished")
                return
            if not session.confirmed:
                self._confirm(session)
            handler(session, message, now)
            if session.line is not None:
                self._after_downlink(session)

    def _stranger(self, message: AnyMessage, peer: Peer, now: float) -> None:
        """A packet from a peer without a session."""
        if type(message) is Publish and message.qos == -1:
            self._uplink.publish_without_session(message)
        elif type(message) is PingReq and message.client_id in self._by_client:
            self._rebind(self._by_client[message.client_id], message, peer, now)
        elif type(message) is Disconnect and message.duration_s is None:
            # Answered only if it repeats a goodbye, and once: two gateways would answer each other for ever.
            if now - self._goodbyes.pop(peer, -inf) < _GOODBYE_S:
                self.outputs.send(Disconnect(), peer)
        elif type(message) in self._handlers:
            self.outputs.count("refused", "no session")
            self.outputs.send(Disconnect(), peer)
        else:
            self._sessionless(message, peer)

    def _sessionless(self, message: AnyMessage, peer: Peer) -> None:
        """Packets that need no session, and those that only a gateway sends."""
        if type(message) is SearchGw:
            self.outputs.send(GwInfo(self._config.gateway_id), peer)
        elif type(message) in (Advertise, GwInfo):
            self.outputs.count("other gateways heard")
        else:
            self.outputs.count("refused", "not for a gateway")

    def _rebind(self, session: Session, message: PingReq, peer: Peer, now: float) -> None:
        """A client that is known by its id speaks from another address: its datagrams go there from now on."""
        if session.state not in (State.ACTIVE, State.ASLEEP, State.AWAKE):
            self.outputs.count("refused", "no session")
            self.outputs.send(Disconnect(), peer)
            return
        self.outputs.count("rebound")
        self._move_peer(session, peer)
        session.last_heard = now
        self._save(session)
        self._ping(session, message, now)

    def _move_peer(self, session: Session, peer: Peer) -> None:
        self._by_peer.pop(session.peer, None)
        occupant = self._by_peer.get(peer)
        if occupant is not None and occupant is not session:
            self.outputs.count("displaced")
            self._downlink.suspend(occupant)
            occupant.move(Event.DISPLACED)
            occupant.peer = NOWHERE
            self._save(occupant)
        session.peer = peer
        self._by_peer[peer] = session

    # ------------------------------------------------------------------ connecting

    def _connect(self, message: Connect, peer: Peer, now: float) -> None:
        out = self.outputs
        size = len(message.client_id.encode())
        if message.protocol_id != 1 or size > self._config.max_client_id_bytes or not message.client_id.isprintable():
            out.count("connect refused", "not_supported")
            out.send(ConnAck(ReturnCode.NOT_SUPPORTED), peer)
            return
        session = self._by_client.get(message.client_id)
        if not self._uplink.broker_is_up or (session is None and len(self._by_client) >= self._config.max_sessions):
            out.count("connect refused", "congestion")
            out.send(ConnAck(ReturnCode.CONGESTION), peer)
            return
        if session is not None and self._is_copy(session, message, peer, now):
            session.connected_at = session.last_heard = now
            out.count("duplicates", "connect")
            self._answer_connect(session)
            return
        session = self._take_session(session, message, peer, now)
        session.move(Event.CONNECT_WITH_WILL if message.will else Event.CONNECT)
        self._answer_connect(session)
        self._after_connect(session, now)

    def _is_copy(self, session: Session, message: Connect, peer: Peer, now: float) -> bool:
        """A copy made by the network or an impatient client: nothing starts anew."""
        return (
            session.peer == peer
            and session.connect == message
            and session.state in (State.ACTIVE, *_HANDSHAKE)
            and now - session.connected_at < self._config.repeated_connect_s
        )

    def _answer_connect(self, session: Session) -> None:
        match session.state:
            case State.WILL_TOPIC:
                self.outputs.send(WillTopicReq(), session.peer)
            case State.WILL_MSG:
                self.outputs.send(WillMsgReq(), session.peer)
            case _:
                self.outputs.send(ConnAck(ReturnCode.ACCEPTED), session.peer)

    def _take_session(self, session: Session | None, message: Connect, peer: Peer, now: float) -> Session:
        announced = ""
        if session is not None:
            if session.peer != peer:
                self.outputs.send(Disconnect(), session.peer)
            if session.clean or message.clean:
                announced = session.announced
                self._forget(session)
                session = None
        if session is None:
            self._make_room_for_unconfirmed()
            session = Session(message.client_id, NOWHERE, message.clean, 0.0, now, announced=announced)
            self._by_client[message.client_id] = session
            self._unconfirmed[session] = None
        else:
            self._downlink.suspend(session)
        self._move_peer(session, peer)
        session.connect = message
        session.connected_at = session.last_heard = now
        session.keep_alive_s = message.keep_alive_s
        session.topics.told.clear()
        return session

    def _make_room_for_unconfirmed(self) -> None:
        while len(self._unconfirmed) >= self._config.max_unconfirmed:
            oldest = next(iter(self._unconfirmed))
            self._end(oldest, "never spoke after connect", tell=False)

    def _after_connect(self, session: Session, now: float) -> None:
        if session.state is State.ACTIVE:
            if session.confirmed:
                self._save(session)
            if session.confirmed or len(self._unconfirmed) * 4 <= self._config.max_unconfirmed:
                self._presence.announce(session, "online")
            self._downlink.pump(session, now)
        self._timers.schedule(session, self._deadline(session))

    def _confirm(self, session: Session) -> None:
        """The client has answered, so its address is real: from now on it is worth keeping and telling of."""
        session.confirmed = True
        self._unconfirmed.pop(session, None)
        if session.state is State.ACTIVE:
            self._save(session)
            self._presence.announce(session, "online")

    # ------------------------------------------------------------------ wills

    def _will_topic(self, session: Session, message: WillTopic, now: float) -> None:
        if session.state not in _HANDSHAKE:
            self._repeated_will(session, is_last=not message.topic)
        elif not message.topic:
            session.will = None
            self._finish_will(session, now)
        elif not is_topic_name(message.topic):
            self.outputs.count("connect refused", "invalid_topic")
            self.outputs.send(ConnAck(ReturnCode.INVALID_TOPIC), session.peer)
            self._unlink(session, "bad will topic", now)
        else:
            session.will_topic = Will(message.topic, message.qos, message.retain)
            if session.state is State.WILL_TOPIC:
                session.move(Event.WILL_TOPIC)
            self.outputs.send(WillMsgReq(), session.peer)

    def _will_msg(self, session: Session, message: WillMsg, now: float) -> None:
        if session.state is State.WILL_MSG and session.will_topic is not None:
            session.will_topic.payload = message.payload
            session.will, session.will_topic = session.will_topic, None
            self._finish_will(session, now)
        else:
            self._repeated_will(session, is_last=True)

    def _repeated_will(self, session: Session, is_last: bool) -> None:
        """A copy of a will message: if it was the last of the handshake, its CONNACK may have been lost."""
        if is_last and session.state is State.ACTIVE and session.connect is not None and session.connect.will:
            self.outputs.count("duplicates", "will")
            self.outputs.send(ConnAck(ReturnCode.ACCEPTED), session.peer)
        else:
            self.outputs.count("refused", "will not asked for")

    def _finish_will(self, session: Session, now: float) -> None:
        session.move(Event.CONNECTED)
        self.outputs.send(ConnAck(ReturnCode.ACCEPTED), session.peer)
        self._after_connect(session, now)

    def _will_topic_update(self, session: Session, message: WillTopicUpd, now: float) -> None:
        if message.topic and not is_topic_name(message.topic):
            self.outputs.count("will update refused", "invalid_topic")
            self.outputs.send(WillTopicResp(ReturnCode.INVALID_TOPIC), session.peer)
            return
        payload = session.will.payload if session.will is not None else b""
        session.will = Will(message.topic, message.qos, message.retain, payload) if message.topic else None
        self._save(session)
        self.outputs.send(WillTopicResp(ReturnCode.ACCEPTED), session.peer)

    def _will_msg_update(self, session: Session, message: WillMsgUpd, now: float) -> None:
        if session.will is None:
            self.outputs.count("will update refused", "not_supported")
            self.outputs.send(WillMsgResp(ReturnCode.NOT_SUPPORTED), session.peer)
            return
        session.will.payload = message.payload
        self._save(session)
        self.outputs.send(WillMsgResp(ReturnCode.ACCEPTED), session.peer)

    # ------------------------------------------------------------------ sleeping, leaving, ending

    def _ping(self, session: Session, message: PingReq, now: float) -> None:
        if message.client_id != session.client_id and message.client_id in self._by_client:
            self._rebind(self._by_client[message.client_id], message, session.peer, now)
        elif session.state is State.ASLEEP and message.client_id == session.client_id:
            session.move(Event.WAKE)
            self._downlink.pump(session, now)
            self._after_downlink(session)
        elif session.state is not State.AWAKE:
            self.outputs.send(PingResp(), session.peer)

    def _after_downlink(self, session: Session) -> None:
        """After anything that may have emptied or filled a queue: let a drained sleeper sleep, set the timer."""
        line = session.line
        if session.state is State.AWAKE and (line is None or line.is_empty):
            session.move(Event.DRAINED)
            self.outputs.send(PingResp(), session.peer)
        elif line is not None and session.state in REACHABLE:
            self._timers.schedule(session, line.next_due())

    def _disconnect(self, session: Session, message: Disconnect, now: float) -> None:
        self.outputs.send(Disconnect(), session.peer)
        self._goodbyes.pop(session.peer, None)
        self._goodbyes[session.peer] = now
        if len(self._goodbyes) > _MAX_GOODBYES:
            del self._goodbyes[next(iter(self._goodbyes))]
        if message.duration_s and session.state in (State.ACTIVE, State.ASLEEP, State.AWAKE):
            self._downlink.suspend(session)
            session.move(Event.SLEEP)
            session.sleep_s = message.duration_s
            self._save(session)
            self._presence.announce(session, "asleep")
            self._timers.schedule(session, self._deadline(session))
        else:
            self._unlink(session, "disconnect", now)

    def _unlink(self, session: Session, why: str, now: float) -> None:
        """The connection ends: a clean session with it, a persistent one goes offline and waits for its client."""
        if session.clean:
            self._end(session, why, tell=session.confirmed)
            return
        self._downlink.suspend(session)
        session.move(Event.LEAVE)
        session.last_heard = now
        self._by_peer.pop(session.peer, None)
        session.peer = NOWHERE
        self._save(session)
        self._presence.announce(session, "offline")
        self._timers.schedule(session, self._deadline(session))

    def _lose(self, session: Session, why: str, now: float) -> None:
        """The client is not to be heard of any more: its will is published."""
        self.outputs.count("sessions lost", why)
        self.outputs.send(Disconnect(), session.peer)
        if session.will is not None:
            self.outputs.count("wills")
            will = session.will
            # At least QoS 1 towards the broker, so that a will of QoS 0 outlives a broker that is away just now.
            self.outputs.mqtt.append(MqttPublish(will.topic, will.payload, max(will.qos, 1), will.retain))
        self._unlink(session, why, now)

    def _end(self, session: Session, why: str, *, tell: bool) -> None:
        """End a session for good. Of a client that never spoke, or is long gone, nothing remains to be told."""
        self.outputs.count("sessions ended", why)
        self._forget(session)
        if tell:
            self._presence.depart(session.client_id, session.announced)
        else:
            self._presence.announce(session, "")

    def _forget(self, session: Session) -> None:
        """Remove a session and all that belongs to it."""
        self.subscriptions.remove_all(session)
        self._downlink.discard(session)
        session.uploads = {}
        self._unconfirmed.pop(session, None)
        self._by_peer.pop(session.peer, None)
        session.peer = NOWHERE
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]
        session.move(Event.FORGET)
        if not session.clean:
            self._journal.delete_session(session.client_id)

    def _save(self, session: Session) -> None:
        if session.confirmed and not session.clean:
            self._journal.save_session(session)

    # ------------------------------------------------------------------ time

    def _deadline(self, session: Session) -> float:
        """When the session's silence has lasted too long."""
        match session.state:
            case State.WILL_TOPIC | State.WILL_MSG:
                return session.connected_at + _HANDSHAKE_S
            case State.OFFLINE:
                return session.last_heard + self._config.session_expiry_s
            case State.ASLEEP | State.AWAKE:
                return session.last_heard + session.sleep_s * self._config.keep_alive_grace
            case _:
                silence = session.keep_alive_s * self._config.keep_alive_grace
                return session.last_heard + (silence or self._config.idle_limit_s)

    def tick(self, now: float) -> None:
        """Do what is due: retransmissions, lost and expired sessions, advertising."""
        for session in self._timers.due(now):
            self._attend(session, now)
        if self._advertise_at <= now:
            every_s = self._config.advertise_every_s
            self.outputs.broadcasts.append(encode(Advertise(self._config.gateway_id, min(ceil(every_s), 0xFFFF))))
            self._advertise_at = now + every_s

    def _attend(self, session: Session, now: float) -> None:
        deadline = self._deadline(session)
        if deadline <= now:
            if session.will is not None and session.state is not State.OFFLINE and not self._uplink.broker_is_up:
                # A will that nobody can take now would be forgotten with this process: the session waits with it.
                self._timers.schedule(session, now + _WILL_RETRY_S)
            else:
                self._overdue(session, now)
            return
        if session.state in REACHABLE and session.line is not None:
            if not self._downlink.retransmit(session, now):
                self._unanswered(session, now)
                return
            deadline = min(deadline, session.line.next_due())
        self._timers.schedule(session, deadline)

    def _overdue(self, session: Session, now: float) -> None:
        if session.state is State.OFFLINE:
            self._end(session, "expired", tell=False)
        elif session.state in _HANDSHAKE:
            self._unlink(session, "will handshake", now)
        else:
            self._lose(session, "keep-alive", now)

    def _unanswered(self, session: Session, now: float) -> None:
        """Too many retransmissions: an awake sleeper is left to sleep, others count as lost."""
        if session.state is State.AWAKE:
            self.outputs.count("sleepers that went back to sleep undrained")
            self._downlink.suspend(session)
            session.move(Event.DRAINED)
            self._timers.schedule(session, self._deadline(session))
        else:
            self._lose(session, "no answer", now)

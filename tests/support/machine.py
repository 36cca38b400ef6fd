"""The gateway's session machine on a bench: time moves when told to, and the broker answers when told to.

`Machine` plays the shell. After every input it unwraps and decodes what the gateway wants to send and puts it into
the mailbox of the peer it is for; MQTT actions are sorted into lists that a test reads and clears as it likes.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

from broker.config import GatewayConfig
from broker.gateway import _MAX_GOODBYES, Gateway
from broker.journal import Journal, SqliteJournal
from broker.outputs import NOWHERE, MqttPublish, MqttSubscribe, Peer
from broker.session import Session, State, Upload
from broker.timers import SPARE
from protocol.mqttsn import (
    AnyMessage,
    ConnAck,
    Connect,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicType,
    decapsulate,
    decode,
    encapsulate,
    encode,
    is_encapsulated,
)

ACCEPTED = int(ReturnCode.ACCEPTED)
CONGESTION = int(ReturnCode.CONGESTION)
INVALID_TOPIC = int(ReturnCode.INVALID_TOPIC)
NOT_SUPPORTED = int(ReturnCode.NOT_SUPPORTED)
NORMAL = int(TopicType.NORMAL)
PREDEFINED = int(TopicType.PREDEFINED)
SHORT = int(TopicType.SHORT)


def at(number: int, *route: bytes) -> Peer:
    """The peer with a number; `route` are the wireless node ids on the way to it, nearest to the gateway last."""
    return (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 1884), route


class Machine:
    """One gateway, its broker and its clock. With a folder, it keeps its state there."""

    def __init__(self, folder: Path | None = None, *, broker: bool = True, now: float = 1_000.0, **settings: Any):
        self.now = now
        self.config = GatewayConfig(**settings)
        self.mail: defaultdict[Peer, list[AnyMessage]] = defaultdict(list)
        self.published: list[MqttPublish] = []
        """What went to the broker for devices, wills included; not the announcements of their states."""
        self.uploads: list[Upload] = []
        """Publishes the broker has not acknowledged."""
        self.announced: list[tuple[str, str]] = []
        self.subscribes: list[MqttSubscribe] = []
        self.unsubscribes: list[str] = []
        self.broadcasts: list[AnyMessage] = []
        self._settings = settings
        self._folder = folder
        self.journal = SqliteJournal(folder) if folder is not None else Journal()
        self.had_news = False
        """Whether the answers of the last turn had to wait for the journal."""
        self.gateway = Gateway(self.config, self.journal, Random(1))
        self.gateway._downlink.first_seq = 0
        self.gateway.restore(self.journal.sessions(now, self.config.retry), self.journal.announcements(), now)
        self._collect()
        if broker:
            self.broker_up()

    # ------------------------------------------------------------------ the devices' side

    def send(self, peer: Peer, message: AnyMessage) -> list[AnyMessage]:
        """Have a peer send a message; returns what is then in the peer's mailbox."""
        return self.send_bytes(peer, encode(message))

    def send_bytes(self, peer: Peer, datagram: bytes) -> list[AnyMessage]:
        _, route = peer
        for node_id in route:
            datagram = encapsulate(datagram, node_id)
        self.receive(datagram, peer)
        return self.take(peer)

    def receive(self, datagram: bytes, peer: Peer) -> None:
        """A datagram as it stands on the wire."""
        self.gateway.receive(datagram, peer[0], self.now)
        self._collect()

    def take(self, peer: Peer) -> list[AnyMessage]:
        """Empty a peer's mailbox."""
        return self.mail.pop(peer, [])

    def connect(self, peer: Peer, client_id: str, clean: bool = True, keep_alive_s: int = 60) -> None:
        """Connect without a will; what was in the mailbox is thrown away."""
        self.take(peer)
        assert self.send(peer, Connect(client_id, keep_alive_s, clean))[0] == ConnAck(ACCEPTED)

    def register(self, peer: Peer, name: str, msg_id: int = 1) -> int:
        """The topic id the gateway gives to a name."""
        (answer,) = self.send(peer, Register(0, msg_id, name))
        assert isinstance(answer, RegAck)
        assert (answer.msg_id, answer.return_code) == (msg_id, ACCEPTED)
        return answer.topic_id

    def subscribe(self, peer: Peer, topic_filter: str, qos: int = 1, msg_id: int = 1) -> int:
        """Subscribe with the broker's consent; returns the topic id in the SUBACK."""
        assert self.send(peer, Subscribe(NORMAL, topic_filter, msg_id, qos)) == []
        self.broker_subscribed(topic_filter)
        answer = self.take(peer)[0]
        assert isinstance(answer, SubAck)
        assert (answer.msg_id, answer.return_code, answer.qos) == (msg_id, ACCEPTED, qos)
        return answer.topic_id

    # ------------------------------------------------------------------ the broker's side

    def broker_up(self) -> None:
        self.gateway.broker_up()
        self._collect()

    def broker_down(self) -> None:
        self.gateway.broker_down()
        self._collect()

    def acknowledge(self, accepted: bool = True) -> None:
        """Let the broker acknowledge all it was given."""
        uploads, self.uploads = self.uploads, []
        for upload in uploads:
            self.gateway.broker_published(upload, accepted)
        self._collect()

    def broker_subscribed(self, topic_filter: str, accepted: bool = True) -> None:
        self.gateway.broker_subscribed(topic_filter, accepted, self.now)
        self._collect()

    def publish_from_broker(
        self, topic: str, payload: bytes, qos: int = 1, *, through: str | None = None, retained: bool = False
    ) -> None:
        """A message that comes in through a filter; the filter is the topic itself unless another one is given."""
        self.gateway.broker_message(through or topic, topic, payload, qos, retained, self.now)
        self._collect()

    # ------------------------------------------------------------------ time and process

    def advance(self, seconds: float) -> None:
        """Let time pass, and have everything that is due done when it is due."""
        until = self.now + seconds
        while self.gateway.next_deadline <= until:
            self.now = max(self.now, self.gateway.next_deadline)
            self.gateway.tick(self.now)
            self._collect()
        self.now = until

    def stop(self) -> None:
        """An orderly end."""
        self.gateway.stop()
        self._collect()
        self.close()

    def close(self) -> None:
        self.journal.close()

    def restarted(self, broker: bool = True, away_s: float = 1.0) -> Machine:
        """The next process after a crash of this one: it knows only what is in the journal."""
        assert self._folder is not None
        self.close()
        return Machine(self._folder, broker=broker, now=self.now + away_s, **self._settings)

    # ------------------------------------------------------------------ looking inside

    def session(self, client_id: str) -> Session:
        return self.gateway._by_client[client_id]

    def state(self, client_id: str) -> State | None:
        """The state of a client's session, None if it has none."""
        session = self.gateway._by_client.get(client_id)
        return session.state if session is not None else None

    def counted(self, what: str, why: str = "") -> int:
        return self.gateway.outputs.counters[what, why]

    def payloads(self) -> list[bytes]:
        """What went to the broker for devices, in order."""
        return [each.payload for each in self.published]

    def check_bounds(self) -> None:
        """Nothing in the gateway has outgrown its limit, and its sums are right."""
        gateway, config = self.gateway, self.config
        sessions = gateway._by_client.values()
        assert len(sessions) <= config.max_sessions
        assert len(gateway._unconfirmed) <= config.max_unconfirmed
        assert len(gateway._presence.departed) <= config.max_departed
        assert len(gateway._presence.untold) <= config.max_sessions + config.max_departed
        assert len(gateway._goodbyes) <= _MAX_GOODBYES
        assert len(gateway._timers) <= 2 * (config.max_sessions + SPARE)
        assert all(session in sessions and session.peer == peer for peer, session in gateway._by_peer.items())
        buffered = 0
        for session in sessions:
            assert session.state is not State.GONE
            assert session.peer == NOWHERE or gateway._by_peer[session.peer] is session
            assert session.peer == NOWHERE or session.state not in (State.OFFLINE, State.RETURNING)
            assert len(session.topics.by_id) <= config.max_topics_per_session
            assert gateway.subscriptions.count(session, "") <= config.max_subscriptions_per_session
            assert len(session.uploads) <= config.max_uploads_per_session
            assert len(session.finished) <= config.exchange_memory_count
            if session.line is not None:
                assert len(session.line.waiting) <= config.max_buffered_messages + config.in_flight_per_client
                assert len(session.line.in_flight) <= config.in_flight_per_client
                held = [*session.line.waiting, *session.line.in_flight.values()]
                assert session.line.buffered_bytes == sum(each.size for each in held)
                buffered += session.line.buffered_bytes
        assert gateway.buffered_bytes == buffered <= config.max_buffered_bytes_total
        assert gateway._uplink.pending == len(self.uploads) <= config.max_pending_publishes
        wanted = {each for session in sessions for each in session.subscriptions}
        asked = {each for session in sessions for each in gateway.subscriptions._asking.get(session, ())}
        assert set(gateway.subscriptions._filters) == wanted | asked

    def _collect(self) -> None:
        """End a turn as the server does: commit, then take away what is to be sent."""
        self.had_news = self.journal.has_news
        self.journal.commit()
        out = self.gateway.outputs
        for datagram, address in out.datagrams:
            route: tuple[bytes, ...] = ()
            while is_encapsulated(datagram):
                node_id, datagram = decapsulate(datagram)
                route = (node_id, *route)
            self.mail[address, route].append(decode(datagram))
        out.datagrams.clear()
        self.broadcasts += map(decode, out.broadcasts)
        out.broadcasts.clear()
        for action in out.mqtt:
            if isinstance(action, MqttSubscribe):
                self.subscribes.append(action)
            elif not isinstance(action, MqttPublish):
                self.unsubscribes.append(action.topic_filter)
            elif action.topic.startswith("tl/") and action.topic.endswith("/state"):
                assert (action.qos, action.retain) == (1, True)
                self.announced.append((unquote(action.topic.split("/")[2]), action.payload.decode()))
            else:
                self.published.append(action)
                if action.upload is not None:
                    self.uploads.append(action.upload)
        out.mqtt.clear()
        assert self.gateway.next_deadline < inf or not self.gateway._by_client, "a session nobody looks after"

"""An MQTT broker as its clients see it: in order on each connection, and forgetful when it is killed.

Clients are known by name. One that keeps its session gets what was published at QoS 1 while it was away; a message
that it did not acknowledge before it died comes again. All of that is gone when the broker is killed (Mosquitto writes
its database now and then, and PUBACK does not wait for it).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from paho.mqtt.client import topic_matches_sub

from tests.faults.simulation.timeline import Timeline

_MOST_QUEUED = 1_000
RECONNECT_S = 1.0


class Mail(NamedTuple):
    """A message for one client, and the filter that it came by."""

    topic_filter: str
    topic: str
    payload: bytes
    qos: int


@dataclass(slots=True)
class _Session:
    keeps: bool
    filters: dict[str, int] = field(default_factory=dict)
    queue: deque[Mail] = field(default_factory=deque)
    unacknowledged: deque[Mail] = field(default_factory=deque)
    receive: Callable[[Mail], None] | None = None
    last_at: float = 0.0


class Broker:
    """One broker. A client that is connected has given a function to receive with."""

    def __init__(self, timeline: Timeline, dice: Random) -> None:
        self.is_up = True
        self.delay_s = 0.01
        self.happened: Counter[str] = Counter()
        self._timeline = timeline
        self._dice = dice
        self._life = 0
        self._sessions: dict[str, _Session] = {}
        self._waiting: dict[str, Callable[[], None]] = {}

    # Connections

    def connect(self, client: str, receive: Callable[[Mail], None], keeps: bool, lost: Callable[[], None]) -> bool:
        """Connect a client, unless the broker is away. `lost` is called when it is lost."""
        if not self.is_up:
            return False
        session = self._sessions.get(client)
        if session is None or not keeps:
            session = self._sessions[client] = _Session(keeps)
        session.receive = receive
        self._waiting[client] = lost
        again, session.unacknowledged = session.unacknowledged, deque()
        for mail in (*again, *self._drained(session)):
            self._send(session, mail)
        return True

    def disconnect(self, client: str) -> None:
        """The client's process has ended."""
        session = self._sessions.get(client)
        self._waiting.pop(client, None)
        if session is not None:
            session.receive = None
            if not session.keeps:
                del self._sessions[client]

    def subscribe(self, client: str, topic_filter: str, qos: int, granted: Callable[[], None]) -> None:
        """What matches the filter goes to the client from now on; it hears of that a moment later."""
        session = self._sessions.get(client)
        if session is not None and session.receive is not None:
            session.filters[topic_filter] = qos
            self._soon(granted)

    def unsubscribe(self, client: str, topic_filter: str) -> None:
        session = self._sessions.get(client)
        if session is not None:
            session.filters.pop(topic_filter, None)

    def acknowledge(self, client: str, mail: Mail) -> None:
        """The client has it for good."""
        session = self._sessions.get(client)
        if session is not None and mail in session.unacknowledged:
            session.unacknowledged.remove(mail)

    # Messages

    def publish(self, topic: str, payload: bytes, qos: int, acknowledged: Callable[[], None] | None = None) -> bool:
        """To all who want it. False: the broker is away."""
        if not self.is_up:
            return False
        for session in self._sessions.values():
            for topic_filter, granted in session.filters.items():
                if topic_filter == topic or ("+" in topic_filter and topic_matches_sub(topic_filter, topic)):
                    mail = Mail(topic_filter, topic, payload, min(qos, granted))
                    if session.receive is not None:
                        self._send(session, mail)
                    elif mail.qos and session.keeps and len(session.queue) < _MOST_QUEUED:
                        session.queue.append(mail)
        if acknowledged is not None:
            self._soon(acknowledged)
        return True

    def _send(self, session: _Session, mail: Mail) -> None:
        """In order, behind what is under way to the same client."""
        at = max(session.last_at, self._timeline.now + self._dice.random() * self.delay_s)
        session.last_at = at
        if mail.qos and session.keeps:
            session.unacknowledged.append(mail)
        life, receive = self._life, session.receive
        self._timeline.later(at - self._timeline.now, partial(self._arrive, session, receive, life, mail))

    def _arrive(self, session: _Session, receive: Callable[[Mail], None] | None, life: int, mail: Mail) -> None:
        if life == self._life and receive is not None and session.receive is receive:
            receive(mail)

    def _soon(self, call: Callable[[], None]) -> None:
        life = self._life
        self._timeline.later(self._dice.random() * self.delay_s, lambda: call() if life == self._life else None)

    def _drained(self, session: _Session) -> list[Mail]:
        mails = [*session.queue]
        session.queue.clear()
        return mails

    # Its own life

    def kill(self, away_s: float) -> None:
        """It forgets everything, and comes back after a while."""
        if not self.is_up:
            return
        self.is_up = False
        self._life += 1
        self.happened["messages forgotten"] += sum(
            len(each.queue) + len(each.unacknowledged) for each in self._sessions.values()
        )
        waiting, self._waiting = self._waiting, {}
        self._sessions.clear()
        for lost in waiting.values():
            lost()
        self._timeline.later(away_s, self._come_back)

    def _come_back(self) -> None:
        self.is_up = True

"""All the gateway knows about one client, and the table of what a session may turn into.

A session is created by CONNECT. A clean one ends with its connection; a persistent one goes OFFLINE and waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from broker.outputs import Peer
from protocol.mqttsn import Connect, RetryPolicy, RoundTrip


class State(Enum):
    WILL_TOPIC = auto()  # CONNECT taken, will topic asked for
    WILL_MSG = auto()  # will topic taken, will message asked for
    ACTIVE = auto()
    ASLEEP = auto()
    AWAKE = auto()  # a sleeping client that fetches what was kept for it
    OFFLINE = auto()  # persistent session without a connection
    RETURNING = auto()  # was connected, is at no known address now, may still come back in time
    GONE = auto()


class Event(Enum):
    CONNECT = auto()
    CONNECT_WITH_WILL = auto()
    WILL_TOPIC = auto()
    CONNECTED = auto()
    SLEEP = auto()
    WAKE = auto()
    DRAINED = auto()
    DISPLACED = auto()  # another client speaks from its address
    LEAVE = auto()
    FORGET = auto()


_ANY = tuple(state for state in State if state is not State.GONE)
_LINKED = (State.ACTIVE, State.ASLEEP, State.AWAKE)

TRANSITIONS: dict[tuple[State, Event], State] = {
    **{(state, Event.CONNECT): State.ACTIVE for state in _ANY},
    **{(state, Event.CONNECT_WITH_WILL): State.WILL_TOPIC for state in _ANY},
    (State.WILL_TOPIC, Event.WILL_TOPIC): State.WILL_MSG,
    (State.WILL_TOPIC, Event.CONNECTED): State.ACTIVE,
    (State.WILL_MSG, Event.CONNECTED): State.ACTIVE,
    **{(state, Event.SLEEP): State.ASLEEP for state in _LINKED},
    (State.ASLEEP, Event.WAKE): State.AWAKE,
    (State.AWAKE, Event.DRAINED): State.ASLEEP,
    **{(state, Event.DISPLACED): State.RETURNING for state in (State.ACTIVE, State.WILL_TOPIC, State.WILL_MSG)},
    **{(state, Event.DISPLACED): State.ASLEEP for state in (State.ASLEEP, State.AWAKE)},
    **{(state, Event.LEAVE): State.OFFLINE for state in _ANY},
    **{(state, Event.FORGET): State.GONE for state in _ANY},
}

REACHABLE = frozenset((State.ACTIVE, State.AWAKE))
"""States in which messages are sent to the client."""


@dataclass(slots=True)
class Will:
    topic: str
    qos: int
    retain: bool
    payload: bytes = b""


class UploadState(Enum):
    PENDING = auto()  # given to MQTT, not acknowledged by it
    RECEIVED = auto()  # QoS 2: PUBREC sent, PUBREL awaited


@dataclass(slots=True, eq=False)
class Upload:
    """A QoS 1 or 2 publish of the client on its way to the broker."""

    session: Session
    msg_id: int
    topic_id: int
    qos: int
    digest: int
    size: int
    started: float
    state: UploadState = UploadState.PENDING


class Leg(Enum):
    """Which answer a message in flight to the client waits for."""

    PUBACK = auto()
    PUBREC = auto()
    PUBCOMP = auto()


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message for the client. `seq` orders the messages of a session and gives the message id."""

    seq: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    leg: Leg | None = None
    attempts: int = 0
    sent_at: float = 0.0
    due: float = inf
    sent_before: bool = False
    """It may have reached the client already, under this message id."""

    @property
    def msg_id(self) -> int:
        return 1 + self.seq % 0xFFFF

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.payload)


@dataclass(slots=True, eq=False)
class Registration:
    """A REGISTER to the client that has not been answered."""

    topic: str
    topic_id: int
    msg_id: int
    attempts: int = 0
    sent_at: float = 0.0
    due: float = inf


@dataclass(slots=True, eq=False)
class Line:
    """What waits for the client and what is in flight to it. Most sessions never need one."""

    round_trip: RoundTrip
    waiting: deque[Outgoing] = field(default_factory=deque)
    in_flight: dict[int, Outgoing] = field(default_factory=dict)
    registration: Registration | None = None
    buffered_bytes: int = 0
    next_seq: int = 0
    next_register_id: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.in_flight

    def next_due(self) -> float:
        """When the first packet has to be sent again."""
        due = self.registration.due if self.registration is not None else inf
        for outgoing in self.in_flight.values():
            due = min(due, outgoing.due)
        return due


@dataclass(slots=True)
class Subscription:
    """`retained_seen` collects the names already sent while retained messages may still come in."""

    qos: int
    retained_until: float = -inf
    retained_seen: set[str] | None = None

    def expect_retained(self, now: float) -> None:
        """The client has just subscribed (again): retained messages are for it until further notice."""
        if self.retained_seen is None or now > self.retained_until:
            self.retained_seen = set()
        self.retained_until = inf


class TooManyTopics(Exception):
    """The session has as many topic ids as one client may have."""


@dataclass(slots=True, eq=False)
class TopicIds:
    """The topic ids of one client. `told` are those the client has been told of since it last connected."""

    by_id: dict[int, str] = field(default_factory=dict)
    by_name: dict[str, int] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)

    def assign(self, name: str, limit: int) -> int:
        """The id for a name, a new one if need be."""
        known = self.by_name.get(name)
        if known is not None:
            return known
        if len(self.by_id) >= limit:
            raise TooManyTopics
        topic_id = len(self.by_id) + 1
        self.put(topic_id, name)
        return topic_id

    def put(self, topic_id: int, name: str) -> None:
        self.by_id[topic_id] = name
        self.by_name[name] = topic_id


@dataclass(slots=True, eq=False)
class Session:
    client_id: str
    peer: Peer
    clean: bool
    keep_alive_s: float
    last_heard: float
    state: State = State.OFFLINE
    connect: Connect | None = None
    connected_at: float = -inf
    sleep_s: float = 0.0
    confirmed: bool = False
    """The client has sent something after CONNECT: it is real, and can hear us."""
    announced: str = ""
    will: Will | None = None
    will_topic: Will | None = None
    """The will topic of a handshake that still lacks its message."""
    topics: TopicIds = field(default_factory=TopicIds)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    uploads: dict[int, Upload] = field(default_factory=dict)
    finished: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Finished QoS 2 uploads: message id -> (digest, when)."""
    line: Line | None = None
    wake_at: float = inf
    """When the timer heap will next look at this session."""

    def move(self, event: Event) -> None:
        """Change state as the table says; a missing row is a fault of ours, not of the client."""
        self.state = TRANSITIONS[self.state, event]

    def open_line(self, policy: RetryPolicy, first_seq: int) -> Line:
        if self.line is None:
            self.line = Line(RoundTrip(policy), next_seq=first_seq)
        return self.line

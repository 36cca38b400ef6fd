"""Who is there: what the gateways say of their clients, as long as there is reason to believe it.

A gateway keeps the state of each client retained on a topic of its own, and the broker goes on telling it when the
gateway is gone. So a state stands only while there is a connection to the broker, all retained messages have come, and
a gateway is online; else the answer is `unknown`, with the reason.

A gateway that comes back says first that it is online, and then what has changed meanwhile. Until it had the time to do
so, what was told before is not believed.

What this cannot see: a state does not say which gateway told it, so with several gateways it stands while any of them
is online. And a broker that was started again still says `online` of a gateway that has died meanwhile, until that one
is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, cast, get_args
from urllib.parse import unquote

from collector.mqtt_link import MqttLink
from protocol.topics import state_topic

MOST_CLIENTS = 100_000
MOST_GATEWAYS = 1_000
SETTLE_S = 8.0  # a gateway's two connections try again every 7.5 s at the latest, each for itself

Told = Literal["online", "asleep", "offline"]
_NO_BROKER = "the API has no MQTT broker"
_AWAY = "no connection to the MQTT broker"
_NOT_ALL = "the MQTT broker has not told all states yet"
_NO_GATEWAY = "no gateway is known to the MQTT broker"
_GATEWAY_OFFLINE = "the gateway is offline"
_NEVER_SEEN = "no gateway has seen it"
_TOO_MANY = f"more than {MOST_CLIENTS} clients are known, and it is not among those that are kept"
_SETTLING = "the gateway, or the MQTT broker, has just come back"


class State(NamedTuple):
    """How an agent is. `since_ms` is when this process saw it change, None if it found it so; an unknown state has a
    reason instead."""

    state: Literal["online", "asleep", "offline", "unknown"]
    since_ms: int | None = None
    reason: str | None = None


class _Heard(NamedTuple):
    state: Told
    since_ms: int | None
    number: int


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Presence:
    """Knows the states of all clients of all gateways; agents are those whose client id is their name. It is told on
    the link's event loop and may be asked on any thread."""

    filters = ("tl/+/+/state", "tl-gateway/+/state")

    def __init__(
        self,
        link: MqttLink | None,
        *,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = _now_ms,
    ) -> None:
        """`settle_s`: how long a gateway that has come back may take to say what has changed."""
        self._link = link
        self._settle_s = settle_s
        self._clock = clock
        self._clock_ms = clock_ms
        self._clients: dict[str, _Heard] = {}
        self._gateways: dict[str, _Heard] = {}
        self._has_all = False
        self._was_up = False
        self._count = 0
        # When a gateway, or the broker, came back, and after how many messages: those before may not be true any more.
        self._back: tuple[float, int] | None = None
        self.not_kept = 0
        """Messages about clients for which there was no room."""
        self.not_understood = 0
        """Messages on state topics that say nothing."""
        if link is not None:
            link.follow(self)

    def state_of(self, agent: str) -> State:
        """Online, asleep or offline if that is known; else unknown, and why."""
        heard = self._clients.get(agent)
        reason = self._doubt(heard)
        if reason is not None or heard is None:
            return State("unknown", reason=reason)
        return State(heard.state, heard.since_ms)

    def known(self) -> list[str]:
        """The client ids that a gateway has told of, be they agents or not."""
        return sorted(self._clients.copy())

    def gateways(self) -> dict[str, Told]:
        """What the gateways say of themselves."""
        return {name: heard.state for name, heard in sorted(self._gateways.copy().items())}

    def _doubt(self, heard: _Heard | None) -> str | None:
        """Why what was heard of a client is not known to be true."""
        if self._link is None:
            return _NO_BROKER
        if not self._link.is_up:
            return _AWAY
        if not self._has_all:
            return _NOT_ALL
        if not any(each.state == "online" for each in self._gateways.copy().values()):
            return _GATEWAY_OFFLINE if self._gateways else _NO_GATEWAY
        if heard is None:
            return _TOO_MANY if self.not_kept else _NEVER_SEEN
        at, number = self._back or (0.0, 0)
        return _SETTLING if heard.number <= number and self._clock() < at + self._settle_s else None

    # What the link tells

    def hear(self, topic: str, payload: bytes, retained: bool) -> None:
        """A state was published, or was found."""
        text = payload.decode(errors="replace")
        if text not in ("", *get_args(Told)):
            self.not_understood += 1
            return
        state = cast("Told | Literal['']", text)
        if topic.startswith("tl-gateway/"):
            self._note(self._gateways, MOST_GATEWAYS, topic.split("/")[1], state, retained)
            if state == "online" and not retained:
                self._back = self._clock(), self._count
            return
        client = _client_of(topic)
        if client is None:
            self.not_understood += 1
        else:
            self._note(self._clients, MOST_CLIENTS, client, state, retained)

    def _note(self, known: dict[str, _Heard], most: int, name: str, state: Told | Literal[""], retained: bool) -> None:
        self._count += 1
        before = known.get(name)
        if not state:
            known.pop(name, None)
        elif before is None and len(known) >= most:
            self.not_kept += 1
        else:
            since_ms = None if retained else self._clock_ms()
            if before is not None and before.state == state:
                since_ms = before.since_ms
            known[name] = _Heard(state, since_ms, self._count)

    def told(self) -> None:
        """All states that the broker has kept have come. If it was away, gateways may be yet to come back to it."""
        if self._was_up:
            self._back = self._clock(), self._count
        self._has_all = self._was_up = True

    def lost(self) -> None:
        """The connection is gone, and nobody knows what happens meanwhile."""
        self._has_all = False
        self._clients.clear()
        self._gateways.clear()
        self.not_kept = 0
        self._back = None


def _client_of(topic: str) -> str | None:
    """The client id that a state topic is about, None if none is."""
    client = unquote(topic.split("/")[2], errors="replace")
    return client if state_topic(client) == topic else None

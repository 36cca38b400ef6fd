"""What all parts of a session share: the way out, message ids, the retransmission clock and the congestion pause.

Timers are kept as one lower bound. Setting a timer can only lower it; when it is reached, all timers are looked at and
the bound is made exact again. So an acknowledged packet's timer costs nothing, which is the common case.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

from edge_agent.transport.config import SessionConfig
from edge_agent.transport.pending import Pending, Stats
from protocol.dice import Dice
from protocol.mqttsn import Message, RoundTrip, encode

NEVER = float("inf")
T = TypeVar("T")
_FAR_TOO_MANY = 3


class Flight:
    """A packet that wants an answer: how often and when it was sent, and when to send it again."""

    __slots__ = ("attempts", "deadline", "sent_at")

    def __init__(self) -> None:
        self.attempts = 0
        self.sent_at = 0.0
        self.deadline = NEVER

    def rest(self) -> None:
        """Stop the timer; the next sending counts as the first again."""
        self.attempts = 0
        self.deadline = NEVER


class Wire:
    """The outgoing side of one session."""

    def __init__(self, config: SessionConfig, random: Dice) -> None:
        self.config = config
        self.random = random
        self.stats = Stats()
        self.datagrams: list[bytes] = []
        self.settled: list[Pending[object]] = []
        self.news = False
        self.round_trip = RoundTrip(config.retry)
        self.last_sent = 0.0
        self.last_received = 0.0
        self.wake_at = NEVER
        self.paused_until = 0.0
        self.ids_in_use: tuple[Container[int], ...] = ()
        self._congestions = 0
        self._msg_id = 1 + int(random.random() * 0xFFFF)

    def send(self, message: Message, now: float) -> None:
        """Put a packet on the way."""
        self.datagrams.append(encode(message))
        self.last_sent = now
        self.stats.sent += 1

    def next_id(self) -> int:
        """A message id that nothing in flight uses. The first one of a process is random: the gateway of a session
        that survived the last process may still remember ids of it."""
        msg_id = self._msg_id
        while True:
            msg_id = msg_id + 1 if msg_id < 0xFFFF else 1
            if not any(msg_id in ids for ids in self.ids_in_use):
                self._msg_id = msg_id
                return msg_id

    def sooner(self, at: float) -> None:
        """Wake up at this time, or before."""
        self.wake_at = min(self.wake_at, at)

    def supervise(self, flight: Flight, now: float) -> None:
        """A packet was just sent: start the timer for its answer."""
        flight.attempts += 1
        alive = False
        if flight.attempts > 1:
            self.stats.resent += 1
            alive = self.last_received > flight.sent_at
        flight.deadline = now + self.round_trip.wait_s(flight.attempts, self.random, alive)
        flight.sent_at = now
        self.sooner(flight.deadline)

    def answered(self, flight: Flight, now: float) -> bool:
        """The answer came. True: nobody need wait as long for the others as was thought."""
        return self.round_trip.answered(flight.attempts, now - flight.sent_at)

    def gave_up(self, flight: Flight) -> bool:
        """Whether the gateway must be gone: all attempts used and silence since the last, or far too many used."""
        attempts = self.config.retry.attempts
        if flight.attempts < attempts:
            return False
        return self.last_received <= flight.sent_at or flight.attempts >= _FAR_TOO_MANY * attempts

    def congested(self, now: float) -> None:
        """The gateway asked us to slow down. Answers to packets sent before the pause do not lengthen it."""
        self.stats.congestion += 1
        if now < self.paused_until:
            return
        config = self.config
        pause = min(config.congestion_first_s * 2 ** min(self._congestions, 16), config.congestion_most_s)
        self._congestions += 1
        self.paused_until = now + pause * (1 + self.random.random() / 4)
        self.sooner(self.paused_until)

    def uncongested(self) -> None:
        """The gateway took something: the next pause is a short one."""
        self._congestions = 0

    def new_gateway(self) -> None:
        """What was measured of another gateway does not hold for the next."""
        self.round_trip = RoundTrip(self.config.retry)

    def succeed(self, pending: Pending[T] | None, value: T) -> None:
        """A request or message came to a good end."""
        if pending is not None:
            self.news = True
            if pending.settle(value, None):
                self.settled.append(pending)  # type: ignore[arg-type]

    def fail(self, pending: Pending[T] | None, error: Exception) -> None:
        """A request or message came to a bad end."""
        if pending is not None:
            self.news = True
            if pending.settle(None, error):
                self.settled.append(pending)  # type: ignore[arg-type]

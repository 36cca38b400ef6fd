"""From the spool to those who wait for it; here, batches to the cloud.

A lane sends the entries of one spool in order, a window of them at a time, and lets go of them when they were
acknowledged. It runs on the agent's writing thread; what other threads learn is handed to it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edge_agent.logger import Logger
from edge_agent.sending import NEVER, Flight, Sending
from edge_agent.spool import Entry, Spool
from edge_agent.transport import TransportError
from protocol.dice import Dice
from protocol.wire.answers import Logged
from protocol.wire.batch import Header, frame, read_header, recoded
from protocol.wire.compression import Codec
from protocol.wire.errors import MalformedBatch

_LOG = Logger(__name__)
_BUSY_S = 0.2

# Publishes bytes; the number comes back, on any thread, when the transport has done its part.
Publish = Callable[[bytes, int], None]


class Lane:
    """One spool being sent."""

    def __init__(self, agent: str, spool: Spool, publish: Publish, window: int, random: Dice | None = None) -> None:
        self.sending = Sending(window, random)
        self._agent = agent
        self._whose = agent  # what the checksum of all that it sends is bound to
        self._spool = spool
        self._publish = publish
        self._pause_until = 0.0

    @property
    def unacknowledged(self) -> int:
        """Entries that nobody has confirmed yet."""
        return self._spool.count

    def step(self, now: float) -> float:
        """Send what is to be sent by now; returns when to come back at the latest."""
        if now < self._pause_until:
            return self._pause_until
        try:
            for due in self.sending.due(now):
                self._send(due, now)
            while self.sending.room > 0:
                flight = self._next_flight()
                if flight is None:
                    break
                self._send(flight, now)
        except TransportError as error:  # it holds all that it can, or is closed
            _LOG.debug("sending pauses agent=%s reason=%s", self._agent, error)
            self._pause_until = now + _BUSY_S
            return self._pause_until
        return self.sending.deadline()

    def over(self, number: int, now: float) -> None:
        """The transport has done its part for an entry."""
        self.sending.over(number, now)

    def given_up(self) -> None:
        """The oldest entries were replaced by another: what is in flight of them is history."""
        self.sending.flights.clear()

    def _next_flight(self) -> Flight | None:
        for entry in self._spool.entries(self.sending.next or self._spool.first):
            return Flight(entry.first, entry.last, 0, entry.first, entry.last + 1, entry.data)
        return None

    def _send(self, flight: Flight, now: float) -> None:
        oldest = flight.was_oldest = next(iter(self.sending.flights), flight.first) == flight.first
        self._publish(frame(self._framed(flight.data), self._whose, oldest), flight.first)
        self.sending.sent(flight, now)

    def _framed(self, data: bytes) -> bytes:
        return data

    def _release(self, numbers: Sequence[int], through: int, now: float) -> None:
        self.sending.acknowledged(list(numbers), now)
        self._spool.release(through)


class Uplink(Lane):
    """Batches on their way to the log."""

    def __init__(self, agent: str, spool: Spool, publish: Publish, window: int, random: Dice | None = None) -> None:
        super().__init__(agent, spool, publish, window, random)
        self.readable: frozenset[int] = frozenset(Codec)
        self.duplicate = False
        self.acknowledged = 0
        """Batches that this process was told are in the log."""

    def _batches(self, from_number: int) -> Iterator[tuple[Entry, Header]]:
        """Entries and what they say of themselves. What says nothing is passed over, as what cannot be read is: the
        cloud finds that it is missing, and names it."""
        for entry in self._spool.entries(from_number):
            try:
                header, _ = read_header(entry.data)
            except MalformedBatch as error:
                _LOG.error("no batch agent=%s entry=%d error=%s", self._agent, entry.first, error)
                self._spool.disbelieve(entry)
                continue
            yield entry, header

    def _next_flight(self) -> Flight | None:
        for entry, header in self._batches(self.sending.next or self._spool.first):
            return Flight(entry.first, entry.last, header.nonce, header.seq, header.next_seq, entry.data)
        return None

    def _framed(self, data: bytes) -> bytes:
        return recoded(data, self.readable)

    def logged(self, answer: Logged, now: float) -> None:
        """The cloud says how far its log has come."""
        self._learn(answer)
        flights = self.sending.flights
        own = [each for each in flights.values() if each.nonce == answer.nonce]
        done = [each for each in own if each.next_seq <= answer.next_seq]
        early = [each for each in own if answer.has_early(each.seq)]
        if done:
            numbers = [number for number in flights if number <= done[-1].first]
            self.acknowledged += len(numbers)
            self._release(numbers, done[-1].last, now)
        if not flights:
            self._release_unsent(answer, now)
        newest = max([each.place for each in (*done, *early) if each.over_at != NEVER], default=0)
        for flight in own[len(done) :]:
            if not answer.has_early(flight.seq):
                self.sending.missing(flight.first, now, newest)
        front = next(iter(flights.values()), None)
        if front is not None and front.nonce != answer.nonce and not front.was_oldest:
            front.due = now  # the first of its epoch was kept waiting for the one before, which is complete now

    def _release_unsent(self, answer: Logged, now: float) -> None:
        """What this process has not even sent may be in the log already: it was sent before a crash."""
        self.sending.acknowledged([], now)
        for entry, header in self._batches(self._spool.first):
            if header.nonce != answer.nonce or header.next_seq > answer.next_seq:
                return
            self.acknowledged += 1
            self._spool.release(entry.last)

    def _learn(self, answer: Logged) -> None:
        if answer.codecs:
            self.readable = frozenset(codec for codec in Codec if answer.codecs >> codec & 1)
        if answer.duplicate and not self.duplicate:
            _LOG.error("another agent uses the same name agent=%s", self._agent)
        self.duplicate = answer.duplicate

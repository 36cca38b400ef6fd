"""Tuples from the spool of a Send to the agents that receive them. Each says for itself how far it has come."""

from __future__ import annotations

from collections.abc import Sequence

from edge_agent.exchange.receiving import NOTHING_TAKEN
from edge_agent.lanes import Lane, Publish
from edge_agent.sending import Flight, Sending
from edge_agent.spool import Spool
from protocol.ids import StreamId
from protocol.mqttsn import RetryPolicy
from protocol.wire.answers import Taken
from protocol.wire.crossing import whose_crossing

# A receiver may well be offline, and what was sent waits for it on the way: to send it again would only pile it up
# there. A receiver that misses something says so.
_RECEIVERS = RetryPolicy(first_s=10.0, least_s=10.0, most_s=60.0)
_MUCH_S = 0.1


class CrossingLane(Lane):
    """Tuples on their way to the agents that receive them; the slowest of these decides."""

    def __init__(
        self, stream: StreamId, spool: Spool, spool_id: int, receivers: Sequence[str], publish: Publish, window: int
    ) -> None:
        super().__init__(stream.agent, spool, publish, window)
        self._whose = whose_crossing(stream.agent, stream.name)
        self.sending = Sending(window, patience=_RECEIVERS, much_s=_MUCH_S)
        self.spool_id = spool_id
        self._taken = dict.fromkeys(receivers, spool.first)
        self.is_open = False
        """The cloud knows this start: what it sends will not be named by others before that."""

    def _next_flight(self) -> Flight | None:
        """Receivers go by the numbers: none may leave that a power cut could take back and have given again."""
        return super()._next_flight() if self.is_open and self._spool.is_synced else None

    def taken(self, answer: Taken, now: float) -> bool:
        """A receiver says how far it has come. Tells whether there is more room in the spool now."""
        if answer.nonce == NOTHING_TAKEN:  # it has just begun, and may have missed all that is in flight
            for number, flight in self.sending.flights.items():
                self.sending.missing(number, now, newest=flight.place + 1)
        if answer.nonce != self.spool_id or answer.receiver not in self._taken or answer.next_seq > self._spool.next:
            return False
        self._taken[answer.receiver] = max(self._taken[answer.receiver], answer.next_seq)
        through = min(self._taken.values()) - 1
        numbers = [number for number, flight in self.sending.flights.items() if flight.last <= through]
        is_news = through >= self._spool.first
        if is_news:
            self._release(numbers, through, now)
        self.sending.missing(answer.next_seq, now)
        return is_news

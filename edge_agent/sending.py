"""Which entries of a spool are on their way, and which have to be sent again. No I/O, and no clock of its own.

Two hops, two patiences. Until the gateway has taken an entry over, the transport repeats it by itself. From then on
the entry waits for the acknowledgement of the far end, which comes when it is safe there. Only a crash on the way makes
that stay out, so the wait is long and grows; news from the far end shortens it.
"""

from __future__ import annotations

from protocol.dice import Dice, SystemDice
from protocol.mqttsn import RetryPolicy, RoundTrip
from protocol.structs import Struct

NEVER = float("inf")
_MOST_DOUBLED = 6
PATIENCE = RetryPolicy(first_s=3.0, least_s=1.0, most_s=60.0)


class Flight(Struct):
    """An entry that was sent. `over_at`: when the transport had done its part, the last time; `place`: as which of all
    that it has done."""

    first: int
    last: int
    nonce: int
    seq: int
    next_seq: int
    data: bytes
    was_oldest: bool = False
    attempts: int = 0
    over_at: float = NEVER
    place: int = 0
    due: float = NEVER


class Sending:
    """The window of entries in flight, in the order of their numbers."""

    def __init__(
        self, window: int, random: Dice | None = None, patience: RetryPolicy = PATIENCE, much_s: float = 0.5
    ) -> None:
        """`much_s`: how long an entry may at least be under way to a far end that answers without it."""
        self.flights: dict[int, Flight] = {}
        self.resent = 0
        self._heard_at = NEVER
        self.round_trip = RoundTrip(patience)
        self._window = window
        self._much_s = much_s
        self._overs = 0
        self._random = random or SystemDice()

    @property
    def room(self) -> int:
        """How many more may be sent."""
        return self._window - len(self.flights)

    @property
    def next(self) -> int | None:
        """The number to go on with, None if nothing is in flight."""
        return next(reversed(self.flights.values())).last + 1 if self.flights else None

    @property
    def silent_since(self) -> float:
        """Since when nothing was acknowledged; infinity if there is nothing to acknowledge. What is given up does not
        change it: nobody has answered."""
        return self._heard_at

    def sent(self, flight: Flight, now: float) -> None:
        """An entry was given to the transport, for the first time or again."""
        self._heard_at = min(self._heard_at, now)
        self.flights[flight.first] = flight
        flight.attempts += 1
        self.resent += flight.attempts > 1
        flight.over_at = flight.due = NEVER

    def over(self, number: int, now: float) -> None:
        """The transport has done its part, or has given up."""
        flight = self.flights.get(number)
        if flight is not None:
            self._overs += 1
            flight.over_at, flight.place = now, self._overs
            flight.due = now + self.round_trip.wait_s(flight.attempts, self._random)

    def acknowledged(self, numbers: list[int], now: float) -> None:
        """These entries are safe at the far end."""
        for number in numbers:
            flight = self.flights.pop(number, None)
            if flight is not None and flight.over_at != NEVER:
                self.round_trip.answered(flight.attempts, now - flight.over_at)
        self._heard_at = now if self.flights else NEVER

    def missing(self, number: int, now: float, newest: int = 0) -> None:
        """The far end did not have this entry when it answered. It must be lost if the far end has one that left the
        transport after it (`newest` is the last such place); or else it may just be under way, but not for long. How
        long doubles each time that it is sent: a far end that is busy answers every copy, and if each answer brought
        forth another copy, it would never be done with them."""
        flight = self.flights.get(number)
        if flight is not None and flight.over_at != NEVER:
            much_s = max(self._much_s, 2 * self.round_trip.smoothed_s) * 2 ** min(flight.attempts - 1, _MOST_DOUBLED)
            flight.due = now if flight.place < newest else min(flight.due, max(now, flight.over_at + much_s))

    def due(self, now: float) -> list[Flight]:
        """What to send again."""
        return [flight for flight in self.flights.values() if flight.due <= now]

    def deadline(self) -> float:
        """When something may be due."""
        return min([flight.due for flight in self.flights.values()], default=NEVER)

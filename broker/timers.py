"""One heap that holds, for every session, the earliest time somebody has to look at it.

Hearing from a client only moves its deadline into the future, so the entry is left as it is and put where it belongs
when its time comes. An entry that was overtaken by an earlier one is stale; there are never many of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from broker.session import Session, State

SPARE = 256
"""How many stale entries are nothing to worry about."""


class Timers:
    """When to look at which session."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Session]] = []
        self._tiebreak = count()
        self._live = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def schedule(self, session: Session, at: float) -> None:
        """Look at the session at this time, or before."""
        if at < session.wake_at:
            session.wake_at = at
            heappush(self._heap, (at, next(self._tiebreak), session))
            if len(self._heap) > 2 * self._live + SPARE:
                self._heap = [entry for entry in self._heap if _is_live(entry)]
                heapify(self._heap)
                self._live = len(self._heap)

    def due(self, now: float) -> Iterator[Session]:
        """The sessions whose time has come; each has to be scheduled again."""
        while self._heap and self._heap[0][0] <= now:
            entry = heappop(self._heap)
            if _is_live(entry):
                entry[2].wake_at = inf
                yield entry[2]


def _is_live(entry: tuple[float, int, Session]) -> bool:
    at, _, session = entry
    return at == session.wake_at and session.state is not State.GONE

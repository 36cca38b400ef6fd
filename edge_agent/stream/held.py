"""The oldest tuple kept in any of many length windows."""

from __future__ import annotations

import heapq

from protocol.records import END_OF_TIME


class Held:
    """Something that keeps tuples and lets go of the oldest first."""

    __slots__ = ()

    def oldest(self) -> int:
        """The ts of its oldest tuple, END_OF_TIME if it keeps none. It never decreases, save from none."""
        raise NotImplementedError


class OldestHeld:
    """Finds the minimum over all without visiting all: a heap whose entries are mended when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Held]] = []
        self._count = 0

    def watch(self, held: Held) -> None:
        """Count this one in from now on; it must keep a tuple."""
        heapq.heappush(self._heap, (held.oldest(), self._count, held))
        self._count += 1

    def ts(self) -> int:
        """The oldest ts that any of them keeps."""
        heap = self._heap
        while heap:
            ts, count, held = heap[0]
            now = held.oldest()
            if now == ts:
                return ts
            heapq.heapreplace(heap, (now, count, held))
        return END_OF_TIME

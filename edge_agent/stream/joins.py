"""Joins of two keyed streams. Tuples meet in order of (ts, left before right)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from edge_agent.stream.functions import check_key
from edge_agent.stream.held import Held, OldestHeld
from edge_agent.stream.lineage.base import Lineage, StreamTuple
from edge_agent.stream.merge import Merging
from edge_agent.stream.operator import Faults, HoldHistory
from protocol.records import BEGINNING, END_OF_TIME

LEFT = 0
RIGHT = 1


class Pairing:
    """By what tuples are paired, and what becomes of a pair."""

    def __init__(
        self,
        lineage: Lineage,
        keys: list[Callable[[Any], Any]],
        combine: Callable[[Any, Any], Any],
        where: Callable[[Any, Any], Any] | None,
        histories: list[HoldHistory | None],
    ) -> None:
        self.lineage = lineage
        self.keys = keys
        self.combine = combine
        self.where = where
        self.histories = histories


class Join(Merging):
    """What the kinds of join have in common."""

    def __init__(self, name: str, faults: Faults, pairing: Pairing) -> None:
        super().__init__(name, faults, pairing.histories)
        self._lineage = pairing.lineage
        self._keys = pairing.keys
        self._combine = pairing.combine
        self._where = pairing.where

    def pass_time(self, now: int, ready: list[list[StreamTuple]]) -> None:
        lefts, rights = ready
        first = 0
        for right in rights:
            while first < len(lefts) and lefts[first][0] <= right[0]:
                self._arrive(LEFT, lefts[first])
                first += 1
            self._arrive(RIGHT, right)
        for left in lefts[first:]:
            self._arrive(LEFT, left)
        self.moved(now)
        self.give_results()

    def _arrive(self, side: int, t: StreamTuple) -> None:
        of = self._keys[side]
        try:
            key = of(t[1])
            check_key(key)
        except Exception as error:
            self.faults.failed(of, t[0], t[1], error)
            return
        self.meet(side, key, t)

    def meet(self, side: int, key: Any, t: StreamTuple) -> None:
        """The next tuple of either side."""
        raise NotImplementedError

    def moved(self, now: int) -> None:
        """No tuple below `now` will come."""

    def held(self) -> int:
        return END_OF_TIME

    def _pair(self, ts: int, left: StreamTuple, right: StreamTuple) -> None:
        """The result of two tuples that meet, if they satisfy the condition."""
        function: Any = self._where
        try:
            if self._where is not None and not self._where(left[1], right[1]):
                return
            function = self._combine
            value = self._combine(left[1], right[1])
        except Exception as error:
            self.faults.failed(function, ts, (left[1], right[1]), error)
            return
        if left[0] >= right[0]:
            lineage = self._lineage.of_pair(left, right)
        else:
            lineage = self._lineage.of_pair(right, left)
        self._results.append((ts, value, lineage))


class Side:
    """One side's tuples that can still meet others, by key, the oldest first."""

    def __init__(self) -> None:
        self._by_key: dict[Any, deque[StreamTuple]] = {}
        self._in_order: deque[tuple[int, Any]] = deque()

    def add(self, key: Any, t: StreamTuple) -> None:
        """The newest tuple."""
        tuples = self._by_key.get(key)
        if tuples is None:
            tuples = self._by_key[key] = deque()
        tuples.append(t)
        self._in_order.append((t[0], key))

    def let_go(self, before: int) -> None:
        """Tuples with a smaller ts meet nobody any more."""
        in_order = self._in_order
        while in_order and in_order[0][0] < before:
            key = in_order.popleft()[1]
            tuples = self._by_key[key]
            tuples.popleft()
            if not tuples:
                del self._by_key[key]

    def of(self, key: Any) -> deque[StreamTuple] | None:
        """The key's tuples."""
        return self._by_key.get(key)

    def groups(self) -> list[tuple[Any, deque[StreamTuple]]]:
        """Every key that has tuples, with its tuples."""
        return list(self._by_key.items())

    def empty(self) -> bool:
        """No tuple waits."""
        return not self._by_key


class BandJoin(Join):
    """Pairs whose distance in time is at most `left_ms` if the left tuple is the earlier one, `right_ms`
    if the right one is; the result has the later one's ts."""

    def __init__(self, name: str, faults: Faults, pairing: Pairing, left_ms: int, right_ms: int) -> None:
        super().__init__(name, faults, pairing)
        self._kept_ms = (left_ms, right_ms)
        self._sides = (Side(), Side())

    def meet(self, side: int, key: Any, t: StreamTuple) -> None:
        ts = t[0]
        other = self._sides[1 - side]
        other.let_go(ts - self._kept_ms[1 - side])
        partners = other.of(key)
        if partners is not None:
            for partner in partners:
                if side == LEFT:
                    self._pair(ts, t, partner)
                else:
                    self._pair(ts, partner, t)
        self._sides[side].add(key, t)

    def moved(self, now: int) -> None:
        for side in (LEFT, RIGHT):
            self._sides[side].let_go(now - self._kept_ms[side])

    def kept_since(self, now: int) -> int:
        return now - max(self._kept_ms)


class WindowJoin(Join):
    """Pairs that share a window, once for each window that they share; the result has the window's end as ts."""

    def __init__(self, name: str, faults: Faults, pairing: Pairing, size: int, advance: int, offset: int) -> None:
        super().__init__(name, faults, pairing)
        self._size = size
        self._advance = advance
        self._offset = offset
        self._sides = (Side(), Side())
        self._next_end = BEGINNING

    def meet(self, side: int, key: Any, t: StreamTuple) -> None:
        self.moved(t[0])
        if t[0] >= self._next_end - self._size:  # not in the gap between two windows
            self._sides[side].add(key, t)

    def moved(self, now: int) -> None:
        lefts, rights = self._sides
        end = self._next_end
        while end <= now and not (lefts.empty() and rights.empty()):
            self._fire(end)
            end += self._advance
        if end <= now:
            # Nothing waits: on to the first window that ends behind `now`.
            end = now + self._advance - (now - self._offset - self._size) % self._advance
        self._next_end = end

    def _fire(self, end: int) -> None:
        lefts, rights = self._sides
        lefts.let_go(end - self._size)
        rights.let_go(end - self._size)
        for key, tuples in lefts.groups():
            partners = rights.of(key)
            if partners is not None:
                for left in tuples:
                    for right in partners:
                        self._pair(end, left, right)

    def kept_since(self, now: int) -> int:
        return now - self._size


class LastTuples(Held):
    """A key's last tuples of one side."""

    __slots__ = ("tuples",)

    def __init__(self, count: int) -> None:
        self.tuples: deque[StreamTuple] = deque(maxlen=count)

    def oldest(self) -> int:
        ts: int = self.tuples[0][0]
        return ts


class LengthJoin(Join):
    """Each tuple meets the last tuples of its key on the other side; the result has its ts."""

    def __init__(self, name: str, faults: Faults, pairing: Pairing, left_count: int, right_count: int) -> None:
        super().__init__(name, faults, pairing)
        self._counts = (left_count, right_count)
        self._sides: tuple[dict[Any, LastTuples], dict[Any, LastTuples]] = ({}, {})
        self._oldest = OldestHeld()

    def meet(self, side: int, key: Any, t: StreamTuple) -> None:
        partners = self._sides[1 - side].get(key)
        if partners is not None:
            for partner in partners.tuples:
                if side == LEFT:
                    self._pair(t[0], t, partner)
                else:
                    self._pair(t[0], partner, t)
        mine = self._sides[side].get(key)
        if mine is None:
            mine = self._sides[side][key] = LastTuples(self._counts[side])
            mine.tuples.append(t)
            self._oldest.watch(mine)
        else:
            mine.tuples.append(t)

    def moved(self, now: int) -> None:
        if now == END_OF_TIME:
            self._sides = ({}, {})
            self._oldest = OldestHeld()

    def kept_since(self, now: int) -> int:
        return min(now, self._oldest.ts())

    def held(self) -> int:
        return self._oldest.ts()

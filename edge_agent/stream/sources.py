"""Where tuples enter the plan: a Source of this agent, or a Receive from another one.

A source keeps its own promise: a watermark W says that every later tuple has ts >= W, and a tuple
that breaks it is late and goes no further. Out-of-order tuples wait until the watermark has passed
them and then leave in order of (ts, arrival), so no operator ever sees disorder or lateness.
"""

from __future__ import annotations

import operator
from bisect import insort_right
from collections.abc import Callable, Iterator
from typing import Any

from edge_agent.stream.lineage.base import Lineage, StreamTuple
from edge_agent.stream.merge import cut, ts_of
from edge_agent.stream.operator import Faults, Operator
from edge_agent.stream.source_ids import AttributeIds, SourceIds
from protocol.records import BEGINNING, END_OF_TIME, Origin

MIN_TS = -(2**62) + 1
MAX_TS = 2**62 - 1
# Up to so many tuples are put in their places one by one; more are sorted in.
FEW = 16


class Watermark:
    """An item of a source that promises: every later tuple has ts >= `ts`."""

    __slots__ = ("ts",)

    def __init__(self, ts: Any) -> None:
        self.ts: int = checked_ts(ts)

    def __repr__(self) -> str:
        return f"Watermark({self.ts})"


class Idle:
    """An item of a source that says: do not wait for me until my next item."""

    def __repr__(self) -> str:
        return "IDLE"


IDLE = Idle()


class Source(Operator):
    """Turns the user's items into tuples."""

    def __init__(
        self,
        name: str,
        faults: Faults,
        lineage: Lineage,
        ids: SourceIds,
        ts: Callable[[Any], Any] | None,
        disorder_ms: int,
        explicit: bool,
    ) -> None:
        super().__init__(name, faults)
        self.ids = ids
        self.watermark = BEGINNING
        self.idle = False
        self._lineage = lineage
        self._ts = ts
        self._disorder_ms = disorder_ms
        self._explicit = explicit
        self._in_order = disorder_ms == 0 and not explicit
        self._usual = self._in_order and ts is None and not isinstance(ids, AttributeIds)
        self._waiting: list[StreamTuple] = []

    def take(self, items: list[Any]) -> None:
        """The next items, in the order in which they came."""
        if not items:
            return
        if self._usual:
            items = self._take_usual(items)
        if items:
            self._take_any(items)

    def _take_usual(self, items: list[tuple[Any, Any]]) -> list[Any]:
        """Take pairs whose times are ints and do not decrease; if there is any other item, take none and return all."""
        ids = self.ids
        born: list[StreamTuple] = []
        floor = max(self.watermark, MIN_TS)
        try:
            for time, value in items:
                ts: Any = time  # the object as it came: a compiled build would make a new one of an int
                if type(time) is not int or time < floor:
                    return _unread(items, [*born, (ts, value, ids)])
                floor = time
                born.append((ts, value, ids))
        except Exception:
            return _unread(items, born)
        if floor > MAX_TS:
            return _unread(items, born)
        self.taken += len(items)
        self.give(self._lineage.born(born))
        self.advance_to(floor, False)
        return []

    def _take_any(self, items: list[Any]) -> None:
        """Take items of all kinds: late, out of order, controls, and those that are no tuples at all."""
        born: list[StreamTuple] = []
        ids = self.ids
        ts_of_value = self._ts
        floor = max(self.watermark, MIN_TS)
        for item in items:
            if isinstance(item, (Watermark, Idle)):
                if isinstance(item, Watermark):
                    floor = max(floor, item.ts)
                continue
            self.taken += 1
            function: Any = "timestamp" if ts_of_value is None else ts_of_value
            try:
                if ts_of_value is None:
                    ts, value = item
                else:
                    value = item
                    ts = ts_of_value(item)
                ts = checked_ts(ts)
                t = (ts, value, ids)
                function = "ids by attributes"
                ids.check(t)
            except Exception as error:
                if not self.faults.skip:
                    self._leave(born, floor, False)
                self.faults.failed(function, None, item, error)
                continue
            if ts < floor:
                self.faults.late(ts, value, floor)
                continue
            if not self._explicit:
                floor = max(floor, ts - self._disorder_ms)
            born.append(t)
        self._leave(born, floor, isinstance(items[-1], Idle))

    def _leave(self, born: list[StreamTuple], floor: int, idle: bool) -> None:
        """Pass new tuples on, at once or when their time has come."""
        born = self._lineage.born(born)
        if self._in_order:
            self.give(born)
        else:
            self._wait(born)
        self.advance_to(floor, idle)

    def _wait(self, born: list[StreamTuple]) -> None:
        """Put tuples in order of (ts, arrival) with those that wait already."""
        if len(born) > FEW:
            self._waiting.extend(born)
            self._waiting.sort(key=ts_of)
        else:
            for t in born:
                insort_right(self._waiting, t, key=ts_of)

    def advance_to(self, watermark: int, idle: bool) -> None:
        """Promise that every later tuple has at least this ts, and give what has waited for that."""
        self.watermark = max(self.watermark, watermark)
        self.idle = idle
        if idle and self._waiting:
            # Nobody waits for an idle source, so neither does what it has said: time goes on to the newest of it.
            self.watermark = max(self.watermark, self._waiting[-1][0])
            waiting, self._waiting = self._waiting, []
            self.give(waiting)
        self.give(cut(self._waiting, self.watermark))
        self.promise(self.watermark, END_OF_TIME, idle)


class Receive(Operator):
    """Takes what the Send of another agent transmits: in order, with its promises."""

    def __init__(self, name: str, faults: Faults, lineage: Lineage) -> None:
        super().__init__(name, faults)
        self.watermark = BEGINNING
        self.idle = False
        self._lineage = lineage

    def take(self, tuples: list[tuple[int, Any, Origin]], watermark: int, hold: int, idle: bool) -> None:
        """The next tuples and the promise that came with them; what breaks an earlier promise is late."""
        self.taken += len(tuples)
        arrived: list[StreamTuple] = []
        for ts, value, origin in tuples:
            if ts < self.watermark:
                self.faults.late(ts, value, self.watermark)
            else:
                arrived.append(self._lineage.arrived(ts, value, origin))
        self.give(arrived)
        self.watermark = max(self.watermark, watermark)
        self.idle = idle
        self.promise(self.watermark, hold, idle)


def _unread(items: list[Any], born: list[StreamTuple]) -> list[Any]:
    """Items of which the first ones were read. An iterator gives its pair only once: the pair stands in for it."""
    again = [(t[0], t[1]) if isinstance(items[place], Iterator) else items[place] for place, t in enumerate(born)]
    return again + items[len(born) :]


def checked_ts(ts: Any) -> int:
    """A timestamp as int; raises for what is none."""
    if isinstance(ts, bool):
        raise TypeError(f"a timestamp must be whole milliseconds, not {ts!r}")
    try:
        whole = operator.index(ts)
    except TypeError:
        raise TypeError(f"a timestamp must be whole milliseconds, not {ts!r}") from None
    if not MIN_TS <= whole <= MAX_TS:
        raise OverflowError(f"{whole} is not between {MIN_TS} and {MAX_TS}")
    return whole

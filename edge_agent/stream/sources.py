"""Where tuples enter the plan: a Source of this agent, or a Receive from another one.

A source keeps its own promise: a watermark W says that every later tuple has ts >= W, and a tuple
that breaks it is late and goes no further. Out-of-order tuples wait until the watermark has passed
them and then leave in order of (ts, arrival), so no operator ever sees disorder or lateness.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from edge_agent.stream.lineage.base import Lineage, StreamTuple
from edge_agent.stream.merge import cut, ts_of
from edge_agent.stream.operator import Faults, Operator
from edge_agent.stream.source_ids import SourceIds
from protocol.records import BEGINNING, END_OF_TIME, Late, Origin, Record

MIN_TS = -(2**62) + 1
MAX_TS = 2**62 - 1


class Watermark:
    """An item of a source that promises: every later tuple has ts >= `ts`."""

    __slots__ = ("ts",)

    def __init__(self, ts: Any) -> None:
        self.ts: int = _whole(ts)

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
        emit: Callable[[Record], None],
        ts: Callable[[Any], Any] | None,
        disorder_ms: int,
        explicit: bool,
    ) -> None:
        super().__init__(name, faults)
        self.ids = ids
        self.watermark = BEGINNING
        self.reached = BEGINNING  # the highest ts of any tuple
        self.idle = False
        self.late = 0
        self._lineage = lineage
        self._emit = emit
        self._ts = ts
        self._disorder_ms = disorder_ms
        self._in_order = disorder_ms == 0 and not explicit
        # The watermark follows the newest ts; an explicit one does not, as if this could not be topped.
        self._newest = MAX_TS if explicit else BEGINNING
        self._waiting: list[StreamTuple] = []

    def take(self, items: list[Any]) -> None:
        """The next items, in the order in which they came."""
        if not items:
            return
        if not (self._in_order and self._ts is None and self._take_usual(items)):
            self._take_any(items)

    def _take_usual(self, items: list[tuple[Any, Any]]) -> bool:
        """Take pairs whose times are ints and do not decrease; False, and nothing done, if there is any other."""
        ids = self.ids
        born: list[StreamTuple] = []
        floor = max(self.watermark, MIN_TS)
        try:
            for time, value in items:
                ts: Any = time  # the object as it came: a compiled build would make a new one of an int
                if type(time) is not int or time < floor:
                    return False
                floor = time
                born.append((ts, value, ids))
        except (TypeError, ValueError):
            return False
        if floor > MAX_TS:
            return False
        self.taken += len(items)
        self.idle = False
        self._newest = floor
        self.reached = floor
        self.give(self._lineage.born(born))
        self.advance_to(floor)
        return True

    def _take_any(self, items: list[Any]) -> None:
        """Take items of all kinds: late, out of order, controls, and those that are no tuples at all."""
        controls = 0
        born: list[StreamTuple] = []
        late: list[Late] = []
        ids = self.ids
        ts_of_value = self._ts
        newest = self._newest
        floor = max(self.watermark, MIN_TS)
        for item in items:
            if isinstance(item, (Watermark, Idle)):
                controls += 1
                if isinstance(item, Watermark):
                    floor = max(floor, item.ts)
                continue
            try:
                if ts_of_value is None:
                    ts, value = item
                else:
                    value = item
                    ts = ts_of_value(item)
                if type(ts) is not int:
                    ts = _whole(ts)
                if not MIN_TS <= ts <= MAX_TS:
                    raise OverflowError(f"{ts} is not between {MIN_TS} and {MAX_TS}")
            except Exception as error:
                self.faults.failed("timestamp" if ts_of_value is None else ts_of_value, None, item, error)
                continue
            if ts < floor:
                late.append(Late(ids.stream, ts, value, floor))
                continue
            if ts > newest:
                newest = ts
                floor = max(floor, ts - self._disorder_ms)
            self.reached = max(self.reached, ts)
            born.append((ts, value, ids))
        self.taken += len(items) - controls
        self._newest = newest
        self.idle = items[-1] is IDLE
        self.late += len(late)
        for each in late:
            self._emit(each)
        born = self._lineage.born(born)
        if self._in_order:
            self.give(born)
        else:
            self._waiting.extend(born)
            self._waiting.sort(key=ts_of)
        self.advance_to(floor)

    def advance_to(self, watermark: int) -> None:
        """Promise that every later tuple has at least this ts, and give what has waited for that."""
        if watermark > self.watermark:
            self.watermark = watermark
            self.give(cut(self._waiting, watermark))
            self.promise(watermark, END_OF_TIME)


class Receive(Operator):
    """Takes what the Send of another agent transmits: in order, with its promises."""

    def __init__(self, name: str, faults: Faults, lineage: Lineage) -> None:
        super().__init__(name, faults)
        self._lineage = lineage

    def take(self, tuples: list[tuple[int, Any, Origin]], watermark: int, hold: int) -> None:
        """The next tuples and the promise that came with them."""
        self.taken += len(tuples)
        self.give([self._lineage.arrived(ts, value, origin) for ts, value, origin in tuples])
        self.promise(watermark, hold)


def _whole(ts: Any) -> int:
    """A timestamp of a whole-number type other than int, as int."""
    if isinstance(ts, bool):
        raise TypeError(f"a timestamp must be whole milliseconds, not {ts!r}")
    try:
        return operator.index(ts)
    except TypeError:
        raise TypeError(f"a timestamp must be whole milliseconds, not {ts!r}") from None

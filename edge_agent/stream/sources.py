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

    def __init__(self, ts: int) -> None:
        self.ts = _whole(ts)

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
        controls = 0
        born: list[StreamTuple] = []
        late: list[Late] = []
        ids = self.ids
        ts_of_value = self._ts
        disorder_ms = self._disorder_ms
        newest = self._newest
        floor = max(self.watermark, MIN_TS)
        for item in items:
            try:
                pair: tuple[Any, ...]
                if ts_of_value is not None:
                    if isinstance(item, (Watermark, Idle)):
                        raise TypeError("not a value")
                    pair = (ts_of_value(item), item)
                elif type(item) is tuple:
                    pair = item
                else:
                    pair = tuple(item)
                ts, value = pair
                if type(ts) is not int:
                    ts = _whole(ts)
                time: int = ts
                if time < floor:
                    if time < MIN_TS:
                        raise OverflowError(f"{ts} is before the beginning of time, {MIN_TS}")
                    late.append(Late(ids.stream, ts, value, floor))
                    continue
                if time > newest:
                    if time > MAX_TS:
                        raise OverflowError(f"{ts} is behind the end of time, {MAX_TS}")
                    newest = time
                    floor = time - disorder_ms if time - disorder_ms > floor else floor
                born.append((ts, value, ids))
            except Exception as error:
                if isinstance(item, (Watermark, Idle)):
                    controls += 1
                    if isinstance(item, Watermark):
                        floor = max(floor, item.ts)
                else:
                    self.faults.failed("timestamp" if ts_of_value is None else ts_of_value, None, item, error)
        self.taken += len(items) - controls
        self._newest = newest
        self.idle = bool(items) and items[-1] is IDLE
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

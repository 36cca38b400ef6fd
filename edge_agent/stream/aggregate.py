"""Aggregates over windows: tumbling, sliding, one per event (SAF), and by length.

All of them see their input in event-time order. A pane is what enters and leaves a window
together: the tuples of one key between two window boundaries, those of one instant, or a single one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from edge_agent.stream.aggregators import Aggregator
from edge_agent.stream.functions import check_key
from edge_agent.stream.held import Held, OldestHeld
from edge_agent.stream.lineage.base import Lineage, StreamTuple, WindowLog
from edge_agent.stream.operator import Faults, HoldHistory, Operator
from edge_agent.stream.sliding import Slider, slidable, slider
from protocol.records import BEGINNING, END_OF_TIME


class KeyWindow:
    """One key's sliding window."""

    __slots__ = ("log", "panes", "rotate_at", "sliders")

    def __init__(self, sliders: list[Slider], log: WindowLog | None) -> None:
        self.sliders = sliders
        self.log = log
        self.panes: deque[tuple[int, int]] = deque()  # (start, number of tuples)
        self.rotate_at = BEGINNING  # the start of the pane that begins a new chunk of the log

    def push(self, start: int, size: int, tuples: list[StreamTuple], states: list[Any]) -> None:
        """A pane enters; windows are `size` long, in the unit of `start`."""
        if start >= self.rotate_at:
            self.rotate_at = start + size
            if self.log is not None:
                self.log.rotate()
        self.panes.append((start, len(tuples)))
        for place, each in enumerate(self.sliders):
            each.push(states[place])
        if self.log is not None:
            self.log.extend(tuples)

    def evict(self) -> None:
        """The oldest pane leaves."""
        _, count = self.panes.popleft()
        for each in self.sliders:
            each.evict()
        if self.log is not None:
            self.log.drop(count)


class Computation:
    """What is computed over each window, of which groups, and into what."""

    def __init__(
        self,
        lineage: Lineage,
        aggregators: list[Aggregator],
        key: Callable[[Any], Any] | None,
        into: Callable[..., Any] | None,
        history: HoldHistory | None,
    ) -> None:
        self.lineage = lineage
        self.aggregators = aggregators
        self.key = key
        self.into = into
        self.history = history


class Aggregate(Operator):
    """What the four kinds of windows have in common: folding panes and making results."""

    def __init__(self, name: str, faults: Faults, computation: Computation) -> None:
        super().__init__(name, faults)
        self._lineage = computation.lineage
        self._aggregators = computation.aggregators
        self._keyed = computation.key is not None
        self._key = _whole_stream if computation.key is None else computation.key
        self._into = computation.into
        self._history = computation.history

    def _folded(self, key: Any, tuples: list[StreamTuple]) -> tuple[list[StreamTuple], list[Any]]:
        """A pane's states, and its tuples without those that could not be added."""
        try:
            check_key(key)
            values = [t[1] for t in tuples]
            return tuples, [aggregator.fold(values) for aggregator in self._aggregators]
        except Exception:
            return self._folded_singly(key, tuples)

    def _folded_singly(self, key: Any, tuples: list[StreamTuple]) -> tuple[list[StreamTuple], list[Any]]:
        """Leave out each tuple that raises by itself."""
        kept: list[StreamTuple] = []
        for t in tuples:
            function: Any = self._key
            try:
                check_key(key)
                for aggregator in self._aggregators:
                    function = aggregator
                    aggregator.fold([t[1]])
            except Exception as error:
                self.faults.failed(function, t[0], t[1], error)
            else:
                kept.append(t)
        if not kept:
            return [], []
        try:
            return kept, self._states(kept)
        except Exception:
            return self._folded_in_turn(kept)

    def _folded_in_turn(self, tuples: list[StreamTuple]) -> tuple[list[StreamTuple], list[Any]]:
        """Leave out each tuple that raises only behind the ones before it."""
        kept = tuples[:1]
        states = self._states(kept)
        for t in tuples[1:]:
            so_far: list[Any] = []
            for aggregator in self._aggregators:
                try:
                    so_far.append(aggregator.extend(states[len(so_far)], t[1]))
                except Exception as error:
                    self.faults.failed(aggregator, t[0], t[1], error)
                    states = self._states(kept)  # anew: `add` may have put it into the state that it was given
                    break
            else:
                kept.append(t)
                states = so_far
        return kept, states

    def _states(self, tuples: list[StreamTuple]) -> list[Any]:
        values = [t[1] for t in tuples]
        return [aggregator.fold(values) for aggregator in self._aggregators]

    def _result(self, ts: int, key: Any, results: list[Any], lineage: Any) -> None:
        into = self._into
        if into is None:
            if self._keyed:
                value: Any = (key, *results)
            else:
                value = results[0] if len(results) == 1 else tuple(results)
        else:
            try:
                value = into(key, *results) if self._keyed else into(*results)
            except Exception as error:
                self.faults.failed(into, ts, (key, *results) if self._keyed else tuple(results), error)
                return
        self._results.append((ts, value, lineage))

    def _result_of(self, ts: int, key: Any, window: KeyWindow) -> None:
        """The result over one key's window as it is now."""
        results: list[Any] = []
        for each in window.sliders:
            try:
                results.append(each.value())
            except Exception as error:
                self.faults.failed(self._aggregators[len(results)], ts, key, error)
                return
        log = window.log
        self._result(ts, key, results, None if log is None else log.lineage())

    def _new_window(self) -> KeyWindow:
        return KeyWindow([slider(each) for each in self._aggregators], self._lineage.window_log())


def _whole_stream(value: Any) -> Any:
    """The one key of a stream that is not keyed."""
    return None


class TimeWindows(Aggregate):
    """Aligned windows [left, right), a multiple of `advance` apart; a result's ts is `right`."""

    def __init__(
        self, name: str, faults: Faults, computation: Computation, size: int, advance: int, offset: int
    ) -> None:
        super().__init__(name, faults, computation)
        self._size = size
        self._advance = advance
        self._offset = offset
        self._open: dict[Any, list[StreamTuple]] = {}
        self._pane_start = BEGINNING
        self._pane_end = BEGINNING

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        if self._history is not None:
            self._history.note(batch)
        key = self._key
        open_panes = self._open
        pane_end = self._pane_end
        for t in batch:
            ts: int = t[0]
            if ts >= pane_end:
                self._move(ts)
                pane_end = self._pane_end
            try:
                group = key(t[1])
                pane = open_panes.get(group)
            except Exception as error:
                self.faults.failed(key, t[0], t[1], error)
                continue
            if pane is None:
                open_panes[group] = [t]
            else:
                pane.append(t)
        self.give_results()

    def advance(self, port: int, watermark: int, hold: int, idle: bool) -> None:
        if watermark >= self._pane_end:
            self._move(watermark)
            self.give_results()
        if self._history is not None:
            self._history.promise(watermark, hold)
            hold = self._history.since(watermark - self._size)
        self.promise(watermark, hold, idle)

    def _move(self, now: int) -> None:
        """No tuple below `now` will come: close the open pane, give what is complete, open the next."""
        raise NotImplementedError


class TumblingWindows(TimeWindows):
    """Windows that do not overlap (advance >= size): a window is one pane, and its tuples are the segment."""

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        if self._advance > self._size:
            offset, advance, size = self._offset, self._advance, self._size
            inside = [t for t in batch if (t[0] - offset) % advance < size]
            self.taken += len(batch) - len(inside)
            batch = inside
        if batch:
            super().feed(port, batch)

    def _move(self, now: int) -> None:
        if self._open:
            self._close()
            self._open.clear()
        left = now - (now - self._offset) % self._advance
        if now >= left + self._size:
            left += self._advance  # between two windows
        self._pane_start = left
        self._pane_end = left + self._size

    def _close(self) -> None:
        aggregators = self._aggregators
        for key, tuples in self._open.items():
            tuples, states = self._folded(key, tuples)
            if not tuples:
                continue
            results: list[Any] = []
            for aggregator in aggregators:
                try:
                    results.append(aggregator.result(states[len(results)]))
                except Exception as error:
                    self.faults.failed(aggregator, self._pane_end, key, error)
                    break
            else:
                self._result(self._pane_end, key, results, self._lineage.of_window(tuples))


class SlidingWindows(TimeWindows):
    """Windows that overlap (advance < size).

    Panes run between window boundaries: there are two per advance, or one if it divides the size.
    """

    def __init__(
        self, name: str, faults: Faults, computation: Computation, size: int, advance: int, offset: int
    ) -> None:
        super().__init__(name, faults, computation, size, advance, offset)
        self._aggregators = [slidable(each) for each in self._aggregators]
        self._cut = size % advance  # where windows end inside an advance
        self._windows: dict[Any, KeyWindow] = {}
        self._next_end = BEGINNING

    def _move(self, now: int) -> None:
        if self._open:
            self._close()
            self._open.clear()
        end = self._next_end
        while self._windows and end <= now:
            self._fire(end)
            end += self._advance
        into_advance = (now - self._offset) % self._advance
        start = now - into_advance
        if not self._windows:
            end = start + self._cut if into_advance < self._cut else start + self._cut + self._advance
        self._next_end = end
        if into_advance < self._cut:
            self._pane_start = start
            self._pane_end = start + self._cut
        else:
            self._pane_start = start + self._cut
            self._pane_end = start + self._advance

    def _close(self) -> None:
        """The open pane becomes a pane of each key's window."""
        start = self._pane_start
        for key, tuples in self._open.items():
            tuples, states = self._folded(key, tuples)
            if not tuples:
                continue
            window = self._windows.get(key)
            if window is None:
                window = self._new_window()
                self._windows[key] = window
            window.push(start, self._size, tuples, states)

    def _fire(self, end: int) -> None:
        """One result per key for the window that ends here."""
        start = end - self._size
        emptied: list[Any] = []
        for key, window in self._windows.items():
            while window.panes and window.panes[0][0] < start:
                window.evict()
            if window.panes:
                self._result_of(end, key, window)
            else:
                emptied.append(key)
        for key in emptied:
            del self._windows[key]


class RecentWindows(Aggregate):
    """SAF's time window: for each tuple one result over its key's tuples in [ts - size, ts], both inclusive.

    A pane is all that has one ts; it is complete when time has moved past it.
    """

    def __init__(self, name: str, faults: Faults, computation: Computation, size: int) -> None:
        super().__init__(name, faults, computation)
        self._aggregators = [slidable(each) for each in self._aggregators]
        self._size = size
        self._open: defaultdict[Any, list[StreamTuple]] = defaultdict(list)
        self._instant = BEGINNING
        self._windows: dict[Any, KeyWindow] = {}
        self._in_order: deque[tuple[int, Any]] = deque()  # (ts, key) of every pane in a window

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        if self._history is not None:
            self._history.note(batch)
        key = self._key
        for t in batch:
            if t[0] > self._instant:
                self._close()
                self._instant = t[0]
            try:
                self._open[key(t[1])].append(t)
            except Exception as error:
                self.faults.failed(key, t[0], t[1], error)
        self.give_results()

    def advance(self, port: int, watermark: int, hold: int, idle: bool) -> None:
        if watermark > self._instant:
            self._close()
            self._let_go(watermark - self._size)
            self.give_results()
        if self._history is not None:
            self._history.promise(watermark, hold)
            hold = self._history.since(watermark - self._size)
        self.promise(watermark, hold, idle)

    def _close(self) -> None:
        """The open instant is complete: one result for each of its tuples."""
        if not self._open:
            return
        now = self._instant
        self._let_go(now - self._size)
        for key, tuples in self._open.items():
            tuples, states = self._folded(key, tuples)
            if not tuples:
                continue
            window = self._windows.get(key)
            if window is None:
                window = self._windows[key] = self._new_window()
            window.push(now, self._size + 1, tuples, states)
            self._in_order.append((now, key))
            for _ in tuples:
                self._result_of(now, key, window)
        self._open.clear()

    def _let_go(self, before: int) -> None:
        in_order = self._in_order
        while in_order and in_order[0][0] < before:
            key = in_order.popleft()[1]
            window = self._windows[key]
            window.evict()
            if not window.panes:
                del self._windows[key]


class LengthWindow(Held):
    """One key's last tuples: panes of one, placed by number instead of time."""

    __slots__ = ("entered", "times", "window")

    def __init__(self, window: KeyWindow) -> None:
        self.window = window
        self.entered = 0
        self.times: deque[int] = deque()

    def oldest(self) -> int:
        return self.times[0] if self.times else END_OF_TIME

    def enter(self, t: StreamTuple, count: int, states: list[Any]) -> None:
        """The newest tuple."""
        self.window.push(self.entered, count, [t], states)
        self.entered += 1
        self.times.append(t[0])

    def leave(self) -> None:
        """The oldest goes."""
        self.window.evict()
        self.times.popleft()


class LengthWindows(Aggregate):
    """For each tuple one result over the last `count` tuples of its key, itself included."""

    def __init__(self, name: str, faults: Faults, computation: Computation, count: int) -> None:
        super().__init__(name, faults, computation)
        self._aggregators = [slidable(each) for each in self._aggregators]
        self._count = count
        self._windows: dict[Any, LengthWindow] = {}
        self._oldest = OldestHeld()

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        if self._history is not None:
            self._history.note(batch)
        for t in batch:
            try:
                key = self._key(t[1])
                check_key(key)
            except Exception as error:
                self.faults.failed(self._key, t[0], t[1], error)
                continue
            self._enter(key, t)
        self.give_results()

    def advance(self, port: int, watermark: int, hold: int, idle: bool) -> None:
        if watermark == END_OF_TIME:
            self._windows.clear()
            self._oldest = OldestHeld()
        held = self._oldest.ts()
        if self._history is not None:
            self._history.promise(watermark, hold)
            hold = self._history.since(min(held, watermark))
        self.promise(watermark, min(held, hold), idle)

    def _enter(self, key: Any, t: StreamTuple) -> None:
        tuples, states = self._folded(key, [t])
        if not tuples:
            return
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = LengthWindow(self._new_window())
            window.enter(t, self._count, states)
            self._oldest.watch(window)
        else:
            window.enter(t, self._count, states)
        self._result_of(t[0], key, window.window)
        if len(window.window.panes) == self._count:
            window.leave()  # the next result is without it

"""Aggregates over a sliding window, a pane at a time.

A pane is a run of tuples that always enter and leave the window together. However many windows
overlap, each pane is folded once, and a window's result takes a constant number of merges on
average: two stacks, one of suffix totals that shrinks as panes leave, one that grows as they come.
`push` and `evict` run no code of the user but the hashing and comparing of his values, which has
succeeded before; `value` changes nothing before it has succeeded. So a function that raises leaves
the window as it was.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from edge_agent.stream.aggregators import Aggregator, Collect, Distinct, Own


class Slider:
    """One aggregator over one key's window."""

    __slots__ = ()

    def push(self, state: Any) -> None:
        """A pane enters."""
        raise NotImplementedError

    def evict(self) -> None:
        """The oldest pane leaves."""
        raise NotImplementedError

    def value(self) -> Any:
        """The result over the panes in the window."""
        raise NotImplementedError


class TwoStacks(Slider):
    """Any aggregator whose states merge."""

    __slots__ = ("_aggregator", "_back", "_front", "_gone", "_merged", "_total")

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._front: list[Any] = []  # totals of the older panes: [-1] over all of them
        self._back: list[Any] = []  # states of the newer panes, of which
        self._gone = 0  # so many have left the window already,
        self._merged = 0  # and so many are in
        self._total: Any = None

    def push(self, state: Any) -> None:
        self._back.append(state)

    def evict(self) -> None:
        if self._front:
            self._front.pop()
            return
        self._gone += 1
        if 2 * self._gone > len(self._back):  # nobody has asked for the value for long
            del self._back[: self._gone]
            self._gone = 0
            self._merged = 0

    def value(self) -> Any:
        merge = self._aggregator.merge
        if self._gone:
            self._turn()
        back = self._back
        merged = self._merged
        if merged < len(back):
            total = self._total
            for state in back[merged:]:
                total = state if merged == 0 else merge(total, state)
                merged = 1
            self._total = total
            self._merged = len(back)
        if not self._front:
            return self._aggregator.result(self._total)
        if not back:
            return self._aggregator.result(self._front[-1])
        return self._aggregator.result(merge(self._front[-1], self._total))

    def _turn(self) -> None:
        """Make the newer panes the older ones: totals from the newest backwards."""
        merge = self._aggregator.merge
        front: list[Any] = []
        total: Any = None
        newest_first = self._back[self._gone :]
        newest_first.reverse()
        for state in newest_first:
            total = merge(state, total) if front else state
            front.append(total)
        self._front = front
        self._back = []
        self._gone = 0
        self._merged = 0
        self._total = None


class Distincts(Slider):
    """Counts in how many panes each value is, since merging sets would cost their size."""

    __slots__ = ("_panes", "_times")

    def __init__(self) -> None:
        self._panes: deque[Any] = deque()
        self._times: dict[Any, int] = {}

    def push(self, state: Any) -> None:
        self._panes.append(state)
        times = self._times
        for value in state:
            times[value] = times.get(value, 0) + 1

    def evict(self) -> None:
        times = self._times
        for value in self._panes.popleft():
            left = times[value] - 1
            if left:
                times[value] = left
            else:
                del times[value]

    def value(self) -> Any:
        return len(self._times)


class Kept(Slider):
    """Keeps the panes and goes over all of them for every result."""

    __slots__ = ("_aggregator", "_panes")

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._panes: deque[Any] = deque()

    def push(self, state: Any) -> None:
        self._panes.append(state)

    def evict(self) -> None:
        self._panes.popleft()

    def value(self) -> Any:
        return self._aggregator.result([value for pane in self._panes for value in pane])


class Again(Aggregator):
    """The user's own aggregator without `merge`: its state is the values, added anew for every result."""

    def __init__(self, own: Own) -> None:
        super().__init__()
        self._own = own

    def __repr__(self) -> str:
        return repr(self._own)

    def fold(self, values: list[Any]) -> Any:
        self._own.fold(values)  # what cannot be added raises now, while its pane is known
        return values

    def extend(self, state: Any, value: Any) -> Any:
        self._own.extend(self._own.fold(state), value)
        return [*state, value]

    def result(self, state: Any) -> Any:
        return self._own.result(self._own.fold(state))


def slidable(aggregator: Aggregator) -> Aggregator:
    """The aggregator in a form that a slider takes."""
    return Again(aggregator) if isinstance(aggregator, Own) and not aggregator.merges else aggregator


def slider(aggregator: Aggregator) -> Slider:
    """The cheapest way to slide this aggregator."""
    if type(aggregator) is Distinct:
        return Distincts()
    if isinstance(aggregator, (Collect, Again)):
        return Kept(aggregator)
    return TwoStacks(aggregator)

"""What can be computed over a window.

An aggregator of the user's own is any object with three methods:

    initialise() -> state          the state of an empty window
    add(state, value) -> state     one more value, in event-time order
    result(state) -> value         what the window's result says

and, if it can, a fourth, `merge(earlier, later) -> state`, which must leave both as they are and
makes sliding windows cost the same whatever their overlap. The built-in ones fold a whole list of
values at once instead of adding one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from edge_agent.stream.functions import name_of, reader

By = Callable[[Any], Any] | str | None


class Aggregator:
    """A built-in aggregator: folds a list into a state, merges two states, tells the result."""

    def __init__(self, by: By = None) -> None:
        if by is not None and not callable(by) and not isinstance(by, str):
            raise TypeError(f"{type(self).__name__}: by is a function or a field name, not {by!r}")
        self._by = None if by is None else reader(by)

    def __repr__(self) -> str:
        by = "" if self._by is None else name_of(self._by)
        return f"{type(self).__name__}({by})"

    def fold(self, values: list[Any]) -> Any:
        """The state over a non-empty list of values."""
        raise NotImplementedError

    def merge(self, earlier: Any, later: Any) -> Any:
        """The state over both; neither of them changes."""
        raise NotImplementedError

    def extend(self, state: Any, value: Any) -> Any:
        """The state with one more value."""
        return self.merge(state, self.fold([value]))

    def result(self, state: Any) -> Any:
        """What the window's result says."""
        return state

    def read(self, values: list[Any]) -> list[Any]:
        """What `by` makes of the values."""
        by = self._by
        return values if by is None else [by(value) for value in values]


class Count(Aggregator):
    """The number of tuples."""

    def __init__(self) -> None:
        super().__init__()

    def fold(self, values: list[Any]) -> Any:
        return len(values)

    def merge(self, earlier: Any, later: Any) -> Any:
        return earlier + later


class Sum(Aggregator):
    """The sum; NaN makes it NaN."""

    def fold(self, values: list[Any]) -> Any:
        return sum(self.read(values))

    def merge(self, earlier: Any, later: Any) -> Any:
        return earlier + later


class Mean(Aggregator):
    """The arithmetic mean; NaN makes it NaN."""

    def fold(self, values: list[Any]) -> Any:
        return (sum(self.read(values)), len(values))

    def merge(self, earlier: Any, later: Any) -> Any:
        return (earlier[0] + later[0], earlier[1] + later[1])

    def result(self, state: Any) -> Any:
        return state[0] / state[1]


class Min(Aggregator):
    """The smallest value, NaN passed over unless there is nothing else."""

    def fold(self, values: list[Any]) -> Any:
        return min(_numbers(self.read(values)), default=math.nan)

    def merge(self, earlier: Any, later: Any) -> Any:
        if _is_nan(later) or earlier <= later:
            return earlier
        return later


class Max(Aggregator):
    """The largest value, NaN passed over unless there is nothing else."""

    def fold(self, values: list[Any]) -> Any:
        return max(_numbers(self.read(values)), default=math.nan)

    def merge(self, earlier: Any, later: Any) -> Any:
        if _is_nan(later) or earlier >= later:
            return earlier
        return later


class First(Aggregator):
    """The value that is first in event time."""

    def fold(self, values: list[Any]) -> Any:
        return self.read(values)[0]

    def merge(self, earlier: Any, later: Any) -> Any:
        return earlier


class Last(Aggregator):
    """The value that is last in event time."""

    def fold(self, values: list[Any]) -> Any:
        return self.read(values)[-1]

    def merge(self, earlier: Any, later: Any) -> Any:
        return later


class Top(Aggregator):
    """The k largest values, the largest first; NaN is passed over."""

    def __init__(self, k: Any, by: By = None) -> None:
        super().__init__(by)
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"Top: k must be a positive integer, not {k!r}")
        self.k: int = k

    def __repr__(self) -> str:
        return f"Top({self.k})" if self._by is None else f"Top({self.k}, {name_of(self._by)})"

    def fold(self, values: list[Any]) -> Any:
        return sorted(_numbers(self.read(values)), reverse=True)[: self.k]

    def merge(self, earlier: Any, later: Any) -> Any:
        if len(earlier) == self.k and not (later and earlier[-1] < later[0]):
            return earlier
        return sorted(earlier + later, reverse=True)[: self.k]

    def result(self, state: Any) -> Any:
        return list(state)


class Distinct(Aggregator):
    """The number of different values; all NaN count as one."""

    def fold(self, values: list[Any]) -> Any:
        return {None if _is_nan(value) else (value,) for value in self.read(values)}

    def merge(self, earlier: Any, later: Any) -> Any:
        return earlier | later

    def result(self, state: Any) -> Any:
        return len(state)


class Collect(Aggregator):
    """All values as a list, in event-time order."""

    def fold(self, values: list[Any]) -> Any:
        return list(self.read(values))

    def merge(self, earlier: Any, later: Any) -> Any:
        return earlier + later


class Own(Aggregator):
    """The user's three methods, in the shape of the built-in ones."""

    def __init__(self, contract: Any) -> None:
        super().__init__()
        self.contract = contract
        self.merges = callable(getattr(contract, "merge", None))

    def __repr__(self) -> str:
        return name_of(type(self.contract))

    def fold(self, values: list[Any]) -> Any:
        state = self.contract.initialise()
        for value in values:
            state = self.contract.add(state, value)
        return state

    def merge(self, earlier: Any, later: Any) -> Any:
        return self.contract.merge(earlier, later)

    def extend(self, state: Any, value: Any) -> Any:
        return self.contract.add(state, value)

    def result(self, state: Any) -> Any:
        return self.contract.result(state)


def aggregator_of(given: Any) -> Aggregator:
    """A built-in aggregator as it is, the user's own wrapped; TypeError for anything else."""
    if isinstance(given, Aggregator):
        return given
    missing = [method for method in ("initialise", "add", "result") if not callable(getattr(given, method, None))]
    if isinstance(given, type) or missing:
        hint = ": give an instance, not the class" if isinstance(given, type) else f": no method {', '.join(missing)}"
        raise TypeError(f"{given!r} is not an aggregator{hint}")
    return Own(given)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _numbers(values: list[Any]) -> list[Any]:
    return [value for value in values if not _is_nan(value)]

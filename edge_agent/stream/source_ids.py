"""Ids of source tuples, given when a tuple first leaves the process and the same ever after."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from protocol.ids import StreamId
from protocol.records import Record, SourcePayload

MAX_DEPTH = 100


class SourceIds:
    """Remembers the origin of each contributing tuple until no result can name it again.

    Policy `uid` tells tuples apart by being two, `attributes` by what they say: (ts, payload).
    """

    def __init__(self, stream: StreamId, policy: str, held_back: bool, emit: Callable[[Record], None]) -> None:
        self.stream = stream
        self.held_back = held_back  # a length window may keep a tuple for ever
        self.by_attributes = policy == "attributes"
        # Key -> (tuple, origin). With `uid` the key is the tuple's identity, which is its own for
        # as long as the entry keeps the tuple alive.
        self.known: dict[Any, tuple[Any, SourcePayload]] = {}
        self._in_turn: deque[tuple[int, Any]] = deque()
        self._emit = emit
        self._next = 0

    def check(self, t: tuple[Any, ...]) -> None:
        """Raise for a tuple that cannot be told apart by what it says."""
        if self.by_attributes:
            hash(self._key(t))

    def origin(self, t: tuple[Any, ...]) -> SourcePayload:
        """The tuple's origin: a new one if this is the first time that it leaves."""
        key = self._key(t) if self.by_attributes else id(t)
        known = self.known.get(key)
        if known is not None:
            return known[1]
        origin = self._give(t)
        self.known[key] = (t, origin)
        self._in_turn.append((t[0], key))
        return origin

    def new_origin(self, t: tuple[Any, ...]) -> SourcePayload:
        """The origin of a tuple that has none and will remember this one itself."""
        return self.origin(t) if self.by_attributes else self._give(t)

    def waiting(self) -> bool:
        """Whether there is anything to forget."""
        return len(self._in_turn) > 0

    def forget(self, before: int) -> None:
        """No later result can come from tuples with ts < `before`.

        They are forgotten in the order in which they first left. That is nearly the order of time, so one may
        stay a little longer behind another that is younger.
        """
        in_turn = self._in_turn
        while in_turn and in_turn[0][0] < before:
            del self.known[in_turn.popleft()[1]]

    def _key(self, t: tuple[Any, ...]) -> Any:
        """What a tuple says."""
        return (t[0], frozen(t[1]))

    def _give(self, t: tuple[Any, ...]) -> SourcePayload:
        source = SourcePayload(self.stream, self._next, t[0], t[1])
        self._next += 1
        self._emit(source)
        return source


def frozen(value: Any, depth: int = 0) -> Any:
    """A hashable stand-in that is equal exactly when the values say the same; all NaN say the same."""
    if depth > MAX_DEPTH:  # a cycle, most likely; compiled code would not stop by itself
        raise ValueError(f"a payload nested more than {MAX_DEPTH} deep has no id by attributes")
    deeper = depth + 1
    if isinstance(value, float) and math.isnan(value):
        return (float, "nan")
    if isinstance(value, Mapping):
        return (dict, frozenset((frozen(key, deeper), frozen(item, deeper)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(frozen(item, deeper) for item in value))
    if isinstance(value, (set, frozenset)):
        return (set, frozenset(frozen(item, deeper) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return (type(value), tuple(frozen(getattr(value, field.name), deeper) for field in fields))
    return (type(value), value)

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
    """Policy `uid`: tuples are told apart by being two.

    Remembers the origin of each contributing tuple until no result can name it again.
    """

    def __init__(self, stream: StreamId, held_back: bool, emit: Callable[[Record], None]) -> None:
        self.stream = stream
        self.held_back = held_back  # a length window may keep a tuple for ever
        # By the identity of the tuple, which is its own for as long as `_in_turn` keeps it alive.
        self.known: dict[int, SourcePayload] = {}
        self._in_turn: deque[tuple[Any, ...]] = deque()
        self._emit = emit
        self._next = 0

    def check(self, t: tuple[Any, ...]) -> None:
        """Raise for a tuple that cannot be told apart from others."""

    def origin(self, t: tuple[Any, ...]) -> SourcePayload:
        """The tuple's origin: a new one if this is the first time that it leaves."""
        known = self.known.get(id(t))
        return self.first_origin(t) if known is None else known

    def first_origin(self, t: tuple[Any, ...]) -> SourcePayload:
        """The origin of a tuple that is not known."""
        origin = self.known[id(t)] = self.new_origin(t)
        self._in_turn.append(t)
        return origin

    def new_origin(self, t: tuple[Any, ...]) -> SourcePayload:
        """The origin of a tuple that has none and will remember this one itself."""
        origin = SourcePayload(self.stream, self._next, t[0], t[1])
        self._next += 1
        self._emit(origin)
        return origin

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
            del self.known[id(in_turn.popleft())]


class AttributeIds(SourceIds):
    """Policy `attributes`: tuples of the same ts and payload are one."""

    def __init__(self, stream: StreamId, held_back: bool, emit: Callable[[Record], None]) -> None:
        super().__init__(stream, held_back, emit)
        self._by_attributes: dict[Any, SourcePayload] = {}

    def check(self, t: tuple[Any, ...]) -> None:
        hash(_attributes(t))

    def origin(self, t: tuple[Any, ...]) -> SourcePayload:
        said = _attributes(t)
        origin = self._by_attributes.get(said)
        if origin is None:
            origin = self._by_attributes[said] = super().new_origin(t)
            self._in_turn.append((t[0], said))
        return origin

    def new_origin(self, t: tuple[Any, ...]) -> SourcePayload:
        return self.origin(t)

    def forget(self, before: int) -> None:
        in_turn = self._in_turn
        while in_turn and in_turn[0][0] < before:
            del self._by_attributes[in_turn.popleft()[1]]


def ids_of(policy: str, stream: StreamId, held_back: bool, emit: Callable[[Record], None]) -> SourceIds:
    """The ids of one source, by its policy."""
    return (AttributeIds if policy == "attributes" else SourceIds)(stream, held_back, emit)


def _attributes(t: tuple[Any, ...]) -> Any:
    """What a tuple says."""
    return (t[0], frozen(t[1]))


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

"""Ids of source tuples, given when a tuple first leaves the process and the same ever after."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

from protocol.ids import StreamId
from protocol.records import Record, SourcePayload

MAX_DEPTH = 100


class SourceIds:
    """The ids of one source: a tuple's origin is remembered until no result can name the tuple again."""

    def __init__(self, stream: StreamId, held_back: bool, emit: Callable[[Record], None]) -> None:
        self.held_back = held_back  # a length window may keep a tuple for ever
        self._stream = stream
        self._emit = emit
        self._next = 0
        self._in_turn: deque[tuple[Any, ...]] = deque()  # by ts, nearly: in the order in which they first left

    def check(self, t: tuple[Any, ...]) -> None:
        """Raise for a tuple that cannot be told apart from others."""

    def origin(self, t: tuple[Any, ...]) -> SourcePayload:
        """The tuple's origin: a new one if this is the first time that it leaves."""
        raise NotImplementedError

    def lasting_origin(self, t: tuple[Any, ...]) -> SourcePayload:
        """The same for a tuple that asks once and remembers the answer itself."""
        raise NotImplementedError

    def waiting(self) -> bool:
        """Whether there is anything to forget."""
        return len(self._in_turn) > 0

    def forget(self, before: int) -> None:
        """No later result can come from tuples with ts < `before`. One may stay a little longer behind another that
        left earlier and is younger."""
        in_turn = self._in_turn
        while in_turn and in_turn[0][0] < before:
            self._forgotten(in_turn.popleft())

    def _forgotten(self, entry: tuple[Any, ...]) -> None:
        raise NotImplementedError

    def _new(self, t: tuple[Any, ...]) -> SourcePayload:
        origin = SourcePayload(self._stream, self._next, t[0], t[1])
        self._next += 1
        self._emit(origin)
        return origin


class UniqueIds(SourceIds):
    """Policy `uid`: tuples are told apart by being two."""

    def __init__(self, stream: StreamId, held_back: bool, emit: Callable[[Record], None]) -> None:
        super().__init__(stream, held_back, emit)
        # By the identity of the tuple, which is its own for as long as `_in_turn` keeps it alive.
        self.known: dict[int, SourcePayload] = {}

    def origin(self, t: tuple[Any, ...]) -> SourcePayload:
        known = self.known.get(id(t))
        return self.first_origin(t) if known is None else known

    def first_origin(self, t: tuple[Any, ...]) -> SourcePayload:
        """The origin of a tuple that is not known."""
        origin = self.known[id(t)] = self._new(t)
        self._in_turn.append(t)
        return origin

    def lasting_origin(self, t: tuple[Any, ...]) -> SourcePayload:
        return self._new(t)

    def _forgotten(self, entry: tuple[Any, ...]) -> None:
        del self.known[id(entry)]


class AttributeIds(SourceIds):
    """Policy `attributes`: tuples of the same ts and payload are one."""

    def __init__(self, stream: StreamId, held_back: bool, emit: Callable[[Record], None]) -> None:
        super().__init__(stream, held_back, emit)
        self._known: dict[Any, SourcePayload] = {}  # by what a tuple says

    def check(self, t: tuple[Any, ...]) -> None:
        hash((t[0], frozen(t[1])))

    def origin(self, t: tuple[Any, ...]) -> SourcePayload:
        said = (t[0], frozen(t[1]))
        origin = self._known.get(said)
        if origin is None:
            origin = self._known[said] = self._new(t)
            self._in_turn.append(said)
        return origin

    def lasting_origin(self, t: tuple[Any, ...]) -> SourcePayload:
        return self.origin(t)

    def _forgotten(self, entry: tuple[Any, ...]) -> None:
        del self._known[entry]


def ids_of(policy: str, stream: StreamId, held_back: bool, emit: Callable[[Record], None]) -> SourceIds:
    """The ids of one source, by its policy."""
    return (AttributeIds if policy == "attributes" else UniqueIds)(stream, held_back, emit)


def frozen(value: Any, depth: int = 0) -> Any:
    """A hashable stand-in, equal for values of one type that are equal, part by part; all NaN are equal here."""
    if depth > MAX_DEPTH:  # a cycle, most likely; compiled code would not stop by itself
        raise ValueError(f"a payload nested more than {MAX_DEPTH} deep has no id by attributes")
    deeper = depth + 1
    if isinstance(value, Number) and value != value:  # noqa: PLR0124
        return (type(value), "nan")
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

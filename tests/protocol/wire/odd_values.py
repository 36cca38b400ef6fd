"""Values as users have them, the odd ones included, and how they arrive."""

from __future__ import annotations

import collections
import enum
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from protocol.wire.columns import Reader
from protocol.wire.packer import MOST_BYTES, Packer
from protocol.wire.values import Payloads, Shape, put_payloads


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Reading:
    sensor: str
    celsius: float


@dataclass(slots=True, frozen=True)
class Place:
    lane: int
    _hidden: int = 3


@dataclass
class Single:
    only: Any


@dataclass
class Nothing:
    pass


@dataclass
class Unset:
    given: int
    later: int = field(init=False)


class Packet:
    """As msgspec and others make them."""

    __struct_fields__ = ("size", "ok")

    def __init__(self, size: Any) -> None:
        self.size = size
        self.ok = True


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)
    NONE = None


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    ON = "on"


class Bits(enum.Flag):
    A = 1
    B = 2


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no text")


class Number(int):
    def __int__(self) -> int:
        raise ValueError("no number")


class Fraction(float):
    pass


class Blob(bytes):
    pass


class Items(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise ValueError("no parts")


class Table(dict[Any, Any]):
    def items(self) -> Any:
        raise ValueError("no items")


class Raising:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__

    def __iter__(self) -> Iterator[Any]:
        raise ValueError("no parts")


class RaisingKey:
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ValueError("cannot be compared")


@dataclass
class RaisingField:
    fine: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "fine":
            raise ValueError("no value")
        return object.__getattribute__(self, name)


class RaisingMapping(collections.UserDict[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise OSError("gone")


class Odd(tzinfo):
    def tzname(self, moment: datetime | None) -> str | None:
        return None

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        raise ValueError("which hour")


def arrived(*told: Any, packer: Packer | None = None) -> list[Any]:
    """Values as they come out of a column of values."""
    packer = packer or Packer()
    places: dict[Shape | None, int] = {None: 0}
    packed = [packer.pack(value) for value in told]
    out = bytearray()
    put_payloads(out, [places.setdefault(shape, len(places)) for shape, _ in packed], [data for _, data in packed])
    for _, data in packed:
        assert type(data) is not bytes or len(data) <= MOST_BYTES
    reader = Reader(bytes(out))
    found = Payloads(reader, len(told), list(places)).values()
    assert reader.left == 0
    return found


def in_company(value: Any) -> Any:
    """A value as it arrives: the same alone, with its like, and among others."""
    (alone,) = arrived(value)
    for company in ([value] * 2, [value] * 9, [1, value, "text", None, {"a": 1}, value]):
        together = arrived(*company)
        assert all(alike(alone, each) for each, told in zip(together, company, strict=True) if told is value)
    return alone


def alike(left: Any, right: Any) -> bool:
    """Equal in value and type, NaN included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=False)
        return len(left) == len(right) and all(alike(*keys) and alike(*parts) for keys, parts in map(_across, pairs))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(alike, left, right))
    return bool(left == right)


def _across(pair: Any) -> tuple[Any, Any]:
    (key, value), (other_key, other_value) = pair
    return (key, other_key), (value, other_value)


KINDS = ("?", "b", "B", "<h", ">h", "<i", ">u4", "<q", ">i8", "Q", "<e", ">f2", "f", ">f", "d", ">d")
SCALARS = st.sampled_from(KINDS).flatmap(
    lambda kind: st.integers(0, 100).map(lambda number: np.array([number]).astype(kind)[0])
)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    kind = draw(st.sampled_from(KINDS))
    made = np.arange(math.prod(shape) * 2).reshape((*shape, 2)).astype(kind)[..., 0]  # not contiguous
    return draw(st.sampled_from([made, np.ascontiguousarray(made).reshape(shape), made.T]))


ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-12))])
LEAVES: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1])
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs", "L"]))
    | st.binary(max_size=50)
    | st.datetimes(timezones=ZONES)
    | st.dates()
    | st.times(timezones=st.sampled_from([None, UTC]))
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.complex_numbers()
    | st.sampled_from([*Colour, Level.LOW, Mode.ON, Bits.A | Bits.B, Name("a"), Number(7), Fraction(0.5), Blob(b"b")])
    | SCALARS
    | arrays()
    | st.builds(PurePosixPath, st.text(st.characters(codec="utf-8", exclude_characters="\0")))
    | st.builds(range, st.integers(0, 5))
)
KEYS: st.SearchStrategy[Any] = (
    st.text() | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False) | st.binary(max_size=9)
)
KEYS |= st.dates() | st.uuids() | st.tuples(st.integers(), st.text()) | st.builds(Place, st.integers())
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts)
        | st.dictionaries(st.text(), parts)
        | st.dictionaries(KEYS, parts)
        | st.tuples(parts, parts)
        | st.builds(Point, parts, parts)
        | st.builds(Reading, parts, parts)
        | st.builds(Place, parts)
        | st.builds(Single, parts)
        | st.builds(Packet, parts)
        | st.builds(collections.deque, st.lists(parts))
        | st.builds(collections.OrderedDict, st.dictionaries(KEYS, parts))
        | st.builds(types.MappingProxyType, st.dictionaries(st.text(), parts))
        | st.frozensets(st.integers())
        | st.sets(st.text(), max_size=1)
    ),
    max_leaves=20,
)


def nested(levels: int, kind: Any) -> Any:
    """A value within a value within a value."""
    value: Any = 1
    for _ in range(levels):
        value = kind(value)
    return value

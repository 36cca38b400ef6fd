"""Values as a batch holds them: those of one shape in columns, by themselves in MessagePack. Reading them is here, how
they are captured is in `packer`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.wire import msgpack
from protocol.wire.columns import Reader, put_small, put_values
from protocol.wire.errors import MalformedBatch
from protocol.wire.msgpack import Ext
from protocol.wire.tables import put_table, read_table

if TYPE_CHECKING:  # a program that uses none of these should not wait for them
    from datetime import datetime

PLACEHOLDER = "$unserialisable"
TOO_LARGE = "$too_large"
TIMESTAMP, ARRAY, BIG_NUMBER = -1, 1, 2  # extensions of MessagePack
TIMESTAMP96 = struct.Struct(">Iq")
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999
MOST_NUMBER_BYTES = 1024  # Python refuses to show numbers that are much longer
MOST_EMPTY_CELLS = 4096
_MOST_DIMENSIONS = 64
_SIZED = (str, tuple)


class Shape(NamedTuple):
    """The names in a value. `type` is "" for a dict, else `module:qualname` of a dataclass or NamedTuple."""

    type: str
    names: tuple[str, ...]


class ArrayValue(NamedTuple):
    """A NumPy array, as it was written; `tolist` needs no NumPy."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def tolist(self) -> Any:
        """Nested lists of numbers."""
        order, code, size = self.dtype[0], self.dtype[1], self.dtype[2:]
        letter = {"i": "bhiq", "u": "BHIQ", "f": " efd", "b": "????"}[code][int(size).bit_length() - 1]
        count = len(self.data) // int(size)
        numbers = iter(struct.unpack(f"{'<' if order == '|' else order}{count}{letter}", self.data))
        return _nested(numbers, self.shape)


def _nested(numbers: Iterator[Any], shape: tuple[int, ...]) -> Any:
    return [_nested(numbers, shape[1:]) for _ in range(shape[0])] if shape else next(numbers)


# The parts of a value by its shape, if nothing can change them any more (a value without a shape has one), or bytes.
Captured = tuple[Any, ...] | bytes
Packed = tuple[Shape | None, Captured]


def size_of(captured: Captured) -> int:
    """About how many bytes a value takes up."""
    if isinstance(captured, bytes):
        return len(captured)
    lengths = [9 * len(part) if type(part) is tuple else len(part) for part in captured if type(part) in _SIZED]
    return 9 * len(captured) + sum(lengths)


def epoch() -> datetime:
    """What a timestamp counts from."""
    from datetime import UTC, datetime

    return datetime(1970, 1, 1, tzinfo=UTC)


def cells(shape: Iterable[int]) -> int:
    """How many lists and numbers an array is shown as, at least: one without numbers may have many lists."""
    return prod(max(length, 1) for length in shape)


def decode(data: bytes) -> Any:
    """The value in these bytes."""
    try:
        return msgpack.unpack(data, _extension)
    except RecursionError:  # whoever called has left little room
        raise MalformedBatch("a value has too many levels") from None


def unpacked(shape: Shape | None, data: bytes) -> Any:
    """A value by its shape: one with names as a dict."""
    value = decode(data)
    if shape is None:
        return value
    if not isinstance(value, list) or len(value) != len(shape.names):
        if isinstance(value, dict) and TOO_LARGE in value:
            return value
        raise MalformedBatch(f"a value does not have the {len(shape.names)} parts of its shape")
    return dict(zip(shape.names, value, strict=True))


def put_payloads(out: bytearray, places: Sequence[int], values: Sequence[Captured]) -> None:
    """Values by the places of their shapes in a table. Those of one shape are written together, column by column."""
    if not values:
        return
    codes = [place << 1 | (type(value) is bytes) for place, value in zip(places, values, strict=True)]
    put_small(out, codes)
    groups: dict[int, list[Any]] = {}
    for code, value in zip(codes, values, strict=True):
        try:
            groups[code].append(value)
        except KeyError:
            groups[code] = [value]
    for code, group in groups.items():
        if code & 1:
            put_values(out, group)
        else:
            put_table(out, group, _packed_part)


def _packed_part(part: Any) -> bytes:
    """A part of a column whose parts are of several types."""
    try:
        return msgpack.pack(part, str)
    except (OverflowError, UnicodeEncodeError):
        return msgpack.pack(_boxed(part), str)


def _boxed(part: Any) -> Any:
    if type(part) is tuple:
        return [_boxed(each) for each in part]
    if type(part) is str:
        return part.encode("utf-8", "backslashreplace").decode()
    if type(part) is int and not -(1 << 63) <= part < 1 << 64:
        data = part.to_bytes(part.bit_length() // 8 + 1, "big", signed=True)
        return Ext(BIG_NUMBER, data) if len(data) <= MOST_NUMBER_BYTES else {PLACEHOLDER: "int"}
    return part


class Payloads:
    """Values that were read, in columns, and put together when somebody asks for them."""

    def __init__(self, reader: Reader, count: int, shapes: Sequence[Shape | None]) -> None:
        self._codes = reader.small(count, 2 * len(shapes))
        self._groups: dict[int, tuple[Shape | None, list[Sequence[Any]]]] = {}
        self._values: list[Any] | None = None
        counts: dict[int, int] = {}
        for code in self._codes:
            counts[code] = counts.get(code, 0) + 1
        for code, rows in counts.items():
            shape = shapes[code >> 1]
            if code & 1:
                self._groups[code] = None, [[unpacked(shape, data) for data in reader.values(rows)]]
            else:
                width = 1 if shape is None else len(shape.names)
                self._groups[code] = shape, read_table(reader, width, rows, decode)

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, place: int) -> Any:
        """One of them; if all have one shape, without the others."""
        if len(self._groups) > 1:
            return self.values()[place]
        ((shape, columns),) = self._groups.values()
        if shape is None:
            return columns[0][place]
        return dict(zip(shape.names, [column[place] for column in columns], strict=True))

    def places(self) -> list[int]:
        """The places of their shapes in the table."""
        return [code >> 1 for code in self._codes]

    def values(self) -> list[Any]:
        """All of them; what has a shape is a dict."""
        if self._values is None:
            groups = {code: _put_together(*group) for code, group in self._groups.items()}
            self._values = [next(groups[code]) for code in self._codes]
        return self._values


def _put_together(shape: Shape | None, columns: list[Sequence[Any]]) -> Iterator[Any]:
    if shape is None:
        return iter(columns[0])
    names = shape.names
    return iter([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])


def _extension(code: int, data: bytes | memoryview) -> Any:
    data = bytes(data)
    if code == BIG_NUMBER and len(data) <= MOST_NUMBER_BYTES:
        return int.from_bytes(data, "big", signed=True)
    if code == ARRAY:
        return _read_array(data)
    if code == TIMESTAMP:
        return _read_timestamp(data)
    raise MalformedBatch(f"no value has the extension {code}")


def _no_extension(code: int, data: bytes) -> Any:
    raise MalformedBatch("an array's type and shape are plain")


def _read_timestamp(data: bytes) -> datetime:
    from datetime import timedelta

    if len(data) == 12:
        nanoseconds, seconds = TIMESTAMP96.unpack(data)
    elif len(data) == 8:
        number = int.from_bytes(data, "big")
        nanoseconds, seconds = number >> 34, number & (1 << 34) - 1
    elif len(data) == 4:
        nanoseconds, seconds = 0, int.from_bytes(data, "big")
    else:
        raise MalformedBatch("a point in time has 4, 8 or 12 bytes")
    if nanoseconds >= 1_000_000_000 or not FIRST_SECOND <= seconds <= LAST_SECOND:
        raise MalformedBatch("a point in time is out of range")
    return epoch() + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)


def _read_array(data: bytes) -> ArrayValue:
    head, size = msgpack.unpack_first(data, _no_extension)
    if not (isinstance(head, list) and len(head) == 2 and isinstance(head[0], str) and isinstance(head[1], list)):
        raise MalformedBatch("an array without type and shape")
    dtype, shape = head
    if dtype[:1] not in ("<", ">", "|") or dtype[1:] not in _DTYPES:
        raise MalformedBatch(f"no array is of type {dtype!r}")
    if len(shape) > _MOST_DIMENSIONS or not all(type(length) is int and 0 <= length < 1 << 32 for length in shape):
        raise MalformedBatch("an array's shape is wrong")
    if prod(shape) * int(dtype[2:]) != len(data) - size or cells(shape) > max(len(data), MOST_EMPTY_CELLS):
        raise MalformedBatch("an array does not have the size that its shape says")
    return ArrayValue(dtype, tuple(shape), data[size:])


_DTYPES = frozenset(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "b1"))

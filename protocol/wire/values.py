"""Values as users have them, as bytes: whatever a task or a reading holds, captured at the moment of the call.

A dict with text keys, a dataclass and a NamedTuple are written without their names: these are the value's *shape*,
which a batch tells once. What has no meaning elsewhere (a socket, a lock) is replaced by a placeholder that names its
type, and counted: capturing must not break the program that is watched.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID

from protocol.wire import msgpack
from protocol.wire.errors import MalformedBatch
from protocol.wire.msgpack import Ext

try:
    import msgspec
except ImportError:  # no wheel for armv7l
    msgspec = None  # type: ignore[assignment]

MOST_BYTES = 16 * 1024
MOST_SHAPES = 1024
PLACEHOLDER = "$unserialisable"
TOO_LARGE = "$too_large"
NOTHING = b"\xc0"

_TIMESTAMP, _ARRAY, _BIG_NUMBER = -1, 1, 2
_MOST_NUMBER_BYTES = 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP96 = struct.Struct(">Iq")


class Unserialisable(TypeError):
    """In strict mode: a value that cannot leave the process."""


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


Packed = tuple[Shape | None, bytes]


class Packer:
    """Packs the values of one agent, and counts what it had to replace."""

    def __init__(self, *, strict: bool = False, most_bytes: int = MOST_BYTES) -> None:
        self.replaced = 0
        self._strict = strict
        self._most_bytes = most_bytes
        self._shapes: dict[tuple[str, ...], Shape | None] = {}
        self._readers: dict[type, tuple[Shape, Callable[[Any], Any]] | None] = {}
        self._fast = None if msgspec is None else msgspec.msgpack.Encoder(enc_hook=self._plain).encode

    def pack(self, value: Any) -> Packed:
        """A value as its shape and bytes. Later changes of the value change nothing."""
        kind = type(value)
        if kind is dict:
            names = tuple(value)
            try:
                shape = self._shapes[names]
            except KeyError:
                shape = self._new_shape(names)
            return (None, self.encode(value)) if shape is None else (shape, self.encode(list(value.values())))
        if kind in _SIMPLE:
            return None, self.encode(value)
        try:
            known = self._readers[kind]
        except KeyError:
            known = self._new_reader(kind)
        if known is None:
            return None, self.encode(value)
        shape, read = known
        return shape, self.encode(read(value))

    def encode(self, value: Any) -> bytes:
        """A value as bytes, without a shape."""
        try:
            data = self._fast(value) if self._fast is not None else msgpack.pack(value, self._plain)
        except Unserialisable:
            raise
        except Exception:  # cycles, numbers of more than 64 bits, texts that are none, objects that raise
            data = msgpack.pack(self._repaired(value, 0), self._plain)
        if len(data) > self._most_bytes:
            if self._strict:
                raise Unserialisable(
                    f"a {_name(type(value))} of {len(data)} bytes, and {self._most_bytes} may be captured"
                )
            self.replaced += 1
            data = msgpack.pack({TOO_LARGE: _name(type(value)), "bytes": len(data)}, self._plain)
        return data

    def _new_shape(self, names: tuple[Any, ...]) -> Shape | None:
        # Keys that differ from one value to the next are data, not names: do not learn them for ever.
        if len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        plain = len(names) > 0 and all(type(name) is str and name.isprintable() for name in names)
        shape = self._shapes[names] = Shape("", names) if plain else None
        return shape

    def _new_reader(self, kind: type) -> tuple[Shape, Callable[[Any], Any]] | None:
        if len(self._readers) >= MOST_SHAPES:
            self._readers.clear()
        found: tuple[Shape, Callable[[Any], Any]] | None = None
        names = names_of(kind)
        if names:
            read: Callable[[Any], Any] = list
            if not issubclass(kind, tuple):
                read = attrgetter(*names) if len(names) > 1 else _single(names[0])
            found = Shape(f"{kind.__module__}:{kind.__qualname__}", names), read
        self._readers[kind] = found
        return found

    def _plain(self, value: Any) -> Any:
        """Something that MessagePack knows, in place of a value that it does not."""
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, datetime):
            return _timestamp(value)
        if isinstance(value, (date, time)):
            return value.isoformat()
        if isinstance(value, timedelta):
            return _duration(value)
        if isinstance(value, (Decimal, UUID, PurePath)):
            return str(value)
        if isinstance(value, (Set, deque, range)):
            return list(value)
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, complex):
            return [value.real, value.imag]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        numpy = sys.modules.get("numpy")  # a NumPy value exists only where NumPy was imported
        if numpy is not None:
            if isinstance(value, numpy.generic):
                return value.item()
            if isinstance(value, numpy.ndarray):
                return _array(value, numpy)
        if self._strict:
            raise Unserialisable(f"a {_name(type(value))} cannot be captured")
        self.replaced += 1
        return {PLACEHOLDER: _name(type(value))}

    def _repaired(self, value: Any, depth: int) -> Any:
        """A copy with whatever stood in the way replaced, part by part."""
        if depth > 64:
            return self._refused(value, "nested too deep, or in itself")
        kind = type(value)
        if kind is int and not -(1 << 63) <= value < 1 << 64:
            data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
            return self._refused(value, "too many digits") if len(data) > _MOST_NUMBER_BYTES else Ext(_BIG_NUMBER, data)
        if kind is str:
            return value.encode("utf-8", "backslashreplace").decode()
        if kind in _SIMPLE and kind not in (list, tuple, set, frozenset):
            return value
        try:
            if isinstance(value, Mapping):
                return {
                    self._repaired_key(key, depth + 1): self._repaired(part, depth + 1) for key, part in value.items()
                }
            if isinstance(value, (list, tuple, Set, deque)):
                return [self._repaired(part, depth + 1) for part in value]
            if isinstance(value, Ext):
                return value
            return self._repaired(self._plain(value), depth + 1)
        except Unserialisable:
            raise
        except Exception as error:
            return self._refused(value, f"raised {type(error).__name__}")

    def _repaired_key(self, key: Any, depth: int) -> Any:
        found = self._repaired(key, depth)
        return found if isinstance(found, (str, int, float, bytes)) or found is None else str(found)

    def _refused(self, value: Any, why: str) -> Any:
        if self._strict:
            raise Unserialisable(f"a {_name(type(value))} cannot be captured: {why}")
        self.replaced += 1
        return {PLACEHOLDER: _name(type(value))}


_SIMPLE = frozenset({type(None), bool, int, float, str, bytes, bytearray, list, tuple, set, frozenset})


def names_of(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's or NamedTuple's fields; none for any other type."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names = getattr(kind, "_fields", ())
    return tuple(names) if issubclass(kind, tuple) and isinstance(names, tuple) else ()


def _single(name: str) -> Callable[[Any], Any]:
    return lambda value: [getattr(value, name)]


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _timestamp(value: datetime) -> Any:
    if value.tzinfo is None:
        return value.isoformat()
    since = value - _EPOCH
    return Ext(_TIMESTAMP, _TIMESTAMP96.pack(since.microseconds * 1000, since.days * 86_400 + since.seconds))


def _duration(value: timedelta) -> str:
    total = abs(value)
    seconds = (
        f"{total.seconds}.{total.microseconds:06}".rstrip("0").rstrip(".") if total.microseconds else str(total.seconds)
    )
    text = (f"{total.days}D" if total.days else "") + (f"T{seconds}S" if seconds != "0" or not total.days else "")
    return f"{'-' * (value < timedelta(0))}P{text}"


def _array(value: Any, numpy: Any) -> Any:
    if value.dtype.kind not in "iufb" or value.dtype.itemsize > 8:
        return value.tolist()
    ordered = numpy.ascontiguousarray(value)
    head = msgpack.pack([ordered.dtype.str, list(value.shape)], str)
    return Ext(_ARRAY, head + ordered.tobytes())


def decode(data: bytes) -> Any:
    """The value in these bytes."""
    if _decode is None:
        return msgpack.unpack(data, _extension)
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, TypeError, OverflowError) as error:
        raise MalformedBatch(f"a value cannot be read: {error}") from None


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


def _extension(code: int, data: bytes | memoryview) -> Any:
    data = bytes(data)
    if code == _BIG_NUMBER and len(data) <= _MOST_NUMBER_BYTES:
        return int.from_bytes(data, "big", signed=True)
    if code == _ARRAY:
        return _read_array(data)
    if code == _TIMESTAMP:
        return _read_timestamp(data)
    raise MalformedBatch(f"no value has the extension {code}")


def _read_timestamp(data: bytes) -> datetime:
    try:
        if len(data) == 12:
            nanoseconds, seconds = _TIMESTAMP96.unpack(data)
        elif len(data) == 8:
            number = int.from_bytes(data, "big")
            nanoseconds, seconds = number >> 34, number & (1 << 34) - 1
        elif len(data) == 4:
            nanoseconds, seconds = 0, int.from_bytes(data, "big")
        else:
            raise MalformedBatch("a point in time has 4, 8 or 12 bytes")
        return _EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
    except OverflowError:
        raise MalformedBatch("a point in time is out of range") from None


def _read_array(data: bytes) -> ArrayValue:
    head, size = msgpack.unpack_first(data, _extension)
    if not (isinstance(head, list) and len(head) == 2 and isinstance(head[0], str) and isinstance(head[1], list)):
        raise MalformedBatch("an array without type and shape")
    dtype, shape = head
    if dtype[:1] not in ("<", ">", "|") or dtype[1:] not in _DTYPES:
        raise MalformedBatch(f"no array is of type {dtype!r}")
    count = 1
    for length in shape:
        if type(length) is not int or not 0 <= length <= len(data):
            raise MalformedBatch("an array's shape is wrong")
        count *= length
        if count > len(data):
            raise MalformedBatch("an array's shape is wrong")
    if len(shape) > 32 or count * int(dtype[2:]) != len(data) - size:
        raise MalformedBatch("an array does not have the size that its shape says")
    return ArrayValue(dtype, tuple(shape), data[size:])


_DTYPES = frozenset(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "b1"))
_decode: Callable[[bytes], Any] | None = None
if msgspec is not None:
    _decode = msgspec.msgpack.Decoder(ext_hook=_extension).decode

"""MessagePack in plain Python, exactly what `values` needs of it: for what does not fit into columns."""

from __future__ import annotations

import struct
from collections.abc import Callable
from sys import maxsize
from typing import Any

from protocol.wire.errors import MalformedBatch

__all__ = ["MOST_DEPTH", "Ext", "Pairs", "TooLarge", "pack", "unpack", "unpack_first"]

MOST_DEPTH = 100  # levels of lists and maps in a value; more are neither written nor read

_FLOAT = struct.Struct(">d")
_READ_FLOAT32 = struct.Struct(">f")
_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_EXT_CODES = {size: code for code, size in _FIXED_EXT.items()}


class Ext:
    """A value that MessagePack has no word for: a code, and bytes that the code explains."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data


class Pairs(list[Any]):
    """Keys and values that become a map, whatever the keys are."""


class TooLarge(ValueError):
    """A value of more bytes than it may have: `size` or more."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes or more")
        self.size = size


class _Out(bytearray):
    most_bytes = maxsize


def pack(value: Any, plain: Callable[[Any], Any], most_bytes: int = maxsize) -> bytes:
    """A value as bytes. `plain` turns what is unknown here into something that is known.

    Whoever captures a list of millions by mistake must not wait until all of it is written: it is TooLarge at once.
    """
    out = _Out()
    out.most_bytes = most_bytes
    _put(out, value, plain, 0)
    if len(out) > most_bytes:
        raise TooLarge(len(out))
    return bytes(out)


def _put(out: _Out, value: Any, plain: Callable[[Any], Any], depth: int) -> None:
    kind = type(value)
    if value is None:
        out.append(0xC0)
    elif kind is bool:
        out.append(0xC3 if value else 0xC2)
    elif kind is int:
        _put_int(out, value)
    elif kind is float:
        out.append(0xCB)
        out += _FLOAT.pack(value)
    elif kind is str:
        _put_sized(out, value.encode(), 0xA0, 32, (0xD9, 0xDA, 0xDB))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _put_sized(out, bytes(value), 0, 0, (0xC4, 0xC5, 0xC6))
    elif kind is Pairs:
        _put_pairs(out, value, plain, depth)
    elif isinstance(value, (list, tuple)):
        parts = list(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))
        _put_count(out, len(parts), 0x90, 0xDC, depth)
        for each in parts:
            _put(out, each, plain, depth + 1)
    elif isinstance(value, dict):
        _put_pairs(out, list(dict.items(value)), plain, depth)
    elif kind is Ext:
        _put_ext(out, value)
    else:
        _put(out, plain(value), plain, depth)


def _put_pairs(out: _Out, pairs: list[Any], plain: Callable[[Any], Any], depth: int) -> None:
    _put_count(out, len(pairs), 0x80, 0xDE, depth)
    for key, each in pairs:
        _put(out, key, plain, depth + 1)
        _put(out, each, plain, depth + 1)


def _put_int(out: bytearray, value: int) -> None:
    if -32 <= value < 128:
        out.append(value & 0xFF)
        return
    if value >= 0:
        for size, code in ((1, 0xCC), (2, 0xCD), (4, 0xCE), (8, 0xCF)):
            if value >> 8 * size == 0:
                out.append(code)
                out += value.to_bytes(size, "big")
                return
    else:
        for size, code in ((1, 0xD0), (2, 0xD1), (4, 0xD2), (8, 0xD3)):
            if value >= -(1 << 8 * size - 1):
                out.append(code)
                out += value.to_bytes(size, "big", signed=True)
                return
    raise OverflowError("a number of more than 64 bits")


def _put_sized(out: bytearray, data: bytes, short: int, short_limit: int, codes: tuple[int, int, int]) -> None:
    size = len(data)
    if size < short_limit:
        out.append(short | size)
    else:
        place = 0 if size < 1 << 8 else 1 if size < 1 << 16 else 2
        out.append(codes[place])
        out += size.to_bytes(1 << place, "big")
    out += data


def _put_count(out: _Out, count: int, short: int, code: int, depth: int) -> None:
    if depth >= MOST_DEPTH:
        raise RecursionError("nested too deep")
    if len(out) + count > out.most_bytes:
        raise TooLarge(len(out) + count)
    if count < 16:
        out.append(short | count)
    elif count < 1 << 16:
        out.append(code)
        out += count.to_bytes(2, "big")
    else:
        out.append(code + 1)
        out += count.to_bytes(4, "big")


def _put_ext(out: bytearray, value: Ext) -> None:
    data = bytes(value.data)
    size = len(data)
    if size in _EXT_CODES:
        out.append(_EXT_CODES[size])
    else:
        place = 0 if size < 1 << 8 else 1 if size < 1 << 16 else 2
        out.append(0xC7 + place)
        out += size.to_bytes(1 << place, "big")
    out.append(value.code & 0xFF)
    out += data


def unpack(data: bytes, extension: Callable[[int, bytes], Any]) -> Any:
    """The one value in these bytes. MalformedBatch if they are anything else."""
    value, size = unpack_first(data, extension)
    if size != len(data):
        raise MalformedBatch(f"{len(data) - size} bytes follow a value")
    return value


def unpack_first(data: bytes, extension: Callable[[int, bytes], Any]) -> tuple[Any, int]:
    """The value that these bytes begin with, and how many bytes it has."""
    unpacker = _Unpacker(data, extension)
    return unpacker.value(0), unpacker.at


class _Unpacker:
    def __init__(self, data: bytes, extension: Callable[[int, bytes], Any]) -> None:
        self._data = data
        self._extension = extension
        self.at = 0

    def value(self, depth: int) -> Any:
        code = self._take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 256
        if code < 0x90:
            return self._map(code & 0x0F, depth)
        if code < 0xA0:
            return self._list(code & 0x0F, depth)
        if code < 0xC0:
            return self._text(code & 0x1F)
        if code in _SIZES:
            size = self._number(_SIZES[code])
            if code >= 0xD9:
                return self._text(size)
            return self._take(size) if code < 0xC7 else self._ext(size)
        if code in _COUNTS:
            count = self._number(_COUNTS[code])
            return self._list(count, depth) if code < 0xDE else self._map(count, depth)
        if code in _FIXED_EXT:
            return self._ext(_FIXED_EXT[code])
        if 0xCC <= code <= 0xCF:
            return self._number(1 << code - 0xCC)
        if 0xD0 <= code <= 0xD3:
            return int.from_bytes(self._take(1 << code - 0xD0), "big", signed=True)
        if code == 0xCB:
            return _FLOAT.unpack(self._take(8))[0]
        if code == 0xCA:
            return _READ_FLOAT32.unpack(self._take(4))[0]
        if code in (0xC2, 0xC3):
            return code == 0xC3
        if code == 0xC0:
            return None
        raise MalformedBatch(f"no value begins with {code:#x}")

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise MalformedBatch("a value ends too soon")
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise MalformedBatch("a text is not UTF-8") from None

    def _list(self, count: int, depth: int) -> list[Any]:
        if count > len(self._data) - self.at:
            raise MalformedBatch("a list claims more parts than there are bytes")
        if depth >= MOST_DEPTH:
            raise MalformedBatch(f"a value has more than {MOST_DEPTH} levels")
        return [self.value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        if 2 * count > len(self._data) - self.at:
            raise MalformedBatch("a map claims more parts than there are bytes")
        if depth >= MOST_DEPTH:
            raise MalformedBatch(f"a value has more than {MOST_DEPTH} levels")
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = _hashable(self.value(depth + 1))
            found[key] = self.value(depth + 1)
        return found

    def _ext(self, size: int) -> Any:
        code = self._take(1)[0]
        return self._extension(code - 256 if code > 127 else code, self._take(size))


def _hashable(key: Any) -> Any:
    """A map may be the key of a map where it was written, but not here: then it is shown as a text."""
    if isinstance(key, list):
        return tuple(_hashable(part) for part in key)
    return str(key) if isinstance(key, dict) else key

"""Keys that an object gives twice. A decoder keeps the last of them and says nothing, so what came first would be lost.

What is right is soon known to be so: most MessagePack is, byte for byte, what comes of encoding its value again, and of
JSON the keys are only counted. What may be wrong is read once more, for the place.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import msgspec

from collector.ingest.errors import BadDocument
from protocol.plan.errors import shown


def check_json(data: bytes) -> None:
    """BadDocument names a key that is given twice in this JSON, and its place."""
    try:
        json.loads(data, object_pairs_hook=_count)
    except _Doubled:
        _check(json.loads(data, object_pairs_hook=_Pairs))


def check_msgpack(data: bytes, value: object) -> None:
    """The same of MessagePack that means this value."""
    if msgspec.msgpack.encode(value) != data:
        _pass(data, 0)


# JSON


class _Doubled(Exception):
    """Some object has a key twice."""


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written."""


def _count(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Doubled


def _check(value: object) -> None:
    if isinstance(value, _Pairs):
        seen: set[Hashable] = set()
        for key, each in value:
            _note(key, seen)
            try:
                _check(each)
            except BadDocument as error:
                raise error.inside(key) from None
    elif isinstance(value, list):
        for place, each in enumerate(value):
            try:
                _check(each)
            except BadDocument as error:
                raise error.inside(f"[{place}]") from None


def _note(key: Hashable, seen: set[Hashable]) -> None:
    if key in seen:
        raise BadDocument(_name(key), "is given twice")
    seen.add(key)


def _name(key: Hashable) -> str:
    return key if isinstance(key, str) else shown(key)


# MessagePack, by the first byte of what is told

_SIZES = [-1] * 256
"""How many bytes follow, of what always has as many."""
for _first in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
    _SIZES[_first] = 0
for _first in range(0xA0, 0xC0):
    _SIZES[_first] = _first & 0x1F
for _first, _size in zip(range(0xCA, 0xD9), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), strict=True):
    _SIZES[_first] = _size
_COUNTS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTS |= {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""How many bytes say how much follows."""
_TYPED = (0xC7, 0xC8, 0xC9)


def _pass(data: bytes, at: int) -> int:
    """Where what begins here ends."""
    first = data[at]
    at += 1
    size = _SIZES[first]
    if size >= 0:
        return at + size
    if first < 0xA0:
        count = first & 0x0F
    else:
        begin, at = at, at + _COUNTS[first]
        count = int.from_bytes(data[begin:at], "big")
    if first < 0x90 or first >= 0xDE:
        return _pass_map(data, at, count)
    if first < 0xA0 or first >= 0xDC:
        return _pass_list(data, at, count)
    return at + count + (first in _TYPED)


def _pass_list(data: bytes, at: int, count: int) -> int:
    for place in range(count):
        try:
            at = _pass(data, at)
        except BadDocument as error:
            raise error.inside(f"[{place}]") from None
    return at


def _pass_map(data: bytes, at: int, count: int) -> int:
    seen: set[Hashable] = set()
    for _ in range(count):
        begin, at = at, _pass(data, at)
        key = _key(data[begin:at])
        _note(key, seen)
        try:
            at = _pass(data, at)
        except BadDocument as error:
            raise error.inside(_name(key)) from None
    return at


def _key(data: bytes) -> Hashable:
    """A key as the decoder has it in an object: alone, a list would be none."""
    (key,) = msgspec.msgpack.decode(b"\x81" + data + b"\xc0", type=dict[Any, None])
    found: Hashable = key
    return found

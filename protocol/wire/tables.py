"""Values in columns: all that have one shape are the rows of a table, written column by column.

A column of numbers is an array, a column of lists is a column of their parts, and so on: few calls into C for many
values, and neighbours that resemble each other for the compressor. Only where the values of a column are of several
types is each of them written by itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, pairwise, repeat
from sys import byteorder
from typing import Any

from protocol.wire.columns import Reader, put_blobs, put_ints, put_small, put_texts, put_varint
from protocol.wire.errors import MalformedBatch

MOST_PARTS = 1 << 18  # of lists, in one column
_MOST_DEPTH = 8
_NULL, _BOOL, _INT, _FLOAT, _TEXT, _LIST, _MIXED, _FEW_TEXTS = range(8)
_CODES: dict[type, int] = {type(None): _NULL, bool: _BOOL, int: _INT, float: _FLOAT, str: _TEXT, tuple: _LIST}
_FEW_ROWS = 8
_LEAST, _MOST = -(2**63), 2**63 - 1


def put_table(out: bytearray, rows: Sequence[tuple[Any, ...]], packed: Callable[[Any], bytes]) -> None:
    """Rows of equal length. If all of them have the same types, columns of one type are written as one where it pays:
    floats always, as they are not compared with their neighbours, the others where there are few rows."""
    types = [*map(type, rows[0])]
    codes = bytes(map(_CODES.get, types, repeat(_MIXED)))
    uniform = _MIXED not in codes and all([*map(type, row)] == types for row in rows)
    out.append(uniform)
    if not uniform:
        for column in zip(*rows, strict=True):
            put_column(out, column, packed)
        return
    out += codes
    columns = [*zip(*rows, strict=True)]
    for places in _by_code(codes, len(rows) < _FEW_ROWS):
        together = columns[places[0]] if len(places) == 1 else [*chain.from_iterable([columns[at] for at in places])]
        put_column(out, together, packed)


def read_table(reader: Reader, width: int, count: int, unpacked: Callable[[bytes], Any]) -> list[Sequence[Any]]:
    """The columns again."""
    if not reader.byte():
        return [read_column(reader, count, unpacked) for _ in range(width)]
    columns: list[Sequence[Any]] = [()] * width
    for places in _by_code(reader.take(width), count < _FEW_ROWS):
        together = read_column(reader, count * len(places), unpacked)
        for place, at in enumerate(places):
            columns[at] = together[place * count : (place + 1) * count]
    return columns


@lru_cache(256)  # there are few shapes
def _by_code(codes: bytes, few: bool) -> list[list[int]]:
    """Which columns are written as one."""
    by_code: dict[int, list[int]] = {}
    for at, code in enumerate(codes):
        by_code.setdefault(code, []).append(at)
    found: list[list[int]] = []
    for code, places in sorted(by_code.items()):
        if code == _FLOAT or few:
            found.append(places)
        else:
            found += [[at] for at in places]
    return found


def put_column(out: bytearray, values: Sequence[Any], packed: Callable[[Any], bytes], depth: int = 0) -> None:
    """A column of numbers, texts and tuples of such. Where they are of several types, each is `packed` by itself."""
    kinds = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is int and min(values) >= _LEAST and max(values) <= _MOST:
        out.append(_INT)
        put_ints(out, values)
    elif kind is float:
        out.append(_FLOAT)
        put_floats(out, values)
    elif kind is str:
        _put_texts(out, values)
    elif kind is tuple and depth < _MOST_DEPTH:
        out.append(_LIST)
        put_small(out, [len(value) for value in values])
        put_column(out, list(chain.from_iterable(values)), packed, depth + 1)
    elif kind is bool:
        out.append(_BOOL)
        put_small(out, values)
    elif kind is type(None) or not values:
        out.append(_NULL)
    else:
        out.append(_MIXED)
        put_blobs(out, [packed(value) for value in values])


def put_floats(out: bytearray, values: Sequence[float]) -> None:
    """Floats turned on their side: the same byte of each number stands together."""
    column = array("d", values)
    if byteorder == "big":
        column.byteswap()
    data = column.tobytes()
    for at in range(8):
        out += data[at::8]


def _put_texts(out: bytearray, values: Sequence[str]) -> None:
    known: dict[str, int] = {}
    places = [known.setdefault(value, len(known)) for value in values]
    if 2 * len(known) <= len(values):
        out.append(_FEW_TEXTS)
        put_varint(out, len(known))
        put_texts(out, list(known))
        put_small(out, places)
    else:
        out.append(_TEXT)
        put_texts(out, values)


def read_column(reader: Reader, count: int, unpacked: Callable[[bytes], Any], depth: int = 0) -> Sequence[Any]:
    """The values again; lists as lists."""
    code = reader.byte()
    if code == _INT:
        return reader.ints(count)
    if code == _FLOAT:
        return read_floats(reader, count)
    if code == _TEXT:
        return reader.texts(count)
    if code == _FEW_TEXTS:
        known = reader.texts(reader.varint(count))
        return [known[place] for place in reader.small(count, len(known))]
    if code == _LIST and depth < _MOST_DEPTH:
        return _read_lists(reader, count, unpacked, depth)
    if code == _BOOL:
        return [place == 1 for place in reader.small(count, 2)]
    if code == _MIXED:
        return [unpacked(data) for data in reader.blobs(count)]
    if code == _NULL:
        reader.allow(count)
        return [None] * count
    raise MalformedBatch(f"no column of values has code {code}")


def read_floats(reader: Reader, count: int) -> array[float]:
    """Floats upright again."""
    turned = reader.take(8 * count)
    upright = bytearray(8 * count)
    for at in range(8):
        upright[at::8] = turned[at * count : (at + 1) * count]
    column = array("d", bytes(upright))
    if byteorder == "big":
        column.byteswap()
    return column


def _read_lists(reader: Reader, count: int, unpacked: Callable[[bytes], Any], depth: int) -> list[list[Any]]:
    lengths = reader.small(count, MOST_PARTS + 1)
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    if ends[-1] > MOST_PARTS:
        raise MalformedBatch(f"lists of more than {MOST_PARTS} parts")
    parts = list(read_column(reader, ends[-1], unpacked, depth + 1))
    return [parts[begin:end] for begin, end in pairwise(ends)]

"""Columns of numbers in few bytes: each as its least number, and how far every other one is above it, all of one width.

Ids and times that are stored together are close to each other, so most of them take one to four bytes, and a column of
equal numbers none. Many groups of rows are packed by one pass over the columns: Python costs little per group.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import Numbers

_LIMITS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFFFF], "<u8")
_WIDTHS = (0, 1, 2, 4, 8)
_TYPES = ("", "|u1", "<u2", "<u4", "<u8")
_MOST = (0, 0xFF, 0xFFFF, 0xFFFFFFFF, (1 << 63) - 1)


def groups_of(sorted_keys: Numbers) -> Numbers:
    """Where the groups of equal numbers begin."""
    if not len(sorted_keys):
        return np.empty(0, "<i8")
    return np.concatenate(([0], np.flatnonzero(sorted_keys[1:] != sorted_keys[:-1]) + 1))


def distinct(numbers: Numbers) -> Numbers:
    """Each number once, in order. Ids come nearly sorted, and NumPy's own does not make use of it."""
    ordered = np.sort(numbers, kind="stable")
    return ordered[groups_of(ordered)]


def among(numbers: Numbers, sorted_numbers: Numbers) -> NDArray[np.bool_]:
    """For each number whether it is one of these."""
    if not len(sorted_numbers):
        return np.zeros(len(numbers), bool)
    places = np.searchsorted(sorted_numbers, numbers)
    places[places == len(sorted_numbers)] = 0
    found: NDArray[np.bool_] = sorted_numbers[places] == numbers
    return found


def spans_of(starts: Numbers, rows: int) -> list[tuple[int, int]]:
    """From where to where each group goes."""
    begins = starts.tolist()
    return list(zip(begins, [*begins[1:], rows], strict=False))  # without any group there is no end either


def pack_groups(columns: Sequence[NDArray[Any]], starts: Numbers) -> list[bytes]:
    """Groups of rows, each by itself; a group goes from its start to the next one's."""
    if not len(starts):
        return []
    rows = len(columns[0])
    spans = spans_of(starts, rows)
    sizes = np.diff(starts, append=rows)
    head = np.zeros(len(starts), _head_type(len(columns)))
    head["rows"] = sizes
    parts: list[list[bytes]] = []
    for place, column in enumerate(columns):
        numbers = np.ascontiguousarray(column, "<i8")
        least = np.minimum.reduceat(numbers, starts)
        most = np.maximum.reduceat(numbers, starts)
        # Unsigned, differences are right even from the beginning to the end of time.
        codes = np.searchsorted(_LIMITS, most.view("<u8") - least.view("<u8"))
        head["codes"][:, place] = codes
        head["least"][:, place] = least
        above = numbers.view("<u8") - np.repeat(least.view("<u8"), sizes)
        packed = {code: above.astype(_TYPES[code]).tobytes() for code in np.unique(codes).tolist() if code}
        parts.append(
            [
                packed[code][begin * _WIDTHS[code] : end * _WIDTHS[code]] if code else b""
                for code, (begin, end) in zip(codes.tolist(), spans, strict=True)
            ]
        )
    size, heads = head.itemsize, head.tobytes()
    return [b"".join((heads[at * size : (at + 1) * size], *group)) for at, group in enumerate(zip(*parts, strict=True))]


def pack(columns: Sequence[NDArray[Any]]) -> bytes:
    """Rows as one group."""
    return pack_groups(columns, np.zeros(1, "<i8"))[0] if len(columns[0]) else b""


def unpack(data: bytes, width: int) -> list[Numbers]:
    """The columns again."""
    return unpack_groups([data], width)


def unpack_groups(groups: Sequence[bytes], width: int, wanted: int | None = None) -> list[Numbers]:
    """The columns of several groups, one after the other; of the `width` that there are, all or the first ones."""
    wanted = width if wanted is None else wanted
    head = _head(width)
    heads = [head.unpack_from(data) for data in groups if data]
    sizes = [numbers[0] for numbers in heads]
    columns = np.zeros((wanted, sum(sizes)), "<u8")
    begin = 0
    for data, (rows, *numbers) in zip(filter(None, groups), heads, strict=True):
        end, at = begin + rows, head.size
        for place in range(wanted):
            code = numbers[place]
            if code:
                columns[place, begin:end] = np.frombuffer(data, _TYPES[code], rows, at)
                at += rows * _WIDTHS[code]
        begin = end
    if heads:
        least = np.array([numbers[1 + width : 1 + width + wanted] for numbers in heads], "<i8").T.view("<u8")
        columns += np.repeat(least, sizes, axis=1)
    return list(columns.view("<i8"))


def find_rows(data: bytes, width: int, keys: Numbers, wanted: Collection[int]) -> list[Numbers] | None:
    """The rows of a group whose first column, which has to be sorted, is one of these numbers, which are sorted too: as
    columns, those that are wanted. None if there are no such rows. Nothing else of the group is unpacked."""
    head = _head(width)
    rows, *numbers = head.unpack_from(data)
    places = _places(data, numbers[0], rows, head.size, keys - numbers[width])
    if places is None:
        return None
    found: list[Numbers] = []
    at = head.size
    for place in range(width):
        code, least = numbers[place], numbers[width + place]
        if place in wanted:
            if code:
                column = np.frombuffer(data, _TYPES[code], rows, at)[places].astype("<i8")
                column += least  # as numbers of 64 bits, whatever their sign: right even to the end of time
            else:
                column = np.full(len(places), least, "<i8")
            found.append(column)
        at += rows * _WIDTHS[code]
    return found


def all_rows(data: bytes, width: int) -> Iterator[tuple[int, ...]]:
    """The rows of a small group: as plain numbers, they take a third of the time that arrays would."""
    return _rows(data, width, *_head(width).unpack_from(data)) if data else iter(())


def rows_between(data: bytes, width: int, first: int, last: int) -> Iterator[tuple[int, ...]]:
    """The few rows of a group whose first column, which has to be sorted, is from one number to another."""
    head = _head(width)
    rows, *numbers = head.unpack_from(data)
    code, least = numbers[0], numbers[width]
    if code:
        keys: Any = np.frombuffer(data, _TYPES[code], rows, head.size)
        begin, end = bisect_left(keys, first - least), bisect_right(keys, last - least)
    else:
        begin, end = 0, rows if first <= least <= last else 0
    return _rows(data, width, rows, *numbers, begin=begin, end=end) if begin < end else iter(())


def _rows(
    data: bytes, width: int, rows: int, *numbers: int, begin: int = 0, end: int | None = None
) -> Iterator[tuple[int, ...]]:
    count = (rows if end is None else end) - begin
    columns: list[list[int]] = []
    at = _head(width).size
    for code, least in zip(numbers[:width], numbers[width:], strict=True):
        if code:
            above = np.frombuffer(data, _TYPES[code], count, at + begin * _WIDTHS[code]).tolist()
            columns.append([least + each for each in above])
            at += rows * _WIDTHS[code]
        else:
            columns.append([least] * count)
    return zip(*columns, strict=True)


def _places(data: bytes, code: int, rows: int, at: int, offsets: Numbers) -> Numbers | None:
    """Where these numbers are in a sorted column; None if they are nowhere."""
    if not code:
        return np.arange(rows) if 0 in offsets else None
    if offsets[0] < 0 or offsets[-1] > _MOST[code]:
        offsets = offsets[(offsets >= 0) & (offsets <= _MOST[code])]
        if not len(offsets):
            return None
    column = np.frombuffer(data, _TYPES[code], rows, at)
    fitting = offsets.astype(_TYPES[code])
    begins, ends = column.searchsorted(fitting), column.searchsorted(fitting, "right")
    counts = ends - begins
    total = int(np.add.reduce(counts))  # the methods of arrays take twice as long
    if not total:
        return None
    found: Numbers
    if total == len(begins) and np.maximum.reduce(counts) == 1:
        found = begins
    else:
        found = np.repeat(ends - np.cumsum(counts), counts) + np.arange(total)
    return found


@cache
def _head(width: int) -> struct.Struct:
    """How many rows, the code of each column's width, the least number of each."""
    return struct.Struct(f"<I{width}B{width}q")


@cache
def _head_type(width: int) -> np.dtype[Any]:
    """The same for NumPy."""
    return np.dtype([("rows", "<u4"), ("codes", "u1", (width,)), ("least", "<i8", (width,))])

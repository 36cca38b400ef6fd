"""Columns of numbers, texts and byte strings: the alphabet of sections.

Neighbours in a column resemble each other, so numbers are written as differences, all of one width. What is left in the
high bytes is the compressor's work; in exchange a column is read and written by a few calls into C, even where Python
is slow.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import add

from protocol.wire.errors import MalformedBatch

# Codes of a column of numbers: all alike, differences of 1 to 8 bytes, or the numbers themselves.
_CONSTANT, _ABSOLUTE = 0, 9
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_MOST_VARINT_BYTES = 10
MOST_NUMBERS = 1 << 19
_LEAST, _MOST = -(2**63), 2**63 - 1
_BIG_ENDIAN = sys.byteorder == "big"


def put_varint(out: bytearray, number: int) -> None:
    """A number from 0 on, seven bits a byte."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def put_signed(out: bytearray, number: int) -> None:
    """Any 64-bit number, small ones in few bytes."""
    put_varint(out, number << 1 if number >= 0 else (-number << 1) - 1)


def put_ints(out: bytearray, numbers: Sequence[int]) -> None:
    """A column of 64-bit numbers that change little from one to the next."""
    if not numbers:
        return
    put_signed(out, numbers[0])
    if len(numbers) == 1:
        return
    if numbers.count(numbers[0]) == len(numbers):  # quicker to find out than to compute
        out += bytes((_CONSTANT, 0))
        return
    steps = [after - before for before, after in pairwise(numbers)]
    low = min(steps)
    width = _width(max(steps) - low)
    if width > 8 or not _LEAST <= low <= _MOST:  # from the beginning to the end of time is more than 64 bits
        out.append(_ABSOLUTE)
        out += _little(array("q", numbers))
    elif width == 0:
        out.append(_CONSTANT)
        put_signed(out, low)
    else:
        out.append(width)
        put_signed(out, low)
        out += _little(array(_UNSIGNED[width], steps if low == 0 else [step - low for step in steps]))


def put_small(out: bytearray, numbers: Sequence[int]) -> None:
    """A column of numbers from 0 on that are no sequence: lengths, places in a table, codes."""
    if not numbers:
        return
    most = max(numbers)
    if most == min(numbers):
        out.append(_CONSTANT)
        put_varint(out, most)
    else:
        width = _width(most)
        out.append(width)
        out += _little(array(_UNSIGNED[width], numbers))


def put_blobs(out: bytearray, blobs: Sequence[bytes]) -> None:
    """A column of byte strings."""
    if blobs:
        put_small(out, [len(blob) for blob in blobs])
        out += b"".join(blobs)


def put_values(out: bytearray, blobs: Sequence[bytes]) -> None:
    """A column of packed values. Those of one length are most likely alike from byte to byte: they are written turned
    on their side, all first bytes, all second bytes, so that the same part of each number stands together."""
    lengths = [len(blob) for blob in blobs]
    put_small(out, lengths)
    for length, places in _by_length(lengths).items():
        joined = b"".join([blobs[place] for place in places])
        out += joined if len(places) == 1 else b"".join([joined[at::length] for at in range(length)])


def _by_length(lengths: Sequence[int]) -> dict[int, list[int]]:
    """The places of each length, lengths in the order in which they first appear."""
    groups: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        try:
            groups[length].append(place)
        except KeyError:
            groups[length] = [place]
    return groups


def put_texts(out: bytearray, texts: Sequence[str]) -> None:
    """A column of texts. Half of a surrogate pair, which no text should hold, is shown as what it is."""
    if texts:
        put_blobs(out, [text.encode("utf-8", "backslashreplace") for text in texts])


def _width(span: int) -> int:
    if span == 0:
        return 0
    if span <= 0xFF:
        return 1
    if span <= 0xFFFF:
        return 2
    if span <= 0xFFFFFFFF:
        return 4
    return 8 if span <= 0xFFFFFFFFFFFFFFFF else 16


def _little(column: array[int]) -> bytes:
    if _BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


class Allowance:
    """How many numbers may still be read. A column of equal ones takes up no bytes, so bytes are no limit."""

    __slots__ = ("left",)

    def __init__(self, left: int = MOST_NUMBERS) -> None:
        self.left = left

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise MalformedBatch(f"more than {MOST_NUMBERS} numbers")


class Reader:
    """Reads columns in the order in which they were put. Readers of the parts of one batch share an allowance."""

    def __init__(self, data: bytes, at: int = 0, allowance: Allowance | None = None) -> None:
        self._data = data
        self._allowance = Allowance() if allowance is None else allowance
        self.at = at

    @property
    def left(self) -> int:
        """Bytes that were not read."""
        return len(self._data) - self.at

    def allow(self, count: int) -> None:
        """So many values follow from what was read, though they take up no bytes."""
        self._allowance.take(count)

    def take(self, size: int) -> bytes:
        """The next bytes as they are."""
        end = self.at + size
        if end > len(self._data):
            raise MalformedBatch(f"ends {end - len(self._data)} bytes too soon")
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self, most: int = _MOST) -> int:
        """A number from 0 to `most`."""
        data, at, number, shift = self._data, self.at, 0, 0
        for each in data[at : at + _MOST_VARINT_BYTES]:
            number |= (each & 0x7F) << shift
            shift += 7
            if each < 0x80:
                self.at = at + shift // 7
                if number > most:
                    raise MalformedBatch(f"{number} where at most {most} may stand")
                return number
        raise MalformedBatch("a number does not end")

    def signed(self) -> int:
        """Any 64-bit number."""
        number = self.varint(2**64)
        number = number >> 1 if not number & 1 else -(number + 1 >> 1)
        if not _LEAST <= number <= _MOST:
            raise MalformedBatch("a number of more than 64 bits")
        return number

    def ints(self, count: int) -> array[int]:
        """A column of 64-bit numbers."""
        if count == 0:
            return array("q")
        self._allowance.take(count)
        first = self.signed()
        if count == 1:
            return array("q", (first,))
        code = self.byte()
        try:
            if code == _CONSTANT:
                step = self.signed()
                return array("q", range(first, first + step * count, step)) if step else array("q", (first,)) * count
            if code == _ABSOLUTE:
                numbers = self._array("q", count)
                if numbers[0] != first:
                    raise MalformedBatch("a column contradicts its beginning")
                return numbers
            if code not in _UNSIGNED:
                raise MalformedBatch(f"no column of numbers has code {code}")
            low = self.signed()
            numbers = self._array(_UNSIGNED[code], count - 1)
            if low == 0:
                return array("q", accumulate(numbers, initial=first))
            return array("q", map(add, accumulate(numbers, initial=0), range(first, first + low * count, low)))
        except OverflowError:
            raise MalformedBatch("a column leaves the range of 64 bits") from None

    def small(self, count: int, below: int) -> Sequence[int]:
        """A column of numbers from 0 on, all below a limit."""
        if count == 0:
            return ()
        self._allowance.take(count)
        code = self.byte()
        if code == _CONSTANT:
            number = self.varint()
            if number >= below:
                raise MalformedBatch(f"{number} where less than {below} must stand")
            return array("q", (number,)) * count
        if code not in _UNSIGNED:
            raise MalformedBatch(f"no column of numbers has code {code}")
        numbers = self._array(_UNSIGNED[code], count)
        if max(numbers) >= below:
            raise MalformedBatch(f"{max(numbers)} where less than {below} must stand")
        return numbers

    def blobs(self, count: int) -> list[bytes]:
        """A column of byte strings."""
        lengths = self.small(count, self.left + 1)
        ends = list(accumulate(lengths, initial=0))
        joined = self.take(ends[-1])
        return [joined[begin:end] for begin, end in pairwise(ends)]

    def values(self, count: int) -> list[bytes]:
        """A column of packed values."""
        lengths = self.small(count, self.left + 1)
        found = [b""] * count
        for length, places in _by_length(lengths).items():
            rows = len(places)
            joined = self.take(length * rows)
            if rows == 1:
                found[places[0]] = joined
                continue
            upright = b"".join([joined[at::rows] for at in range(rows)])
            for at, place in enumerate(places):
                found[place] = upright[at * length : (at + 1) * length]
        return found

    def texts(self, count: int) -> list[str]:
        """A column of texts."""
        try:
            return [blob.decode() for blob in self.blobs(count)]
        except UnicodeDecodeError as error:
            raise MalformedBatch(f"a text is not UTF-8: {error.reason}") from None

    def _array(self, code: str, count: int) -> array[int]:
        numbers = array(code)
        numbers.frombytes(self.take(count * numbers.itemsize))
        if _BIG_ENDIAN:
            numbers.byteswap()
        return numbers

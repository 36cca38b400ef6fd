"""Columns: what is put is read, and whatever else is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.records import BEGINNING, END_OF_TIME
from protocol.wire.columns import (
    MOST_NUMBERS,
    Allowance,
    Reader,
    put_blobs,
    put_ints,
    put_signed,
    put_small,
    put_texts,
    put_values,
    put_varint,
)
from protocol.wire.errors import MalformedBatch

INT64 = st.integers(-(2**63), 2**63 - 1)
EXTREMES = st.sampled_from([BEGINNING, BEGINNING + 1, -1, 0, 1, 2**32, END_OF_TIME - 1, END_OF_TIME])
CLOCK = st.integers(1_760_000_000_000, 1_760_000_100_000)
COUNTS = st.integers(0, 2**63 - 1) | st.integers(0, 300)


def written(put: Any, column: Any) -> Reader:
    out = bytearray()
    put(out, column)
    return Reader(bytes(out))


@given(st.lists(INT64 | EXTREMES) | st.lists(EXTREMES, min_size=2, max_size=4) | st.lists(CLOCK))
def test_numbers_of_64_bits(numbers: list[int]) -> None:
    reader = written(put_ints, numbers)
    assert list(reader.ints(len(numbers))) == numbers
    assert reader.left == 0


@pytest.mark.parametrize("numbers", [[BEGINNING, END_OF_TIME], [END_OF_TIME, BEGINNING, BEGINNING], [0, END_OF_TIME]])
def test_from_the_beginning_to_the_end_of_time(numbers: list[int]) -> None:
    """Streams of one agent may be at both ends: the difference has 65 bits."""
    assert list(written(put_ints, numbers).ints(len(numbers))) == numbers


@pytest.mark.parametrize(
    ("numbers", "most_bytes"),
    [
        ([7] * 1000, 4),
        (range(10**12, 10**12 + 1000), 12),
        ([10**12 + 250 * number for number in range(1000)], 12),
        ([0, 100] * 500, 1010),  # steps of 100 and -100: one byte each, counted from the smallest
    ],
)
def test_numbers_that_change_little_are_small(numbers: list[int], most_bytes: int) -> None:
    out = bytearray()
    put_ints(out, list(numbers))
    assert len(out) <= most_bytes


@given(st.lists(COUNTS))
def test_numbers_that_are_no_sequence(numbers: list[int]) -> None:
    reader = written(put_small, numbers)
    assert list(reader.small(len(numbers), 2**63)) == numbers
    assert reader.left == 0


@given(st.lists(COUNTS, min_size=1))
def test_a_number_at_the_limit_is_refused(numbers: list[int]) -> None:
    with pytest.raises(MalformedBatch, match="must stand"):
        written(put_small, numbers).small(len(numbers), max(numbers))


@given(st.lists(st.binary(max_size=40)) | st.lists(st.binary(min_size=3, max_size=3)))
def test_byte_strings(blobs: list[bytes]) -> None:
    for put, read in ((put_blobs, Reader.blobs), (put_values, Reader.values)):
        reader = written(put, blobs)
        assert read(reader, len(blobs)) == blobs
        assert reader.left == 0


@given(st.lists(st.text()))
def test_texts(texts: list[str]) -> None:
    reader = written(put_texts, texts)
    assert reader.texts(len(texts)) == texts
    assert reader.left == 0


def test_half_a_surrogate_pair_is_shown() -> None:
    assert written(put_texts, ["a\ud800b"]).texts(1) == ["a\\ud800b"]


@given(INT64)
def test_one_signed_number(number: int) -> None:
    out = bytearray()
    put_signed(out, number)
    reader = Reader(bytes(out))
    assert (reader.signed(), reader.left) == (number, 0)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_one_number_and_its_limit(number: int, limit: int) -> None:
    out = bytearray()
    put_varint(out, number)
    reader = Reader(bytes(out))
    if number <= limit:
        assert reader.varint(limit) == number
    else:
        with pytest.raises(MalformedBatch, match="at most"):
            reader.varint(limit)


@pytest.mark.parametrize(
    ("data", "read", "why"),
    [
        (b"", lambda reader: reader.byte(), "too soon"),
        (b"\x80" * 9, lambda reader: reader.varint(), "does not end"),
        (b"\xff" * 12, lambda reader: reader.varint(), "does not end"),
        (b"\xff" * 9 + b"\x7f", lambda reader: reader.signed(), "may stand"),
        (b"\xff" * 9 + b"\x01", lambda reader: reader.varint(), "at most"),
        (b"\x00\x03", lambda reader: reader.ints(2), "code 3"),
        (b"\x00\x01\x00", lambda reader: reader.ints(3), "too soon"),
        (b"\x00\x09" + bytes(8) + b"\x01", lambda reader: reader.ints(2), "too soon"),
        (b"\x02\x09" + bytes(16), lambda reader: reader.ints(2), "contradicts"),
        (b"\x02\x00" + b"\xfe" + b"\xff" * 8 + b"\x01", lambda reader: reader.ints(9), "range of 64 bits"),
        (b"\x05", lambda reader: reader.small(2, 9), "code 5"),
        (b"\x00\x09", lambda reader: reader.small(2, 9), "must stand"),
        (b"\x00\x02a", lambda reader: reader.blobs(1), "too soon"),
        (b"\x00\x09a", lambda reader: reader.blobs(1), "must stand"),
        (b"\x01\x01\x02ab", lambda reader: reader.blobs(2), "too soon"),
        (b"\x00\x02\xc3\x28", lambda reader: reader.texts(1), "UTF-8"),
    ],
)
def test_what_no_agent_writes_is_refused(data: bytes, read: Any, why: str) -> None:
    with pytest.raises(MalformedBatch, match=why):
        read(Reader(data))


@given(st.binary(max_size=60), st.integers(0, 300))
def test_any_bytes_are_a_column_or_refused(data: bytes, count: int) -> None:
    for read in (Reader.ints, Reader.blobs, Reader.values, Reader.texts, lambda reader, size: reader.small(size, 99)):
        try:
            assert len(read(Reader(data), count)) == count
        except MalformedBatch:
            pass


def test_columns_of_equal_numbers_share_an_allowance() -> None:
    """They take up no bytes, so that a few bytes could claim any number of them."""
    allowance = Allowance()
    for _ in range(MOST_NUMBERS // 50_000):
        assert len(Reader(b"\x00\x07", 0, allowance).small(50_000, 9)) == 50_000
    with pytest.raises(MalformedBatch, match="more than"):
        Reader(b"\x00\x00\x00", 0, allowance).ints(50_000)

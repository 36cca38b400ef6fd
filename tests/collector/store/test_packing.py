"""Columns of numbers come back as they were, in as few bytes as they need."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collector.store.packing import (
    all_rows,
    groups_of,
    pack,
    pack_groups,
    rows_between,
    spans_of,
    unpack,
    unpack_groups,
)
from protocol.records import BEGINNING, END_OF_TIME

NUMBERS = st.one_of(
    st.integers(BEGINNING, END_OF_TIME), st.integers(-3, 3), st.sampled_from([BEGINNING, END_OF_TIME, 255, 256, 65536])
)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 3)), max_size=40))
def test_groups_of_rows_are_read_back(rows: list[tuple[int, int, int]]) -> None:
    rows.sort(key=lambda row: row[2])
    columns = [np.array([row[place] for row in rows], "<i8") for place in range(3)]
    starts = groups_of(columns[2])
    packed = pack_groups(columns, starts)
    assert len(packed) == len({row[2] for row in rows})
    for data, (begin, end) in zip(packed, spans_of(starts, len(rows)), strict=True):
        assert list(zip(*[column.tolist() for column in unpack(data, 3)], strict=True)) == rows[begin:end]
        assert list(all_rows(data, 3)) == rows[begin:end]
    assert [column.tolist() for column in unpack_groups(packed, 3)] == [column.tolist() for column in columns]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40), NUMBERS, NUMBERS)
def test_rows_between_two_numbers(rows: list[tuple[int, int]], first: int, last: int) -> None:
    rows.sort()
    data = pack([np.array([row[place] for row in rows], "<i8") for place in range(2)])
    assert list(rows_between(data, 2, first, last)) == [row for row in rows if first <= row[0] <= last]


def test_a_column_takes_the_bytes_of_its_spread() -> None:
    def size_bytes(*numbers: int) -> int:
        return len(pack([np.array(numbers, "<i8")])) - len(pack([np.array([0], "<i8")]))

    assert size_bytes(END_OF_TIME, END_OF_TIME) == 0
    assert size_bytes(-5, 250) == 2
    assert size_bytes(-5, 251) == 4
    assert size_bytes(0, 65_535) == 4
    assert size_bytes(0, 65_536) == 8
    assert size_bytes(BEGINNING, END_OF_TIME) == 16


def test_no_rows_are_no_bytes() -> None:
    nothing = np.empty(0, "<i8")
    assert pack([nothing, nothing]) == b""
    assert [column.tolist() for column in unpack(b"", 2)] == [[], []]
    assert list(all_rows(b"", 2)) == []
    assert pack_groups([nothing], groups_of(nothing)) == []

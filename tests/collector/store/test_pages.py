"""Relations in pages against a plain list of entries: whatever is cut, merged and replaced, the same is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.store import pages, schema
from collector.store.packing import unpack_groups
from collector.store.pages import PAGE_BITS, Pages

ENDS = (-(1 << 63), (1 << 63) - 1)
ids = st.integers(0, 3 << PAGE_BITS) | st.integers(4_000, 4_200)  # far apart, and close to the border of two pages
entries = st.lists(st.tuples(ids, st.integers(0, 50) | st.sampled_from(ENDS)), min_size=1, max_size=40)


@contextmanager
def forward_pages(most_entries: int, most_fragments: int = 64) -> Iterator[tuple[Pages, sqlite3.Connection]]:
    db = sqlite3.connect(":memory:")
    schema.migrate(db, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "MOST_ENTRIES", most_entries)
        patch.setattr(pages, "MOST_FRAGMENTS", most_fragments)
        yield Pages(db, "forward_pages", 2), db
    db.close()


def add(table: Pages, told: list[tuple[int, int]]) -> None:
    table.add(list(np.array(sorted(told), "<i8").T), 1)


@given(st.lists(entries, max_size=8), st.lists(ids, max_size=20), st.integers(1, 9), st.sampled_from([2, 64]))
@settings(max_examples=max(30, settings().max_examples // 3))
def test_what_is_added_is_found(
    batches: list[list[tuple[int, int]]], wanted: list[int], most_entries: int, most_fragments: int
) -> None:
    with forward_pages(most_entries, most_fragments) as (table, _):
        for each in batches:
            add(table, each)
        every = [pair for each in batches for pair in each]
        wanted += [each for each, _ in every[:5]]
        found = table.find(np.array(wanted, "<i8"))
        assert sorted(zip(*[column.tolist() for column in found], strict=True)) == sorted(
            pair for pair in every if pair[0] in wanted
        )
        assert sorted(table.rows(sorted(set(wanted)))) == sorted(pair for pair in every if pair[0] in wanted)
        known = {each for each, _ in every}
        assert table.known(np.array(wanted, "<i8")).tolist() == [each in known for each in wanted]


@given(
    st.lists(entries, max_size=8),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(-1, 51) | st.sampled_from(ENDS),
    st.integers(-1, 51) | st.sampled_from(ENDS),
)
@settings(max_examples=max(30, settings().max_examples // 3))
def test_what_is_between_bounds_of_the_second_column(
    batches: list[list[tuple[int, int]]], first_page: int, last_page: int, least: int, most: int
) -> None:
    with forward_pages(3, 2) as (table, _):
        for each in batches:
            add(table, each)
        parts = table.between(first_page << PAGE_BITS, ((last_page + 1) << PAGE_BITS) - 1, least, most)
        found = [pair for ids, second in parts for pair in zip(ids.tolist(), second.tolist(), strict=True)]
        assert sorted(found) == sorted(
            (each, number)
            for batch in batches
            for each, number in batch
            if first_page <= each >> PAGE_BITS <= last_page and least <= number <= most
        )


def test_an_id_with_many_entries_is_found_by_reading_few_of_them() -> None:
    with forward_pages(most_entries=100, most_fragments=4) as (table, db):
        for begin in range(0, 1_000, 10):  # every id has 50 entries
            add(table, [(each, number) for each in range(begin, begin + 10) for number in range(50)])
        stored = db.execute("SELECT data FROM forward_pages").fetchall()
        assert max(len(unpack_groups(data, 2)[0]) for data in stored) == 100
        assert table.find(np.array([500], "<i8"))[1].tolist() == list(range(50))
        (whole,) = db.execute("SELECT sum(length(data)) FROM forward_pages").fetchone()
        assert 0 < table.size_bytes(500) < whole / 100
        assert table.size_bytes(1_000) == 0


def test_a_page_that_is_replaced_is_cut_again() -> None:
    with forward_pages(most_entries=100) as (table, db):
        add(table, [(each, 7) for each in range(1_000)])
        table.replace(0, [np.arange(0, 1_000, 2), np.full(500, 7)])
        assert db.execute("SELECT count(*) FROM forward_pages").fetchone() == (5,)
        assert table.page(0)[0].tolist() == list(range(0, 1_000, 2))
        table.replace(0, [np.empty(0, "<i8")] * 2)
        assert list(table.pages()) == []

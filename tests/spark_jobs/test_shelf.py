from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.shelf import FIRST_WIDTH_MS, MOST_SLOTS, Columns, Groups, Layout, Shelf, spans
from tests.support.plain_state import PlainState

RAGGED = Layout(flat=3, ragged=1)  # id, ts, count; values
times = st.one_of(st.integers(-3_000, 3_000), st.integers(-(2**62), 2**62))
rows = st.tuples(st.integers(0, 20), times, st.lists(st.integers(0, 99), max_size=3))
Model = list[tuple[int, int, list[int]]]


def groups(columns: Columns) -> Groups:
    """By the id: it stands for a stream here."""
    return Groups(columns[0] % 4, columns[0] % 2, columns[1], -columns[1], columns[2])


def opened(state: PlainState) -> Shelf:
    return Shelf(state, "things", RAGGED, time=1, groups=groups)


def table(of: Model) -> Columns:
    values = [each[2] for each in of]
    flat = [value for each in values for value in each]
    columns = [each[0] for each in of], [each[1] for each in of], [len(each) for each in values], flat
    return [np.array(column, "<i8") for column in columns]


def content(shelf: Shelf, model: Model) -> Model:
    """All rows, found by the times that they should have."""
    found: Model = []
    for slot in {int(each) for each in shelf.slots_of(np.array([ts for _, ts, _ in model], "<i8"))}:
        columns = shelf.read(slot)
        assert columns is not None
        ids, ts, counts, values = (column.tolist() for column in columns)
        assert ids == sorted(ids)
        for place, each in enumerate(ids):
            before = sum(counts[:place])
            found.append((each, ts[place], values[before : before + counts[place]]))
    return found


@given(st.lists(st.tuples(st.lists(rows, max_size=30), times), max_size=6))
def test_rows_are_kept_until_they_are_replaced(steps: list[tuple[Model, int]]) -> None:
    state, model = PlainState(), list[tuple[int, int, list[int]]]()
    for added, below in steps:
        shelf = opened(state)
        if added:
            shelf.add(table(added))
            model += added
        for slot in shelf.slots_where(shelf.index.low < below):
            columns = shelf.read(slot)
            if columns is not None:
                shelf.replace(slot, RAGGED.take(columns, np.flatnonzero(columns[1] >= below)))
        model = [each for each in model if each[1] >= below]
        shelf.save()
        shelf = opened(state)
        assert sorted(content(shelf, model)) == sorted(model)
        assert len(shelf) == len(model)
        assert shelf.bytes == sum(len(value) for (name, _), value in state.items() if name == "things")
        index = shelf.index
        told = set(zip(index.first.tolist(), index.second.tolist(), strict=True))
        assert told == {(each % 4, each % 2) for each, _, _ in model}
        for first, second in told:
            chosen = (index.first == first) & (index.second == second)
            mine = [ts for each, ts, _ in model if (each % 4, each % 2) == (first, second)]
            assert index.low[chosen].min() == min(mine)
            assert index.second_low[chosen].min() == -max(mine)


def test_slots_become_wider_and_an_empty_shelf_begins_anew() -> None:
    state = PlainState()
    shelf = opened(state)
    many: Model = [(each, each * FIRST_WIDTH_MS, [each]) for each in range(10 * MOST_SLOTS)]
    shelf.add(table(many))
    shelf.save()
    sizes = [len(value) for (name, _), value in state.items() if name == "things"]
    assert len(sizes) <= MOST_SLOTS
    assert shelf.bytes == sum(sizes)
    shelf = opened(state)
    assert sorted(content(shelf, many)) == many
    for slot in shelf.slots_where(np.ones(len(shelf.index.low), bool)):
        columns = shelf.read(slot)
        assert columns is not None
        shelf.replace(slot, [column[:0] for column in columns])
    shelf.save()
    assert [name for name, _ in state] == ["things.index"]
    assert opened(state).slots_of(np.array([FIRST_WIDTH_MS, -1], "<i8")).tolist() == [1, -1]


def test_what_has_not_changed_is_not_written() -> None:
    state = PlainState()
    shelf = opened(state)
    shelf.add(table([(1, 0, [1]), (2, 5_000, [])]))
    shelf.save()
    before = dict(state)
    shelf = opened(state)
    shelf.add(table([(3, 5_500, [7])]))
    shelf.save()
    assert {key for key in state if state[key] is not before.get(key)} == {("things", 5), ("things.index", 0)}


def test_spans() -> None:
    assert spans(np.array([5, 0, 9], "<i8"), np.array([2, 0, 3], "<i4")).tolist() == [5, 6, 9, 10, 11]
    assert spans(np.empty(0, "<i8"), np.empty(0, "<i4")).tolist() == []

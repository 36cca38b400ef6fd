"""Rows that a bucket keeps, by time: a stage reads and writes only the slots of time that concern it.

Beside the rows there is a small index: in which slot there are rows of which streams, and the lowest times among them.
It tells which slots to look into when something has moved on, without reading them. Slots become wider when there are
too many of them, so it does not matter whether the times are seconds or days apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import SEQ_BITS, Numbers, pack, unpack
from spark_jobs.state import State

FIRST_WIDTH_MS = 1_000
MOST_SLOTS = 128
Columns = list[NDArray[Any]]


class Layout(NamedTuple):
    """The columns of a table: `flat` of one value per row, then, if there are more, `ragged` ones: as many values per
    row as the last flat column says."""

    flat: int
    ragged: int = 0

    def take(self, columns: Sequence[NDArray[Any]], rows: NDArray[Any]) -> Columns:
        """Some rows."""
        taken = [column[rows] for column in columns[: self.flat]]
        if self.ragged:
            places = spans(_starts(columns[self.flat - 1])[rows], taken[-1])
            taken += [column[places] for column in columns[self.flat :]]
        return taken

    def concat(self, tables: Sequence[Sequence[NDArray[Any]]]) -> Columns:
        """All rows of some tables."""
        return [np.concatenate(column) for column in zip(*tables, strict=True)]


def _starts(counts: NDArray[Any]) -> Numbers:
    """Where the values of each row begin."""
    ends: Numbers = np.cumsum(counts, dtype=np.int64)
    return ends - counts.astype(np.int64)


def spans(starts: Numbers, counts: NDArray[Any]) -> Numbers:
    """The places start, start + 1, ... of each span, one span after the other."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


class Groups(NamedTuple):
    """What the index keeps of rows: two streams that they belong to, and three times. What is not needed is 0."""

    first: Numbers
    second: Numbers
    low: Numbers
    second_low: Numbers
    third_low: Numbers

    def lowest(self) -> Groups:
        """One row per pair of streams."""
        return Groups(*_lowest(self)[1:])


def _lowest(groups: Groups) -> Columns:
    """Per pair of streams how many rows it has, the streams themselves, and the lowest times."""
    if not len(groups.first):
        return [np.empty(0, "<i8")] * 6
    order = np.lexsort((groups.second, groups.first))
    first, second = groups.first[order], groups.second[order]
    begins = np.flatnonzero(np.r_[True, (first[1:] != first[:-1]) | (second[1:] != second[:-1])])
    lows = [np.minimum.reduceat(column[order], begins) for column in groups[2:]]
    return [np.diff(np.r_[begins, len(order)]), first[begins], second[begins], *lows]


def by_stream(columns: Columns) -> Groups:
    """Of tables that begin with the id of a tuple and its time."""
    nothing = np.zeros(len(columns[0]), "<i8")
    return Groups(columns[0] >> SEQ_BITS, nothing, columns[1], nothing, nothing)


class Shelf:
    """A table in the state of a bucket. Save it when done."""

    def __init__(
        self, state: State, name: str, layout: Layout, time: int, groups: Callable[[Columns], Groups], order: int = 0
    ) -> None:
        """`time` is the column by which slots are chosen, `order` the one by which the rows of a slot are sorted."""
        self._state, self._name, self._layout = state, name, layout
        self._time, self._groups, self._order = time, groups, order
        self._loaded: dict[int, Columns | None] = {}
        self._changed: set[int] = set()
        found = state.get(name + ".index", 0)
        head, *index = unpack(found) if found else [np.array([FIRST_WIDTH_MS, 0], "<i8"), *(np.empty(0, "<i8"),) * 7]
        self._width, self._bytes = (int(each) for each in head)
        self._sizes: dict[int, int] = {}
        self._slots: Numbers
        self._counts: Numbers
        self._slots, self._counts, *rest = index
        self._index = Groups(*rest)

    def __len__(self) -> int:
        """How many rows there are; after `save`."""
        return int(self._counts.sum())

    @property
    def bytes(self) -> int:
        """How many bytes they take; after `save`."""
        return self._bytes

    @property
    def index(self) -> Groups:
        """Which streams have rows, and the lowest times among them; as it was when last saved."""
        return self._index

    def slots_of(self, times: Numbers) -> Numbers:
        """The slots that hold rows of these times."""
        return np.floor_divide(times, self._width)

    def slots_where(self, chosen: NDArray[np.bool_]) -> list[int]:
        """The slots of some rows of the index, and those that have changed since it was written."""
        return sorted({*self._slots[chosen].tolist(), *self._changed})

    def read(self, slot: int) -> Columns | None:
        """The rows of a slot, sorted; None if there are none."""
        if slot not in self._loaded:
            known = np.searchsorted(self._slots, slot)
            is_there = known < len(self._slots) and self._slots[known] == slot
            blob = self._state.get(self._name, slot) if is_there else None
            self._loaded[slot] = None if blob is None else unpack(blob)
            self._sizes[slot] = 0 if blob is None else len(blob)
        return self._loaded[slot]

    def replace(self, slot: int, columns: Columns) -> None:
        """Other rows instead of those of a slot that was read; they must be sorted."""
        self._loaded[slot] = columns if len(columns[0]) else None
        self._changed.add(slot)

    def add(self, columns: Columns) -> None:
        """More rows."""
        slots = self.slots_of(columns[self._time])
        order = np.lexsort((columns[self._order], slots))
        ordered = slots[order]
        for slot in np.unique(slots).tolist():
            rows = order[np.searchsorted(ordered, slot) : np.searchsorted(ordered, slot, "right")]
            new = self._layout.take(columns, rows)
            old = self.read(slot)
            self.replace(slot, new if old is None else self._sorted(self._layout.concat([old, new])))

    def _sorted(self, columns: Columns) -> Columns:
        return self._layout.take(columns, np.argsort(columns[self._order], kind="stable"))

    def save(self) -> None:
        """Write what has changed."""
        if not self._changed:
            return
        keep = ~np.isin(self._slots, np.array(sorted(self._changed), "<i8"))
        known = set(self._slots.tolist())
        parts = [[self._slots[keep], self._counts[keep], *(column[keep] for column in self._index)]]
        for slot in sorted(self._changed):
            columns = self._loaded[slot]
            blob = b"" if columns is None else pack(columns)
            if columns is not None:
                self._state.put(self._name, slot, blob)
                parts.append(self._summary(slot, columns))
            elif slot in known:
                self._state.remove(self._name, slot)
            self._bytes += len(blob) - self._sizes[slot]
            self._sizes[slot] = len(blob)
        merged = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(merged[0], kind="stable")
        self._slots, self._counts, *rest = (column[order] for column in merged)
        self._index = Groups(*rest)
        self._changed.clear()
        if not len(self._slots):
            self._width = FIRST_WIDTH_MS
        elif len(np.unique(self._slots)) > MOST_SLOTS:
            self._widen()
        head = np.array([self._width, self._bytes], "<i8")
        self._state.put(self._name + ".index", 0, pack([head, self._slots, self._counts, *self._index]))

    def _summary(self, slot: int, columns: Columns) -> Columns:
        """The rows of the index for one slot: one per pair of streams."""
        counts, *groups = _lowest(self._groups(columns))
        return [np.full(len(counts), slot, "<i8"), counts, *groups]

    def _widen(self) -> None:
        """Fewer slots: each twice as wide as before, as often as need be."""
        slots = np.unique(self._slots)
        tables = [columns for slot in slots.tolist() if (columns := self.read(slot)) is not None]
        for slot in slots.tolist():
            self._state.remove(self._name, slot)
        while len(np.unique(slots)) > MOST_SLOTS // 2:
            self._width, slots = self._width * 2, slots >> 1
        self._slots, self._counts, *rest = [np.empty(0, "<i8")] * 7
        self._index = Groups(*rest)
        self._loaded.clear()
        self._bytes = 0
        self.add(self._layout.concat(tables))
        self.save()

"""For each stream a time that only grows: what is older and comes from now on is late."""

from __future__ import annotations

import numpy as np

from protocol.chunks import Numbers, pack, unpack
from protocol.records import BEGINNING
from spark_jobs.state import State


class Limits:
    """Those of one bucket, kept in its state."""

    def __init__(self, state: State, name: str) -> None:
        self._state, self._name = state, name
        found = state.get(name, 0)
        columns = unpack(found) if found else [np.empty(0, "<i8")] * 2
        self._times: dict[int, int] = dict(zip(*(column.tolist() for column in columns), strict=True))
        self._is_changed = False

    @property
    def streams(self) -> list[int]:
        """Those that have one."""
        return list(self._times)

    def of(self, streams: Numbers) -> Numbers:
        """The limits of many tuples, of which the streams are given."""
        numbers, which = np.unique(streams, return_inverse=True)
        found: Numbers = np.array([self._times.get(each, BEGINNING) for each in numbers.tolist()], "<i8")[which]
        return found

    def rise(self, stream: int, time: int) -> None:
        """What is older than this is late from now on."""
        if time > self._times.get(stream, BEGINNING):
            self._times[stream] = time
            self._is_changed = True

    def save(self) -> None:
        """Keep them for the next micro-batch."""
        if self._is_changed:
            columns = (self._times.keys(), self._times.values())
            self._state.put(self._name, 0, pack([np.array(list(column), "<i8") for column in columns]))

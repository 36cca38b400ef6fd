"""From the capture to the graph: when does a result, or a task, that a device has told become visible in the store?

A result and a task carry the time at which they were captured. The store is asked ten times a second for what is new,
like any reader that follows it, and the time of the answer is the time at which that is visible.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np

from collector.store import ChangeKind, StoreError, StoreReader, open_store
from protocol.chunks import SEQ_BITS
from threadline.load.breakdown import Breakdown
from threadline.load.histogram import Histogram

_EVERY_S = 0.1
_NO_KEY = -1


class Arrivals:
    """Follows what these starts of agents tell from now on, in a thread of its own. Tasks only if asked for: they are
    looked for agent by agent."""

    def __init__(self, store: str, starts: Iterable[tuple[str, int]], with_tasks: bool) -> None:
        self._path = open_store(store).path
        self._starts = frozenset(starts)
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._late_ms = Histogram()
        self._row = _feed_end(self._path)
        self._is_ours: dict[int, bool] = {}
        self._keys = dict.fromkeys(self._starts, _NO_KEY) if with_tasks else {}
        self.seen = 0
        """Results and tasks that are visible by now."""
        self.since_ms = 0
        """What was captured earlier is not counted as late."""
        self.failure: Breakdown | None = None
        """Why nobody follows it any more."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def take_ms(self) -> Histogram:
        """How late all was that became visible since this was last asked."""
        with self._lock:
            found, self._late_ms = self._late_ms, Histogram()
        return found

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            self.failure = Breakdown.failed("the look at the store", error)

    def _follow(self) -> None:
        reader: StoreReader | None = None
        while not self._done.wait(_EVERY_S):
            try:
                reader = reader or StoreReader(self._path)
                results, row = self._results(reader)
                tasks, keys = self._tasks(reader)
            except StoreError:  # it is not there yet, or busy: what was read is read again
                continue
            now_ms = time.time_ns() // 1_000_000
            found = results + tasks
            self._row = row
            self._keys |= keys
            with self._lock:
                self.seen += len(found)
                for captured_ms in found:
                    if captured_ms >= self.since_ms:
                        self._late_ms.add(now_ms - captured_ms)
        if reader is not None:
            reader.close()

    def _results(self, reader: StoreReader) -> tuple[list[int], int]:
        """When those were captured that are new in the graph, and up to which row of the feed that is."""
        found: list[int] = []
        told = reader.told(ChangeKind.SINK, self._row)
        for _, (ids, times) in told:
            streams = ids >> SEQ_BITS
            new = [each for each in np.unique(streams).tolist() if each not in self._is_ours]
            names = reader.stream_names(new)
            for each in new:
                self._is_ours[each] = each in names and names[each][:2] in self._starts
            ours = np.fromiter(map(self._is_ours.__getitem__, streams.tolist()), bool, len(streams))
            found += times[ours].tolist()
        return found, told[-1][0] if told else self._row

    def _tasks(self, reader: StoreReader) -> tuple[list[int], dict[tuple[str, int], int]]:
        """When those have begun that are new, and the last of them of each start."""
        found: list[int] = []
        keys: dict[tuple[str, int], int] = {}
        for start, last in self._keys.items():
            for key, begun_ms, _ in reader.tasks_after(*start, last):
                keys[start] = key
                found.append(begun_ms)
        return found, keys


def _feed_end(path: Path) -> int:
    """Behind all that others have told; a store that is not there yet has nothing of theirs."""
    try:
        with StoreReader(path) as reader:
            return reader.feed_end().row
    except StoreError:
        return 0

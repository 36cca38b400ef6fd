"""For each stream a time that only grows. There are three of them:

    purged      MU, a Send      deliveries before this were let go of: what refers to them and was not waiting is late
    labelled    ANK, a source   readings before this have expired: edges to them are late
    latest      both            the youngest tuple that the log has named: once no sink can name that, none can name
                                any, and the stream has passed

When a stream is forgotten, `latest` goes, `purged` is set aside here, and `labelled` goes into `spark_jobs.aside`
together with the stream's name: only that of a source is ever needed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from protocol.chunks import Numbers, pack, unpack
from protocol.ranges import Ranges
from protocol.records import BEGINNING
from spark_jobs.state import State

_PAGE_BITS = 10


class Limits:
    """Those of one bucket, kept in its state. Those of streams that are gone are set aside: they are read only if
    somebody asks for them."""

    def __init__(self, state: State, name: str) -> None:
        self._state, self._name = state, name
        self._times = _read(state.get(name, 0))
        self._is_changed = False

    @property
    def streams(self) -> list[int]:
        """Those that have one, without those that are gone."""
        return list(self._times)

    def get(self, stream: int) -> int:
        """That of a stream that is not gone."""
        return self._times.get(stream, BEGINNING)

    def of(self, streams: Numbers, gone: Ranges | None = None) -> Numbers:
        """The limits of many tuples, of which the streams are given; some of them may be gone."""
        numbers, which = np.unique(streams, return_inverse=True)
        limits = [max(self.get(each), self._set_aside(each, gone)) for each in numbers.tolist()]
        found: Numbers = np.array(limits, "<i8")[which]
        return found

    def rise(self, stream: int, time: int) -> None:
        """What is older than this is late from now on."""
        if time > self.get(stream):
            self._times[stream] = time
            self._is_changed = True

    def forget(self, streams: Iterable[int]) -> None:
        """These are gone, and nobody will ask for them here."""
        for stream in streams:
            self._is_changed |= self._times.pop(stream, None) is not None

    def set_aside(self, streams: Iterable[int]) -> None:
        """These are gone, but somebody may ask for them."""
        pages: dict[int, dict[int, int]] = defaultdict(dict)
        for stream in streams:
            if stream in self._times:
                pages[stream >> _PAGE_BITS][stream] = self._times.pop(stream)
                self._is_changed = True
        for page, times in pages.items():
            known = self._page(page)
            for stream, time in times.items():
                known[stream] = max(time, known.get(stream, time))
            self._put(f"{self._name}.gone", page, known)

    def save(self) -> None:
        """Keep them for the next micro-batch."""
        if self._is_changed:
            self._put(self._name, 0, self._times)

    def _set_aside(self, stream: int, gone: Ranges | None) -> int:
        is_gone = gone is not None and stream in gone
        return self._page(stream >> _PAGE_BITS).get(stream, BEGINNING) if is_gone else BEGINNING

    def _page(self, page: int) -> dict[int, int]:
        return _read(self._state.get(f"{self._name}.gone", page))

    def _put(self, name: str, number: int, times: dict[int, int]) -> None:
        columns = (times.keys(), times.values())
        self._state.put(name, number, pack([np.array(list(column), "<i8") for column in columns]))


def _read(data: bytes | None) -> dict[int, int]:
    columns = unpack(data) if data else [np.empty(0, "<i8")] * 2
    return dict(zip(*(column.tolist() for column in columns), strict=True))

"""How records are grouped into batches: by size, count and age.

A batch should fill a datagram once it is compressed, which one knows only afterwards. So the size is foretold from how
well the last batches were compressed.
"""

from __future__ import annotations

from edge_agent.config import Settings
from protocol.wire.sections import EventKind, Kind, Pending

_LEAST_RATIO, _FIRST_RATIO = 1 / 16, 0.5
_ROW_BYTES, _ORIGIN_BYTES, _ITEM_BYTES = 16, 4, 12
_TASK_ENDED = int(EventKind.TASK_ENDED)


def size_of(row: Pending) -> int:
    """About how many bytes a record takes up before compression."""
    kind = row[0]
    if kind is Kind.DELIVERY:
        return _ROW_BYTES + len(row[5]) + _ORIGIN_BYTES * len(row[6])
    if kind is Kind.EVENT:
        items = row[8] if row[1] == 2 else row[6] if row[1] == _TASK_ENDED else ()
        return _ROW_BYTES + sum([_ITEM_BYTES + len(item[4]) for item in items])
    if kind is Kind.PROGRESS:
        return _ROW_BYTES
    return _ROW_BYTES + sum([len(part) for part in row if type(part) is bytes])


class Group:
    """The records of the next batch. Of each stream's progress only the last one matters."""

    def __init__(self, settings: Settings) -> None:
        self.rows: list[Pending] = []
        self.since: float | None = None
        self._progress: dict[int, Pending] = {}
        self._held: list[int] = []
        self._bytes = 0
        self._ratio = _FIRST_RATIO
        self._settings = settings

    def __bool__(self) -> bool:
        return self.since is not None

    def add(self, row: Pending, held_bytes: int, now: float) -> bool:
        """Take a record in. True: that is enough for a batch."""
        if self.since is None:
            self.since = now
        if row[0] is Kind.PROGRESS:
            self._progress[id(row[1])] = row
            return False
        self.rows.append(row)
        self._held.append(held_bytes)
        self._bytes += size_of(row)
        return self.is_full

    @property
    def is_full(self) -> bool:
        """It is enough for a batch."""
        settings = self._settings
        return self._bytes * self._ratio >= settings.batch_bytes or len(self.rows) >= settings.batch_records

    def progress(self) -> list[Pending]:
        """How far the streams have come, the records of this group included."""
        return list(self._progress.values())

    def written(self, count: int, size: int) -> int:
        """The first records have become a batch of so many bytes. Returns how much memory they held."""
        whole = count == len(self.rows)
        raw = self._bytes if whole else sum([size_of(row) for row in self.rows[:count]])
        if raw:
            self._ratio = max(_LEAST_RATIO, 0.5 * self._ratio + 0.5 * size / raw)
        freed = sum(self._held[:count])
        self._bytes -= raw
        if whole:
            self.rows, self._held, self._progress, self._bytes, self.since = [], [], {}, 0, None
        else:
            self.rows, self._held = self.rows[count:], self._held[count:]
        return freed

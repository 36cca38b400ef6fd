"""How records are grouped into batches: by size, count and age.

A batch should fill a datagram once it is compressed, which one knows only afterwards. So the size is foretold from how
well the last batches were compressed.
"""

from __future__ import annotations

from edge_agent.config import Settings
from protocol.wire.compression import MOST_BODY_BYTES
from protocol.wire.sections import Kind, Pending

_LEAST_RATIO, _FIRST_RATIO = 1 / 64, 1 / 16
_OVERFULL = 1.1


class Group:
    """The records of the next batch. Of each stream's progress only the last one matters."""

    def __init__(self, settings: Settings) -> None:
        self.rows: list[Pending] = []
        self.since: float | None = None
        self._progress: dict[str, Pending] = {}
        self._held: list[int] = []
        self._bytes = 0
        self._ratio = _FIRST_RATIO
        self._settings = settings
        self._enough_bytes = self._foretold_bytes()
        self.is_full = False
        """It is enough for a batch."""

    @property
    def is_moderate(self) -> bool:
        """It is no more than what makes a batch. Only what belongs together can be more."""
        return self._bytes <= MOST_BODY_BYTES // 2

    def __bool__(self) -> bool:
        return self.since is not None

    def add(self, row: Pending, held_bytes: int, now: float) -> None:
        """Take a record in."""
        if self.since is None:
            self.since = now
        if row[0] is Kind.PROGRESS:
            self._progress[row[1].name] = row
            return
        self.rows.append(row)
        self._held.append(held_bytes)
        self._bytes += held_bytes
        self.is_full = self._bytes >= self._enough_bytes or len(self.rows) >= self._settings.batch_records

    def _foretold_bytes(self) -> float:
        """How much makes a batch: no more than what can be unpacked again. Until then it is in the journal,
        uncompressed and in pieces, which must not fill a small spool."""
        most = min(self._settings.spool_bytes // 16, MOST_BODY_BYTES // 4)
        return min(self._settings.batch_bytes / self._ratio, most)

    def has_room(self, held_bytes: int) -> bool:
        """Whether a record of this size fits in as well, as far as one can tell."""
        return not self.rows or self._bytes + held_bytes <= _OVERFULL * self._enough_bytes

    def progress(self) -> list[Pending]:
        """How far the streams have come, the records of this group included."""
        return list(self._progress.values())

    def written(self, count: int, size: int) -> int:
        """The first records have become a batch of so many bytes. Returns how much memory they held."""
        whole = count == len(self.rows)
        freed = self._bytes if whole else sum(self._held[:count])
        if freed:
            self._ratio = max(_LEAST_RATIO, 0.5 * self._ratio + 0.5 * size / freed)
            self._enough_bytes = self._foretold_bytes()
        self._bytes -= freed
        if whole:
            self.rows, self._held, self._progress, self._bytes, self.since = [], [], {}, 0, None
        else:
            self.rows, self._held = self.rows[count:], self._held[count:]
        self.is_full = self._bytes >= self._enough_bytes
        return freed

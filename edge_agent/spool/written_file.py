"""A file of a spool that was written, and may not be safe from a power cut yet.

After a sync that failed, the next one proves nothing: the system may have dropped what it could not write. So all of it
is written anew before it is synced again.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from edge_agent.spool.files import write_anew


class WrittenFile(ABC):
    """What journal and segments have in common."""

    __slots__ = ("_fd", "is_doubtful", "is_synced", "path", "size_bytes", "writes")

    def __init__(self, path: str, size_bytes: int, *, is_synced: bool) -> None:
        self.path = path
        self.size_bytes = size_bytes
        """Length of the file."""
        self.is_synced = is_synced
        self.is_doubtful = False
        """A sync has failed since it was written."""
        self.writes = 0
        """How often this process has written to it."""
        self._fd = -1

    def handle(self) -> int:
        """Another handle of the file, for somebody else to sync and to close.

        It is no copy of ours: the system tells an error once to each, and ours is to be told too.
        """
        self._resolve_doubt()
        self._opened()
        return os.open(self.path, os.O_RDONLY)

    def sync(self) -> None:
        """Return when all of it is on the disk."""
        self._resolve_doubt()
        try:
            os.fdatasync(self._opened())
        except OSError:
            self.is_doubtful = True
            raise
        self.is_synced = True

    def close(self) -> None:
        """Write no more; to read, the file is opened again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _resolve_doubt(self) -> None:
        if self.is_doubtful:
            write_anew(self.path, self._written_bytes(), self._is_whole)
            self.is_doubtful = False

    def _written_bytes(self) -> int:
        """How much of it was written and still counts."""
        return self.size_bytes

    @abstractmethod
    def _is_whole(self, data: bytes) -> bool:
        """Whether that is what was written."""

    @abstractmethod
    def _opened(self) -> int:
        """A handle of the file."""

"""The folder of a spool: one process holds it, and the names in it are safe from a power cut only when it is synced."""

from __future__ import annotations

import os

from edge_agent.spool.errors import SpoolUnusable
from edge_agent.spool.files import lock


class Folder:
    """Held from `hold` until `close`."""

    __slots__ = ("_fd", "_lock_fd", "_safe_names", "names", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.names = 1
        """So many names were given in it, those that the last process gave counted as one: they may not be safe."""
        self._safe_names = 0
        self._fd = self._lock_fd = -1

    def hold(self) -> None:
        """Make it, if there is none, and keep others out."""
        os.makedirs(self.path, exist_ok=True)
        self._lock_fd = lock(self.within("lock"))
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def within(self, name: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, name)

    @property
    def is_held(self) -> bool:
        return self._lock_fd >= 0

    def check_held(self) -> None:
        """Raise SpoolUnusable if what is written into it now would be lost."""
        if self._lock_fd < 0:
            raise SpoolUnusable(f"spool {self.path}: it is closed")
        if not os.fstat(self._fd).st_nlink:  # what is written now would be gone with the process
            raise SpoolUnusable(f"spool {self.path}: somebody has deleted it")

    @property
    def is_synced(self) -> bool:
        """Whether a power cut can take none of the names."""
        return self._safe_names == self.names

    def sync(self) -> None:
        """Return when all names are safe."""
        if not self.is_synced:
            os.fsync(self._fd)
            self._safe_names = self.names

    def handle(self) -> int:
        """Another handle of it, for somebody else to sync and to close."""
        return os.dup(self._fd)

    def synced(self, names: int) -> None:
        """Somebody else has synced it, when so many names had been given."""
        self._safe_names = max(self._safe_names, names)

    def close(self) -> None:
        """Let others have it."""
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1

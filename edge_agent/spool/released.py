"""Up to where the entries of a spool were acknowledged.

Twelve bytes, written over each time and never synced: whoever loses them only sends something again.
"""

from __future__ import annotations

import os
import struct
from zlib import crc32

from edge_agent.spool.files import read_whole, write_at

_POSITION = struct.Struct("<QI")  # the first number that is not released, and a check
RELEASED_BYTES = _POSITION.size


class ReleasedPosition:
    """One file, opened when it is first written."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def load(self) -> int:
        """The first number that is not released, as far as is known."""
        try:
            data = read_whole(self._path)
        except FileNotFoundError:
            return 0
        if len(data) != RELEASED_BYTES:
            return 0
        first, check = _POSITION.unpack(data)
        return int(first) if crc32(data[:8]) == check else 0

    def save(self, first: int) -> None:
        """Note the position, if the disk takes it."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            write_at(self._fd, _POSITION.pack(first, crc32(first.to_bytes(8, "little"))), 0)
        except OSError:
            pass  # the entries are sent again after a restart

    def close(self) -> None:
        """Write no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

"""The pieces of the entry that is still being made, so that a crash does not take them.

Every piece names the number of the entry it will be part of. Once that entry is in a segment, its pieces count for
nothing, without a word being written here: the entry's own write is the moment. The room is then used again from the
start (`rewind`), and what is left behind the newest piece from an earlier round is known by its lower number.
"""

from __future__ import annotations

import os

from edge_agent.spool.files import read_whole, try_truncate, write_at
from edge_agent.spool.frames import HEADER_BYTES, PIECE, content_of, frame_at, pack_frame
from edge_agent.spool.written_file import WrittenFile

_SEED = 0
_NONE = -1


class Journal(WrittenFile):
    """One file, opened when the first piece is written. It is cut when it is empty and larger than `roomy_bytes`."""

    __slots__ = ("_end", "_roomy_bytes", "newest", "round", "synced_through")

    def __init__(self, path: str, roomy_bytes: int) -> None:
        super().__init__(path, 0, is_synced=True)
        self._roomy_bytes = roomy_bytes
        self._end = 0
        self.newest = _NONE
        """The number of the newest piece's entry."""
        self.round = 0
        """How often the room was used again."""
        self.synced_through = _NONE
        """The newest number of which pieces are here whose writer was told that they are on the disk."""

    def load(self) -> list[tuple[int, bytes]]:
        """The pieces of the last round, each with its number; new ones go behind them."""
        try:
            data = read_whole(self.path)
        except FileNotFoundError:
            return []
        self.size_bytes = len(data)
        pieces = []
        while (frame := frame_at(data, self._end, _SEED)) is not None and frame.first >= self.newest:
            pieces.append((frame.first, content_of(frame, data)))
            self.newest = frame.first
            self._end = frame.end
        self.synced_through = self.newest
        self.is_synced = not pieces
        return pieces

    @property
    def holds_synced(self) -> bool:
        """Whether there are pieces here whose writer was told that they are on the disk."""
        return self.synced_through != _NONE

    @property
    def is_roomy(self) -> bool:
        """It has grown so much that it should be rewound."""
        return self._end > self._roomy_bytes

    def growth_bytes(self, piece: bytes) -> int:
        """By how much this piece would make the file longer."""
        return max(self._end + HEADER_BYTES + len(piece) - self.size_bytes, 0)

    def write(self, piece: bytes, number: int, *, durable: bool) -> None:
        """Put the piece behind the others; after an error it is not there."""
        frame = pack_frame(PIECE, number, number, piece, _SEED)
        fd = self._opened()
        try:
            write_at(fd, frame, self._end)
            if durable:
                os.fdatasync(fd)
        except OSError:
            try_truncate(fd, self._end)
            self.size_bytes = self._end
            self.is_synced = False
            raise
        self._end += len(frame)
        self.size_bytes = max(self.size_bytes, self._end)
        self.newest = number
        self.writes += 1
        self.is_synced = durable
        if durable:
            self.synced_through = number

    def sync(self) -> None:
        """Return when all pieces are on the disk."""
        super().sync()
        self.synced_through = self.newest if self._end else _NONE

    def _written_bytes(self) -> int:
        return self._end

    def _is_whole(self, data: bytes) -> bool:
        end = 0
        while (frame := frame_at(data, end, _SEED)) is not None:
            end = frame.end
        return end == self._end

    def rewind(self) -> None:
        """Use the room again: all pieces have become part of entries."""
        if self.size_bytes > self._roomy_bytes:
            fd = self._opened()
            try_truncate(fd, 0)
            self.size_bytes = os.fstat(fd).st_size
        self._end = 0
        self.round += 1
        self.is_synced = True
        self.is_doubtful = False
        self.synced_through = _NONE

    def _opened(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        return self._fd

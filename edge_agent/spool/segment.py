"""One file of a spool: a head, then entries with consecutive numbers; or a head and one entry in place of many.

In memory it is an array of offsets: the n-th belongs to the n-th number, 0 means that the entry is unreadable.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence

from edge_agent.spool.files import read_whole, try_truncate, write_at
from edge_agent.spool.frames import (
    ENTRY,
    HEAD,
    HEADER_BYTES,
    REPLACEMENT,
    find_frames,
    frame_at,
    frame_bytes,
    pack_frame,
)
from edge_agent.spool.written_file import WrittenFile

_UNREADABLE = 0


def head_of_segment(first: int) -> bytes:
    """What a segment's file begins with: it tells whose file this is, and leaves no entry at offset 0."""
    return pack_frame(HEAD, first, first, b"", first)


class Segment(WrittenFile):
    """Only a segment made by `create` takes entries, until `close`. The others are opened when they are read."""

    __slots__ = ("first", "offsets", "replaced_through")

    def __init__(self, path: str, first: int, size_bytes: int = 0) -> None:
        super().__init__(path, size_bytes, is_synced=False)  # so much of it is good
        self.first = first
        self.offsets = array("Q")
        self.replaced_through: int | None = None
        """The last number for which the only entry stands, if this is a replacement."""

    @classmethod
    def create(cls, path: str, draft: str, first: int, *, durable: bool) -> Segment:
        """A new file without entries. It has its name only when its head is written."""
        head = head_of_segment(first)
        segment = cls(path, first, len(head))
        segment._fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_at(segment._fd, head, 0)
            if durable:
                os.fsync(segment._fd)
            os.rename(draft, path)
        except OSError:
            try_truncate(segment._fd, 0)
            segment.close()
            raise
        return segment

    @classmethod
    def replacement(cls, path: str, draft: str, first: int, last: int, entry: bytes) -> Segment:
        """A file with one entry in place of the entries first..last; it takes the name, and so the place, of the first.

        It is written over the draft: where that file has its blocks already, a full disk has room for it.
        """
        head = head_of_segment(first)
        data = head + pack_frame(REPLACEMENT, first, last, entry, first)
        segment = cls(path, first, len(data))
        segment.offsets.append(len(head))
        segment.replaced_through = last
        segment._write_whole(draft, data)
        return segment

    @classmethod
    def whole(cls, path: str, draft: str, first: int, entries: Sequence[bytes]) -> Segment:
        """A file with these entries from the first number on: all of them, or it has not its name."""
        data = bytearray(head_of_segment(first))
        segment = cls(path, first)
        for number, entry in enumerate(entries, first):
            segment.offsets.append(len(data))
            data += pack_frame(ENTRY, number, number, entry, first)
        segment.size_bytes = len(data)
        segment._write_whole(draft, bytes(data))
        return segment

    def _write_whole(self, draft: str, data: bytes) -> None:
        self._fd = os.open(draft, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            write_at(self._fd, data, 0)
            os.ftruncate(self._fd, len(data))
            os.fsync(self._fd)
            os.rename(draft, self.path)
        except OSError:
            self.close()
            raise
        self.is_synced = True

    @classmethod
    def load(cls, path: str, first: int, limit: int | None) -> tuple[Segment, int]:
        """The segment as it is on disk, and how many bytes after it are no entry.

        Numbers from `limit` on belong to the next segment: an entry with such a number was taken back.
        """
        data = read_whole(path)
        segment = cls(path, first)
        for frame in find_frames(data, first):
            if frame.kind == REPLACEMENT:
                segment.replaced_through = frame.last
                segment.offsets = array("Q", [frame.offset])
            elif frame.kind != HEAD:
                if frame.first < segment.next or (limit is not None and frame.first >= limit):
                    continue
                segment.offsets.extend([_UNREADABLE] * (frame.first - segment.next))
                segment.offsets.append(frame.offset)
            segment.size_bytes = frame.end
        return segment, len(data) - segment.size_bytes

    @property
    def next(self) -> int:
        """The number after its last one."""
        return self.first + len(self.offsets) if self.replaced_through is None else self.replaced_through + 1

    def count(self, from_number: int, through: int) -> int:
        """How many readable entries end within these numbers."""
        if self.replaced_through is not None:
            return int(from_number <= self.replaced_through <= through and self.offsets[0] != _UNREADABLE)
        part = self.offsets[max(from_number - self.first, 0) : max(through + 1 - self.first, 0)]
        return len(part) - part.count(_UNREADABLE)

    def readable_from(self, number: int) -> int | None:
        """The lowest number from this one on whose entry is readable, as far as is known."""
        if self.replaced_through is not None:
            return max(number, self.first) if number < self.next and self.offsets[0] != _UNREADABLE else None
        for index in range(max(number - self.first, 0), len(self.offsets)):
            if self.offsets[index] != _UNREADABLE:
                return self.first + index
        return None

    def unreadable(self) -> list[range]:
        """The numbers whose entries cannot be read."""
        if self.replaced_through is not None or _UNREADABLE not in self.offsets:
            return []
        return [range(self.first + n, self.first + n + 1) for n, at in enumerate(self.offsets) if at == _UNREADABLE]

    def append(self, entry: bytes, *, durable: bool) -> None:
        """Write the next entry behind the others; after an error the file is as it was."""
        offset = self.size_bytes
        frame = pack_frame(ENTRY, self.next, self.next, entry, self.first)
        try:
            write_at(self._fd, frame, offset)
            if durable:
                os.fdatasync(self._fd)
        except OSError:
            try_truncate(self._fd, offset)
            self.is_synced = False
            raise
        self.offsets.append(offset)
        self.size_bytes = offset + len(frame)
        self.is_synced = durable
        self.writes += 1

    def read(self, number: int) -> tuple[int, int, bytes] | None:
        """What stands for this readable number: first and last number and the bytes. None: it has rotted since."""
        index = 0 if self.replaced_through is not None else number - self.first
        offset = self.offsets[index]
        try:
            data = os.pread(self._opened(), self._end_of(index) - offset, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        frame = frame_at(data, 0, self.first)
        if frame is None or not frame.first <= number <= frame.last:
            self.offsets[index] = _UNREADABLE
            return None
        return frame.first, frame.last, data[HEADER_BYTES : frame.end]

    def disbelieve(self, number: int) -> None:
        """An entry counts as unreadable from now on."""
        self.offsets[0 if self.replaced_through is not None else number - self.first] = _UNREADABLE

    def _end_of(self, index: int) -> int:
        end = self.offsets[index + 1] if index + 1 < len(self.offsets) else self.size_bytes
        if end != _UNREADABLE:
            return end
        # Blocks that cannot be read may follow: ask for no byte more than is needed.
        offset = self.offsets[index]
        return min(offset + frame_bytes(os.pread(self._opened(), HEADER_BYTES, offset)), self.size_bytes)

    def _is_whole(self, data: bytes) -> bool:
        return all(frame_at(data, at, self.first) is not None for at in self.offsets if at != _UNREADABLE)

    def cut(self) -> None:
        """Remove what follows the last good entry. It does no harm if that fails: nothing is written behind it."""
        try:
            os.truncate(self.path, self.size_bytes)
        except OSError:
            pass

    def _opened(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY)
        return self._fd

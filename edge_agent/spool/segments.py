"""All segments of a spool, oldest first: which there are, which one is written to, and reading on from any number."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from operator import attrgetter

from edge_agent.spool.errors import SpoolUnusable
from edge_agent.spool.files import try_unlink
from edge_agent.spool.folder import Folder
from edge_agent.spool.segment import Segment

_NAME = re.compile(r"(\d{20})\.v(\d+)")
_VERSION = "1"
_first_of = attrgetter("first")


class Segments:
    """Each has the number of its first entry for a name."""

    __slots__ = ("_folder", "_reading", "active", "all", "size_bytes")

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.all: list[Segment] = []
        self.active: Segment | None = None
        """The one that entries are appended to."""
        self.size_bytes = 0
        """What they take up together."""
        self._reading: Segment | None = None

    def load(self) -> int:
        """Take up what is in the folder. Returns how many bytes of an unfinished write were cut."""
        names = sorted(name for name in os.listdir(self._folder.path) if _NAME.fullmatch(name))
        for name in names:
            if name.rpartition(".v")[2] != _VERSION:
                raise SpoolUnusable(f"spool {self._folder.path}: {name} was written by another version of the agent")
        numbers = [int(name.partition(".")[0]) for name in names]
        torn_bytes = 0
        for name, first, limit in zip(names, numbers, [*numbers[1:], None], strict=False):
            path = self._folder.within(name)
            if self.all and first < self.all[-1].next:
                self._delete_replaced(path)
                continue
            segment, rest_bytes = Segment.load(path, first, limit)
            if limit is not None:
                segment.size_bytes += rest_bytes
            elif rest_bytes:
                torn_bytes = rest_bytes
                segment.cut()
            self.all.append(segment)
            self.size_bytes += segment.size_bytes
        return torn_bytes

    def _delete_replaced(self, path: str) -> None:
        """The replacement has its place. The crash came before it was deleted, and maybe before that was safe."""
        try:
            self._folder.sync()
        except OSError:
            return
        try_unlink(path)

    def path_of(self, first: int) -> str:
        """Of the segment that begins with this number."""
        return self._folder.within(f"{first:020}.v{_VERSION}")

    def count(self, from_number: int, through: int) -> int:
        """How many readable entries end within these numbers."""
        return sum(segment.count(from_number, through) for segment in self.all)

    def add(self, segment: Segment) -> None:
        """Another one, the newest, which has its name now."""
        if self.all and self.all[-1].first == segment.first:
            self._forget(self.all.pop())  # it had no entries; its name is the new one's
        self.all.append(segment)
        self.size_bytes += segment.size_bytes
        self._folder.names += 1

    def append(self, entry: bytes, *, durable: bool) -> None:
        """Write an entry into the active one."""
        assert self.active is not None
        before = self.active.size_bytes
        self.active.append(entry, durable=durable)
        self.size_bytes += self.active.size_bytes - before

    def delete_oldest(self) -> bool:
        """Tells whether it is gone."""
        if not try_unlink(self.all[0].path):
            return False
        self._forget(self.all.pop(0))
        return True

    def replace(self, count: int, replacement: Segment) -> None:
        """Another one has the name of the oldest, and takes the place of so many."""
        for segment in self.all[:count]:
            self._forget(segment)
        self.all[:count] = [replacement]
        self.size_bytes += replacement.size_bytes
        self._folder.names += 1

    def _forget(self, segment: Segment) -> None:
        segment.close()
        self.size_bytes -= segment.size_bytes
        if segment is self.active:
            self.active = None
        if segment is self._reading:
            self._reading = None

    @property
    def is_synced(self) -> bool:
        """Whether a power cut can take none of the entries, nor the names of the files."""
        return self._folder.is_synced and all(segment.is_synced for segment in reversed(self.all))

    def sync(self) -> None:
        """Return when what they hold is safe, and that there are segments of these names."""
        for segment in self.all:
            if not segment.is_synced:
                segment.sync()
                self._close_unused(segment)  # there may be more of them than handles are to be had
        self._folder.sync()

    def close_synced(self) -> None:
        """Those that are not in use need no handle any more."""
        for segment in self.all:
            if segment.is_synced:
                self._close_unused(segment)

    def _close_unused(self, segment: Segment) -> None:
        if segment is not self.active and segment is not self._reading:
            segment.close()

    def readable_from(self, number: int) -> tuple[Segment, int] | None:
        """The lowest number from this one on whose entry is readable, as far as is known, and where it is."""
        index = max(bisect_right(self.all, number, key=_first_of) - 1, 0)
        for segment in self.all[index:]:
            if (readable := segment.readable_from(number)) is not None:
                return segment, readable
        return None

    def read(self, segment: Segment, number: int) -> tuple[int, int, bytes] | None:
        """What stands for this readable number; one file besides the active one stays open for the next time."""
        if segment is not self._reading:
            if self._reading is not None and self._reading is not self.active:
                self._reading.close()
            self._reading = segment
        try:
            return segment.read(number)
        except OSError as error:
            raise SpoolUnusable(f"spool {self._folder.path}: {error}") from error

    def close(self) -> None:
        """Write no more."""
        for segment in self.all:
            segment.close()
        self.active = None

"""A durable first-in-first-out queue of numbered entries, in a folder of bounded size.

The idea: a file is only ever written at its end, by one process life, and every frame in it carries its own check. So
whatever a crash leaves is a good beginning and a bad end, and opening needs no log of what was going on: it reads the
files and believes what passes. What must change together hangs on one write or one rename.

Numbers go on for the life of the folder. The newest segment says where: by its name, even if a power cut has left
nothing else of it. So it stays when all its entries are released, until there is a newer one. Only the numbers of
entries that a power cut takes before they are synced may be given again.

    lock           held by the process that has the spool open
    000...050.v1   a segment: a head, then the entries from number 50 on
    journal        pieces of the entry that is still being made
    released       up to where entries were acknowledged; not synced: losing it only means sending again
    reserve        room on the disk for giving up entries when the disk is full
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Literal, NamedTuple

from edge_agent.spool.errors import (
    EntryMissing,
    EntryTooLarge,
    SpoolFull,
    SpoolUnusable,
    SpoolUnwritable,
)
from edge_agent.spool.files import LOCK_BYTES, hold_room, try_unlink
from edge_agent.spool.folder import Folder
from edge_agent.spool.frames import HEADER_BYTES
from edge_agent.spool.journal import Journal
from edge_agent.spool.released import RELEASED_BYTES, ReleasedPosition
from edge_agent.spool.segment import Segment, head_of_segment
from edge_agent.spool.segments import Segments

Fsync = Literal["batch", "interval", "never"]

MAX_BYTES = 64 << 20
SEGMENT_BYTES = 1 << 20
LEAST_MAX_BYTES = 4096

_ROOMY_JOURNAL_BYTES = 256 << 10
_MOST_HANDED_OUT = 16  # segments, to be synced at a time
_RESERVE_BYTES = 32 << 10


class Entry(NamedTuple):
    """An entry and the numbers it stands for: one, unless it replaced others."""

    first: int
    last: int
    data: bytes


class Unsynced(NamedTuple):
    """Handles of files that were written and not synced, and how far each had been written."""

    handles: list[int]
    written: list[tuple[Segment | Journal, int]]
    round: int
    newest: int
    """The journal's newest piece is for this entry."""
    names: int
    """So many names had been given in the folder."""
    is_all: bool
    """There was no more than that."""


class Spool:
    """One thread, the owner, calls the methods; `first`, `next`, `count` and `size_bytes` may be read by any thread.

    `fsync` says when a write is safe from a power cut: `batch`: when the call returns; `interval`: when the owner's
    next `sync` returns; `never`: when a `sync(force=True)` returns. A killed process loses nothing in any case.
    """

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int | None = None,
        fsync: Fsync = "interval",
    ) -> Spool:
        """Lock the folder and take up what is in it."""
        return cls(os.fspath(folder), max_bytes, segment_bytes or min(SEGMENT_BYTES, max_bytes // 16), fsync)

    def __init__(self, folder: str, max_bytes: int, segment_bytes: int, fsync: Fsync) -> None:
        if max_bytes < LEAST_MAX_BYTES:
            raise ValueError(f"spool {folder}: max_bytes is {max_bytes}, at least {LEAST_MAX_BYTES} are needed")
        if fsync not in ("batch", "interval", "never"):
            raise ValueError(f"spool {folder}: fsync is {fsync!r}, not batch, interval or never")
        self._folder = Folder(folder)
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._fsync = fsync
        self._reserve = self._folder.within("reserve")
        self._reserve_bytes = min(_RESERVE_BYTES, max_bytes // 32)
        self._fixed_bytes = self._reserve_bytes + RELEASED_BYTES + LOCK_BYTES
        self._segments = Segments(self._folder)
        self._journal = Journal(self._folder.within("journal"), min(_ROOMY_JOURNAL_BYTES, max_bytes // 32))
        self._recovered_from: int | None = None
        """Until what pieces have become is written, if they are for several entries: the number of the first of these,
        if they follow one another."""
        self._released = ReleasedPosition(self._folder.within("released"))
        self._first = self._next = self._count = 0
        self.before_deleting: Callable[[], object] = lambda: None
        """Called before entries that are released leave the disk. OSError: they stay for now."""
        self.lost: list[range] = []
        """Numbers whose entries are unreadable: found at opening, and since then by reading."""
        self.torn_bytes = 0
        """Bytes that a crash had left of an unfinished write; they were cut at opening."""
        self.recovered_journal: list[bytes] = []
        """The pieces of the entry that was being made when the last process ended."""
        try:
            self._folder.hold()
            self._load()
        except OSError as error:
            self._close_files()
            raise SpoolUnusable(f"spool {folder}: {error}") from error
        except BaseException:
            self._close_files()
            raise

    # -- opening

    def _load(self) -> None:
        try_unlink(self._folder.within("draft"))
        self._first = self._released.load()
        self.torn_bytes = self._segments.load()
        # Files before the first one were deleted, so what was in them is released.
        self._first = max([self._first, *[segment.first for segment in self._segments.all[:1]]])
        self._next = max([self._first, *[segment.next for segment in self._segments.all[-1:]]])
        self._load_journal()
        self._find_lost()
        self._count = self._segments.count(self._first, self._next)
        hold_room(self._reserve, self._reserve_bytes)

    def _load_journal(self) -> None:
        live = [(number, piece) for number, piece in self._journal.load() if number >= self._next]
        self.recovered_journal = [piece for _, piece in live]
        if live:
            # A power cut may have kept the piece and not the entries before it: they are lost, their numbers are used.
            self._next = self._journal.newest
            numbers = {number for number, _ in live}
            if len(numbers) > 1:
                self._recovered_from = self._next + 1 - len(numbers)

    def _find_lost(self) -> None:
        """Go through all numbers that are not released."""
        known = self._first
        for segment in self._segments.all:
            self._lose(range(known, segment.first))
            for numbers in segment.unreadable():
                self._lose(numbers)
            known = segment.next
        self._lose(range(known, self._end()))

    def _lose(self, numbers: range) -> None:
        """Note unreadable numbers, unless nobody waits for them any more."""
        numbers = range(max(numbers.start, self._first), numbers.stop)
        if not numbers:
            return
        if self.lost and self.lost[-1].stop == numbers.start:
            self.lost[-1] = range(self.lost[-1].start, numbers.stop)
        else:
            self.lost.append(numbers)

    # -- state

    @property
    def first(self) -> int:
        """The lowest number that is not released."""
        return self._first

    @property
    def next(self) -> int:
        """The number that the next entry gets."""
        return self._next

    @property
    def count(self) -> int:
        """How many entries are not released and readable."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """What the folder takes up, all files together, the reserve as if it were always there."""
        return self._segments.size_bytes + self._journal.size_bytes + self._fixed_bytes

    @property
    def is_synced(self) -> bool:
        """Whether a power cut can take none of the entries."""
        return self._segments.is_synced

    @property
    def journal_is_roomy(self) -> bool:
        """The journal has grown so much that the next entry should end it."""
        return self._journal.is_roomy

    # -- writing

    def append(self, entry: bytes) -> int:
        """Keep the entry; the pieces in the journal become obsolete with it. Returns its number."""
        self._folder.check_held()
        if self._recovered_from is not None:
            return self._append_whole([entry])
        frame_bytes = self._frame_bytes(entry)
        try:
            self._append(entry, frame_bytes)
        except OSError as error:
            raise SpoolUnwritable(f"spool {self._folder.path}: {error}") from error
        number = self._next
        self._next = number + 1
        self._count += 1
        if self._journal.size_bytes:
            self._rewind_journal()
        return number

    def append_recovered(self, entries: Sequence[bytes]) -> None:
        """Keep what the pieces of the last process have become, all of it or nothing. These are one entry, or at least
        as many as there are numbers that pieces are for."""
        self._folder.check_held()
        if len(entries) == 1:
            self.append(entries[0])
        else:
            self._append_whole(entries)

    def _frame_bytes(self, entry: bytes) -> int:
        if HEADER_BYTES + len(entry) > self._max_bytes // 2:
            raise EntryTooLarge(f"spool {self._folder.path}: {len(entry)} bytes, more than half of {self._max_bytes}")
        return HEADER_BYTES + len(entry)

    def _append(self, entry: bytes, frame_bytes: int) -> None:
        active = self._segments.active
        if active is None or (active.offsets and active.size_bytes + frame_bytes > self._segment_bytes):
            self._roll(frame_bytes)
        else:
            self._check_room(frame_bytes - self._journal_gives_back())
        if self._fsync == "batch":
            self._folder.sync()
        self._keep_what_is_left_over()
        self._segments.append(entry, durable=self._fsync == "batch")

    def _append_whole(self, entries: Sequence[bytes]) -> int:
        """Write what the pieces have become, in a segment of its own. Returns the number of the last entry.

        The name of a segment already makes pieces obsolete that are for earlier entries. So this one has its name only
        when all entries are in it and safe; and until the name is safe too, the pieces stay. A single entry stands for
        all numbers that there are pieces for.
        """
        first = self._end()
        size_bytes = len(head_of_segment(first)) + sum(map(self._frame_bytes, entries))
        self._check_room(size_bytes - self._journal_gives_back())
        path, draft = self._segments.path_of(first), self._folder.within("draft")
        try:
            self._segments.sync()  # of a killed process, whose pieces it makes obsolete too
            if len(entries) == 1:
                segment = Segment.replacement(path, draft, first, self._next, entries[0])
            else:
                segment = Segment.whole(path, draft, first, entries)
        except OSError as error:
            try_unlink(draft)
            raise SpoolUnwritable(f"spool {self._folder.path}: {error}") from error
        segment.close()
        self._recovered_from = None
        self._segments.add(segment)
        self._next = segment.next
        self._count += len(entries)
        self.delete_released()
        self._rewind_journal()
        return self._next - 1

    def journal(self, piece: bytes, for_number: int | None = None) -> None:
        """Keep a piece of the entry that will have this number (the next one), until it is appended."""
        number = self._next if for_number is None else for_number
        if number < max(self._next, self._journal.newest):
            raise ValueError(f"spool {self._folder.path}: a piece for entry {number}, the next entry is {self._next}")
        self._folder.check_held()
        self._check_room(self._journal.growth_bytes(piece))
        try:
            if not self._journal.size_bytes:
                self._folder.names += 1
            self._journal.write(piece, number, durable=self._fsync == "batch")
            if self._fsync == "batch":
                self._folder.sync()
        except OSError as error:
            raise SpoolUnwritable(f"spool {self._folder.path}: journal: {error}") from error

    def sync(self, *, force: bool = False) -> None:
        """Return when everything written so far is safe from a power cut. With `never`, only if forced."""
        if self._fsync == "never" and not force:
            return
        try:
            # In this order: what is safe in pieces for a later entry is told only if the entries before it are there.
            self._segments.sync()
            if not self._journal.is_synced:
                self._journal.sync()
        except OSError as error:
            raise SpoolUnwritable(f"spool {self._folder.path}: {error}") from error
        self._rewind_journal()

    def unsynced(self) -> Unsynced | None:
        """What `sync` would sync now, for another thread to do it; say `synced` when it has. None: nothing.

        Many short starts may have left more segments than handles are to be had: then it is only the first of them,
        and the journal's turn comes when all entries before its pieces are safe.
        """
        segments = [each for each in self._segments.all if not each.is_synced]
        is_all = len(segments) <= _MOST_HANDED_OUT
        written: list[tuple[Segment | Journal, int]] = [(each, each.writes) for each in segments[:_MOST_HANDED_OUT]]
        if is_all and not self._journal.is_synced:
            written.append((self._journal, self._journal.writes))
        if not written and self._folder.is_synced:
            return None
        handles: list[int] = []
        try:
            for each, _ in written:
                handles.append(each.handle())
            if not self._folder.is_synced:
                handles.append(self._folder.handle())
        except OSError as error:
            for handle in handles:
                os.close(handle)
            raise SpoolUnwritable(f"spool {self._folder.path}: {error}") from error
        return Unsynced(handles, written, self._journal.round, self._journal.newest, self._folder.names, is_all)

    def synced(self, unsynced: Unsynced, *, failed: bool = False) -> None:
        """Another thread has synced that, or has failed to; what was written since then is not part of it."""
        if failed:
            for file, _ in unsynced.written:
                file.is_doubtful = True
            return
        self._folder.synced(unsynced.names)
        for file, writes in unsynced.written:
            if file.writes == writes:
                file.is_synced = True
        if self._journal.round == unsynced.round and any(file is self._journal for file, _ in unsynced.written):
            self._journal.synced_through = max(unsynced.newest, self._journal.synced_through)
        self._segments.close_synced()
        self._rewind_journal()

    def release(self, through: int) -> None:
        """The entries up to this number were acknowledged: they are not needed any more."""
        if through >= self._next:
            raise ValueError(f"spool {self._folder.path}: entry {through} released, the next entry is {self._next}")
        if through < self._first:
            return
        self._folder.check_held()
        self._count -= self._segments.count(self._first, through)
        self._first = through + 1
        self._released.save(self._first)
        self.delete_released()

    def _keep_what_is_left_over(self) -> None:
        """Pieces for a later entry repeat what the next one has no room for. Its pieces count for nothing once it is
        there: what was safe in them has to be safe in these."""
        journal = self._journal
        if self._next <= journal.synced_through and self._next < journal.newest and not journal.is_synced:
            journal.sync()

    def _roll(self, frame_bytes: int) -> None:
        """Begin a new segment, with room for what comes first into it."""
        path = self._segments.path_of(self._next)
        self._check_room(len(head_of_segment(self._next)) + frame_bytes - self._journal_gives_back())
        durable = self._fsync != "never"
        if self._journal.holds_synced:
            self._segments.sync()  # a later segment makes its pieces obsolete, so these must be as safe as they
        segment = Segment.create(path, self._folder.within("draft"), self._next, durable=durable)
        if self._segments.active is not None:
            self._segments.active.close()
        self._segments.add(segment)
        self._segments.active = segment
        if durable:
            self._folder.sync()
        self.delete_released()

    def _check_room(self, more_bytes: int) -> None:
        if more_bytes > 0 and self.size_bytes + more_bytes > self._max_bytes:
            self.delete_released()  # a disk that was full may have kept it from being done
        if more_bytes > 0 and self.size_bytes + more_bytes > self._max_bytes:
            raise SpoolFull(
                f"spool {self._folder.path}: {self.size_bytes} bytes in {self._count} entries, "
                f"{more_bytes} more would exceed {self._max_bytes}"
            )

    def _journal_gives_back(self) -> int:
        """How many bytes the next entry makes obsolete: a journal must not keep out the entry that empties it."""
        return self._journal.size_bytes if self._journal.is_roomy and self._journal.newest <= self._next else 0

    def _rewind_journal(self) -> None:
        """Use the journal's room again, if its pieces are in entries as safe as they were themselves."""
        if self._journal.newest >= self._next:
            return
        try:
            if self._journal.holds_synced and not self.is_synced:
                if not self._journal.is_roomy:
                    return
                self._segments.sync()
            self._journal.rewind()
        except OSError:
            pass  # it stays as it is until the disk is well again

    def delete_released(self) -> None:
        """Delete segments without unreleased entries, but not the newest.

        It alone knows the next number after a power cut, for what `released` says is never synced. Opening deletes
        nothing: the owner may want to read first what they tell.
        """
        segments = self._segments
        while len(segments.all) > 1 and segments.all[1].first <= self._first:
            if not self._may_delete() or not segments.delete_oldest():
                return

    def _may_delete(self) -> bool:
        """Have the owner keep what it has learnt from entries that go, so that a power cut cannot take both. Nor may it
        take the name of the newest segment, whatever the fsync policy: the numbers would begin again."""
        try:
            self.before_deleting()
            self._folder.sync()
        except OSError:
            return False
        return True

    # -- reading

    def entries(self, from_number: int = 0) -> Iterator[Entry]:
        """The unreleased entries from this number on; between two steps the owner may append, release and replace.

        Unreadable ones are passed over and noted in `lost`. Of the numbers that a replacement stands for, the released
        ones are left out.
        """
        number = from_number
        while (entry := self._entry_from(max(number, self._first))) is not None:
            yield entry
            number = entry.last + 1

    def kept(self) -> Iterator[Entry]:
        """All entries that are on disk, also the released ones: nobody waits for them, but they tell what was."""
        number = self._segments.all[0].first if self._segments.all else self._first
        while (entry := self._entry_from(number)) is not None:
            yield entry
            number = entry.last + 1

    def _entry_from(self, number: int) -> Entry | None:
        while (found := self._segments.readable_from(number)) is not None:
            segment, readable = found
            entry = self._segments.read(segment, readable)
            if entry is not None:
                first, last, data = entry
                return Entry(max(first, self._first), last, data)
            self._was_unreadable(segment, readable)
        return None

    def disbelieve(self, entry: Entry) -> None:
        """What stands in an entry has no meaning, though it was read: from now on it counts as unreadable."""
        found = self._segments.readable_from(entry.first)
        if found is not None and found[1] == entry.first:
            segment, readable = found
            segment.disbelieve(readable)
            self._was_unreadable(segment, readable)

    def _was_unreadable(self, segment: Segment, number: int) -> None:
        through = number if segment.replaced_through is None else segment.replaced_through
        self._count -= through >= self._first  # of those that are released, none counts any more
        self._lose(range(number, through + 1))

    # -- giving up entries

    def oldest(self) -> list[Entry]:
        """What would be given up next: the readable entries of the oldest segment.

        An earlier replacement comes together with the segment after it, so that replacements never pile up. Empty:
        nothing is left to give up.
        """
        segments = self._oldest_segments()
        if not segments:
            return []
        end = segments[-1].next
        found = []
        for entry in self.entries(self._first):
            if entry.first >= end:
                break
            found.append(entry)
        # If reading has found all of a segment unreadable, one more is given up.
        return found if segments == self._oldest_segments() else self.oldest()

    def replace_oldest(self, entry: bytes) -> None:
        """Put one entry in the place of those that `oldest` has just told, for all of their numbers.

        It is safe from a power cut when this returns, whatever the fsync policy, and needs no room on the disk as long
        as it is smaller than the reserve.
        """
        self._folder.check_held()
        segments = self._oldest_segments()
        if not segments:
            raise EntryMissing(f"spool {self._folder.path}: no entry is left to be replaced")
        first = segments[0].first
        after = self._segments.all[len(segments) :]
        last = (after[0].first if after else self._end()) - 1
        more_bytes = len(head_of_segment(first)) + HEADER_BYTES + len(entry)
        more_bytes -= sum(segment.size_bytes for segment in segments)
        self._check_room(more_bytes)
        try:
            replacement = Segment.replacement(segments[0].path, self._reserve, first, last, entry)
        except OSError as error:
            hold_room(self._reserve, self._reserve_bytes)
            raise SpoolUnwritable(f"spool {self._folder.path}: {error}") from error
        # From here on the others are history: opening deletes what the replacement stands for.
        self._count += 1 - sum(segment.count(self._first, last) for segment in segments)
        self._segments.replace(len(segments), replacement)
        replacement.close()
        try:
            self._folder.sync()
            for segment in segments[1:]:
                os.unlink(segment.path)
        except OSError:
            pass  # what stays is deleted at the next opening
        hold_room(self._reserve, self._reserve_bytes)

    def _end(self) -> int:
        """The number up to which all were used and none has pieces that are still needed."""
        return self._next if self._recovered_from is None else self._recovered_from

    def _oldest_segments(self) -> list[Segment]:
        """The replacement at the beginning, if there is one, and all up to the first segment that can be given up."""
        for index, segment in enumerate(self._segments.all):
            if segment.replaced_through is None and segment.count(self._first, self._next):
                return self._segments.all[: index + 1]
        return []

    # -- closing

    def close(self) -> None:
        """Sync what the policy asks for, and let others have the folder."""
        try:
            if self._folder.is_held:
                self.sync()
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self._segments.close()
        self._journal.close()
        self._released.close()
        self._folder.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

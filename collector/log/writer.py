"""The one writer of a shard: rows in, and after a commit they are on disk for good and readers may see them.

Opening takes three steps, in this order, because the state that a snapshot tells of is itself rebuilt from the log: the
constructor takes the lock and repairs what a crash left; `tail` gives the last snapshot and all rows since; `begin`
starts a segment with a new snapshot. Every later segment begins with one too, taken right after a commit, when all that
the owner has appended is in the log.

A commit is one record batch, so it is there wholly or not at all. It is made in place behind the last commit and may
therefore be tried again, however it failed: what a failed one left behind is cut off or overwritten, never trusted.

Rows that readers may have seen can be damaged later. The last segment is then cut before the first of them, although
sound commits may follow: those rest on what the damaged one told (names of streams, plans), and readers count rows. The
file is set aside as it was found, and `Repair` says what the owner has to tell in the log.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import TracebackType

from collector.log.ends import note_end, noted_end
from collector.log.errors import LogDamaged, LogError, LogUnwritable, ShardInUse, TooMuchHeld
from collector.log.identity import give_id
from collector.log.layout import (
    create_file,
    damaged_numbers,
    damaged_path,
    is_open_as,
    lost_numbers,
    lost_path,
    segment_numbers,
    segment_path,
    shard_folder,
    sync_folder,
)
from collector.log.position import PublishedPosition, position_path
from collector.log.readers import furthest_read
from collector.log.row import FIRST, Position, check_of
from collector.log.segment import HEADER, OtherSchema, Segment, SegmentUnreadable, encoded
from protocol.row import Row

log = logging.getLogger(__name__)

Snapshot = Callable[[], Sequence[Row]]

SEGMENT_BYTES = 64 << 20
MOST_HELD_BYTES = 256 << 20
COMPRESSION = "zstd"
_ROW_BYTES = 64  # what a held row takes besides its data


@dataclass(frozen=True, slots=True)
class Repair:
    """What opening a shard had to throw away."""

    cut_bytes: int = 0
    """Behind the last whole record batch, as a rule of a commit that did not come to its end."""
    lost: tuple[int, ...] = ()
    """The segments of which published rows could not be read any more; they are kept as they were found."""
    loss: str = ""
    """All that in words, for whoever reads the log."""


@dataclass(slots=True)
class _Extent:
    """How far the sound part of a segment goes."""

    number: int
    batches: int = 0
    rows: int = 0
    snapshot_end_bytes: int = 0
    end_bytes: int = 0

    @property
    def end(self) -> Position:
        return Position(self.number, self.rows)

    def add(self, rows: int, end_bytes: int) -> None:
        if not self.batches:
            self.snapshot_end_bytes = end_bytes
        self.batches += 1
        self.rows += rows
        self.end_bytes = end_bytes


class ShardWriter:
    """Not for several threads: nothing may be appended while a commit runs."""

    def __init__(
        self,
        folder: Path,
        shard: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        compression: str | None = COMPRESSION,
        most_held_bytes: int = MOST_HELD_BYTES,
        was_written: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the shard, or raise ShardInUse at once. Rows can be appended after `begin`.

        `was_written` is asked if nothing is found: whether others know that something was logged here, so that all of
        it is gone.
        """
        self.shard = shard
        self._folder = shard_folder(folder, shard)
        self._segment_bytes = segment_bytes
        self._compression = compression
        self._most_held_bytes = most_held_bytes
        self._held: list[Row] = []
        self._checks: list[int] = []
        self._held_bytes = 0
        self._snapshot: Snapshot | None = None
        self._is_dirty = False
        self._cannot_roll = False
        with ExitStack() as opened:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                give_id(folder)
                self._lock = _locked(self._folder / "lock", shard)
                opened.callback(_unlock, self._lock)
                self._published = opened.enter_context(closing(PublishedPosition(self._folder)))
                is_new = self._published.found == FIRST and not segment_numbers(self._folder)
                if is_new and was_written():
                    _set_aside(self._folder, _last_known(folder, shard))
                self._extent, self.repair = _repaired(self._folder, self._published.found)
                self._tail_end = self._extent.end
                sync_folder(folder)
                sync_folder(self._folder)
                self._published.publish(self._extent.end)
            except OSError as error:
                raise self._unwritable(error) from error
            self._opened = opened.pop_all()
        self._handle = -1

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def position(self) -> Position:
        """Up to where readers may read."""
        return self._published.position

    @property
    def held_rows(self) -> int:
        """How many rows wait for a commit."""
        return len(self._held)

    def tail(self) -> Iterator[Row]:
        """The last snapshot and all rows that followed it, as they were when the shard was opened."""
        number, rows = self._tail_end
        if number:
            with Segment(segment_path(self._folder, number)) as segment:
                for frame in takewhile(lambda frame: frame.end_row <= rows, segment.frames()):
                    yield from segment.rows(frame)

    def begin(self, snapshot: Snapshot, told: Sequence[Row] = ()) -> Position:
        """Start a segment. `snapshot` is called now and whenever a segment starts, always between commits: its rows
        stand for everything that was appended until then, so that a successor needs no older segment.

        `told` is what the owner says of a loss that `repair` has found: it comes with the snapshot or, should that
        fail, the next opening finds the loss again.
        """
        rows = snapshot()
        try:
            if not told and self._stands_already(rows):
                self._go_on(os.open(segment_path(self._folder, self._extent.number), os.O_RDWR | os.O_CLOEXEC))
            else:
                self._start_segment([*rows, *told])
            for number in self.repair.lost:
                create_file(lost_path(self._folder, number), f"{self.repair.loss}\n".encode())
        except OSError as error:
            raise self._unwritable(error) from error
        if self.repair.lost:
            log.error("published rows cannot be read any more shard=%d loss=%s", self.shard, self.repair.loss)
        self._snapshot = snapshot
        return self.position

    def append(self, rows: Sequence[Row]) -> None:
        """Hold rows for the next commit. All rows of an agent batch must come in one call."""
        if self._snapshot is None:
            raise LogError(f"{self._folder}: nothing can be appended before begin()")
        checks = [check_of(row) for row in rows]
        size_bytes = sum(len(row.data) + _ROW_BYTES for row in rows)
        if self._held_bytes + size_bytes > self._most_held_bytes:
            raise TooMuchHeld(
                f"{self._folder}: {self._held_bytes} bytes wait for a commit, {size_bytes} more would be too many"
            )
        self._held += rows
        self._checks += checks
        self._held_bytes += size_bytes

    def commit(self) -> Position:
        """Make all that was appended durable, then let readers see it.

        LogUnwritable: the log is as it was, the rows are still held; commit again later, or roll back. Without any rows
        it says that what was committed is still there.
        """
        extent = self._extent
        content = encoded(self._held, self._checks, self._compression) if self._held else b""
        try:
            if content:
                self._write(content)
            self._check_place()
            self._published.publish(Position(extent.number, extent.rows + len(self._held)))
        except OSError as error:
            with suppress(OSError):  # if this fails too, the next commit does it first
                self._cut_back()
            raise self._unwritable(error) from error
        if content:
            self._is_dirty = False
            extent.add(len(self._held), extent.end_bytes + len(content))
            self.rollback()
        if self._extent.end_bytes - self._extent.snapshot_end_bytes >= self._segment_bytes:
            self._roll()
        return self.position

    def rollback(self) -> None:
        """Forget what was appended since the last commit."""
        self._held, self._checks, self._held_bytes = [], [], 0

    def close(self) -> None:
        """Give the shard to the next writer. What was not committed is gone."""
        self._snapshot = None
        self._opened.close()

    def _stands_already(self, snapshot: Sequence[Row]) -> bool:
        """The last segment is nothing but this snapshot: restarts without any rows do not pile up segments."""
        extent = self._extent
        return extent.batches == 1 and self.position == extent.end and sorted(snapshot) == sorted(self.tail())

    def _roll(self) -> None:
        """Start the next segment. If the disk does not take it, the old one just grows on: its rows are committed."""
        assert self._snapshot is not None
        try:
            self._start_segment(self._snapshot())
            self._cannot_roll = False
        except OSError as error:
            if not self._cannot_roll:
                log.warning("segment grows on, the next cannot be started shard=%d error=%s", self.shard, error)
            self._cannot_roll = True

    def _start_segment(self, snapshot: Sequence[Row]) -> None:
        extent = _Extent(max(self._extent.number, *self.repair.lost, 0) + 1)
        if self.position > extent.end:  # readers have been in a segment of that number, which is lost
            extent.number = self.position.segment + 1
        path = segment_path(self._folder, extent.number)
        content = HEADER + encoded(snapshot, [check_of(row) for row in snapshot], self._compression)
        extent.add(len(snapshot), len(content))
        if self._extent.number:
            note_end(self._folder, self._extent.number, self._extent.rows)
        try:
            create_file(path, content)
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._published.publish(extent.end)
            except OSError:
                os.close(handle)
                raise
        except OSError:
            # Were it found after more rows had gone into the old segment, its snapshot would be out of date. Should it
            # stay all the same, the next opening removes it, as nothing of it was published.
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        self._go_on(handle)
        self._extent = extent

    def _go_on(self, handle: int) -> None:
        """From now on, write here."""
        if self._handle < 0:
            self._opened.callback(lambda: os.close(self._handle))
        else:
            os.close(self._handle)
        self._handle = handle
        self._is_dirty = False

    def _write(self, content: bytes) -> None:
        """Put it behind the last commit, and wait for the disk.

        After a failed sync the kernel may take lost pages for clean, so that syncing again would prove nothing: each
        try writes all bytes anew.
        """
        self._cut_back()
        self._is_dirty = True
        offset, rest = self._extent.end_bytes, memoryview(content)
        while rest:
            written = os.pwrite(self._handle, rest, offset)
            offset, rest = offset + written, rest[written:]
        os.fdatasync(self._handle)

    def _check_place(self) -> None:
        """What goes into a file that was deleted or moved is read by nobody, though the disk takes it."""
        if self._handle < 0:
            return
        for path, handle in (
            (segment_path(self._folder, self._extent.number), self._handle),
            (position_path(self._folder), self._published.handle),
            (self._folder / "lock", self._lock),
        ):
            if not is_open_as(path, handle):
                why = f"{path.name} was deleted or moved while in use: put it back, or start the translator anew"
                raise FileNotFoundError(errno.ENOENT, why)

    def _cut_back(self) -> None:
        """Drop what a failed commit left behind the last one."""
        if self._is_dirty:
            os.ftruncate(self._handle, self._extent.end_bytes)
            self._is_dirty = False

    def _unwritable(self, error: OSError) -> LogUnwritable:
        return LogUnwritable(f"{self._folder}: {error.strerror or error}")


def _locked(path: Path, shard: int) -> int:
    """The lock file, held until it is closed; it names its holder for those who wait."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(handle, 1024, 0).decode(errors="replace").strip()
        os.close(handle)
        raise ShardInUse(shard, holder or "a process that has just begun") from None
    except OSError:
        os.close(handle)
        raise
    return handle


def _unlock(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone would leave it to children that are just being started
    os.close(handle)


def _repaired(shard: Path, published: Position | None) -> tuple[_Extent, Repair]:
    """The last segment that a writer has begun, cut to its sound part; younger ones that none has are removed.

    Without a position nobody knows what readers have seen: then all that cannot be read may have been.
    """
    for unfinished in shard.glob("*.new"):
        unfinished.unlink()
    cut_bytes = 0
    last = _Extent(0)
    numbers = segment_numbers(shard)
    oldest = numbers[0] if numbers else (published or FIRST).segment
    while numbers:
        last = _Extent(numbers.pop())
        path = segment_path(shard, last.number)
        _measure(path, last)
        excess_bytes = path.stat().st_size - last.end_bytes
        if excess_bytes and (published is None or last.end < published):
            _set_aside(shard, last.number)
        is_unpublished = last.batches == 1 and (published or FIRST).segment < last.number
        if last.batches == 0 or (is_unpublished and numbers and not _is_followed(shard, numbers[-1])):
            path.unlink()
            cut_bytes += excess_bytes
            last = _Extent(0)
            continue
        cut_bytes += excess_bytes
        with path.open("r+b") as handle:
            handle.truncate(last.end_bytes)
            os.fsync(handle.fileno())  # a killed writer may have written a whole commit without syncing it
        break
    if published is not None and published > max(last.end, FIRST):
        is_short = published.segment == last.number
        for number in range(last.number if is_short else max(last.number + 1, oldest), published.segment + 1):
            _set_aside(shard, number)
    lost = tuple(sorted(set(damaged_numbers(shard)) - set(lost_numbers(shard))))
    if not lost:
        if cut_bytes:
            log.warning("cut what a crash left shard=%s segment=%d bytes=%d", shard.name, last.number, cut_bytes)
        return last, Repair(cut_bytes)
    what = f"what followed {_at(last.end)}" if last.number else "everything"
    until = f", up to {_at(published)}," if published is not None and published > FIRST else ""
    files = ", ".join(_kept(shard, number) for number in lost)
    loss = f"the log was damaged: {what}{until} could not be read any more and was cut; kept as found: {files}"
    return last, Repair(cut_bytes, lost, loss)


def _is_followed(shard: Path, number: int) -> bool:
    """Whether nothing has gone into a segment since the next one was begun, so that the next one's snapshot is up to
    date. It stays then, even if nothing of it seems to be published: a power cut may have taken that back, and readers
    may know their places in it."""
    extent = _Extent(number)
    _measure(segment_path(shard, number), extent)
    try:
        return noted_end(shard, number) == extent.rows
    except LogDamaged:
        return False


def _last_known(folder: Path, shard: int) -> int:
    """The last segment that a shard is known to have had of which none is left. No other may ever have its number:
    readers would take rows of that one for what they have read already."""
    followed = [number + 1 for number in lost_numbers(shard_folder(folder, shard))]
    return max([furthest_read(folder, shard).segment, *followed])


def _at(position: Position) -> str:
    return f"row {position.row} of segment {position.segment}"


def _kept(shard: Path, number: int) -> str:
    path = damaged_path(shard, number)
    return f"{shard.name}/{path.name}" + ("" if path.stat().st_size else " (empty, as the segment was not there)")


def _set_aside(shard: Path, number: int) -> None:
    """Keep a segment as it was found the first time, for whoever can still make something of it."""
    kept, path = damaged_path(shard, number), segment_path(shard, number)
    if not kept.exists():
        create_file(kept, path.read_bytes() if path.exists() else b"")


def _measure(path: Path, extent: _Extent) -> None:
    """Find out how far the segment is sound: whole record batches, all rows as they were appended."""
    with Segment(path) as segment:
        try:
            for frame in segment.frames():
                segment.rows(frame)
                extent.add(frame.rows, frame.end)
        except (OtherSchema, SegmentUnreadable):
            raise
        except LogDamaged as error:
            log.info("segment is sound up to row %d: %s", extent.rows, error)

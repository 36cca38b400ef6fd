"""Reads the log, from any process, while its writers write: always whole commits, never beyond what was published."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from collector.log.ends import noted_end
from collector.log.errors import LogDamaged, SegmentRemoved
from collector.log.layout import (
    damaged_path,
    end_numbers,
    lost_path,
    segment_numbers,
    segment_path,
    shard_folder,
    shards,
)
from collector.log.position import published
from collector.log.row import FIRST, Position
from collector.log.segment import ROW_SCHEMA, Bookmark, Frame, Segment
from protocol.row import Row


class _Piece(NamedTuple):
    """A record batch, and which of its rows were asked for."""

    segment: Segment
    number: int
    frame: Frame
    first: int
    last: int


_MOST_BOOKMARKS = 64  # in a segment
_MOST_SEGMENTS = 64
_BOOKMARKS: dict[tuple[str, int, int], deque[Bookmark]] = {}
"""Where the record batches begin that this process has passed last, so that it need not walk there again from the
beginning of a segment. Segments only grow, and what was published stays where it is."""


def _bookmarks(segment: Segment) -> deque[Bookmark]:
    found = _BOOKMARKS.setdefault(segment.identity, deque(maxlen=_MOST_BOOKMARKS))
    while len(_BOOKMARKS) > _MOST_SEGMENTS:
        del _BOOKMARKS[next(iter(_BOOKMARKS))]
    return found


class LogReader:
    """A log by its folder. It keeps nothing open, so it may be sent to other processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def shards(self) -> list[int]:
        """The shards that were ever written, rising."""
        return shards(self._folder)

    def start(self, shard: int) -> Position:
        """Where the oldest row is that was not removed."""
        folder = shard_folder(self._folder, shard)
        numbers = segment_numbers(folder)
        for number in sorted({*end_numbers(folder)} - {*numbers}):
            _explain_absence(folder, number, is_removed=False)
        return Position(numbers[0], 0) if numbers else FIRST

    def end(self, shard: int) -> Position:
        """Up to where the shard may be read now."""
        try:
            return published(shard_folder(self._folder, shard))
        except OSError as error:
            raise LogDamaged(f"{error.filename} cannot be read: {error.strerror}") from error

    def rows(self, shard: int, start: Position, end: Position) -> Iterator[Row]:
        """The rows from `start` on and before `end`, as far as they are published."""
        for piece in self._pieces(shard, start, end):
            yield from piece.segment.rows(piece.frame)[piece.first : piece.last]

    def batches(self, shard: int, start: Position, end: Position) -> Iterator[Any]:
        """The same rows as Arrow record batches, whose columns are those of `ROW_SCHEMA`."""
        for piece in self._pieces(shard, start, end):
            batch = piece.segment.batch(piece.frame).select(ROW_SCHEMA.names)
            yield batch.slice(piece.first, piece.last - piece.first)

    def ahead(self, shard: int, start: Position, most_rows: int, most_bytes: int) -> Position:
        """How far to read from `start` to stay within the bounds, never to a place inside an agent batch.

        The bytes are those of the rows' data. Unless nothing is left, there is one agent batch at least, however large.
        """
        reached = start
        rows = size_bytes = 0
        with closing(self._pieces(shard, start, self.end(shard))) as pieces:
            for segment, number, frame, first, last in pieces:
                piece_rows, piece_bytes = last - first, segment.data_bytes(frame)
                if rows + piece_rows > most_rows or size_bytes + piece_bytes > most_bytes:
                    if rows:
                        break
                    # Only a record batch that is too large by itself must be looked into.
                    piece_rows, piece_bytes = _fitting(segment.rows(frame)[first:last], most_rows, most_bytes)
                rows, size_bytes = rows + piece_rows, size_bytes + piece_bytes
                reached = Position(number, frame.row + first + piece_rows)
                if first + piece_rows < last:
                    break
        return reached

    def _pieces(self, shard: int, start: Position, end: Position) -> Generator[_Piece, None, None]:
        """The record batches that hold rows between the two, in order."""
        end = min(end, self.end(shard))
        folder = shard_folder(self._folder, shard)
        if start >= end:
            return
        for number in range(start.segment, end.segment + 1 if end.row else end.segment):
            first = start.row if number == start.segment else 0
            last = end.row if number == end.segment else noted_end(folder, number)
            try:
                segment = Segment(segment_path(folder, number))
            except FileNotFoundError:
                _explain_absence(folder, number)
                continue
            with segment:
                bookmarks = _bookmarks(segment)
                after = max((each for each in bookmarks if each.row <= first), default=None)
                row = after.row if after else 0
                for frame in segment.frames(after):
                    if not bookmarks or frame.offset > bookmarks[-1].offset:
                        bookmarks.append(Bookmark(frame.offset, frame.row))
                    row = frame.end_row if last is None else min(frame.end_row, last)
                    if row > max(frame.row, first):
                        yield _Piece(segment, number, frame, max(first - frame.row, 0), row - frame.row)
                    if row == last:
                        break
            if last is not None and row < last and not _is_told(folder, number):
                raise LogDamaged(f"{segment.path}: ends at row {row}, but was published up to row {last}")


def _explain_absence(folder: Path, number: int, is_removed: bool = True) -> None:
    """A segment is not there: pass over it only if its loss was noticed, and told, when the writer opened. It may have
    been removed, unless one knows better."""
    if _is_told(folder, number):
        return
    oldest = next(iter(segment_numbers(folder)), None)
    if oldest is None:
        raise LogDamaged(f"{folder}: there is no segment, though segment {number} was published")
    if number < oldest and is_removed:
        raise SegmentRemoved(f"{folder}: segment {number} has been removed, the oldest is {oldest}")
    raise LogDamaged(f"{folder}: segment {number} is missing")


def _is_told(folder: Path, number: int) -> bool:
    """Whether the writer has noticed that rows of a segment are lost, and tells so in the log."""
    return lost_path(folder, number).exists() or damaged_path(folder, number).exists()


def _fitting(rows: Sequence[Row], most_rows: int, most_bytes: int) -> tuple[int, int]:
    """How many rows, and bytes of data, the agent batches have that fit; the first one always does."""
    fitting_rows = fitting_bytes = 0
    for _, group in groupby(rows, key=lambda row: (row.agent, row.nonce, row.seq)):
        sizes = [len(row.data) for row in group]
        if fitting_rows and (fitting_rows + len(sizes) > most_rows or fitting_bytes + sum(sizes) > most_bytes):
            break
        fitting_rows, fitting_bytes = fitting_rows + len(sizes), fitting_bytes + sum(sizes)
    return fitting_rows, fitting_bytes

"""How far those have come who read the log, and how much of it they have not read yet.

A reader leaves a mark, a small file in `readers/`, whenever what it has read is safe with it, and every few seconds. It
is not synced: after a power cut it may be old or broken, never ahead. Of a mark that cannot be believed, what it said
before counts, or else that nothing was read: then too much is held back, not too little, until the reader leaves it
anew. The mark of a reader that will not come back has to be deleted by somebody.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from collector.log.errors import LogDamaged, LogError
from collector.log.identity import log_id
from collector.log.layout import segment_numbers, segment_path, shard_folder, shards
from collector.log.position import published
from collector.log.row import FIRST, Position
from collector.log.segment import Bookmark, Segment
from protocol.json_sum import json_sum

_FOLDER = "readers"
_SUFFIX = ".json"

Positions = Mapping[int, Position]


class ReaderMark:
    """The mark of one reader. `reader` says to people who it is, and is the same whenever it starts again."""

    def __init__(self, folder: Path, reader: str) -> None:
        self._log = log_id(folder)
        self._reader = reader
        self.path = folder / _FOLDER / f"{zlib.crc32(reader.encode()):08x}{_SUFFIX}"

    def leave(self, positions: Positions) -> None:
        """All before these places is safe with the reader."""
        told = {"reader": self._reader, "log": self._log, "positions": {str(at): positions[at] for at in positions}}
        self.path.parent.mkdir(exist_ok=True)
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(json.dumps({**told, "check": json_sum(told)}) + "\n")
        unfinished.replace(self.path)


class Unread(NamedTuple):
    """How many bytes of the log the slowest reader has not read, and who that is; nobody, if no one has left a mark."""

    size_bytes: int
    reader: str = ""
    mark: Path | None = None
    trouble: str = ""
    """Why its mark cannot be read: nobody knows then who it is."""


class Backlog:
    """Measures again and again what is unread; each time it walks on from where it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._walked: dict[tuple[Path, int], tuple[int, Bookmark]] = {}
        self._known: dict[Path, Positions] = {}

    def unread(self) -> Unread:
        """What the slowest of all readers has yet to read."""
        found = []
        for path, left in _marks(self._folder).items():
            if left.positions is not None:
                self._known[path] = left.positions
            size_bytes = self._unread_bytes(path, self._known.get(path, {}))
            found.append(Unread(size_bytes, left.reader, path, left.trouble))
        return max(found, default=None, key=lambda each: each.size_bytes) or Unread(self._unread_bytes(None, {}))

    def _unread_bytes(self, mark: Path | None, positions: Positions) -> int:
        return sum(
            self._behind(mark or self._folder, shard, positions.get(shard, FIRST)) for shard in shards(self._folder)
        )

    def _behind(self, mark: Path, shard: int, position: Position) -> int:
        """The bytes of a shard behind a place."""
        folder = shard_folder(self._folder, shard)
        try:
            if position >= published(folder):
                return 0
        except LogDamaged:
            pass  # nobody knows how far it may be read: all that is there
        size_bytes = 0
        for number in segment_numbers(folder):
            path = segment_path(folder, number)
            try:
                if number > position.segment:
                    size_bytes += path.stat().st_size
                elif number == position.segment:
                    size_bytes += path.stat().st_size - self._offset(mark, shard, path, position)
            except FileNotFoundError:
                pass  # removed just now
        return size_bytes

    def _offset(self, mark: Path, shard: int, path: Path, position: Position) -> int:
        """Where in its segment a place is, or a little before it."""
        if position.row == 0:
            return 0
        number, reached = self._walked.get((mark, shard), (0, Bookmark(0, 0)))
        if number != position.segment or reached.row > position.row:
            reached = Bookmark(0, 0)
        try:
            with Segment(path) as segment:
                for frame in segment.frames(reached if reached.offset else None):
                    if frame.end_row > position.row:
                        break
                    reached = Bookmark(frame.end, frame.end_row)
        except LogDamaged:
            pass  # readers stop there
        self._walked[mark, shard] = (position.segment, reached)
        return reached.offset


def furthest_read(folder: Path, shard: int) -> Position:
    """How far a shard was read by whoever has come furthest, as far as marks tell."""
    told = [left.positions for left in _marks(folder).values() if left.positions is not None]
    return max([FIRST, *(positions[shard] for positions in told if shard in positions)])


class _Left(NamedTuple):
    """What stands in a mark, or why it cannot be read."""

    reader: str = ""
    positions: Positions | None = None
    trouble: str = ""


def _marks(folder: Path) -> dict[Path, _Left]:
    """All marks of this log."""
    try:
        identity = log_id(folder)
    except LogError:
        return {}
    found: dict[Path, _Left] = {}
    for path in sorted((folder / _FOLDER).glob(f"*{_SUFFIX}")):
        try:
            told = json.loads(path.read_bytes())
            check = told.pop("check")
            if check != json_sum(told):
                raise ValueError("wrong check")
            if told["log"] == identity:
                positions = {int(shard): Position(*place) for shard, place in told["positions"].items()}
                found[path] = _Left(told["reader"], positions)
        except FileNotFoundError:
            pass  # deleted just now
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            found[path] = _Left(trouble=str(error))
    return found

"""The published position of a shard: up to where its rows are on disk for good, in one small file.

The writer overwrites it with a single write. It is not synced: after a power cut it may be old, never wrong, and the
next writer publishes anew. A reader that catches it half-overwritten sees that its check is wrong, and looks again.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from pathlib import Path

from collector.log.errors import LogDamaged
from collector.log.layout import create_file, segment_numbers
from collector.log.row import FIRST, Position

_FIELDS = struct.Struct("<8sQQ")
_CHECK = struct.Struct("<I")
_MAGIC = b"tl-pos-1"
_TRIES = 50
_PAUSE_S = 0.002


def position_path(shard: Path) -> Path:
    """The file that holds it."""
    return shard / "position"


def published(shard: Path) -> Position:
    """Up to where the shard may be read."""
    path = position_path(shard)
    wrong = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            if not segment_numbers(shard):
                return FIRST
            wrong = "not there, though there are segments"
            continue  # they may have been begun just now
        wrong = "not a position"
        fields, check = content[: _FIELDS.size], content[_FIELDS.size :]
        if len(fields) == _FIELDS.size and fields.startswith(_MAGIC) and check == _CHECK.pack(zlib.crc32(fields)):
            _, segment, row = _FIELDS.unpack(fields)
            return Position(segment, row)
    raise LogDamaged(f"{path}: {wrong}; it is written anew when the shard's writer opens")


class PublishedPosition:
    """The writer's side: the position only ever moves forward."""

    def __init__(self, shard: Path) -> None:
        path = position_path(shard)
        self.found: Position | None = None
        """As it was left, None if nobody knows any more how far readers have been."""
        try:
            self.position = self.found = published(shard)
        except LogDamaged:
            self.position = FIRST
        if self.found is None or not path.exists():
            create_file(path, _content(self.position))
        self.handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def publish(self, position: Position) -> None:
        """Let readers read up to here. What is before it must be on disk."""
        if position > self.position:
            os.pwrite(self.handle, _content(position), 0)
            self.position = position

    def close(self) -> None:
        """Leave it to the next writer."""
        os.close(self.handle)


def _content(position: Position) -> bytes:
    fields = _FIELDS.pack(_MAGIC, *position)
    return fields + _CHECK.pack(zlib.crc32(fields))

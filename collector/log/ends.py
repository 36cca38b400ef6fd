"""How many rows a segment has, once another follows it: a file that ends between two commits looks whole, so it cannot
say by itself that something is missing. A small file beside it does. Logs of older versions have none.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from collector.log.errors import LogDamaged
from collector.log.layout import create_file, end_path

_FIELDS = struct.Struct("<8sQQ")
_CHECK = struct.Struct("<I")
_MAGIC = b"tl-end-1"


def note_end(shard: Path, number: int, rows: int) -> None:
    """A segment is full."""
    fields = _FIELDS.pack(_MAGIC, number, rows)
    create_file(end_path(shard, number), fields + _CHECK.pack(zlib.crc32(fields)))


def noted_end(shard: Path, number: int) -> int | None:
    """How many rows a segment has that is full, None if nobody has noted it."""
    path = end_path(shard, number)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogDamaged(f"{path} cannot be read: {error.strerror}") from error
    fields, check = content[: _FIELDS.size], content[_FIELDS.size :]
    if len(fields) == _FIELDS.size and check == _CHECK.pack(zlib.crc32(fields)):
        magic, of, rows = _FIELDS.unpack(fields)
        if magic == _MAGIC and of == number:
            return int(rows)
    raise LogDamaged(f"{path} is not as it was written: delete it if `threadline log verify` finds nothing else")

"""The one form of everything in a spool's files: a frame of bytes with the numbers it stands for and a check.

A frame is found by its mark and believed by its check, so reading goes on behind bytes that a power cut or a worn card
has spoilt. The check starts from a seed, the first number of the file: a frame of any other file does not pass.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

_MARK = b"TLs"
_START = struct.Struct("<3sI")  # mark, check of all that follows
_FIELDS = struct.Struct("<cIQQ")  # kind, length of the data, first and last number
HEADER_BYTES = _START.size + _FIELDS.size

HEAD = b"M"
ENTRY = b"E"
REPLACEMENT = b"R"
PIECE = b"P"


class Frame(NamedTuple):
    """Where a frame lies in the bytes it was found in, and what it says of itself."""

    kind: bytes
    first: int
    last: int
    offset: int
    end: int


def pack_frame(kind: bytes, first: int, last: int, data: bytes, seed: int) -> bytes:
    """The frame as it is written, in one piece: one write is all or nothing for whoever is killed between two."""
    fields = _FIELDS.pack(kind, len(data), first, last)
    return b"".join((_START.pack(_MARK, crc32(data, crc32(fields, seed & 0xFFFFFFFF))), fields, data))


def frame_at(data: bytes | memoryview, offset: int, seed: int) -> Frame | None:
    """The frame that begins here, or None if what is here is none."""
    start = offset + HEADER_BYTES
    if start > len(data):
        return None
    mark, check = _START.unpack_from(data, offset)
    kind, length, first, last = _FIELDS.unpack_from(data, offset + _START.size)
    end = start + length
    if mark != _MARK or end > len(data):
        return None
    checked = memoryview(data)[offset + _START.size : end]
    return Frame(kind, first, last, offset, end) if crc32(checked, seed & 0xFFFFFFFF) == check else None


def frame_bytes(header: bytes) -> int:
    """The length of a frame, from its first HEADER_BYTES. They are not checked; too few say 0."""
    return HEADER_BYTES + int(_FIELDS.unpack_from(header, _START.size)[1]) if len(header) == HEADER_BYTES else 0


def find_frames(data: bytes, seed: int) -> Iterator[Frame]:
    """Every frame, in the order of the file, also behind what is no frame."""
    view = memoryview(data)
    at = data.find(_MARK)
    while at >= 0:
        frame = frame_at(view, at, seed)
        if frame is not None:
            yield frame
        at = data.find(_MARK, at + 1 if frame is None else frame.end)


def content_of(frame: Frame, data: bytes) -> bytes:
    """What was put into the frame."""
    return data[frame.offset + HEADER_BYTES : frame.end]

"""The check of a row, and the offsets by which readers name where they are."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from collector.log.errors import UnfitRow
from protocol.row import Row

_NUMBERS = struct.Struct("<BQqI")


class Position(NamedTuple):
    """An offset within a shard: behind all older segments and the first `row` rows, snapshot included, of `segment`."""

    segment: int
    row: int


NOBODY = ""
"""Instead of an agent's name: what a row says is about the log itself. It is part of no agent batch."""

FIRST = Position(1, 0)
"""Where every shard begins."""


def check_of(row: Row) -> int:
    """A checksum over all fields: a row that has it is the row that was appended."""
    kind, agent, nonce, seq, data = row
    try:
        name = agent.encode()
        return zlib.crc32(data, zlib.crc32(name, zlib.crc32(_NUMBERS.pack(kind, nonce, seq, len(name)))))
    except (struct.error, UnicodeEncodeError) as error:
        raise UnfitRow(f"kind {kind!r}, agent {agent!r}, nonce {nonce!r}, seq {seq!r}: {error}") from None

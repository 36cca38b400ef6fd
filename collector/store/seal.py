"""Every packed value of the store ends with a checksum, its seal: SQLite looks at how its pages hang together, not at
what is in them, and would hand out a changed byte as if it had been written so.

The checksum begins with a seed, made of the numbers by which the value was looked for: what is sound, but stands where
something else should be, does not pass either.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from protocol.chunks import SEQ_BITS

SEAL_BYTES = 4


class NotAsWritten(ValueError):
    """Something in the store is not what was written there; the text says what."""


def sealed(data: bytes, seed: int) -> bytes:
    """A value as it is stored."""
    return data + crc32(data, seed).to_bytes(SEAL_BYTES, "little")


def unsealed(data: Any, seed: int) -> bytes | None:
    """The value again; None if it is not as it was stored."""
    if type(data) is not bytes or len(data) < SEAL_BYTES:
        return None
    value = data[:-SEAL_BYTES]
    return value if crc32(value, seed).to_bytes(SEAL_BYTES, "little") == data[-SEAL_BYTES:] else None


def named(first: int, last: int | None = None) -> str:
    """Tuples, as far as the store can say without looking further."""
    stream, seq = first >> SEQ_BITS, first & (1 << SEQ_BITS) - 1
    if last is None or last == first:
        return f"tuple {seq} of stream {stream}"
    return f"tuples {seq} to {last & (1 << SEQ_BITS) - 1} of stream {stream}"

"""Names of streams and tuples: identity is where and when a tuple was born, never what it says."""

from __future__ import annotations

from typing import NamedTuple

DISK_BITS = 24  # of the 64 bits of a nonce


class StreamId(NamedTuple):
    """A stream of one start (epoch) of one agent.

    People tell epochs apart by their number. A device whose memory was wiped begins to count anew, so machines go by
    the random nonce of each start. Its first bits are those of the disk that counts (`disk_of`).
    """

    agent: str
    epoch: int
    name: str
    nonce: int = 0

    def __str__(self) -> str:
        return f"{self.agent}/{self.name}@{self.epoch}"


class TupleId(NamedTuple):
    """A tuple of a stream; its number is given when the tuple first leaves the process."""

    stream: StreamId
    seq: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.seq}"


def disk_of(nonce: int) -> int:
    """The disk on which a start was counted: numbers of epochs tell which came first if it is the same."""
    return nonce >> 64 - DISK_BITS

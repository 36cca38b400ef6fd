"""Names of streams and tuples: identity is where and when a tuple was born, never what it says."""

from __future__ import annotations

from typing import NamedTuple


class StreamId(NamedTuple):
    """A stream of one start (epoch) of one agent.

    People tell epochs apart by their number. A device whose memory was wiped begins to count anew, so machines go by
    the random nonce of each start.
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

"""What waits: while references of a sink are not settled, it counts as being no further than they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from protocol.chunks import pack, unpack
from spark_jobs.chunks import Chunk, Kind


@dataclass(slots=True)
class Waiting:
    """Which sinks have references that wait for what they refer to, as stream numbers."""

    hold: dict[int, int] = field(default_factory=dict)
    """Such a sink is only as far as this."""
    oldest: dict[int, int] = field(default_factory=dict)
    """The ts of the oldest sink tuple that is not complete."""

    def add(self, sink: int, hold: int, oldest: int) -> None:
        self.hold[sink] = min(hold, self.hold.get(sink, hold))
        self.oldest[sink] = min(oldest, self.oldest.get(sink, oldest))

    def packed(self) -> bytes:
        sinks = np.array(sorted(self.oldest), "<i8")
        columns = [[by[each] for each in sinks.tolist()] for by in (self.hold, self.oldest)]
        return pack([sinks, *(np.array(column, "<i8") for column in columns)])

    def read(self, data: bytes) -> None:
        """Add what `packed` made."""
        for sink, hold, oldest in zip(*(column.tolist() for column in unpack(data)), strict=True):
            self.add(sink, hold, oldest)


def read_waiting(chunks: Iterable[Chunk], buckets: int) -> Waiting:
    """What waits in all buckets of the stage before. Without one of them, labels would come too early."""
    waiting = Waiting()
    told = [chunk.data for chunk in chunks if chunk.kind == Kind.WAITING]
    if len(told) != buckets:
        raise RuntimeError(f"{len(told)} of {buckets} buckets have told what waits")
    for data in told:
        waiting.read(data)
    return waiting

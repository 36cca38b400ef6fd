"""What other agents send here, in order and once, whatever the network does to it. No I/O.

The position in each stream is kept with the records that came of it (`Received`), so a new process goes on exactly
where the last one has left its results.
"""

from __future__ import annotations

from protocol.structs import Struct, made
from protocol.wire.crossing import Crossing

MOST_EARLY = 64
NOTHING_TAKEN = 0  # instead of a spool: nothing was ever taken of this stream


class _Position(Struct):
    spool: int | None = None
    next_seq: int = 0
    early: dict[int, Crossing] = made(factory=dict)
    former: set[int] = made(factory=set)


class Receiving:
    """The streams of other agents that this one takes."""

    def __init__(self, positions: dict[str, list[int]]) -> None:
        self.duplicates = self.early_dropped = 0
        self._positions: dict[tuple[str, str], _Position] = {}
        for key, (spool, next_seq) in positions.items():
            sender, _, stream = key.partition("/")
            self._positions[sender, stream] = _Position(spool, next_seq)

    def position(self, sender: str, stream: str) -> list[int] | None:
        """How far a stream has come, as (spool, next), whether that is on disk or not."""
        position = self._positions.get((sender, stream))
        return None if position is None or position.spool is None else [position.spool, position.next_seq]

    def arrived(self, crossing: Crossing, oldest: bool) -> tuple[list[Crossing], int]:
        """The crossings that can be taken now, and how many before them will never come."""
        position = self._positions.setdefault((crossing.stream.agent, crossing.stream.name), _Position())
        if crossing.spool != position.spool:
            if not oldest or crossing.spool in position.former:
                self.early_dropped += 1  # it comes again, as the oldest
                return [], 0
            if position.spool is not None:
                position.former.add(position.spool)
            position.spool, position.next_seq = crossing.spool, crossing.seq
            position.early.clear()
        if crossing.seq < position.next_seq:
            self.duplicates += 1
            return [], 0
        if crossing.seq > position.next_seq and not oldest:
            self._keep_early(position, crossing)
            return [], 0
        missing = crossing.seq - position.next_seq
        ready = [crossing]
        position.next_seq = crossing.seq + 1
        for seq in [seq for seq in position.early if seq < position.next_seq]:
            del position.early[seq]
        while (following := position.early.pop(position.next_seq, None)) is not None:
            ready.append(following)
            position.next_seq += 1
        return ready, missing

    def _keep_early(self, position: _Position, crossing: Crossing) -> None:
        if len(position.early) < MOST_EARLY:
            position.early[crossing.seq] = crossing
        else:
            self.early_dropped += 1

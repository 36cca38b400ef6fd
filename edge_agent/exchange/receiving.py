"""What other agents send here, in order and once, whatever the network does to it. No I/O.

The position in each stream is kept with the records that came of it (`Received`), so a new process goes on exactly
where the last one has left its results. A sender whose disk was deleted counts anew, and what it had sent before may
still be under way: each count is followed by itself.
"""

from __future__ import annotations

from protocol.structs import Struct, made
from protocol.wire.crossing import Crossing

MOST_EARLY = 64
MOST_FORMER = 16  # counts of a stream that are remembered
NOTHING_TAKEN = 0  # instead of a spool: nothing was ever taken of this stream


class _Position(Struct):
    spool: int | None = None
    next_seq: int = 0
    early: dict[int, Crossing] = made(factory=dict)
    former: dict[int, int] = made(factory=dict)
    """How far other counts of the same stream have come."""


class Receiving:
    """The streams of other agents that this one takes."""

    def __init__(self, positions: dict[str, list[int]]) -> None:
        self.duplicates = self.early_dropped = 0
        self._positions: dict[tuple[str, str], _Position] = {}
        for key, (spool, next_seq) in positions.items():
            sender, _, stream = key.partition("/")
            self._positions[sender, stream] = _Position(spool, next_seq)

    def next_of(self, sender: str, stream: str, spool: int) -> int | None:
        """How far a count of a stream has come, whether that is on disk or not."""
        position = self._positions.get((sender, stream))
        if position is None:
            return None
        return position.next_seq if position.spool == spool else position.former.get(spool)

    def arrived(self, crossing: Crossing, oldest: bool) -> tuple[list[Crossing], int]:
        """The crossings that can be taken now, and how many before them will never come."""
        position = self._positions.setdefault((crossing.stream.agent, crossing.stream.name), _Position())
        if crossing.spool != position.spool:
            known = position.former.get(crossing.spool)
            if known is not None and crossing.seq < known:
                self.duplicates += 1
                return [], 0
            if not oldest and known != crossing.seq:
                self.early_dropped += 1  # it comes again, as the oldest
                return [], 0
            self._follow(position, crossing.spool, crossing.seq if known is None else known)
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

    def _follow(self, position: _Position, spool: int, next_seq: int) -> None:
        """The stream goes on in another count."""
        if position.spool is not None:
            position.former[position.spool] = position.next_seq
        position.former.pop(spool, None)
        while len(position.former) > MOST_FORMER:
            del position.former[next(iter(position.former))]
        position.spool, position.next_seq = spool, next_seq
        position.early.clear()

    def _keep_early(self, position: _Position, crossing: Crossing) -> None:
        if len(position.early) < MOST_EARLY:
            position.early[crossing.seq] = crossing
        else:
            self.early_dropped += 1

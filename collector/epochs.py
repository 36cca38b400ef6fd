"""The order in which batches enter the log: each epoch of an agent without holes, older epochs before newer ones.

No I/O. A batch that comes too soon waits here, unacknowledged and in bounded memory: if it has to be thrown out, the
agent sends it again. The agent says of the oldest batch that it holds that it is the oldest, so what is missing before
that one will never come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.records import Gap, Lost
from protocol.wire.answers import MOST_EARLY, Logged
from protocol.wire.batch import Header

StreamKey = tuple[str, int, str]  # agent, nonce, name
MOST_EARLY_BYTES = 256 << 10
NEVER_CAME = "never came: the agent holds nothing older"


@dataclass(slots=True)
class EpochState:
    """How far the log of one epoch has come, and the numbers of the streams that it names."""

    agent: str
    epoch: int
    nonce: int
    next_seq: int = 0
    next_event: int = 0
    next_seqs: dict[str, int] = field(default_factory=dict)
    streams: dict[StreamKey, int] = field(default_factory=dict)
    ended: bool = False
    retired: bool = False

    def trimmed(self, gap: Gap) -> Gap | None:
        """What of a gap is missing here. An acknowledgement may have been lost, and then the agent names too much."""
        lost = tuple(
            Lost(each.name, max(each.first, self.next_seqs.get(each.name, 0)), each.last)
            for each in gap.tuples
            if each.last >= self.next_seqs.get(each.name, 0)
        )
        events = gap.events
        if events is not None:
            events = (max(events[0], self.next_event), events[1])
            events = None if events[0] > events[1] else events
        batches = gap.batches
        if batches is not None:
            batches = (max(batches[0], self.next_seq), batches[1])
            batches = None if batches[0] > batches[1] else batches
        if gap.batches is not None and batches is None and not lost and events is None:
            return None
        return Gap(gap.reason, gap.epoch, gap.nonce, batches, lost, events, gap.progress, gap.next_seqs, gap.next_event)


@dataclass(slots=True)
class Arrival:
    """A batch as it came, not decoded yet."""

    agent: str
    oldest: bool
    header: Header
    data: bytes


class AgentEpochs:
    """All epochs of one agent that anything may still come of, oldest first."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.known: dict[int, EpochState] = {}
        self.early_dropped = 0
        self.duplicates = 0
        self._early: dict[tuple[int, int], Arrival] = {}
        self._early_bytes = 0

    def arrived(self, arrival: Arrival) -> Iterator[tuple[Arrival, Gap | None]]:
        """The batches that may be logged now, each with what is missing before it.

        The caller logs each one, or not at all, before it asks for the next: `EpochState.next_seq` says which it was.
        """
        next_one: Arrival | None = arrival
        while next_one is not None:
            ready, gap = self._judge(next_one)
            if not ready:
                return
            yield next_one, gap
            state = self.known.get(next_one.header.nonce)
            if state is None or state.next_seq < next_one.header.next_seq:
                return
            next_one = self._take_early(state)

    def _judge(self, arrival: Arrival) -> tuple[bool, Gap | None]:
        header = arrival.header
        state = self.known.get(header.nonce)
        expected = 0 if state is None else state.next_seq
        if header.next_seq <= expected:
            self.duplicates += 1
            return False, None
        if arrival.oldest or (state is not None and header.seq <= expected):
            missing = (expected, header.seq - 1)
            gap = Gap(NEVER_CAME, header.epoch, header.nonce, missing) if header.seq > expected else None
            return True, gap
        self._keep_early(arrival)
        return False, None

    def _keep_early(self, arrival: Arrival) -> None:
        key = arrival.header.nonce, arrival.header.seq
        if key in self._early:
            self.duplicates += 1
        elif len(self._early) >= MOST_EARLY or self._early_bytes + len(arrival.data) > MOST_EARLY_BYTES:
            self.early_dropped += 1
        else:
            self._early[key] = arrival
            self._early_bytes += len(arrival.data)

    def _take_early(self, state: EpochState) -> Arrival | None:
        for key in [key for key in self._early if key[0] == state.nonce and key[1] < state.next_seq]:
            self._early_bytes -= len(self._early.pop(key).data)
        found = self._early.pop((state.nonce, state.next_seq), None)
        if found is not None:
            self._early_bytes -= len(found.data)
        return found

    def answer(self, nonce: int, codecs: int, duplicate: bool) -> Logged:
        """How far an epoch is logged, and what of it waits."""
        state = self.known.get(nonce)
        next_seq = 0 if state is None else state.next_seq
        early = 0
        for held, seq in self._early:
            if held == nonce and 0 <= seq - next_seq - 1 < MOST_EARLY:
                early |= 1 << seq - next_seq - 1
        return Logged(nonce, next_seq, early, codecs, duplicate)

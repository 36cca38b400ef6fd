"""The order in which batches enter the log: each epoch of an agent without holes, older epochs before newer ones.

No I/O. A batch that comes too soon waits here, unacknowledged and in bounded memory: if it has to be thrown out, the
agent sends it again. The agent says of the oldest batch that it holds that it is the oldest, so what is missing before
that one will never come.

What is known of an epoch is what its rows in the log say, and nothing else (`follow`). So it is the same whether the
rows have just been made or are read again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, cast

from collector.log import Row
from protocol.chunks import SEQ_BITS, Numbers, last_event, payload_ids, unpack
from protocol.ids import StreamId
from protocol.plan import Node, PlanDocument, PlanError, delivering_name
from protocol.records import Declared, Gap, Lost
from protocol.structs import replaced
from protocol.wire.answers import MOST_EARLY, Logged
from protocol.wire.batch import Header
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, decode_section
from protocol.wire.values import decode

StreamKey = tuple[str, int, str]  # agent, nonce, name
MOST_EARLY_BYTES = 256 << 10  # of one agent
MOST_EARLY_BYTES_OF_ALL = 32 << 20
MOST_EPOCHS = 2  # of one agent, in memory and in snapshots; older ones are in the registry
MOST_CLOSING = 64
MOST_OWN_STREAMS = 1_000  # of one epoch
MOST_OTHER_STREAMS = 4_096  # that an epoch names; those named longest ago are told again in the log if need be
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
    own_streams: dict[str, int] = field(default_factory=dict)
    other_streams: dict[StreamKey, int] = field(default_factory=dict)
    plan: bytes = b""
    """As the agent told it (a section), empty if it did not."""
    exchanges: bool = False
    """Whether it sends to others or receives from them, or the last one before it that had a plan did."""
    plan_before: bytes = b""
    """That of the last epoch before it that told one: a power cut may have taken its own."""
    ended: bool = False
    retired: bool = False

    def number_of(self, stream: StreamId) -> int | None:
        """The number of a stream, if the log has told it for this epoch."""
        if stream.nonce == self.nonce and stream.agent == self.agent:
            return self.own_streams.get(stream.name)
        return self.other_streams.get((stream.agent, stream.nonce, stream.name))

    @property
    def sends(self) -> frozenset[str]:
        """The names of the streams that go to other agents."""
        return sends_in(self.plan or self.plan_before)

    @property
    def may_be_awaited(self) -> bool:
        """Whether anybody may wait for it, or for others because of it: for as long as it has not ended, if it takes
        what others send or they what it sends, and if it has no plan, which would close what starts before it have
        left open."""
        return not self.ended or self.exchanges or (not self.plan and bool(self.plan_before))

    def trimmed(self, gap: Gap) -> Gap | None:
        """What of a gap is missing here, None if nothing is. An acknowledgement may have been lost, and then the agent
        names too much; after a crash it may know of less than has arrived. That a start was cut short is news in any
        case, unless its End is here."""
        next_seqs = self.next_seqs
        lost = tuple(
            Lost(each.name, max(each.first, next_seqs.get(each.name, 0)), each.last)
            for each in gap.tuples
            if each.last >= next_seqs.get(each.name, 0)
        )
        batches, events = _from(self.next_seq, gap.batches), _from(self.next_event, gap.events)
        if gap.batches is not None and batches is None and (gap.next_event is None or self.ended):
            return None
        left = replaced(gap, batches=batches, tuples=lost, events=events)
        if gap.next_event is not None:
            furthest = dict(gap.next_seqs)
            for name, seq in next_seqs.items():
                furthest[name] = max(seq, furthest.get(name, 0))
            next_event = max(gap.next_event, self.next_event)
            return replaced(left, next_seqs=tuple(sorted(furthest.items())), next_event=next_event)
        names_nothing = not (batches or lost or events)
        return None if names_nothing and (gap.tuples or gap.events) else left

    def missed(self, gap: Gap) -> None:
        """What is missing has been named: it is not missed any more."""
        if gap.batches is not None:
            self.next_seq = max(self.next_seq, gap.batches[1] + 1)
        if gap.events is not None:
            self.next_event = max(self.next_event, gap.events[1] + 1)
        for lost in gap.tuples:
            self._reached(lost.name, lost.last)

    def follow(self, row: Row) -> None:
        """A row of this epoch is in the log."""
        self.retired = row.kind == Kind.RETIRE
        if self.retired:
            return
        if row.seq >= self.next_seq:
            self.next_seq = row.seq + 1
            while len(self.other_streams) > MOST_OTHER_STREAMS:
                del self.other_streams[next(iter(self.other_streams))]
        match row.kind:
            case Kind.REGISTER:
                self._registered(*decode(row.data))
            case Kind.PLAN:
                self.plan = row.data
                nodes = nodes_of(row.data)
                self.exchanges = nodes is None or any(node.operator in ("send", "receive") for node in nodes)
            case Kind.END:
                self.ended = True
            case Kind.EVENT:
                self.next_event = max(self.next_event, last_event(row.data) + 1)
            case Kind.SOURCE | Kind.DELIVERY:
                self._reached_ids(unpack(row.data)[0])
            case Kind.PAYLOAD if row.data[0] == Kind.ASSERTION:
                self._reached_ids(payload_ids(row.data))

    def _registered(self, number: int, agent: str, _: int, name: str, nonce: int, *__: int) -> None:
        if nonce == self.nonce and agent == self.agent:
            self.own_streams[name] = number
        else:
            self.other_streams[agent, nonce, name] = number

    def _reached_ids(self, ids: Numbers) -> None:
        names = {number: name for name, number in self.own_streams.items()}
        of = ids >> SEQ_BITS
        for number in set(of.tolist()):
            if number in names:
                self._reached(names[number], int(ids[of == number].max()) & (1 << SEQ_BITS) - 1)

    def _reached(self, name: str, seq: int) -> None:
        if name in self.next_seqs or len(self.next_seqs) < MOST_OWN_STREAMS:
            self.next_seqs[name] = max(self.next_seqs.get(name, 0), seq + 1)

    def told(self) -> dict[str, Any]:
        """All of it as plain values, for a snapshot."""
        return {**asdict(self), "other_streams": [[number, *key] for key, number in self.other_streams.items()]}

    @classmethod
    def from_told(cls, told: dict[str, Any]) -> EpochState:
        """What `told` gave."""
        others = {(agent, nonce, name): number for number, agent, nonce, name in told["other_streams"]}
        return cls(**{**told, "other_streams": others})


@lru_cache(1024)
def nodes_of(plan: bytes) -> tuple[Node, ...] | None:
    """Of a plan that nobody vouches for; None if it cannot be read."""
    try:
        declared = cast("list[Declared]", decode_section(Kind.PLAN, plan, StreamId("", 0, ""))) if plan else []
        return tuple(node for each in declared for node in PlanDocument.from_json(each.plan).nodes)
    except (MalformedBatch, PlanError):
        return None


@lru_cache(1024)
def sends_in(plan: bytes) -> frozenset[str]:
    """The names of the streams that a plan sends to other agents."""
    return frozenset(delivering_name(node) for node in nodes_of(plan) or () if node.operator == "send")


def _from(first: int, span: tuple[int, int] | None) -> tuple[int, int] | None:
    """The part of a span from a number on."""
    return None if span is None or span[1] < first else (max(first, span[0]), span[1])


@dataclass(slots=True)
class Arrival:
    """A batch as it came, not decoded yet."""

    agent: str
    oldest: bool
    header: Header
    data: bytes


@dataclass(slots=True)
class Tally:
    """What the agents of a shard have in common: counts, and the room for what came too soon."""

    duplicates: int = 0
    early_dropped: int = 0
    early_left_bytes: int = MOST_EARLY_BYTES_OF_ALL


class AgentEpochs:
    """All epochs of one agent that anything may still come of, the one that was logged last at the end."""

    def __init__(self, agent: str, tally: Tally) -> None:
        self.agent = agent
        self.known: dict[int, EpochState] = {}
        self.closing: dict[int, EpochState] = {}
        """Older ones, until the registry remembers them."""
        self.recalled: dict[int, EpochState] = {}
        """Those of which something has come again that the registry had to be asked for."""
        self._tally = tally
        self._early: dict[tuple[int, int], Arrival] = {}
        self._early_bytes = 0

    @property
    def current(self) -> EpochState | None:
        """The epoch of the newest batch in the log."""
        return next(reversed(self.known.values()), None)

    @property
    def expects_nothing(self) -> bool:
        """Nothing waits here, and nothing more need come."""
        state = self.current
        return not self._early and (state is None or state.ended or state.retired)

    def find(self, nonce: int) -> EpochState | None:
        """What is known of an epoch."""
        return self.known.get(nonce) or self.closing.get(nonce) or self.recalled.get(nonce)

    @property
    def last_plan(self) -> bytes:
        """The newest plan that the agent has told, be it of its last epoch or of one before."""
        return b"" if self.current is None else self.current.plan or self.current.plan_before

    # Arrivals

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
            state = self.find(next_one.header.nonce)
            if state is None or state.next_seq < next_one.header.next_seq:
                return
            next_one = self._take_early(state)

    def _judge(self, arrival: Arrival) -> tuple[bool, Gap | None]:
        header = arrival.header
        state = self.find(header.nonce)
        expected = 0 if state is None else state.next_seq
        if header.next_seq <= expected:
            self._tally.duplicates += 1
            return False, None
        if arrival.oldest or (state is not None and header.seq <= expected):
            missing = (expected, header.seq - 1)
            gap = Gap(NEVER_CAME, header.epoch, header.nonce, missing) if header.seq > expected else None
            return True, gap
        self._keep_early(arrival)
        return False, None

    def _keep_early(self, arrival: Arrival) -> None:
        key, size, tally = (arrival.header.nonce, arrival.header.seq), len(arrival.data), self._tally
        if key in self._early:
            tally.duplicates += 1
        elif len(self._early) >= MOST_EARLY or size > min(MOST_EARLY_BYTES - self._early_bytes, tally.early_left_bytes):
            tally.early_dropped += 1
        else:
            self._early[key] = arrival
            self._early_bytes += size
            tally.early_left_bytes -= size

    def _take_early(self, state: EpochState) -> Arrival | None:
        found = self._early.get((state.nonce, state.next_seq))
        self._forget_early([key for key in self._early if key[0] == state.nonce and key[1] <= state.next_seq])
        return found

    def _forget_early(self, keys: list[tuple[int, int]]) -> None:
        for key in keys:
            size = len(self._early.pop(key).data)
            self._early_bytes -= size
            self._tally.early_left_bytes += size

    def forget_early(self) -> None:
        """Let go of everything that waits: if it still matters, it comes again."""
        self._forget_early(list(self._early))

    def answer(self, nonce: int, codecs: int, duplicate: bool) -> Logged:
        """How far an epoch is logged, and what of it waits."""
        state = self.find(nonce)
        next_seq = 0 if state is None else state.next_seq
        early = 0
        for held, seq in self._early:
            if held == nonce and 0 <= seq - next_seq - 1 < MOST_EARLY:
                early |= 1 << seq - next_seq - 1
        return Logged(nonce, next_seq, early, codecs, duplicate)

    # Rows

    def adopt(self, state: EpochState) -> None:
        """The newest batch in the log is of this epoch."""
        nonce = state.nonce
        if self.current is state:
            return
        if self.current is not None and not state.plan:
            state.exchanges = state.exchanges or self.current.exchanges
            state.plan_before = self.last_plan
        for place in (self.known, self.closing, self.recalled):
            place.pop(nonce, None)
        # Batches of an older epoch that wait here were given up, or else this one would not have had its turn.
        self._forget_early([key for key in self._early if key[0] != nonce and self.find(key[0]) is not None])
        self.known[nonce] = state
        while len(self.known) > MOST_EPOCHS:
            oldest = next(iter(self.known))
            self.closing[oldest] = self.known.pop(oldest)

    def follow(self, state: EpochState, row: Row) -> None:
        """A row of an epoch is in the log."""
        self.adopt(state)
        state.follow(row)
        if row.kind == Kind.GAP:
            own = StreamId(state.agent, state.epoch, "", state.nonce)
            for gap in cast("list[Gap]", decode_section(Kind.GAP, row.data, own)):
                self._missed(state, gap)

    def _missed(self, state: EpochState, gap: Gap) -> None:
        """Of what was given up, a copy may still be on its way: it must not be taken for news."""
        of = state if gap.nonce == state.nonce else self.known.get(gap.nonce)
        if of is None and gap.batches is not None and len(self.closing) < MOST_CLOSING:
            of = self.find(gap.nonce) or EpochState(self.agent, gap.epoch, gap.nonce)
            self.closing[gap.nonce] = of
        if of is not None:
            of.missed(gap)

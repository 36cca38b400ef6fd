"""Logs of whole fleets, in memory: what agents say becomes rows of the log, cut into micro-batches.

    Shards    the translators' own code, with dictionaries instead of disks: batches in, rows out
    Speaker   an agent that says what a test wants it to say, batch by batch
    Scenario  random plans on several agents, run by the real engine, with all that can go wrong on the way to the log

A `Scenario` prints as code: paste what a failing test shows into a regression test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from typing import Any

from hypothesis import strategies as st

from collector.epochs import Tally
from collector.log import Row
from collector.registry import ClosedEpoch, Epoch, StreamName, StreamNumber
from collector.shard_log import Counters, ShardLog
from edge_agent.outbox.giving_up import replacement
from edge_agent.outbox.recovery import CRASH
from edge_agent.stream import Engine, Plan, Watermark
from protocol.ids import StreamId
from protocol.plan import PlanDocument
from protocol.records import (
    END_OF_TIME,
    Declared,
    Delivery,
    End,
    Gap,
    Origin,
    OriginKind,
    Progress,
    Record,
    SourcePayload,
    Status,
)
from protocol.wire.batch import Header, encode_batch, frame
from protocol.wire.compression import Codec
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, Pending, in_parts, pending
from tests.edge_agent.stream.random_plans import KEEPING, KINDS, build, inputs_for, queries
from tests.support import oracle
from tests.support.oracle import Item, Mark, Query
from tests.support.pipeline import MicroBatch

PACKER = Packer()
_BROKEN = b"\xff"

# ---------------------------------------------------------------------- translators without disks


class _Registry:
    """Numbers of streams, from a dictionary."""

    def __init__(self) -> None:
        self._numbers: dict[StreamName, StreamNumber] = {}
        self._epochs: dict[tuple[str, int], Epoch] = {}
        self._closed: dict[tuple[str, int], tuple[int, int]] = {}

    def numbers_of(self, streams: Iterable[StreamName]) -> dict[StreamName, StreamNumber]:
        found = {}
        for each in streams:
            key = each._replace(epoch=0)
            is_new = key not in self._numbers
            self._numbers.setdefault(key, StreamNumber(len(self._numbers) + 1, is_new))
            found[each] = self._numbers[key]
        return found

    def epoch_of(self, agent: str, nonce: int, counter: int) -> Epoch:
        return self._epochs.setdefault((agent, nonce), Epoch(counter, False))

    def close_epochs(self, closed: Iterable[ClosedEpoch]) -> None:
        for each in closed:
            self._closed[each.agent, each.nonce] = each.shown, each.next_seq

    def closed_epoch(self, agent: str, nonce: int) -> tuple[int, int] | None:
        return self._closed.get((agent, nonce))


class _Writer:
    """Rows that are not in a micro-batch yet."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, rows: Iterable[Row]) -> None:
        self.rows += rows

    def commit(self) -> None:
        """There is no disk to wait for."""


class _Quarantine:
    def keep(self, agent: str, payload: bytes, reason: str) -> None:
        """Nobody looks at it."""


class _Shard(ShardLog):
    """A shard whose log is a list."""

    def __init__(self, shard: int, registry: _Registry) -> None:
        self.shard = shard
        self.counters = Counters()
        self.written = _Writer()
        self.now = 0.0
        self._registry: Any = registry
        self._quarantine: Any = _Quarantine()
        self._writer: Any = self.written
        self._retire_after_s = 1.0
        self._clock = lambda: self.now
        self._agents = {}
        self._tally = Tally()
        self._unanswered = {}
        self._refusals_told_at = None
        self._no_room_until = 0.0

    def retire_agent(self, agent: str) -> None:
        """It was silent for too long."""
        self._agents[agent].heard_at = self.now - self._retire_after_s
        self.retire()

    def begin_segment(self) -> None:
        """A new segment begins with what is known."""
        self.written.append(self._snapshot())


class Shards:
    """All shards of a log, and what has come since the last micro-batch."""

    def __init__(self, shards: int = 2) -> None:
        registry = _Registry()
        self._shards = [_Shard(number, registry) for number in range(shards)]
        self._homes: dict[str, _Shard] = {}

    def home(self, agent: str) -> _Shard:
        """Agents go to the shards in turn."""
        return self._homes.setdefault(agent, self._shards[len(self._homes) % len(self._shards)])

    def take(self, agent: str, batch: bytes, oldest: bool) -> None:
        """A batch comes to its translator."""
        shard = self.home(agent)
        before = len(shard.written.rows)
        shard.take(agent, frame(batch, agent, oldest))
        shard.commit()
        assert len(shard.written.rows) > before, "a batch left no row"

    def retire(self, agent: str) -> None:
        self.home(agent).retire_agent(agent)

    def begin_segments(self) -> None:
        for shard in self._shards:
            shard.begin_segment()

    def micro_batch(self) -> MicroBatch:
        """The rows since the last time."""
        rows = {shard.shard: shard.written.rows for shard in self._shards if shard.written.rows}
        for shard in self._shards:
            shard.written.rows = []
        return rows


# ---------------------------------------------------------------------- an agent that says what it is told


def nonce_of(agent: str, epoch: int) -> int:
    """Different for every start, and for some agents beyond what fits a signed number."""
    return (
        sum(agent.encode()) % 2 << 63
        | sum(byte << 8 * place for place, byte in enumerate(agent.encode()[:6])) << 8
        | epoch
    )


def in_batch(rows: Iterable[Pending]) -> list[Pending]:
    """Of each stream's progress, only the last is told."""
    progress: dict[str, Pending] = {}
    others = []
    for row in rows:
        if row[0] is Kind.PROGRESS:
            progress[row[1].name] = row
        else:
            others.append(row)
    return others + list(progress.values())


class Start:
    """One start of an agent: makes its batches, and keeps what the next start has to know of it."""

    def __init__(self, agent: str, epoch: int) -> None:
        self.agent = agent
        self.epoch = epoch
        self.nonce = nonce_of(agent, epoch)
        self.next_batch = 0
        self.ended = False
        self._progress: dict[str, tuple[int, int]] = {}
        self._next_seqs: dict[str, int] = {}

    def stream(self, name: str) -> StreamId:
        return StreamId(self.agent, self.epoch, name, self.nonce)

    def batch(self, rows: Sequence[Pending]) -> bytes:
        """The next batch."""
        return encode_batch(self._header(rows), in_batch(rows), self.agent, codec=Codec.NONE)

    def unreadable(self, rows: Sequence[Pending]) -> bytes:
        """A batch of these that a translator cannot understand."""
        return self._header(rows).encode() + _BROKEN

    def _header(self, rows: Sequence[Pending]) -> Header:
        self.next_batch += 1
        for row in rows:
            if row[0] is Kind.PROGRESS:
                self._progress[row[1].name] = (row[2], row[3])
            elif row[0] in (Kind.SOURCE, Kind.DELIVERY):
                self._next_seqs[row[1].name] = row[2] + 1
        return Header(self.epoch, self.nonce, self.next_batch - 1)

    def gap(self) -> Gap:
        """What the next start says of this one, if this one was killed."""
        progress = tuple((name, *promise) for name, promise in sorted(self._progress.items()))
        return Gap(
            CRASH,
            self.epoch,
            self.nonce,
            progress=progress,
            next_seqs=tuple(sorted(self._next_seqs.items())),
            next_event=0,
        )


class Speaker:
    """An agent of a test: `says` what it delivers and promises, and `leave` makes a batch of it."""

    def __init__(self, shards: Shards, name: str, plan: Plan | PlanDocument | None) -> None:
        self.name = name
        self.start = Start(name, 0)
        self._shards = shards
        self._rows: list[Pending] = []
        self._seqs: dict[str, Iterator[int]] = {}
        self.restart(plan)

    def restart(self, plan: Plan | PlanDocument | None, *, crashed: bool = False) -> None:
        """The next start; what was said and has not left is lost."""
        before = self.start
        self.start = Start(self.name, before.epoch + 1)
        self._rows, self._seqs = [], {}
        if plan is not None:
            document = plan if isinstance(plan, PlanDocument) else plan.document()
            self.says(Declared(document.to_json()))
        if crashed:
            self.says(before.gap())

    def says(self, *records: Any) -> None:
        self._rows += [pending(record, PACKER) for record in records]

    def source(self, stream: str, ts: int) -> Origin:
        """A new source tuple."""
        made = SourcePayload(self.start.stream(stream), self._seq(stream), ts, ts)
        self.says(made)
        return Origin(OriginKind.SOURCE, made.stream, made.seq, ts)

    def deliver(self, stream: str, ts: int, *origins: Origin, parts: int = 1) -> Origin:
        """A tuple reaches a sink or send; returns what a receiver would call it."""
        made = Delivery(self.start.stream(stream), self._seq(stream), ts, ts, origins)
        row = pending(made, PACKER)
        self._rows += in_parts(row, -(-len(origins) // parts) or 1)
        return Origin(OriginKind.REMOTE, made.stream, made.seq, ts)

    def progress(self, stream: str, watermark: int, hold: int = END_OF_TIME) -> None:
        self.says(Progress(self.start.stream(stream), watermark, hold))

    def end(self, ts: int = 0) -> None:
        self.says(End(ts))
        self.start.ended = True

    @property
    def has_more(self) -> bool:
        """Something was said and has not left."""
        return bool(self._rows)

    def leave(self, some: int | None = None) -> None:
        """What was said so far becomes a batch, or so many records of it."""
        rows, self._rows = self._rows[:some], [] if some is None else self._rows[some:]
        seq = self.start.next_batch
        self._shards.take(self.name, self.start.batch(rows), oldest=seq == 0)

    def lose(self) -> None:
        """What was said so far is dropped: the spool was full."""
        batch = self.start.batch(self._rows)
        self._rows = []
        self._shards.take(self.name, replacement([batch], self.name, PACKER)[0], oldest=False)

    def garble(self) -> None:
        """What was said so far cannot be understood."""
        batch = self.start.unreadable(self._rows)
        self._rows = []
        self._shards.take(self.name, batch, oldest=False)

    def _seq(self, stream: str) -> int:
        return next(self._seqs.setdefault(stream, count()))


def status() -> Status:
    """Something of an agent that concerns no stream."""
    return Status(0, 0, 0, 0, 0, 0, {}, {})


# ---------------------------------------------------------------------- fleets that run


@dataclass(frozen=True)
class Feed:
    """The next items of a source."""

    agent: int
    source: int
    items: int


@dataclass(frozen=True)
class Take:
    """An agent takes over what others have sent it, so many lists of it."""

    agent: int
    lists: int


@dataclass(frozen=True)
class Crash:
    """An agent is killed and starts again: its open windows are lost, and so many items of each source."""

    agent: int
    items: int


@dataclass(frozen=True)
class Stop:
    """An agent is stopped as it should be and starts again: its open windows are lost."""

    agent: int


@dataclass(frozen=True)
class Lose:
    """Batches of an agent that its spool has dropped."""

    agent: int
    first: int
    count: int


@dataclass(frozen=True)
class Garble:
    """A batch of an agent that cannot be understood."""

    agent: int
    which: int


@dataclass(frozen=True)
class Arrive:
    """So many batches of an agent reach the log; then perhaps it is given up, perhaps a micro-batch ends."""

    agent: int
    batches: int
    retire: bool = False
    ends: bool = True


Step = Feed | Take | Crash | Stop
Fault = Lose | Garble


@dataclass(frozen=True)
class Scenario:
    """A fleet, its input, and everything that happens to it."""

    fleet: dict[str, Query]
    """An agent stands after those it receives from."""
    inputs: dict[str, dict[str, list[Item]]]
    steps: tuple[Step, ...] = ()
    sizes: tuple[int, ...] = (3,)
    """How many records the batches have, in turn."""
    faults: tuple[Fault, ...] = ()
    arrivals: tuple[Arrive, ...] = ()
    """In which order batches reach the log. All others follow, agent by agent, the last one first if `backwards`."""
    backwards: bool = False
    part: int = 1_000
    """Origins of one record."""
    shards: int = 2
    segments: bool = False
    """Whether each micro-batch begins a new segment."""

    def micro_batches(self) -> list[MicroBatch]:
        """What reaches the pipeline."""
        return list(_arrived(self, _run(self)))


class TooMuch(Exception):
    """A query (joins of joins) whose results tell nothing new."""


class _Running:
    """One agent of a scenario, over all its starts."""

    def __init__(self, name: str, query: Query, inputs: Mapping[str, list[Item]], transmit: Any, part: int) -> None:
        self.name = name
        self.plan = build(query, "segments")
        self.items = {source: deque(_items(items)) for source, items in inputs.items()}
        self.inbox: deque[Any] = deque()
        self.starts: list[tuple[Start, list[Pending]]] = []
        self._transmit = transmit
        self._part = part
        self.start()

    def start(self) -> None:
        begun = Start(self.name, len(self.starts) + 1)
        self.rows: list[Pending] = [pending(Declared(self.plan.document().to_json()), PACKER)]
        self.starts.append((begun, self.rows))
        self.engine = Engine(
            self.plan, self._emit, agent=self.name, epoch=begun.epoch, nonce=begun.nonce, transmit=self._transmit
        )

    def _emit(self, record: Record) -> None:
        row = pending(record, PACKER)
        self.rows += in_parts(row, self._part) if row[0] is Kind.DELIVERY else [row]
        if len(self.rows) > 400:
            raise TooMuch

    def feed(self, which: int, most: int) -> None:
        if self.items:
            source = list(self.items)[which % len(self.items)]
            items = self.items[source]
            taken = [items.popleft() for _ in range(min(most, len(items)))]
            if taken:
                self.engine.feed(source, taken)

    def take(self, most: int) -> None:
        for _ in range(min(most, len(self.inbox))):
            self.engine.receive(*self.inbox.popleft())

    def crash(self, items: int) -> None:
        for waiting in self.items.values():
            for _ in range(min(items, len(waiting))):
                waiting.popleft()
        self.start()

    def stop(self) -> None:
        self._end()
        self.start()

    def _end(self) -> None:
        self.rows.append(pending(End(0), PACKER))
        self.starts[-1][0].ended = True

    def finish(self) -> None:
        for source, items in self.items.items():
            self.engine.feed(source, list(items))
        self.engine.finish()
        self.take(len(self.inbox))
        self._end()


def _items(items: Sequence[Item]) -> list[Any]:
    return [Watermark(item.ts) if isinstance(item, Mark) else item for item in items]


def _run(scenario: Scenario) -> dict[str, _Running]:
    """The plans on all agents, until everything has ended."""
    receivers = {
        (agent, node.name): node.to
        for agent, query in scenario.fleet.items()
        for node in query
        if isinstance(node, oracle.Send)
    }
    running: dict[str, _Running] = {}

    def transmit(stream: StreamId, *crossing: Any) -> None:
        for receiver in receivers[stream.agent, stream.name]:
            running[receiver].inbox.append((stream, *crossing))

    for agent, query in scenario.fleet.items():
        inputs = scenario.inputs.get(agent, {})
        running[agent] = _Running(agent, query, inputs, transmit, scenario.part)
    agents = list(running.values())
    for step in scenario.steps:
        acting = agents[step.agent % len(agents)]
        match step:
            case Feed():
                acting.feed(step.source, step.items)
            case Take():
                acting.take(step.lists)
            case Crash():
                acting.crash(step.items)
            case Stop():
                acting.stop()
    for each in agents:
        each.finish()
    return running


def _batches(scenario: Scenario, number: int, agent: _Running) -> list[tuple[bytes, bool]]:
    """The batches of an agent as they are published, and whether each is the first of its start."""
    faults = [fault for fault in scenario.faults if fault.agent % len(scenario.fleet) == number]
    made: list[tuple[bytes, bool]] = []
    sizes = cycle(scenario.sizes)
    for place, (start, rows) in enumerate(agent.starts):
        if place and not agent.starts[place - 1][0].ended:
            rows.insert(1, pending(agent.starts[place - 1][0].gap(), PACKER))
        batches = _cut(rows, sizes)
        lost: list[bytes] = []
        for which, batch in enumerate(batches):
            is_middle = 0 < which < len(batches) - 1
            hit = [fault for fault in faults if is_middle and _hits(fault, len(made) + len(lost))]
            if any(isinstance(fault, Garble) for fault in hit) and not lost:
                made.append((start.unreadable(batch), False))
                continue
            data = start.batch(batch)
            if hit:
                lost.append(data)
                continue
            if lost:
                made.append((replacement(lost, agent.name, PACKER)[0], False))
                lost = []
            made.append((data, which == 0))
    return made


def _cut(rows: Sequence[Pending], sizes: Iterator[int]) -> list[list[Pending]]:
    """Batches; the first one holds at least what a new start says before all else."""
    left = iter(rows)
    batches = [list(islice(left, max(2, next(sizes))))]
    while batch := list(islice(left, next(sizes))):
        batches.append(batch)
    return batches


def _hits(fault: Fault, which: int) -> bool:
    if isinstance(fault, Lose):
        return fault.first <= which < fault.first + fault.count
    return fault.which == which


def _arrived(scenario: Scenario, running: Mapping[str, _Running]) -> Iterator[MicroBatch]:
    shards = Shards(scenario.shards)
    for agent in scenario.fleet:
        shards.home(agent)
    waiting = {agent: deque(_batches(scenario, number, each)) for number, (agent, each) in enumerate(running.items())}
    agents = list(waiting)
    rest = reversed(range(len(agents))) if scenario.backwards else range(len(agents))
    for arrival in (*scenario.arrivals, *(Arrive(agent, 4) for agent in rest for _ in waiting[agents[agent]])):
        agent = agents[arrival.agent % len(agents)]
        batches = waiting[agent]
        count = min(arrival.batches, len(batches))
        for data, oldest in [batches.popleft() for _ in range(count)]:
            shards.take(agent, data, oldest)
        if count and arrival.retire and batches:
            shards.retire(agent)
        if arrival.ends and (found := shards.micro_batch()):
            yield found
            if scenario.segments:
                shards.begin_segments()
    if found := shards.micro_batch():
        yield found


# ---------------------------------------------------------------------- strategies

AGENTS = ("car", "gateway", "hub", "lab")
HOUR_MS = 3_600_000


@dataclass
class Spice:
    """What a random scenario may have. Off by default, so that each test says what it is about."""

    agents: tuple[int, ...] = (1, 2, 3)
    kinds: Sequence[str] = KINDS
    operators: int = 4
    items: int = 8
    crashes: bool = False
    losses: bool = False
    retirements: bool = False
    parts: bool = False
    ahead: bool = False
    segments: bool = False
    sources: Sequence[str] = field(default_factory=lambda: ("uid", "attributes"))


@st.composite
def scenarios(draw: st.DrawFn, spice: Spice | None = None) -> Scenario:
    """A random query on random agents, with a random run and a random way to the log."""
    spice = spice or Spice()
    names = AGENTS[: draw(st.sampled_from(spice.agents))]
    kinds = draw(st.sampled_from((spice.kinds, KEEPING))) if spice.kinds is KINDS else spice.kinds
    query = draw(queries(operators=spice.operators, kinds=kinds))
    homes: dict[str, int] = {}
    for node in query:
        first = max((homes[name] for name in oracle.inputs_of(node)), default=0)
        homes[node.name] = draw(st.integers(first, len(names) - 1))
    fleet = oracle.split(query, list(homes.values()), names)
    items = draw(inputs_for(query, spice.items))
    ahead = draw(st.sampled_from(names)) if spice.ahead else None
    inputs: dict[str, dict[str, list[Item]]] = {agent: {} for agent in fleet}
    for name, each in items.items():
        home = names[homes[name]]
        inputs[home][name] = [_later(item, HOUR_MS) for item in each] if home == ahead else each
    which = st.integers(0, len(fleet) - 1)
    steps: list[st.SearchStrategy[Step]] = [
        st.builds(Feed, which, st.integers(0, 2), st.integers(1, 3)),
        st.builds(Take, which, st.integers(1, 4)),
    ]
    if spice.crashes:
        steps += [st.builds(Crash, which, st.integers(0, 2)), st.builds(Stop, which)]
    faults = st.builds(Lose, which, st.integers(1, 6), st.integers(1, 3)) | st.builds(Garble, which, st.integers(1, 6))
    retire = st.booleans() if spice.retirements else st.just(False)
    return Scenario(
        fleet,
        inputs,
        tuple(draw(st.lists(st.one_of(steps), max_size=16))),
        tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))),
        tuple(draw(st.lists(faults, min_size=1, max_size=3))) if spice.losses else (),
        tuple(draw(st.lists(st.builds(Arrive, which, st.integers(1, 4), retire, st.booleans()), max_size=10))),
        draw(st.booleans()),
        draw(st.integers(1, 2)) if spice.parts else 1_000,
        draw(st.integers(1, 3)),
        spice.segments,
    )


def _later(item: Item, by_ms: int) -> Item:
    return Mark(item.ts + by_ms) if isinstance(item, Mark) else (item[0] + by_ms, item[1])

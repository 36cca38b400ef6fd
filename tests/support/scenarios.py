"""Random fleets: plans on several agents, run by the real engine, with all that can go wrong on the way to the log.

A `Scenario` prints as code: paste what a failing test shows into a regression test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from hypothesis import strategies as st

from edge_agent.outbox.giving_up import replacement
from edge_agent.stream import Engine, Watermark
from protocol.ids import StreamId
from protocol.records import (
    Declared,
    End,
    Received,
    Record,
)
from protocol.wire.sections import Kind, Pending, in_parts, pending
from tests.edge_agent.stream.random_plans import KEEPING, KINDS, build, inputs_for, queries
from tests.support import oracle
from tests.support.fleet_log import PACKER, Shards, Start
from tests.support.oracle import Item, Mark, Query
from tests.support.pipeline import MicroBatch


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
class Finish:
    """An agent comes to the end of its sources, and of all that was sent to it, and starts again."""

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


Step = Feed | Take | Crash | Stop | Finish
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
            stream, *crossing = self.inbox.popleft()
            self.engine.receive(stream, *crossing)
            self.rows.append(pending(Received(stream.agent, stream.name, 1, 0, stream.nonce), PACKER))

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

    def go_on(self) -> None:
        self.engine.finish()
        self.take(len(self.inbox))
        self._end()
        self.start()

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
            case Finish():
                acting.go_on()
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
    batches: list[list[Pending]] = [[]]
    room = max(2, next(sizes))
    for row in rows:
        if row[0] is not Kind.RECEIVED:  # which stands with what came of it
            if not room:
                batches.append([])
                room = next(sizes)
            room -= 1
        batches[-1].append(row)
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
        steps += [st.builds(Crash, which, st.integers(0, 2)), st.builds(Stop, which), st.builds(Finish, which)]
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

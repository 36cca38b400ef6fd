"""Who sends what to whom, and how far everybody has come: what the control rows of the log say.

From the plans follows which sinks a source stream can reach, over all agents, and U: for how long a tuple may still
contribute there. From progress follows how far each sink has come. Together they bound what may still be told: a tuple
of stream S with ts < bound(S) will be named by no sink tuple any more.

Each bucket of each stage keeps the same fleet, as each is given all control rows. Between shards these come in no
particular order, so nothing here depends on it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from protocol.chunks import Numbers, pack, read_progress, unpack
from protocol.ids import StreamId
from protocol.plan import PlanDocument, PlanError, delays, delivering_name
from protocol.records import BEGINNING, END_OF_TIME, Declared, Gap
from protocol.row import Row
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, decode_section
from protocol.wire.values import decode
from spark_jobs.chunks import Chunk
from spark_jobs.chunks import Kind as ChunkKind
from spark_jobs.state import State

CONTROL = (Kind.PLAN, Kind.PROGRESS, Kind.GAP, Kind.END, Kind.SNAPSHOT, Kind.REGISTER, Kind.RETIRE)
MOST_PLANS = 8  # of one agent, distinct ones; a tuple of an older one may still be under way elsewhere
_ENDLESS = 2**62  # from here on a watermark is no time
Node = tuple[str, str]  # an agent and a stream of it


class Stream(NamedTuple):
    """A stream of one start of an agent."""

    agent: str
    nonce: int
    name: str


class Ways(NamedTuple):
    """A plan as far as it matters here: which way tuples go, and how long that takes."""

    delays: dict[str, dict[str, int]]
    """Source or receive -> sink or send stream -> U in ms."""
    sends: dict[str, tuple[str, ...]]
    receives: dict[str, Node]
    """Receive -> the agent and the stream it takes."""


class Reach(NamedTuple):
    """Where tuples of a stream can get to."""

    sinks: dict[Node, int]
    """Sink -> U in ms."""
    unknown: bool
    """Or anywhere: a plan that has not come, or agents that send in a circle."""
    depths: int
    """Of a Send stream: bit n is set if there is a way to a sink with n Sends, this one included."""


_ANYWHERE = Reach({}, True, -1)
_NOWHERE = Reach({}, False, 0)


@lru_cache(4096)
def ways_of(plan: bytes) -> Ways | None:
    """The ways through a plan (a section); None if it cannot be read."""
    try:
        told = cast("list[Declared]", decode_section(Kind.PLAN, plan, StreamId("", 0, "")))
        document = PlanDocument.from_json(told[-1].plan)
        receives = {
            node.name: (str(node.parameters["sender"]), str(node.parameters["stream"]))
            for node in document.nodes
            if node.operator == "receive"
        }
        sends = {
            delivering_name(node): tuple(str(to) for to in cast("list[Any]", node.parameters["to"]))
            for node in document.nodes
            if node.operator == "send"
        }
        return Ways(delays(document), sends, receives)
    except (MalformedBatch, PlanError, IndexError):
        return None


@dataclass(slots=True)
class Agent:
    """What is known of an agent. Its starts are told apart by their nonces."""

    plans: list[Ways] = field(default_factory=list)
    """Distinct ones, the newest last."""
    open: dict[int, Ways | None] = field(default_factory=dict)
    """Starts of which more is expected."""
    retired: dict[int, Ways | None] = field(default_factory=dict)
    """Starts that were given up: they may come back."""
    over: set[int] = field(default_factory=set)
    """Starts of which nothing more will come."""

    @property
    def is_retired(self) -> bool:
        """Nobody waits for it."""
        return not self.open and bool(self.retired)

    def started(self, nonce: int, ways: Ways | None) -> None:
        """A plan: what older starts had promised, they have promised."""
        self.over.update(self.open.keys() | self.retired.keys())
        self.open, self.retired = {nonce: ways}, {}
        self.over.discard(nonce)
        if ways is not None and ways not in self.plans:
            self.plans = [*self.plans[1 - MOST_PLANS :], ways]

    def ended(self, nonce: int) -> None:
        self.open.pop(nonce, None)
        self.retired.pop(nonce, None)
        self.over.add(nonce)

    def given_up(self, nonce: int) -> None:
        if nonce not in self.over:
            self.retired = {**self.retired, **self.open}
            self.retired.setdefault(nonce, None)
            self.open = {}

    def returned(self, nonce: int) -> None:
        """A start that was given up, or that a newer one had followed, goes on."""
        ways = self.retired.pop(nonce, None) or (self.plans[-1] if self.plans else None)
        self.over.discard(nonce)
        self.open[nonce] = ways


@dataclass(slots=True)
class _Names:
    """What changes seldom."""

    streams: dict[int, Stream] = field(default_factory=dict)
    numbers: dict[Stream, int] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    lost: dict[Stream, list[tuple[int, int]]] = field(default_factory=dict)
    """Tuples of Sends that will never come."""
    shards: set[int] = field(default_factory=set)
    """Of which something was told: snapshots of their later segments say nothing new."""


class _Kept(NamedTuple):
    """Names as they were read, and what follows from them. Not to be changed: others may use it."""

    names: _Names
    reach: dict[Node, Reach]


_CACHE: dict[bytes, _Kept] = {}
_MOST_CACHED = 8


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
    told = [chunk.data for chunk in chunks if chunk.kind == ChunkKind.WAITING]
    if len(told) != buckets:
        raise RuntimeError(f"{len(told)} of {buckets} buckets have told what waits")
    for data in told:
        waiting.read(data)
    return waiting


class Fleet:
    """The fleet as one bucket of one stage knows it. Load, apply what is new, save, ask."""

    def __init__(self, names: _Names, reach: dict[Node, Reach], progress: dict[int, tuple[int, int]]) -> None:
        self._names = names
        self._reach = reach
        self._shared = True
        self.progress = progress
        """Of a delivering stream: watermark and hold."""
        self.newly_lost: set[int] = set()
        """Send streams of which it was told just now that something will never come."""

    @classmethod
    def load(cls, state: State) -> Fleet:
        blob = state.get("fleet", 0) or b""
        kept = _CACHE.get(blob)
        if kept is None:
            kept = _Kept(pickle.loads(blob) if blob else _Names(), {})
            _cache(blob, kept)
        promises = state.get("progress", 0)
        columns = unpack(promises) if promises else [np.empty(0, "<i8")] * 3
        numbers, watermarks, holds = (column.tolist() for column in columns)
        return cls(kept.names, kept.reach, dict(zip(numbers, zip(watermarks, holds, strict=True), strict=True)))

    def save(self, state: State) -> None:
        if not self._shared:
            self._forget()
            blob = pickle.dumps(self._names, protocol=5)
            state.put("fleet", 0, blob)
            _cache(blob, _Kept(self._names, self._reach))
            self._shared = True
        promises = sorted(self.progress.items())
        columns = [[number for number, _ in promises], *([each[side] for _, each in promises] for side in (0, 1))]
        state.put("progress", 0, pack([np.array(column, "<i8") for column in columns]))

    def _forget(self) -> None:
        """What a start had promised or lost does not matter once it is over: nothing more comes of it."""
        self.progress = {number: each for number, each in self.progress.items() if not self.is_over(number)}
        agents = self._names.agents
        self._names.lost = {
            each: of for each, of in self._names.lost.items() if each.nonce not in agents[each.agent].over
        }

    def _own(self) -> _Names:
        """The names, to be changed."""
        if self._shared:
            self._names = pickle.loads(pickle.dumps(self._names, protocol=5))
            self._reach = {}
            self._shared = False
        return self._names

    # What the log says

    def apply(self, shard: int, rows: Iterable[Row]) -> None:
        """Control rows of one shard, in order."""
        is_new = shard not in self._names.shards
        for row in rows:
            if row.kind == Kind.PROGRESS:
                self._progress(row)
            elif row.kind != Kind.SNAPSHOT:
                self._tell(row)
            elif is_new:
                self._snapshot(row)
        if is_new:
            self._own().shards.add(shard)

    def _progress(self, row: Row) -> None:
        agent = self._names.agents.get(row.agent)
        if agent is not None and row.nonce not in agent.open and (agent.plans or row.nonce in agent.retired):
            self._own().agents[row.agent].returned(row.nonce)
        chunk = read_progress(row.data)
        for number, watermark, hold in zip(
            chunk.stream.tolist(), chunk.watermark.tolist(), chunk.hold.tolist(), strict=True
        ):
            self.progress[number] = (watermark, hold)

    def _tell(self, row: Row) -> None:
        if row.kind == Kind.REGISTER:
            number, agent, _, name, nonce = decode(row.data)
            if number not in self._names.streams:
                self._register(number, Stream(agent, nonce, name))
        elif row.kind == Kind.PLAN:
            self._agent(row.agent).started(row.nonce, ways_of(row.data))
        elif row.kind == Kind.END:
            self._agent(row.agent).ended(row.nonce)
        elif row.kind == Kind.RETIRE:
            self._agent(row.agent).given_up(row.nonce)
        elif row.kind == Kind.GAP and row.agent:
            own = StreamId(row.agent, 0, "", row.nonce)
            for gap in cast("list[Gap]", decode_section(Kind.GAP, row.data, own)):
                self._gap(row.agent, gap)

    def _gap(self, agent: str, gap: Gap) -> None:
        if gap.next_event is not None:  # a start that was cut short: what had come before has come before
            self._agent(agent).ended(gap.nonce)
        for each in gap.tuples:
            stream = Stream(agent, gap.nonce, each.name)
            if each.name in {name for ways in self._agent(agent).plans for name in ways.sends}:
                self._own().lost.setdefault(stream, []).append((each.first, each.last))
                if stream in self._names.numbers:
                    self.newly_lost.add(self._names.numbers[stream])

    def _snapshot(self, row: Row) -> None:
        told = decode(row.data)
        for name, number in told["own_streams"].items():
            self._register(number, Stream(row.agent, row.nonce, name))
        for number, agent, nonce, name in told["other_streams"]:
            self._register(number, Stream(agent, nonce, name))
        agent = self._agent(row.agent)
        if told["plan"]:
            agent.started(row.nonce, ways_of(told["plan"]))
        if told["ended"]:
            agent.ended(row.nonce)
        elif told["retired"]:
            agent.given_up(row.nonce)

    def _register(self, number: int, stream: Stream) -> None:
        names = self._own()
        names.streams[number] = stream
        names.numbers[stream] = number

    def _agent(self, name: str) -> Agent:
        return self._own().agents.setdefault(name, Agent())

    # What follows from it

    def reach(self, number: int) -> Reach:
        """Where tuples of a stream can get to."""
        stream = self._names.streams.get(number)
        if stream is None:
            return _ANYWHERE
        found = self._reach_of((stream.agent, stream.name), ())
        return _NOWHERE if found is _ANYWHERE and self.is_over(number) else found

    def _reach_of(self, node: Node, before: tuple[Node, ...]) -> Reach:
        if node in before:  # and so is every stream between the two: all of them are in the circle
            return _ANYWHERE
        if node not in self._reach:
            self._reach[node] = self._find_reach(node, before)
        return self._reach[node]

    def _find_reach(self, node: Node, before: tuple[Node, ...]) -> Reach:
        name, stream = node
        agent = self._names.agents.get(name)
        if agent is None:
            return _ANYWHERE
        ways: list[Reach] = []
        for plan in agent.plans:
            for to in plan.sends.get(stream, ()):
                ways += self._received(to, node, (*before, node))
            if stream in plan.delays and stream not in plan.receives:
                ways.append(self._onward(name, plan, plan.delays[stream], (*before, node)))
        is_told = any(stream in plan.sends or stream in plan.delays for plan in agent.plans)
        return _united(ways) if is_told else _ANYWHERE

    def _received(self, receiver: str, sent: Node, before: tuple[Node, ...]) -> Iterable[Reach]:
        agent = self._names.agents.get(receiver)
        if agent is None or not agent.plans:
            if agent is None or not agent.is_retired:
                yield _ANYWHERE
            return
        for plan in agent.plans:
            for receive, taken in plan.receives.items():
                if taken == sent:
                    found = self._onward(receiver, plan, plan.delays.get(receive, {}), before)
                    yield found._replace(depths=found.depths << 1)

    def _onward(self, agent: str, plan: Ways, reached: Mapping[str, int], before: tuple[Node, ...]) -> Reach:
        """From within an agent: to its sinks, and through its Sends to those of others."""
        ways: list[Reach] = []
        for stream, delay in reached.items():
            if stream in plan.sends:
                found = self._reach_of((agent, stream), before)
                ways.append(found._replace(sinks={sink: rest + delay for sink, rest in found.sinks.items()}))
            else:
                ways.append(Reach({(agent, stream): delay}, False, 1))
        return _united(ways)

    def stream(self, number: int) -> Stream | None:
        """The name of a stream."""
        return self._names.streams.get(number)

    def is_over(self, number: int) -> bool:
        """Whether nothing more will come of a stream: its start has ended."""
        stream = self._names.streams.get(number)
        agent = self._names.agents.get(stream.agent) if stream else None
        return stream is not None and agent is not None and stream.nonce in agent.over

    def is_retired(self, number: int) -> bool:
        """Whether the agent of a stream was given up."""
        stream = self._names.streams.get(number)
        agent = self._names.agents.get(stream.agent) if stream else None
        return agent is not None and agent.is_retired

    def watermark(self, number: int) -> int:
        """What a stream has promised: later tuples of it are not older."""
        return END_OF_TIME if self.is_over(number) else self.progress.get(number, (BEGINNING, 0))[0]

    def lost(self, number: int) -> list[tuple[int, int]]:
        """The tuples of a Send that will never come, as numbers (first, last)."""
        stream = self._names.streams.get(number)
        return self._names.lost.get(stream, []) if stream else []

    def delay(self, sent: int, sink: int) -> int:
        """U from a Send stream to a sink, 0 if there is no known way."""
        stream = self._names.streams.get(sink)
        return self.reach(sent).sinks.get((stream.agent, stream.name), 0) if stream else 0

    def frontiers(self, waiting: Waiting) -> Frontiers:
        """How far each sink has come, given what waits."""
        found: dict[Node, int] = {}
        for name, agent in self._names.agents.items():
            for nonce, ways in agent.open.items():
                for sink in _sinks(ways) if ways else ():
                    number = self._names.numbers.get(Stream(name, nonce, sink), -1)
                    reached = min(self.progress.get(number, (BEGINNING, END_OF_TIME)))
                    found[name, sink] = min(reached, found.get((name, sink), reached))
        for number, hold in waiting.hold.items():
            stream = self._names.streams.get(number)
            if stream is not None:
                node = (stream.agent, stream.name)
                found[node] = min(hold, found.get(node, hold))
        return Frontiers(self, found)


class Frontiers:
    """How far the sinks have come, and what that means for the streams that reach them."""

    def __init__(self, fleet: Fleet, sinks: dict[Node, int]) -> None:
        self._fleet = fleet
        self.sinks = sinks
        """Those that are open, or that something waits for."""
        self._bounds: dict[int, int] = {}

    def bound(self, stream: int) -> int:
        """No tuple of the stream before this will be named by a sink any more."""
        found = self._bounds.get(stream)
        if found is None:
            found = self._bounds[stream] = self._find(stream)
        return found

    def _find(self, stream: int) -> int:
        reach = self._fleet.reach(stream)
        if reach.unknown:
            return BEGINNING
        lowest = END_OF_TIME
        for sink, delay in reach.sinks.items():
            reached = self.sinks.get(sink, END_OF_TIME)
            if reached < _ENDLESS:
                lowest = min(lowest, max(reached - delay, BEGINNING))
        return lowest

    def of(self, streams: Numbers) -> Numbers:
        """Bounds of many streams."""
        return np.array([self.bound(each) for each in streams.tolist()], "<i8")


def _sinks(ways: Ways) -> set[str]:
    return {stream for reached in ways.delays.values() for stream in reached if stream not in ways.sends}


def _united(ways: Iterable[Reach]) -> Reach:
    sinks: dict[Node, int] = {}
    unknown, depths = False, 0
    for each in ways:
        for sink, delay in each.sinks.items():
            sinks[sink] = max(delay, sinks.get(sink, 0))
        unknown, depths = unknown or each.unknown, depths | each.depths
    return Reach(sinks, unknown, depths)


def _cache(blob: bytes, kept: _Kept) -> None:
    _CACHE[blob] = kept
    while len(_CACHE) > _MOST_CACHED:
        del _CACHE[next(iter(_CACHE))]

"""Who sends what to whom, and how far everybody has come: what the control rows of the log say.

From the plans follows which sinks a source stream can reach, over all agents, and U: for how long a tuple may still
contribute there. From progress follows how far each sink has come. Together they bound what may still be told: a tuple
of stream S with ts < bound(S) will be named by no sink tuple any more.

Each bucket of each stage keeps a fleet of its own, and is given all control rows for it, shard by shard: they differ
only in what each has forgotten. Shards are not in step with each other, so the order between them means nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from protocol.chunks import Numbers, pack, promises_in, unpack
from protocol.ids import StreamId
from protocol.ranges import Ranges
from protocol.records import BEGINNING, END_OF_TIME, Gap, Received
from protocol.row import Row
from protocol.wire.sections import Kind, decode_section
from protocol.wire.values import decode
from spark_jobs.agents import Agent, Sent, Start
from spark_jobs.reach import ANYWHERE, NOWHERE, Reach, Reaches
from spark_jobs.state import State
from spark_jobs.waiting import Waiting
from spark_jobs.ways import Node, ways_of

CONTROL = frozenset(
    (Kind.PLAN, Kind.PROGRESS, Kind.GAP, Kind.END, Kind.SNAPSHOT, Kind.REGISTER, Kind.RECEIVED, Kind.RETIRE)
)
ENDLESS = 2**62  # from here on a watermark is no time
MOST_OVER = 16  # starts of an agent that are remembered though nothing is left of them: others may name what was lost


class Stream(NamedTuple):
    """A stream of one start of an agent."""

    agent: str
    nonce: int
    name: str


@dataclass(slots=True)
class _Names:
    """What changes seldom."""

    streams: dict[int, Stream] = field(default_factory=dict)
    numbers: dict[Stream, int] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    lost: dict[Stream, Ranges] = field(default_factory=dict)
    """Tuples of Sends that will never come."""
    gone: Ranges = field(default_factory=Ranges)
    """Streams of starts that are over and of which nothing is left: their names are forgotten."""
    shards: set[int] = field(default_factory=set)
    """Of which something was told: snapshots of their later segments say nothing new."""


class _Kept(NamedTuple):
    """Names as they were read, and what follows from them. Not to be changed: others may use it."""

    names: _Names
    reaches: Reaches
    past: list[int]
    """Streams of starts that are over."""


_CACHE: dict[bytes, _Kept] = {}
_MOST_CACHED = 8


class Fleet:
    """The fleet as one bucket of one stage knows it. Load, apply what is new, save, ask."""

    def __init__(self, kept: _Kept, progress: dict[int, tuple[int, int]]) -> None:
        self._names = kept.names
        self._reaches = kept.reaches
        self._past = kept.past
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
            names = pickle.loads(blob) if blob else _Names()
            kept = _Kept(names, Reaches(names.agents), _past(names))
            _cache(blob, kept)
        promises = state.get("progress", 0)
        columns = unpack(promises) if promises else [np.empty(0, "<i8")] * 3
        numbers, watermarks, holds = (column.tolist() for column in columns)
        return cls(kept, dict(zip(numbers, zip(watermarks, holds, strict=True), strict=True)))

    def save(self, state: State) -> None:
        """Keep it for the next micro-batch."""
        if not self._shared:
            blob = pickle.dumps(self._names, protocol=5)
            state.put("fleet", 0, blob)
            _cache(blob, _Kept(self._names, self._reaches, _past(self._names)))
            self._shared = True
        promises = sorted(self.progress.items())
        columns = [[number for number, _ in promises], *([each[side] for _, each in promises] for side in (0, 1))]
        state.put("progress", 0, pack([np.array(column, "<i8") for column in columns]))

    @property
    def gone(self) -> Ranges:
        """The streams that were forgotten."""
        return self._names.gone

    def forget(self, can_go: Callable[[int], bool]) -> dict[int, Stream]:
        """Forget the names of streams of starts that are over, if nothing is left of them; returns which."""
        past = self._past if self._shared else _past(self._names)
        going = {number: self._names.streams[number] for number in past if can_go(number)}
        if going:
            names = self._own()
            names.gone.add(going)
            for number, stream in going.items():
                del names.streams[number], names.numbers[stream]
        if going or not self._shared:
            self._forget_starts(bool(going))
        return going

    def _forget_starts(self, is_news: bool) -> None:
        """Let go of starts that are over and of which nothing is left. Some never had any streams, such as those of
        programs that only capture: there may be many of them before any stream is forgotten."""
        names = self._own()
        due = {name: agent for name, agent in names.agents.items() if is_news or len(agent.over) > 2 * MOST_OVER}
        if not due:
            return
        left = {stream[:2] for stream in names.streams.values()}
        starts = frozenset[int]().union(*(agent.forget(name, left, MOST_OVER) for name, agent in due.items()))
        for agent in names.agents.values():
            agent.unhear(starts)
        self._reaches = Reaches(names.agents)

    def recall(self, number: int, stream: Stream) -> None:
        """A stream that was forgotten is named after all. Its start is still over."""
        self._own().gone.remove(number)
        self._register(number, stream)
        agent = self._agent(stream.agent)
        if all(stream.nonce not in starts for starts in (agent.open, agent.retired, agent.over)):
            agent.over = {stream.nonce: None, **agent.over}

    def drop_promises(self) -> None:
        """What a start had promised or lost does not matter once it is over: nothing more comes of it. But an agent
        that was stopped goes on where it was."""
        if self._shared:
            return
        agents = self._names.agents
        stopped = {(name, agent.stopped.nonce) for name, agent in agents.items() if agent.stopped}
        self.progress = {
            number: each
            for number, each in self.progress.items()
            if not self.is_over(number) or (number not in self.gone and self._names.streams[number][:2] in stopped)
        }
        self._names.lost = {
            each: of for each, of in self._names.lost.items() if each.nonce not in agents[each.agent].over
        }

    def _own(self) -> _Names:
        """The names, to be changed."""
        if self._shared:
            self._names = pickle.loads(pickle.dumps(self._names, protocol=5))
            self._reaches = Reaches(self._names.agents)
            self._shared = False
        return self._names

    # What the log says

    def apply(self, shard: int, rows: Iterable[Row]) -> None:
        """Control rows of one shard, in order."""
        for row in rows:
            if row.kind == Kind.SNAPSHOT:
                if shard not in self._names.shards:
                    self._snapshot(row)
                continue
            if shard not in self._names.shards:
                self._own().shards.add(shard)
            if row.kind == Kind.PROGRESS:
                self._progress(row)
            else:
                self._tell(row)

    def _progress(self, row: Row) -> None:
        promises = list(promises_in(row.data))
        gone = self._names.gone
        if gone.firsts and any(number in gone for number, _, _ in promises):
            return  # a start that was forgotten: nobody waits for what it says now
        agent = self._names.agents.get(row.agent)
        if agent is not None and row.nonce not in agent.open and (agent.plans or row.nonce in agent.retired):
            self._own().agents[row.agent].returned(row.nonce)
        for number, watermark, hold in promises:
            self.progress[number] = (watermark, hold)

    def _tell(self, row: Row) -> None:
        if row.kind == Kind.REGISTER:
            number, agent, epoch, name, nonce, *own_count = decode(row.data)
            if number not in self._names.streams:
                self._register(number, Stream(agent, nonce, name))
            if row.agent == agent:
                self._agent(agent).spoke(nonce, own_count[0] if own_count else epoch)
            else:
                self._agent(row.agent).named(row.nonce, (nonce, name))
                if number not in self.gone:
                    self._agent(agent).was_named(nonce, epoch)
        elif row.kind == Kind.PLAN:
            self._agent(row.agent).started(row.nonce, ways_of(row.data))
        elif row.kind == Kind.END:
            self._ended(row.agent, row.nonce)
        elif row.kind == Kind.RETIRE:
            self._agent(row.agent).given_up(row.nonce)
        elif row.kind == Kind.RECEIVED:
            self._received(row)
        elif row.kind == Kind.GAP and row.agent:
            own = StreamId(row.agent, 0, "", row.nonce)
            for gap in cast("list[Gap]", decode_section(Kind.GAP, row.data, own)):
                self._gap(row.agent, gap)

    def _received(self, row: Row) -> None:
        agent = self._names.agents.get(row.agent)
        known = agent.heard_by(row.nonce) if agent else frozenset()
        own = StreamId(row.agent, 0, "", row.nonce)
        for each in cast("list[Received]", decode_section(Kind.RECEIVED, row.data, own)):
            if (each.nonce, each.stream) not in known:
                self._agent(row.agent).named(row.nonce, (each.nonce, each.stream))

    def _ended(self, agent: str, nonce: int) -> None:
        """An agent that has neither plan nor streams, such as a program that only captures, has nothing to end."""
        if agent in self._names.agents:
            self._agent(agent).ended(nonce)

    def _gap(self, agent: str, gap: Gap) -> None:
        if gap.next_event is not None:  # a start that was cut short: what had come before has come before
            self._ended(agent, gap.nonce)
        if agent not in self._names.agents:
            return
        plans = self._names.agents[agent].plans.values()
        for each in gap.tuples:
            stream = Stream(agent, gap.nonce, each.name)
            if any(each.name in ways.sends for ways in plans):
                self._own().lost.setdefault(stream, Ranges()).cover([(each.first, each.last)])
                if stream in self._names.numbers:
                    self.newly_lost.add(self._names.numbers[stream])

    def _snapshot(self, row: Row) -> None:
        told = decode(row.data)
        if not any(told[part] for part in ("own_streams", "other_streams", "plan", "retired")):
            return
        for name, number in told["own_streams"].items():
            self._register(number, Stream(row.agent, row.nonce, name))
        agent = self._agent(row.agent)
        for number, other, nonce, name in told["other_streams"]:
            self._register(number, Stream(other, nonce, name))
            agent.named(row.nonce, (nonce, name))
        if told["plan"]:
            agent.started(row.nonce, ways_of(told["plan"]))
        if told["ended"]:
            agent.ended(row.nonce)
        if told["retired"]:
            agent.given_up(row.nonce)

    def _register(self, number: int, stream: Stream) -> None:
        if number in self.gone:
            return
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
            return NOWHERE if number in self.gone else ANYWHERE
        found = self._reaches.of((stream.agent, stream.name), stream.nonce)
        if found is ANYWHERE and self.is_over(number) and not self._names.agents[stream.agent].is_unknown:
            return NOWHERE
        return found

    def is_over(self, number: int) -> bool:
        """Whether nothing more will come of a stream: its start has ended."""
        stream = self._names.streams.get(number)
        agent = self._names.agents.get(stream.agent) if stream else None
        return number in self.gone or (stream is not None and agent is not None and stream.nonce in agent.over)

    def is_retired(self, number: int) -> bool:
        """Whether the start that a stream is of was given up. Others may have heard of a later one already."""
        stream = self._names.streams.get(number)
        agent = self._names.agents.get(stream.agent) if stream else None
        return stream is not None and agent is not None and stream.nonce in agent.retired

    def watermark(self, number: int) -> int:
        """What a stream has promised: later tuples of it are not older."""
        return END_OF_TIME if self.is_over(number) else self.progress.get(number, (BEGINNING, 0))[0]

    def reached(self, number: int) -> int:
        """How far a stream has come: what it delivers later comes from nothing that is older by more than U."""
        return min(self.progress.get(number, (BEGINNING, BEGINNING)))

    def promised(self, streams: Numbers) -> Numbers:
        """The same of many streams."""
        numbers, which = np.unique(streams, return_inverse=True)
        found: Numbers = np.array([self.reached(each) for each in numbers.tolist()], "<i8")[which]
        return found

    def is_unbounded(self, sent: int) -> bool:
        """Whether a tuple of a Send may come from tuples that are older than it by more than U: length windows."""
        stream = self._names.streams.get(sent)
        return stream is None or self._reaches.is_unbounded((stream.agent, stream.name))

    def lost(self, number: int) -> Ranges:
        """The tuples of a Send that will never come."""
        stream = self._names.streams.get(number)
        return (self._names.lost.get(stream) if stream else None) or Ranges()

    def delay(self, sent: int, sink: int) -> int:
        """U from a Send stream to a sink, 0 if there is no known way."""
        stream, reach = self._names.streams.get(sink), self.reach(sent)
        return reach.sinks.get((stream.agent, stream.name), 0) if stream and not reach.unknown else 0

    def frontiers(self, waiting: Waiting) -> Frontiers:
        """How far each sink has come, given what waits."""
        found: dict[Node, int] = {}
        for name, agent in self._names.agents.items():
            for nonce, ways in agent.open.items():
                for sink in ways.sinks if ways else ():
                    number = self._names.numbers.get(Stream(name, nonce, sink), -1)
                    reached = min(self.progress.get(number, (BEGINNING, END_OF_TIME)))
                    found[name, sink] = min(reached, found.get((name, sink), reached))
        for name, start, streams in self._awaited():
            for stream, reached in streams:
                if stream not in start.ways.sends:
                    found[name, stream] = min(reached, found.get((name, stream), reached))
        for number, hold in waiting.hold.items():
            of = self._names.streams.get(number)
            if of is not None:
                node = (of.agent, of.name)
                found[node] = min(hold, found.get(node, hold))
        return Frontiers(self, found)

    def _awaited(self) -> Iterator[tuple[str, Start, list[tuple[str, int]]]]:
        """Agents to which others send, or may send when they are started again, and that may be started again to take
        it: their streams, and how far these had come."""
        stopped = {
            name: agent.stopped for name, agent in self._names.agents.items() if agent.stopped and not agent.open
        }
        found: dict[str, list[tuple[str, int]]] = {}
        is_news = bool(stopped)
        while is_news:
            is_news = False
            for name, start in stopped.items():
                streams = list(self._left_over(name, start, found))
                if len(streams) > len(found.get(name, ())):
                    found[name] = streams
                    is_news = True
        for name, streams in found.items():
            yield name, stopped[name], streams
        for name, agent in self._names.agents.items():
            for nonce, ways in agent.open.items():
                if ways is not None and ways.receives:
                    start = Start(nonce, ways, agent.heard.get(nonce, frozenset()))
                    yield name, start, list(self._left_over(name, start, found))

    def _left_over(self, name: str, start: Start, awaited: Container[str]) -> Iterator[tuple[str, int]]:
        """The streams on which there may be more once the agent is started again, and how far they have come. One that
        has come to the end of what was sent has more to come only of starts from which it has taken nothing.

        What a later start of a sender sends may be older than what came before: clocks go back. A receiver that runs
        leaves aside what is older than it has promised, but its next start has promised nothing, and may be the one
        that takes it: until a receiver has heard of the sender's start, it counts as not having begun."""
        for receive, (sender, sent) in start.ways.receives.items():
            agent = self._names.agents.get(sender)
            if agent is None or sender == name:
                continue
            unheard = self._unheard(sender, sent, start.heard)
            later = {*list(agent.over | agent.open)[1:]}.intersection(unheard)
            has_sent = any(Stream(sender, nonce, sent) in self._names.numbers for nonce in later)
            is_new = bool(unheard) or (not agent.open and sender in awaited)
            for stream in start.ways.delays.get(receive, ()):
                number = self._names.numbers.get(Stream(name, start.nonce, stream), -1)
                reached = min(self.progress.get(number, (BEGINNING, END_OF_TIME)))
                if has_sent or (is_new and reached >= ENDLESS):
                    yield stream, BEGINNING
                elif reached < ENDLESS:
                    yield stream, reached

    def _unheard(self, sender: str, stream: str, heard: Container[Sent]) -> list[int]:
        """The starts of a sender of which there may be tuples that a receiver has not taken. They are taken in order:
        of starts before the last one that it has heard of nothing is left. Those that are over matter if they have sent
        any."""
        agent, found = self._names.agents[sender], list[int]()
        for nonce, ways in () if agent.is_retired else (agent.over | agent.open).items():
            if (nonce, stream) in heard:
                found = []
            elif Stream(sender, nonce, stream) in self._names.numbers or (
                nonce in agent.open and (ways is None or stream in ways.sends)
            ):
                found.append(nonce)
        return found


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
            if reached < ENDLESS:
                lowest = min(lowest, max(reached - delay, BEGINNING))
        return lowest

    def of(self, streams: Numbers) -> Numbers:
        """Bounds of many streams."""
        return np.array([self.bound(each) for each in streams.tolist()], "<i8")


def _past(names: _Names) -> list[int]:
    """The streams of starts that are over, but for agents that were stopped: these go on where they were."""
    over = {(name, nonce) for name, agent in names.agents.items() for nonce in agent.over}
    over -= {(name, agent.stopped.nonce) for name, agent in names.agents.items() if agent.stopped}
    return [number for number, stream in names.streams.items() if stream[:2] in over]


def _cache(blob: bytes, kept: _Kept) -> None:
    _CACHE[blob] = kept
    while len(_CACHE) > _MOST_CACHED:
        del _CACHE[next(iter(_CACHE))]

"""A running plan: operators wired together, fed list by list."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from edge_agent.stream.aggregate import (
    Computation,
    LengthWindows,
    RecentWindows,
    SlidingWindows,
    TumblingWindows,
)
from edge_agent.stream.builder import Plan, Step
from edge_agent.stream.deliver import Send, Sink, Transmit
from edge_agent.stream.errors import StreamError
from edge_agent.stream.joins import BandJoin, LengthJoin, Pairing, WindowJoin
from edge_agent.stream.lineage import LINEAGES
from edge_agent.stream.merge import Merging
from edge_agent.stream.operator import Faults, HoldHistory, Operator
from edge_agent.stream.source_ids import SourceIds, ids_of
from edge_agent.stream.sources import Receive, Source, checked_ts
from edge_agent.stream.stateless import Filter, FlatMap, Map, Multiplex
from edge_agent.stream.union import Union
from protocol.ids import StreamId
from protocol.plan import ORIGINS, PlanError, delays
from protocol.records import BEGINNING, END_OF_TIME, Origin, Record


@dataclass(frozen=True, slots=True)
class Counts:
    """What an operator took in and gave on, and what it left out."""

    taken: int
    given: int
    late: int
    skipped: int


class Engine:
    """Runs one plan. Results depend on what each source was fed, not on how the sources took turns.

    Records are handed to `emit` as they come about: a source's payload before the first delivery that
    names it, deliveries before the progress that moves past them.
    """

    def __init__(
        self,
        plan: Plan,
        emit: Callable[[Record], None],
        *,
        agent: str = "local",
        epoch: int = 0,
        nonce: int = 0,
        transmit: Transmit | None = None,
    ) -> None:
        self.plan = plan
        self._emit = emit
        self._agent = agent
        self._epoch = epoch
        self._nonce = nonce
        self._transmit = transmit
        self._lineage = LINEAGES[plan.provenance]()
        self._operators: dict[str, Operator] = {}
        self._sources: dict[str, Source] = {}
        self._receives: dict[tuple[str, str], list[Receive]] = {}
        self._deliveries: dict[str, Sink] = {}
        document = plan.document()
        self._stepping = False
        steps = plan.steps()
        self._held_back = _upstream_of_length_windows(steps)
        self._reaching_back: set[str] = set()
        for step in steps:
            self._start(step)
        # The operators where streams meet, each with where those streams come from.
        self._merging: list[tuple[Merging, list[Source | Receive]]] = []
        for name, upstream in _origins_upstream(steps).items():
            operator = self._operators[name]
            if isinstance(operator, Merging):
                origins = [self._operators[origin] for origin in upstream]
                self._merging.append((operator, [each for each in origins if isinstance(each, (Source, Receive))]))
        # A list goes through the plan in one call within another; leave the user's functions their own depth.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 1_000 + 4 * len(steps)))
        # The sinks that may name a source's tuples, and for how long.
        self._naming: list[tuple[SourceIds, list[tuple[Sink, int]]]] = [
            (self._sources[name].ids, [(self._deliveries[sink], delay) for sink, delay in reached.items()])
            for name, reached in delays(document).items()
            if name in self._sources
        ]

    def feed(self, source: str, items: list[Any]) -> None:
        """The next items of a source, in the order in which they came."""
        taking = self._source(source)
        self._step(lambda: taking.take(items))

    def watermark(self, source: str, ts: Any) -> None:
        """Promise that every later item of the source has at least this ts."""
        self._advance(source, checked_ts(ts), False)

    def idle(self, source: str) -> None:
        """Do not wait for the source until its next item."""
        self._advance(source, BEGINNING, True)

    def close(self, source: str) -> None:
        """The source has ended."""
        self._advance(source, END_OF_TIME, False)

    def finish(self) -> None:
        """All sources have ended."""
        for source in self._sources:
            self.close(source)

    def receive(
        self, stream: StreamId, tuples: list[tuple[int, Any, Origin]], watermark: int, hold: int, idle: bool
    ) -> None:
        """What the Send of another agent transmitted."""
        receives = self._receives.get((stream.agent, stream.name))
        if receives is None:
            raise PlanError(f"plan {self.plan.name!r} receives no stream {stream.name!r} of {stream.agent!r}")

        def take() -> None:
            for receive in receives:
                receive.take(tuples, watermark, hold, idle)

        self._step(take)

    @property
    def receiving(self) -> dict[tuple[str, str], list[str]]:
        """The streams of other agents that have not ended, as (agent, stream), and the operators that take them."""
        return {
            key: [each.name for each in receives]
            for key, receives in self._receives.items()
            if receives[0].watermark < END_OF_TIME
        }

    def watermark_of(self, source: str) -> int:
        """What the source has promised."""
        return self._source(source).watermark

    @property
    def waiting(self) -> int:
        """How many tuples wait for the slower of several inputs."""
        return sum(merging.waiting() for merging, _ in self._merging)

    def ahead(self, many: int) -> set[str]:
        """The sources and Receives whose next items would only wait, for one further behind, where `many` tuples do
        already.

        Not those that are idle: nobody waits for them, so what they say next would come late if it were left unread.
        """
        found: set[str] = set()
        for merging, sources in self._merging:
            awaited = [each for each in sources if not each.idle]
            if awaited and merging.waiting() >= many:
                furthest_behind = min([each.watermark for each in awaited])
                found.update([each.name for each in awaited if each.watermark > furthest_behind])
        return found

    @property
    def metrics(self) -> dict[str, Counts]:
        """Counters of every operator."""
        return {
            name: Counts(each.taken, each.given, each.faults.lates, each.faults.skipped)
            for name, each in self._operators.items()
        }

    def _source(self, name: str) -> Source:
        source = self._sources.get(name)
        if source is None:
            raise PlanError(f"plan {self.plan.name!r} has no source {name!r}")
        return source

    def _advance(self, source: str, watermark: int, idle: bool) -> None:
        advancing = self._source(source)
        self._step(lambda: advancing.advance_to(watermark, idle))

    def _step(self, work: Callable[[], None]) -> None:
        """One call, all the way through the plan. Results that were finished when user code raised are still given."""
        if self._stepping:
            raise RuntimeError(
                f"plan {self.plan.name!r}: the engine has failed, or is called from its own emit or sink"
            )
        self._stepping = True
        try:
            work()
        except StreamError:
            for operator in self._operators.values():
                with suppress(StreamError):  # the first one is the one to tell
                    operator.give_results()
            raise
        self._forget_ids()
        self._stepping = False

    def _forget_ids(self) -> None:
        """Those that no result can name again."""
        for ids, reached in self._naming:
            if ids.waiting():
                before = END_OF_TIME
                for sink, delay in reached:
                    before = min(before, sink.watermark - delay, sink.hold - delay)
                ids.forget(before)

    def _start(self, step: Step) -> None:
        node = step.node
        for name in node.inputs:
            if name in self._reaching_back:
                self._reaching_back.add(node.name)
        operator = self._operator(step)
        self._operators[node.name] = operator
        if node.operator == "receive" or isinstance(operator, (LengthWindows, LengthJoin)):
            self._reaching_back.add(node.name)
        for port, name in enumerate(node.inputs):
            self._operators[name].to(operator, port)

    def _operator(self, step: Step) -> Operator:
        node = step.node
        name = node.name
        functions = step.functions
        lineage = self._lineage
        faults = Faults(StreamId(self._agent, self._epoch, name, self._nonce), step.skip, self._emit)
        match node.operator:
            case "source":
                return self._source_operator(step, faults)
            case "receive":
                receive = Receive(name, faults, lineage)
                key = (cast(str, node.parameters["sender"]), cast(str, node.parameters["stream"]))
                self._receives.setdefault(key, []).append(receive)
                return receive
            case "map":
                return Map(name, faults, lineage, functions["function"])
            case "flat_map":
                return FlatMap(name, faults, lineage, functions["function"])
            case "filter":
                return Filter(name, faults, functions["function"])
            case "multiplex":
                return Multiplex(name, faults, lineage)
            case "union":
                return Union(name, faults, self._histories(step))
            case "aggregate":
                return self._aggregate_operator(step, faults)
            case "join":
                return self._join_operator(step, faults)
            case _:
                return self._delivering_operator(step, faults)

    def _source_operator(self, step: Step, faults: Faults) -> Source:
        parameters = cast("dict[str, Any]", step.node.parameters)
        ids = ids_of(parameters["ids"], faults.stream, step.node.name in self._held_back, self._emit)
        source = Source(
            step.node.name,
            faults,
            self._lineage,
            ids,
            step.functions.get("ts"),
            parameters["disorder_ms"],
            parameters["watermarks"] == "explicit",
        )
        self._sources[step.node.name] = source
        return source

    def _aggregate_operator(self, step: Step, faults: Faults) -> Operator:
        name = step.node.name
        window = cast("dict[str, Any]", step.node.parameters["window"])
        (history,) = self._histories(step)
        computation = Computation(
            self._lineage, list(step.aggregators), step.functions.get("key"), step.functions.get("into"), history
        )
        match window["kind"]:
            case "recent":
                return RecentWindows(name, faults, computation, window["size_ms"])
            case "length":
                return LengthWindows(name, faults, computation, window["count"])
            case _:
                size, advance, offset = window["size_ms"], window["advance_ms"], window["offset_ms"]
                windows = SlidingWindows if advance < size else TumblingWindows
                return windows(name, faults, computation, size, advance, offset)

    def _join_operator(self, step: Step, faults: Faults) -> Operator:
        name = step.node.name
        window = cast("dict[str, Any]", step.node.parameters["window"])
        keys = [step.functions["left_key"], step.functions["right_key"]]
        pairing = Pairing(
            self._lineage, keys, step.functions["combine"], step.functions.get("where"), self._histories(step)
        )
        match window["kind"]:
            case "band":
                return BandJoin(name, faults, pairing, window["distance_ms"], window["distance_ms"])
            case "recent":
                return BandJoin(name, faults, pairing, window["left_ms"], window["right_ms"])
            case "length":
                return LengthJoin(name, faults, pairing, window["left_count"], window["right_count"])
            case _:
                size, advance, offset = window["size_ms"], window["advance_ms"], window["offset_ms"]
                return WindowJoin(name, faults, pairing, size, advance, offset)

    def _delivering_operator(self, step: Step, faults: Faults) -> Operator:
        name = step.node.name
        if step.node.operator == "sink":
            sink = Sink(name, faults, self._lineage, faults.stream, self._emit, step.functions.get("function"))
        else:
            if self._transmit is None:
                raise PlanError("sends to other agents, but there is no connection to any", name)
            sink = Send(name, faults, self._lineage, faults.stream, self._emit, self._transmit)
        self._deliveries[name] = sink
        return sink

    def _histories(self, step: Step) -> list[HoldHistory | None]:
        """One per input that may reach back further than its watermark."""
        return [HoldHistory() if name in self._reaching_back else None for name in step.node.inputs]


def _origins_upstream(steps: list[Step]) -> dict[str, set[str]]:
    """For every operator, the sources and Receives whose tuples may reach it."""
    found: dict[str, set[str]] = {}
    for step in steps:
        node = step.node
        upstream = {node.name} if node.operator in ORIGINS else set()
        found[node.name] = upstream.union(*[found[name] for name in node.inputs])
    return found


def _upstream_of_length_windows(steps: list[Step]) -> set[str]:
    """The operators whose tuples a length window may keep."""
    found: set[str] = set()
    for step in reversed(steps):
        window = step.node.parameters.get("window")
        if step.node.name in found or (isinstance(window, dict) and window["kind"] == "length"):
            found.update(step.node.inputs)
    return found

"""Where tuples can get to: the ways through the plans of all agents.

A source stream reaches the sinks of its own agent and, through Send and Receive, those of others. U is the largest sum
of windows on such a way: for so long a tuple may still contribute there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

from protocol.ids import StreamId
from protocol.plan import PlanDocument, PlanError, delays, delivering_name
from protocol.records import Declared
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, decode_section

_MOST_AGENTS = 100  # in a chain
Node = tuple[str, str]  # an agent and a stream of it


class Ways(NamedTuple):
    """A plan as far as it matters here: which way tuples go, and how long that takes."""

    delays: dict[str, dict[str, int]]
    """Source or receive -> sink or send stream -> U in ms."""
    sends: dict[str, tuple[str, ...]]
    receives: dict[str, Node]
    """Receive -> the agent and the stream it takes."""
    has_length_windows: bool

    @property
    def sinks(self) -> set[str]:
        return {stream for reached in self.delays.values() for stream in reached if stream not in self.sends}


class Reach(NamedTuple):
    """Where tuples of a stream can get to."""

    sinks: dict[Node, int]
    """Sink -> U in ms."""
    unknown: bool
    """Or anywhere: a plan that has not come, or agents that send in a circle."""


ANYWHERE = Reach({}, True)
NOWHERE = Reach({}, False)


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
        lengths = [node for node in document.nodes if _is_length_window(node.parameters.get("window"))]
        return Ways(delays(document), sends, receives, bool(lengths))
    except (MalformedBatch, PlanError, IndexError):
        return None


def _is_length_window(window: object) -> bool:
    return isinstance(window, Mapping) and window.get("kind") == "length"


class Start(NamedTuple):
    """A start of an agent, and the starts of others from which it has taken something."""

    nonce: int
    ways: Ways
    heard: frozenset[int]


@dataclass(slots=True)
class Agent:
    """What is known of an agent. Its starts are told apart by their nonces."""

    plans: list[Ways] = field(default_factory=list)
    """Distinct ones, the newest last. Tuples of older ones may still be under way elsewhere."""
    open: dict[int, Ways | None] = field(default_factory=dict)
    """Starts of which more is expected."""
    retired: dict[int, Ways | None] = field(default_factory=dict)
    """Starts that were given up: they may come back."""
    over: dict[int, Ways | None] = field(default_factory=dict)
    """Starts of which nothing more will come."""
    announced: dict[int, int] = field(default_factory=dict)
    """Starts of which only others have spoken so far, and their epochs."""
    heard: dict[int, frozenset[int]] = field(default_factory=dict)
    """Of starts that have not ended: the starts of others whose tuples they have named."""
    stopped: Start | None = None
    """The start that has ended last, until there is another: what others send to the agent meanwhile waits for that."""

    @property
    def is_retired(self) -> bool:
        """Nobody waits for it."""
        return not self.open and bool(self.retired)

    @property
    def is_unknown(self) -> bool:
        """Whether its tuples take ways that nobody knows: a plan that has not come, or cannot be read."""
        return bool(self.announced) or any(ways is None for ways in self.open.values())

    def named(self, nonce: int, other: int) -> None:
        """A start has named tuples of a start of another agent."""
        self.heard[nonce] = self.heard.get(nonce, frozenset()) | {other}

    def was_named(self, nonce: int, epoch: int) -> None:
        """Another agent has named tuples of a start."""
        if nonce not in self.open and nonce not in self.retired and nonce not in self.over:
            self.announced[nonce] = epoch

    def spoke(self, nonce: int, epoch: int) -> None:
        """A start has named tuples of its own: starts before it will not speak any more."""
        self.announced = {each: at for each, at in self.announced.items() if at > epoch and each != nonce}

    def started(self, nonce: int, ways: Ways | None) -> None:
        """A plan: what older starts had promised, they have promised."""
        self.over |= self.open | self.retired
        self.open, self.retired, self.stopped = {nonce: ways}, {}, None
        self.over.pop(nonce, None)
        self.announced.pop(nonce, None)
        self.heard = {nonce: self.heard.get(nonce, frozenset())}
        if ways is not None and ways not in self.plans:
            self.plans = [*self.plans, ways]

    def ended(self, nonce: int) -> None:
        """A start has ended."""
        ways = self.over[nonce] = self.open.pop(nonce, None) or self.retired.get(nonce)
        self.retired.pop(nonce, None)
        self.announced.pop(nonce, None)
        heard = self.heard.pop(nonce, frozenset())
        if ways is not None:
            self.stopped = Start(nonce, ways, heard)

    def given_up(self, nonce: int) -> None:
        if self.stopped is not None and self.stopped.nonce == nonce:
            self.stopped = None
        if nonce not in self.over:
            self.announced = {}
            self.retired = {**self.retired, **self.open}
            self.retired.setdefault(nonce, None)
            self.open = {}

    def returned(self, nonce: int) -> None:
        """A start that was given up, or that a newer one had followed, goes on."""
        own = self.retired.pop(nonce, None) or self.over.pop(nonce, None)
        self.open[nonce] = own or (self.plans[-1] if self.plans else None)


class Reaches:
    """What follows from the plans of some agents; found when asked for, and kept."""

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        self._agents = agents
        self._found: dict[Node, Reach] = {}
        self._unbounded: dict[Node, bool] = {}

    def of(self, node: Node) -> Reach:
        """Where tuples of a stream can get to, be it of a source or of a Send."""
        return self._reach(node, ())

    def is_unbounded(self, sent: Node, behind: int = 0) -> bool:
        """Whether a Send has length windows before it, here or in another agent, or nobody knows."""
        if sent not in self._unbounded:
            self._unbounded[sent] = True  # should one come back here: a circle
            self._unbounded[sent] = behind > _MOST_AGENTS or self._find_unbounded(sent, behind)
        return self._unbounded[sent]

    def _find_unbounded(self, sent: Node, behind: int) -> bool:
        name, stream = sent
        agent = self._agents.get(name)
        plans = [plan for plan in agent.plans if stream in plan.sends] if agent else []
        if not plans or any(plan.has_length_windows for plan in plans):
            return True
        received = [plan.receives[each] for plan in plans for each in plan.receives if stream in plan.delays[each]]
        return any(self.is_unbounded(each, behind + 1) for each in received)

    def _reach(self, node: Node, before: tuple[Node, ...]) -> Reach:
        if node in before or len(before) > _MOST_AGENTS:  # every stream between the two is in the same circle
            return ANYWHERE
        if node not in self._found:
            self._found[node] = self._find_reach(node, before)
        return self._found[node]

    def _find_reach(self, node: Node, before: tuple[Node, ...]) -> Reach:
        name, stream = node
        agent = self._agents.get(name)
        if agent is None or agent.is_unknown:
            return ANYWHERE
        ways: list[Reach] = []
        for plan in agent.plans:
            for to in plan.sends.get(stream, ()):
                ways += self._received(to, node, (*before, node))
            if stream in plan.delays and stream not in plan.receives:
                ways.append(self._onward(name, plan, plan.delays[stream], (*before, node)))
        is_told = any(stream in plan.sends or stream in plan.delays for plan in agent.plans)
        return _united(ways) if is_told else ANYWHERE

    def _received(self, receiver: str, sent: Node, before: tuple[Node, ...]) -> Iterable[Reach]:
        agent = self._agents.get(receiver)
        if agent is None or agent.is_unknown:
            yield ANYWHERE
            return
        if not agent.plans and not agent.is_retired:
            yield ANYWHERE
        for plan in agent.plans:
            for receive, taken in plan.receives.items():
                if taken == sent:
                    yield self._onward(receiver, plan, plan.delays.get(receive, {}), before)

    def _onward(self, agent: str, plan: Ways, reached: Mapping[str, int], before: tuple[Node, ...]) -> Reach:
        """From within an agent: to its sinks, and through its Sends to those of others."""
        ways: list[Reach] = []
        for stream, delay in reached.items():
            if stream in plan.sends:
                found = self._reach((agent, stream), before)
                ways.append(found._replace(sinks={sink: rest + delay for sink, rest in found.sinks.items()}))
            else:
                ways.append(Reach({(agent, stream): delay}, False))
        return _united(ways)


def _united(ways: Iterable[Reach]) -> Reach:
    sinks: dict[Node, int] = {}
    unknown = False
    for each in ways:
        for sink, delay in each.sinks.items():
            sinks[sink] = max(delay, sinks.get(sink, 0))
        unknown = unknown or each.unknown
    return Reach(sinks, unknown)

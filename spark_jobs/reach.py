"""Where tuples can get to: the ways through the plans of all agents.

A source stream reaches the sinks of its own agent and, through Send and Receive, those of others. U is the largest sum
of windows on such a way: for so long a tuple may still contribute there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
Step = tuple[Node, int]  # and the number of the first plan of the agent that counts


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


Sent = tuple[int, str]  # a start of an agent, and a Send of it


class Start(NamedTuple):
    """A start of an agent, and the Sends of others from which it has taken something."""

    nonce: int
    ways: Ways
    heard: frozenset[Sent]


@dataclass(slots=True)
class Agent:
    """What is known of an agent. Its starts are told apart by their nonces."""

    plans: dict[int, Ways] = field(default_factory=dict)
    """The newest last, by numbers that grow; one is not told twice in a row. Tuples of starts that had older ones may
    still be under way elsewhere."""
    since: dict[int, int] = field(default_factory=dict)
    """Of starts that have told a plan: the number of that."""
    open: dict[int, Ways | None] = field(default_factory=dict)
    """Starts of which more is expected."""
    retired: dict[int, Ways | None] = field(default_factory=dict)
    """Starts that were given up: they may come back."""
    over: dict[int, Ways | None] = field(default_factory=dict)
    """Starts of which nothing more will come, in the order in which they were, as far as that is known."""
    announced: dict[int, int] = field(default_factory=dict)
    """Starts of which only others have spoken so far, and their epochs."""
    heard: dict[int, frozenset[Sent]] = field(default_factory=dict)
    """Of starts that have not ended: the Sends of others from which they, or those before them, have taken tuples."""
    stopped: Start | None = None
    """The start that has ended last, if it received, until there is another: what others send to the agent meanwhile
    waits for that."""
    is_left_unread: bool = False
    """The start that has ended last had a plan that cannot be read."""
    is_retired: bool = False
    """It was given up, and has not been heard of since: nobody waits for it."""

    @property
    def is_unknown(self) -> bool:
        """Whether its tuples take ways that nobody knows: a plan that has not come, or cannot be read."""
        return bool(self.announced) or self.is_left_unread or any(ways is None for ways in self.open.values())

    def heard_by(self, nonce: int) -> frozenset[Sent]:
        """The Sends of others from which a start has taken tuples."""
        if self.stopped is not None and self.stopped.nonce == nonce:
            return self.stopped.heard
        return self.heard.get(nonce, frozenset())

    def named(self, nonce: int, other: Sent) -> None:
        """A start has taken, or named, tuples of a Send of another agent. It may say so in its last words."""
        if self.stopped is not None and self.stopped.nonce == nonce:
            self.stopped = self.stopped._replace(heard=self.stopped.heard | {other})
        elif nonce not in self.over:
            self.heard[nonce] = self.heard.get(nonce, frozenset()) | {other}

    def was_named(self, nonce: int, epoch: int) -> None:
        """Another agent has named tuples of a start."""
        if nonce not in self.open and nonce not in self.retired and nonce not in self.over:
            self.announced[nonce] = epoch

    def spoke(self, nonce: int, epoch: int) -> None:
        """A start has named tuples of its own: starts before it will not speak any more."""
        passed = sorted((at, each) for each, at in self.announced.items() if at <= epoch and each != nonce)
        self.over |= {each: None for _, each in passed}
        self.announced = {each: at for each, at in self.announced.items() if at > epoch and each != nonce}

    def started(self, nonce: int, ways: Ways | None) -> None:
        """A plan: what older starts had promised, they have promised."""
        heard = [*self.heard.values(), self.stopped.heard if self.stopped else frozenset()]
        self.heard = {nonce: frozenset().union(*heard)}
        self.over |= self.open | self.retired
        self.open, self.retired, self.stopped = {nonce: ways}, {}, None
        self.is_left_unread = self.is_retired = False
        self.over.pop(nonce, None)
        self.announced.pop(nonce, None)
        if ways is not None:
            newest = max(self.plans, default=0)
            number = newest if newest and self.plans[newest] == ways else newest + 1
            self.plans[number] = ways
            self.since.setdefault(nonce, number)

    def ended(self, nonce: int) -> None:
        """A start has ended."""
        self.is_left_unread |= nonce in self.open and self.open[nonce] is None
        ways = self.open.pop(nonce, None) or self.retired.get(nonce)
        self.over[nonce] = self.over.get(nonce) or ways
        self.retired.pop(nonce, None)
        self.announced.pop(nonce, None)
        heard = self.heard.pop(nonce, frozenset())
        if ways is not None and ways.receives:
            self.stopped = Start(nonce, ways, heard)

    def given_up(self, nonce: int) -> None:
        """Nobody waits for it any more, be it silent or stopped."""
        self.announced, self.stopped, self.is_left_unread, self.is_retired = {}, None, False, True
        if nonce not in self.over:
            self.retired = {**self.retired, **self.open}
            self.retired.setdefault(nonce, None)
            self.open = {}

    def returned(self, nonce: int) -> None:
        """A start that was given up, or that a newer one had followed, goes on."""
        self.is_retired = False
        own = self.retired.pop(nonce, None) or self.over.pop(nonce, None)
        self.open[nonce] = own or next(reversed(self.plans.values()), None)

    def forget(self, own: str, left: Collection[tuple[str, int]], most: int) -> set[int]:
        """Nothing is left of starts but of these: let go of the others, but for so many, and of their plans. Returns
        which are forgotten."""
        kept = {nonce for nonce in self.since if (own, nonce) in left} | self.open.keys() | self.retired.keys()
        if self.stopped:
            kept.add(self.stopped.nonce)
        self.since = {nonce: number for nonce, number in self.since.items() if nonce in kept}
        first = min(self.since.values(), default=max(self.plans, default=0))
        self.plans = {number: ways for number, ways in self.plans.items() if number >= first}
        going = {nonce for nonce in [*self.over][:-most] if (own, nonce) not in left}
        self.over = {nonce: ways for nonce, ways in self.over.items() if nonce not in going}
        return going

    def unhear(self, starts: frozenset[int]) -> None:
        """These starts of others are forgotten."""
        self.heard = {nonce: _without(of, starts) for nonce, of in self.heard.items()}
        if self.stopped:
            self.stopped = self.stopped._replace(heard=_without(self.stopped.heard, starts))


def _without(sends: frozenset[Sent], starts: frozenset[int]) -> frozenset[Sent]:
    return frozenset(each for each in sends if each[0] not in starts)


class Reaches:
    """What follows from the plans of some agents; found when asked for, and kept."""

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        self._agents = agents
        self._found: dict[Step, Reach] = {}
        self._unbounded: dict[Node, bool] = {}

    def of(self, node: Node, nonce: int | None = None) -> Reach:
        """Where tuples of a stream can get to, be it of a source or of a Send. Those of one start go the ways of its
        plan and of later ones: what it has sent, and is not taken yet, the next start sends on."""
        agent = self._agents.get(node[0])
        return self._reach(node, (), agent.since.get(nonce, 0) if agent and nonce is not None else 0)

    def is_unbounded(self, sent: Node, behind: int = 0) -> bool:
        """Whether a Send has length windows before it, here or in another agent, or nobody knows."""
        if sent not in self._unbounded:
            self._unbounded[sent] = True  # should one come back here: a circle
            self._unbounded[sent] = behind > _MOST_AGENTS or self._find_unbounded(sent, behind)
        return self._unbounded[sent]

    def _find_unbounded(self, sent: Node, behind: int) -> bool:
        name, stream = sent
        agent = self._agents.get(name)
        plans = [plan for plan in agent.plans.values() if stream in plan.sends] if agent else []
        if not plans or any(plan.has_length_windows for plan in plans):
            return True
        received = [plan.receives[each] for plan in plans for each in plan.receives if stream in plan.delays[each]]
        return any(self.is_unbounded(each, behind + 1) for each in received)

    def _reach(self, node: Node, before: tuple[Step, ...], first: int = 0) -> Reach:
        step = (node, first)
        if step in before or len(before) > _MOST_AGENTS:  # every stream between the two is in the same circle
            return ANYWHERE
        if step not in self._found:
            self._found[step] = self._find_reach(node, (*before, step), first)
        return self._found[step]

    def _find_reach(self, node: Node, before: tuple[Step, ...], first: int) -> Reach:
        name, stream = node
        agent = self._agents.get(name)
        if agent is None or agent.is_unknown:
            return ANYWHERE
        ways: list[Reach] = []
        plans = {number: plan for number, plan in agent.plans.items() if number >= first}
        for number, plan in plans.items():
            for to in plan.sends.get(stream, ()):
                ways += self._received(to, node, before)
            if stream in plan.delays and stream not in plan.receives:
                ways.append(self._onward(name, number, plan.delays[stream], before))
        is_told = any(stream in plan.sends or stream in plan.delays for plan in plans.values())
        return _united(ways) if is_told else ANYWHERE

    def _received(self, receiver: str, sent: Node, before: tuple[Step, ...]) -> Iterable[Reach]:
        agent = self._agents.get(receiver)
        if agent is None or agent.is_unknown:
            yield ANYWHERE
            return
        if not agent.plans and not agent.is_retired:
            yield ANYWHERE
        for number, plan in agent.plans.items():
            for receive, taken in plan.receives.items():
                if taken == sent:
                    yield self._onward(receiver, number, plan.delays.get(receive, {}), before)

    def _onward(self, agent: str, number: int, reached: Mapping[str, int], before: tuple[Step, ...]) -> Reach:
        """From within an agent with a plan: to its sinks, and through its Sends to those of others."""
        plan, ways = self._agents[agent].plans[number], list[Reach]()
        for stream, delay in reached.items():
            if stream in plan.sends:
                found = self._reach((agent, stream), before, number)
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

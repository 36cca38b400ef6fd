"""Where tuples can get to: the ways through the plans of all agents.

A source stream reaches the sinks of its own agent and, through Send and Receive, those of others. U is the largest sum
of windows on such a way: for so long a tuple may still contribute there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_jobs.agents import Agent
from spark_jobs.ways import Node

_MOST_AGENTS = 100  # in a chain
Step = tuple[Node, int]  # a stream, and the number of the first plan of its agent that counts


class Reach(NamedTuple):
    """Where tuples of a stream can get to."""

    sinks: dict[Node, int]
    """Sink -> U in ms."""
    unknown: bool
    """Or anywhere: a plan that has not come, or agents that send in a circle."""


ANYWHERE = Reach({}, True)
NOWHERE = Reach({}, False)


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

"""How long a source tuple may still contribute: window sums along the paths of a plan, and across agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from protocol.plan.document import PlanDocument, in_order
from protocol.plan.errors import PlanError, chain, shown
from protocol.plan.node import DELIVERING, ORIGINS, delivering_name, window_ms
from protocol.plan.order import consumers_of, sorted_or_circle


def paths(plan: PlanDocument) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every way from a source or receive to a sink or send: (node names, sum of the windows on it).

    There may be exponentially many, hence an iterator; `count_paths` tells how many without walking them.
    """
    plan.check()
    consumers = consumers_of(plan.nodes)
    window = {node.name: window_ms(node) for node in plan.nodes}
    for origin in plan.nodes:
        if origin.operator not in ORIGINS:
            continue
        path, total = [origin.name], window[origin.name]
        branches = [iter(consumers[origin.name])]
        while branches:
            consumer = next(branches[-1], None)
            if consumer is None:
                branches.pop()
                total -= window[path.pop()]
                continue
            path.append(consumer)
            total += window[consumer]
            branches.append(iter(consumers[consumer]))
            if not consumers[consumer]:
                yield tuple(path), total


def count_paths(plan: PlanDocument) -> int:
    """How many paths `paths` gives, in linear time."""
    plan.check()
    arriving: dict[str, int] = {}
    for node in in_order(plan):
        ways = 1 if node.operator in ORIGINS else sum(arriving[name] for name in dict.fromkeys(node.inputs))
        arriving[node.name] = ways
    return sum(arriving[node.name] for node in plan.nodes if node.operator in DELIVERING)


def delays(plan: PlanDocument) -> dict[str, dict[str, int]]:
    """U(S, K) in ms within one plan: source or receive -> sink or send stream that it reaches -> largest window sum."""
    plan.check()
    order = in_order(plan)
    window = {node.name: window_ms(node) for node in plan.nodes}
    inputs = {node.name: tuple(dict.fromkeys(node.inputs)) for node in plan.nodes}
    result: dict[str, dict[str, int]] = {}
    for origin in plan.nodes:
        if origin.operator not in ORIGINS:
            continue
        largest = {origin.name: window[origin.name]}
        reached: dict[str, int] = {}
        for node in order:
            sums = [largest[name] for name in inputs[node.name] if name in largest]
            if sums:
                largest[node.name] = max(sums) + window[node.name]
                if node.operator in DELIVERING:
                    reached[delivering_name(node)] = largest[node.name]
        result[origin.name] = reached
    return result


def fleet_delays(plans: Mapping[str, PlanDocument]) -> dict[tuple[str, str], dict[tuple[str, str], int]]:
    """U across agents: (agent, source or send stream) -> (agent, sink) that it reaches -> largest window sum in ms.

    A Send continues in every agent that it is addressed to and that receives it. Plans arrive one by one, so a Send
    without a Receive, or the other way round, is no error: it leads nowhere yet.
    """
    local: dict[str, dict[str, dict[str, int]]] = {}
    for agent, plan in plans.items():
        try:
            local[agent] = delays(plan)
        except PlanError as error:
            raise PlanError(f"agent {shown(agent)}: {error.reason}", error.operator) from error
    receivers = _receivers(plans)
    # An operator and the stream of a send may have the same name, so each has a table of its own.
    from_operator: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
    from_send: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
    for agent in _agents_downstream_first(plans, receivers):
        for node in plans[agent].nodes:
            if node.operator == "send":
                stream = delivering_name(node)
                from_send[agent, stream] = _largest((0, from_operator[way]) for way in receivers[agent, stream])
        for origin, reached in local[agent].items():
            from_operator[agent, origin] = _largest(
                (delay, from_send.get((agent, name), {(agent, name): 0})) for name, delay in reached.items()
            )
    sources = {
        (agent, node.name): from_operator[agent, node.name]
        for agent, plan in plans.items()
        for node in plan.nodes
        if node.operator == "source"
    }
    return sources | from_send


def _largest(
    ways: Iterable[tuple[int, Mapping[tuple[str, str], int]]],
) -> dict[tuple[str, str], int]:
    """Per sink the largest of delay + what is still to come, over all ways."""
    result: dict[tuple[str, str], int] = {}
    for delay, reached in ways:
        for sink, rest in reached.items():
            result[sink] = max(result.get(sink, 0), delay + rest)
    return result


def _receivers(plans: Mapping[str, PlanDocument]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """(agent, send stream) -> the (agent, receive node) that take it."""
    listening: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for agent, plan in plans.items():
        for node in plan.nodes:
            if node.operator == "receive":
                key = (str(node.parameters["sender"]), str(node.parameters["stream"]), agent)
                listening.setdefault(key, []).append((agent, node.name))
    result: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for agent, plan in plans.items():
        for node in plan.nodes:
            if node.operator == "send":
                stream, to = delivering_name(node), node.parameters["to"]
                assert isinstance(to, list)
                result[agent, stream] = [way for other in to for way in listening.get((agent, stream, str(other)), ())]
    return result


def _agents_downstream_first(
    plans: Mapping[str, PlanDocument], receivers: Mapping[tuple[str, str], list[tuple[str, str]]]
) -> list[str]:
    downstream: dict[str, list[str]] = {agent: [] for agent in plans}
    for (agent, _), ways in receivers.items():
        downstream[agent] += [other for other, _ in ways]
    upstream_first, circle = sorted_or_circle(downstream)
    if circle:
        raise PlanError(f"the agents {chain(circle)} send to each other in a circle")
    return upstream_first[::-1]

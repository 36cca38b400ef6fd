"""The order of a plan's operators, or of its agents, and the circles that make it impossible."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from protocol.plan.node import Node


def consumers_of(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Who takes each node's stream; a consumer that takes it twice (a self-join) is named once."""
    consumers: dict[str, list[str]] = {node.name: [] for node in nodes}
    for node in nodes:
        for source in dict.fromkeys(node.inputs):
            consumers[source].append(node.name)
    return consumers


def sorted_or_circle(after: Mapping[str, list[str]]) -> tuple[list[str], list[str]]:
    """(every key before those that come `after` it, []), or ([], one circle, its first key repeated at the end)."""
    waiting = dict.fromkeys(after, 0)
    for followers in after.values():
        for follower in followers:
            waiting[follower] += 1
    ready = deque(key for key, count in waiting.items() if not count)
    order: list[str] = []
    while ready:
        key = ready.popleft()
        order.append(key)
        for follower in after[key]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    if len(order) == len(after):
        return order, []
    # What is left waits for something that is left too, so walking backwards ends in a circle.
    left = {key for key, count in waiting.items() if count}
    before = {follower: key for key in after if key in left for follower in after[key] if follower in left}
    seen: dict[str, None] = {}
    key = min(left)
    while key not in seen:
        seen[key] = None
        key = before[key]
    walk = list(seen)
    circle = walk[walk.index(key) :][::-1]
    return [], [*circle, circle[0]]

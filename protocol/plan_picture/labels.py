"""What all pictures say about an operator, in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.plan import DELIVERING, ORIGINS, Node, PlanDocument, window_ms

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000))


def duration(ms: int) -> str:
    """A time span as people say it, exactly: 90500 -> "1 min 30.5 s"."""
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 1_000:
        return f"{ms} ms"
    parts, rest = [], ms
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    if rest:
        whole, fraction = divmod(rest, 1_000)
        decimals = f".{fraction:03}".rstrip("0") if fraction else ""
        parts.append(f"{whole}{decimals} s")
    return " ".join(parts)


def exact_duration(ms: int) -> str:
    """The same, with the milliseconds that everything else counts in."""
    return duration(ms) if ms < 1_000 else f"{duration(ms)} ({ms} ms)"


def kind(node: Node) -> str:
    """Where an operator stands in the flow, for its colour."""
    if node.operator in ORIGINS:
        return "origin"
    if node.operator in DELIVERING:
        return "delivering"
    return "window" if "window" in node.parameters else "stateless"


def details(node: Node) -> list[str]:
    """An operator's parameters and functions, a line each."""
    return [*_parameters(node), *(f"{role} = {function}" for role, function in sorted(node.functions.items()))]


def _parameters(node: Node) -> list[str]:
    given: Mapping[str, Any] = node.parameters
    match node.operator:
        case "source":
            order = {
                "ordered": "in order",
                "bounded": f"at most {duration(given['disorder_ms'])} out of order",
                "explicit": "explicit watermarks",
            }
            return [f"{order[given['watermarks']]}, ids by {given['ids']}"]
        case "receive":
            return [f"stream {given['stream']} from {given['sender']}"]
        case "send":
            return [f"stream {given['stream']} to {', '.join(given['to'])}"]
        case "aggregate":
            return [window(node), ", ".join(given["aggregators"])]
        case "join":
            return [window(node)]
    return []


def window(node: Node) -> str:
    """The window of an aggregate or join."""
    given: Any = node.parameters["window"]
    match given["kind"]:
        case "time":
            size, advance, offset = given["size_ms"], given["advance_ms"], given["offset_ms"]
            every = "" if advance == size else f" every {duration(advance)}"
            shifted = f" from {duration(offset)}" if offset else ""
            return f"window of {duration(size)}{every}{shifted}"
        case "band":
            return f"at most {duration(given['distance_ms'])} apart"
        case "recent" if node.operator == "join":
            return f"the last {duration(given['left_ms'])} left, {duration(given['right_ms'])} right"
        case "recent":
            return f"the last {duration(window_ms(node))}"
        case "length" if node.operator == "join":
            return f"the last {given['left_count']} left, {given['right_count']} right"
        case _:
            return f"the last {given['count']} tuples"


def beyond_the_sums(plan: PlanDocument) -> list[str]:
    """What has to be said below the window sums: a length window adds nothing to them, but holds tuples too."""
    windows: list[Any] = [node.parameters["window"] for node in plan.nodes if "window" in node.parameters]
    if any(window["kind"] == "length" for window in windows):
        return ["and however long a length window holds a tuple: each sink's progress tells (hold)"]
    return []

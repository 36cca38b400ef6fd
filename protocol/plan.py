"""A query plan as data: named operators, what each takes in, its parameters and the names of its user functions.

The device builds and runs a plan; the cloud only reads it, to know for how long a source tuple may still contribute
to a sink: U(S, K), the largest sum of window sizes on a path from S to K. So a document says all that U depends on, and
nothing that has to be executed. It comes over the network: whatever the text, `PlanError` is the only exception.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

VERSION = 1
PROVENANCE_MODES = ("none", "genealog", "segments")

# What a hostile document may cost at most; `delays` does at most nodes x inputs steps.
MAX_JSON_BYTES = 1 << 20
MAX_NODES = 4_096
MAX_INPUTS = 16_384
MAX_NAME_CHARS = 200
MAX_TEXT_CHARS = 1_000
MAX_LIST_ITEMS = 1_000
TIME_LIMIT_MS = 2**62

_AGENT = re.compile(r"[a-z0-9-]{1,23}")


class PlanError(ValueError):
    """A plan that cannot be: what is wrong and, where there is one, at which operator."""

    def __init__(self, reason: str, operator: str | None = None) -> None:
        super().__init__(reason if operator is None else f"operator {_shown(operator)}: {reason}")
        self.reason = reason
        self.operator = operator


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `inputs` are names of other nodes; `functions` maps a role to "module:qualname"."""

    name: str
    operator: str
    inputs: tuple[str, ...] = ()
    parameters: Mapping[str, JSON] = field(default_factory=dict, hash=False)
    functions: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """A whole plan. `from_json(plan.to_json()) == plan`, and equal plans have the same text."""

    name: str
    provenance: str
    nodes: tuple[Node, ...]

    def check(self) -> None:
        """`PlanError` for the first thing that is wrong, with the operator's name."""
        _name("the plan's name", self.name, None)
        if self.provenance not in PROVENANCE_MODES:
            raise PlanError(f"provenance is one of {', '.join(PROVENANCE_MODES)}, not {_shown(self.provenance)}")
        if not isinstance(self.nodes, tuple) or not all(isinstance(node, Node) for node in self.nodes):
            raise PlanError("a plan's nodes are a tuple of Node")
        if len(self.nodes) > MAX_NODES:
            raise PlanError(f"{len(self.nodes)} operators, and a plan has at most {MAX_NODES}")
        by_name: dict[str, Node] = {}
        for node in self.nodes:
            check_node(node)
            if node.name in by_name:
                raise PlanError("two operators have this name", node.name)
            by_name[node.name] = node
        if sum(len(node.inputs) for node in self.nodes) > MAX_INPUTS:
            raise PlanError(f"the operators of a plan have at most {MAX_INPUTS} inputs together")
        _check_streams(self.nodes, by_name)
        in_order(self)

    def to_json(self) -> str:
        """The plan as text, always the same for the same plan. `PlanError` if it does not pass `check`."""
        self.check()
        document = {
            "version": VERSION,
            "name": self.name,
            "provenance": self.provenance,
            "nodes": [_node_to_json(node) for node in self.nodes],
        }
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        if len(text.encode()) > MAX_JSON_BYTES:
            raise PlanError(f"a plan's text has at most {MAX_JSON_BYTES} bytes")
        return text

    @staticmethod
    def from_json(text: str | bytes) -> PlanDocument:
        """The plan in a text that nobody vouches for, checked."""
        document = _fields(
            _parse(text), "a plan", required=("version", "name", "provenance", "nodes"), optional=(), operator=None
        )
        version, nodes = document["version"], document["nodes"]
        if type(version) is not int or version != VERSION:
            raise PlanError(f"plan version {_shown(version)}, and only version {VERSION} is known")
        if not isinstance(nodes, list):
            raise PlanError(f"nodes is a list, not {_shown(nodes)}")
        if len(nodes) > MAX_NODES:
            raise PlanError(f"{len(nodes)} operators, and a plan has at most {MAX_NODES}")
        plan = PlanDocument(
            name=document["name"],
            provenance=document["provenance"],
            nodes=tuple(_node_from_json(node, place) for place, node in enumerate(nodes)),
        )
        plan.check()
        return plan


def window_ms(node: Node) -> int:
    """How far the oldest tuple in a result may lie before the result's timestamp because of this operator alone.

    Length windows have no such bound and count 0; what they still keep is reported at run time as `hold`.
    """
    kinds = _WINDOWS.get(node.operator)
    if kinds is None:
        return 0
    window = _window(node.operator, node.parameters.get("window"), node.name)
    return max((window[key] for key in kinds[window["kind"]].sizes), default=0)


def paths(plan: PlanDocument) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every way from a source or receive to a sink or send: (node names, sum of the windows on it).

    There may be exponentially many, hence an iterator; `count_paths` tells how many without walking them.
    """
    plan.check()
    consumers = _consumers(plan.nodes)
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


def delivering_name(node: Node) -> str:
    """The delivering stream of a sink or send."""
    return str(node.parameters["stream"]) if node.operator == "send" else node.name


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
            raise PlanError(f"agent {_shown(agent)}: {error.reason}", error.operator) from error
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
    upstream_first, circle = _sorted_or_circle(downstream)
    if circle:
        raise PlanError(f"the agents {_chain(circle)} send to each other in a circle")
    return upstream_first[::-1]


# Checking. One table says what each operator takes; a check names the operator and the key.

_Check: TypeAlias = Callable[[str, Any, str | None], object]


def _shown(value: object) -> str:
    """A value in an error message, short whatever it is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"{value[:60]!r}..."
    if isinstance(value, int):
        return repr(value) if abs(value) < 2**64 else "a huge number"
    if isinstance(value, float):
        return repr(value)
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def _chain(names: list[str]) -> str:
    """A way through a graph in an error message: its ends, if it is long."""
    shown = names if len(names) <= 10 else [*names[:5], "...", *names[-4:]]
    return " -> ".join(shown)


def _text(what: str, value: object, operator: str | None, most: int = MAX_TEXT_CHARS) -> str:
    if not isinstance(value, str):
        raise PlanError(f"{what} is a text, not {_shown(value)}", operator)
    if not value:
        raise PlanError(f"{what} is empty", operator)
    if len(value) > most:
        raise PlanError(f"{what} has {len(value)} characters, and at most {most} are allowed", operator)
    if not value.isprintable():
        raise PlanError(f"{what} {_shown(value)} has a character that cannot be printed", operator)
    return value


def _name(what: str, value: object, operator: str | None) -> str:
    return _text(what, value, operator, MAX_NAME_CHARS)


def _agent(what: str, value: object, operator: str | None) -> str:
    if not isinstance(value, str) or not _AGENT.fullmatch(value):
        raise PlanError(
            f"{what} {_shown(value)} is no agent name (1 to 23 of a-z, 0-9 and the hyphen)",
            operator,
        )
    return value


def _at_least(least: int) -> _Check:
    def check(what: str, value: object, operator: str | None) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise PlanError(f"{what} is a whole number, not {_shown(value)}", operator)
        if abs(value) >= TIME_LIMIT_MS:
            raise PlanError(f"{what} is out of range: {_shown(value)}", operator)
        if value < least:
            bound = "be positive" if least else "not be negative"
            raise PlanError(f"{what} must {bound}, but is {_shown(value)}", operator)

    return check


def _one_of(*choices: str) -> _Check:
    def check(what: str, value: object, operator: str | None) -> None:
        if not isinstance(value, str) or value not in choices:
            raise PlanError(f"{what} is one of {', '.join(choices)}, not {_shown(value)}", operator)

    return check


def _list_of(check_item: _Check) -> _Check:
    def check(what: str, value: object, operator: str | None) -> None:
        if not isinstance(value, list):
            raise PlanError(f"{what} is a list, not {_shown(value)}", operator)
        if not value:
            raise PlanError(f"{what} is empty", operator)
        if len(value) > MAX_LIST_ITEMS:
            raise PlanError(f"{what} has {len(value)} items, and at most {MAX_LIST_ITEMS} are allowed", operator)
        for item in value:
            check_item(f"an item of {what}", item, operator)

    return check


def _receiving_agents(what: str, value: object, operator: str | None) -> None:
    _list_of(_agent)(what, value, operator)
    assert isinstance(value, list)
    if len(set(value)) < len(value):
        raise PlanError(f"{what} names an agent twice", operator)


@dataclass(frozen=True, slots=True)
class _Window:
    """One kind of window: its keys, and those of them that are its length in time."""

    keys: Mapping[str, _Check]
    sizes: tuple[str, ...] = ()


# Windows that include both ends may have length 0: the tuples of one instant.
_positive, _not_negative, _any_time = _at_least(1), _at_least(0), _at_least(1 - TIME_LIMIT_MS)
_TIME = _Window({"size_ms": _positive, "advance_ms": _positive, "offset_ms": _any_time}, ("size_ms",))
_WINDOWS: Mapping[str, Mapping[str, _Window]] = {
    "aggregate": {
        "time": _TIME,
        "recent": _Window({"size_ms": _not_negative}, ("size_ms",)),
        "length": _Window({"count": _positive}),
    },
    "join": {
        "band": _Window({"distance_ms": _not_negative}, ("distance_ms",)),
        "time": _TIME,
        "recent": _Window({"left_ms": _not_negative, "right_ms": _not_negative}, ("left_ms", "right_ms")),
        "length": _Window({"left_count": _positive, "right_count": _positive}),
    },
}


def _window(kind_of_node: str, value: object, operator: str) -> Mapping[str, Any]:
    """The window of an aggregate or join, checked."""
    kinds = _WINDOWS[kind_of_node]
    if not isinstance(value, Mapping):
        raise PlanError(f"window is an object, not {_shown(value)}", operator)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise PlanError(f"the window of a {kind_of_node} is one of {', '.join(kinds)}, not {_shown(kind)}", operator)
    keys = kinds[kind].keys
    _fields(value, f"a {kind} window", required=("kind", *keys), optional=(), operator=operator)
    for key, check in keys.items():
        check(key, value[key], operator)
    return value


def _window_of(kind_of_node: str) -> _Check:
    def check(_: str, value: object, operator: str | None) -> None:
        _window(kind_of_node, value, operator or "")

    return check


@dataclass(frozen=True, slots=True)
class _Operator:
    """What one kind of operator takes."""

    least_inputs: int
    most_inputs: int
    parameters: Mapping[str, _Check] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    optional_functions: tuple[str, ...] = ()


_OPERATORS: Mapping[str, _Operator] = {
    "source": _Operator(
        0,
        0,
        {
            "ids": _one_of("uid", "attributes"),
            "watermarks": _one_of("ordered", "bounded", "explicit"),
            "disorder_ms": _not_negative,
        },
        optional_functions=("ts", "items"),
    ),
    "receive": _Operator(0, 0, {"stream": _name, "sender": _agent}),
    "map": _Operator(1, 1, functions=("function",)),
    "flat_map": _Operator(1, 1, functions=("function",)),
    "filter": _Operator(1, 1, functions=("function",)),
    "union": _Operator(2, MAX_INPUTS),
    "multiplex": _Operator(1, 1),
    "aggregate": _Operator(
        1,
        1,
        {"window": _window_of("aggregate"), "aggregators": _list_of(_text)},
        optional_functions=("key", "into"),
    ),
    "join": _Operator(
        2,
        2,
        {"window": _window_of("join")},
        functions=("left_key", "right_key", "combine"),
        optional_functions=("where",),
    ),
    "send": _Operator(1, 1, {"stream": _name, "to": _receiving_agents}),
    "sink": _Operator(1, 1, optional_functions=("function",)),
}
ORIGINS = ("source", "receive")
DELIVERING = ("send", "sink")


def check_node(node: Node) -> None:
    """`PlanError` if an operator by itself is wrong, whatever its inputs turn out to be."""
    name = _name("an operator's name", node.name, None)
    kind = _OPERATORS.get(node.operator) if isinstance(node.operator, str) else None
    if kind is None:
        raise PlanError(f"there is no operator {_shown(node.operator)}", name)
    if not isinstance(node.inputs, tuple):
        raise PlanError(f"inputs is a tuple, not {_shown(node.inputs)}", name)
    for source in node.inputs:
        _name("an input", source, name)
    count = len(node.inputs)
    if not kind.least_inputs <= count <= kind.most_inputs:
        wanted = {(0, 0): "no inputs", (1, 1): "1 input", (2, 2): "2 inputs"}.get(
            (kind.least_inputs, kind.most_inputs), f"at least {kind.least_inputs} inputs"
        )
        raise PlanError(f"a {node.operator} has {wanted}, not {count}", name)
    parameters = _fields(
        node.parameters, f"the parameters of a {node.operator}", tuple(kind.parameters), optional=(), operator=name
    )
    for key, check in kind.parameters.items():
        check(key, parameters[key], name)
    functions = _fields(
        node.functions, f"the functions of a {node.operator}", kind.functions, kind.optional_functions, operator=name
    )
    for role, function in functions.items():
        _text(f"function {role}", function, name)


def _check_streams(nodes: Iterable[Node], by_name: Mapping[str, Node]) -> None:
    """Every stream comes from somewhere and goes somewhere, and no two share a name."""
    consumed: set[str] = set()
    for node in nodes:
        for source in node.inputs:
            if source not in by_name:
                raise PlanError(f"its input {_shown(source)} is bound to no stream of this plan", node.name)
            if by_name[source].operator in DELIVERING:
                raise PlanError(
                    f"its input {_shown(source)} is a {by_name[source].operator}, which gives no stream", node.name
                )
            consumed.add(source)
    if not any(node.operator in ORIGINS for node in nodes):
        raise PlanError("a plan needs a source or a receive, and this one has none")
    streams: dict[str, str] = {}
    for node in nodes:
        if node.operator not in DELIVERING and node.name not in consumed:
            raise PlanError("nothing consumes its stream: add a sink or a send, or leave it out", node.name)
        if node.operator == "source" or node.operator in DELIVERING:
            stream = delivering_name(node) if node.operator in DELIVERING else node.name
            if stream in streams:
                raise PlanError(f"its stream is named {_shown(stream)}, as is that of {streams[stream]!r}", node.name)
            streams[stream] = node.name


def in_order(plan: PlanDocument) -> list[Node]:
    """The nodes so that each comes after its inputs."""
    by_name = {node.name: node for node in plan.nodes}
    order, circle = _sorted_or_circle(_consumers(by_name.values()))
    if circle:
        raise PlanError(f"its result flows back into it: {_chain(circle)}", circle[0])
    return [by_name[name] for name in order]


def _consumers(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Who takes each node's stream; a consumer that takes it twice (a self-join) is named once."""
    consumers: dict[str, list[str]] = {node.name: [] for node in nodes}
    for node in nodes:
        for source in dict.fromkeys(node.inputs):
            consumers[source].append(node.name)
    return consumers


def _sorted_or_circle(after: Mapping[str, list[str]]) -> tuple[list[str], list[str]]:
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


# JSON.


def _node_to_json(node: Node) -> dict[str, JSON]:
    """What is empty is left out: the plan is the first thing a device sends."""
    document: dict[str, JSON] = {"name": node.name, "operator": node.operator}
    if node.inputs:
        document["inputs"] = list(node.inputs)
    if node.parameters:
        document["parameters"] = {
            key: dict(value) if isinstance(value, Mapping) else value for key, value in node.parameters.items()
        }
    if node.functions:
        document["functions"] = dict(node.functions)
    return document


def _node_from_json(value: object, place: int) -> Node:
    name = value.get("name") if isinstance(value, dict) else None
    operator = name if isinstance(name, str) else None
    what = f"operator number {place}"
    document = _fields(value, what, ("name", "operator"), ("inputs", "parameters", "functions"), operator)
    inputs = document.get("inputs", [])
    if not isinstance(inputs, list):
        raise PlanError(f"{what}: inputs is a list, not {_shown(inputs)}", operator)
    return Node(
        name=document["name"],
        operator=document["operator"],
        inputs=tuple(inputs),
        parameters=document.get("parameters", {}),
        functions=document.get("functions", {}),
    )


def _fields(
    value: object, what: str, required: tuple[str, ...], optional: tuple[str, ...], operator: str | None
) -> Mapping[str, Any]:
    """An object with these keys and no other."""
    if not isinstance(value, Mapping):
        raise PlanError(f"{what}: expected an object, not {_shown(value)}", operator)
    for key in required:
        if key not in value:
            raise PlanError(f"{what}: {key!r} is missing", operator)
    for key in value:
        if key not in required and key not in optional:
            raise PlanError(f"{what}: {_shown(key)} is unknown", operator)
    return value


def _parse(text: str | bytes) -> object:
    if len(text) > MAX_JSON_BYTES:
        raise PlanError(f"a plan's text has at most {MAX_JSON_BYTES} bytes")
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except PlanError:
        raise
    except RecursionError:
        raise PlanError("the text is nested too deeply") from None
    except ValueError as error:
        raise PlanError(f"the text is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise PlanError("an object has a key twice")
    return result


def _no_constant(text: str) -> NoReturn:
    raise PlanError(f"the text is not JSON: {text} is no number")

"""One operator of a plan. A table says what each kind of operator takes; a check names the operator and the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from protocol.plan.errors import PlanError, shown

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_INPUTS = 16_384
MAX_NAME_CHARS = 200
MAX_TEXT_CHARS = 1_000
MAX_LIST_ITEMS = 1_000
TIME_LIMIT_MS = 2**62

_AGENT = re.compile(r"[a-z0-9-]{1,23}")

_Check: TypeAlias = Callable[[str, Any, str | None], object]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `inputs` are names of other nodes; `functions` maps a role to "module:qualname"."""

    name: str
    operator: str
    inputs: tuple[str, ...] = ()
    parameters: Mapping[str, JSON] = field(default_factory=dict, hash=False)
    functions: Mapping[str, str] = field(default_factory=dict, hash=False)


def window_ms(node: Node) -> int:
    """How far the oldest tuple in a result may lie before the result's timestamp because of this operator alone.

    Length windows have no such bound and count 0; what they still keep is reported at run time as `hold`.
    """
    kinds = _WINDOWS.get(node.operator)
    if kinds is None:
        return 0
    window = _window(node.operator, node.parameters.get("window"), node.name)
    return max((window[key] for key in kinds[window["kind"]].sizes), default=0)


def delivering_name(node: Node) -> str:
    """The delivering stream of a sink or send."""
    return str(node.parameters["stream"]) if node.operator == "send" else node.name


def _text(what: str, value: object, operator: str | None, most: int = MAX_TEXT_CHARS) -> str:
    if not isinstance(value, str):
        raise PlanError(f"{what} is a text, not {shown(value)}", operator)
    if not value:
        raise PlanError(f"{what} is empty", operator)
    if len(value) > most:
        raise PlanError(f"{what} has {len(value)} characters, and at most {most} are allowed", operator)
    if not value.isprintable():
        raise PlanError(f"{what} {shown(value)} has a character that cannot be printed", operator)
    return value


def check_name(what: str, value: object, operator: str | None) -> str:
    return _text(what, value, operator, MAX_NAME_CHARS)


def _agent(what: str, value: object, operator: str | None) -> str:
    if not isinstance(value, str) or not _AGENT.fullmatch(value):
        raise PlanError(
            f"{what} {shown(value)} is no agent name (1 to 23 of a-z, 0-9 and the hyphen)",
            operator,
        )
    return value


def _at_least(least: int) -> _Check:
    def check(what: str, value: object, operator: str | None) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise PlanError(f"{what} is a whole number, not {shown(value)}", operator)
        if abs(value) >= TIME_LIMIT_MS:
            raise PlanError(f"{what} is out of range: {shown(value)}", operator)
        if value < least:
            bound = "be positive" if least else "not be negative"
            raise PlanError(f"{what} must {bound}, but is {shown(value)}", operator)

    return check


def _one_of(*choices: str) -> _Check:
    def check(what: str, value: object, operator: str | None) -> None:
        if not isinstance(value, str) or value not in choices:
            raise PlanError(f"{what} is one of {', '.join(choices)}, not {shown(value)}", operator)

    return check


def _list_of(check_item: _Check) -> _Check:
    def check(what: str, value: object, operator: str | None) -> None:
        if not isinstance(value, list):
            raise PlanError(f"{what} is a list, not {shown(value)}", operator)
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
        raise PlanError(f"window is an object, not {shown(value)}", operator)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise PlanError(f"the window of a {kind_of_node} is one of {', '.join(kinds)}, not {shown(kind)}", operator)
    keys = kinds[kind].keys
    fields(value, f"a {kind} window", required=("kind", *keys), optional=(), operator=operator)
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
    "receive": _Operator(0, 0, {"stream": check_name, "sender": _agent}),
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
    "send": _Operator(1, 1, {"stream": check_name, "to": _receiving_agents}),
    "sink": _Operator(1, 1, optional_functions=("function",)),
}
ORIGINS = ("source", "receive")
DELIVERING = ("send", "sink")


def check_node(node: Node) -> None:
    """`PlanError` if an operator by itself is wrong, whatever its inputs turn out to be."""
    name = check_name("an operator's name", node.name, None)
    kind = _OPERATORS.get(node.operator) if isinstance(node.operator, str) else None
    if kind is None:
        raise PlanError(f"there is no operator {shown(node.operator)}", name)
    if not isinstance(node.inputs, tuple):
        raise PlanError(f"inputs is a tuple, not {shown(node.inputs)}", name)
    for source in node.inputs:
        check_name("an input", source, name)
    count = len(node.inputs)
    if not kind.least_inputs <= count <= kind.most_inputs:
        wanted = {(0, 0): "no inputs", (1, 1): "1 input", (2, 2): "2 inputs"}.get(
            (kind.least_inputs, kind.most_inputs), f"at least {kind.least_inputs} inputs"
        )
        raise PlanError(f"a {node.operator} has {wanted}, not {count}", name)
    parameters = fields(
        node.parameters, f"the parameters of a {node.operator}", tuple(kind.parameters), optional=(), operator=name
    )
    for key, check in kind.parameters.items():
        check(key, parameters[key], name)
    functions = fields(
        node.functions, f"the functions of a {node.operator}", kind.functions, kind.optional_functions, operator=name
    )
    for role, function in functions.items():
        _text(f"function {role}", function, name)


def fields(
    value: object, what: str, required: tuple[str, ...], optional: tuple[str, ...], operator: str | None
) -> Mapping[str, Any]:
    """An object with these keys and no other."""
    if not isinstance(value, Mapping):
        raise PlanError(f"{what}: expected an object, not {shown(value)}", operator)
    for key in required:
        if key not in value:
            raise PlanError(f"{what}: {key!r} is missing", operator)
    for key in value:
        if key not in required and key not in optional:
            raise PlanError(f"{what}: {shown(key)} is unknown", operator)
    return value

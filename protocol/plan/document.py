"""A query plan as data: named operators, what each takes in, its parameters and the names of its user functions.

The device builds and runs a plan; the cloud only reads it, to know for how long a source tuple may still contribute
to a sink: U(S, K), the largest sum of window sizes on a path from S to K. So a document says all that U depends on, and
nothing that has to be executed. It comes over the network: whatever the text, `PlanError` is the only exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from protocol.plan.errors import PlanError, chain, shown
from protocol.plan.node import (
    DELIVERING,
    JSON,
    MAX_INPUTS,
    ORIGINS,
    Node,
    check_name,
    check_node,
    delivering_name,
    fields,
)
from protocol.plan.order import consumers_of, sorted_or_circle

VERSION = 1
PROVENANCE_MODES = ("none", "genealog", "segments")
# What a hostile document may cost at most; `delays` does at most nodes x inputs steps.
MAX_JSON_BYTES = 1 << 20
MAX_NODES = 4_096


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """A whole plan. `from_json(plan.to_json()) == plan`, and equal plans have the same text."""

    name: str
    provenance: str
    nodes: tuple[Node, ...]

    def check(self) -> None:
        """`PlanError` for the first thing that is wrong, with the operator's name."""
        check_name("the plan's name", self.name, None)
        if self.provenance not in PROVENANCE_MODES:
            raise PlanError(f"provenance is one of {', '.join(PROVENANCE_MODES)}, not {shown(self.provenance)}")
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
        document = fields(
            _parse(text), "a plan", required=("version", "name", "provenance", "nodes"), optional=(), operator=None
        )
        version, nodes = document["version"], document["nodes"]
        if type(version) is not int or version != VERSION:
            raise PlanError(f"plan version {shown(version)}, and only version {VERSION} is known")
        if not isinstance(nodes, list):
            raise PlanError(f"nodes is a list, not {shown(nodes)}")
        if len(nodes) > MAX_NODES:
            raise PlanError(f"{len(nodes)} operators, and a plan has at most {MAX_NODES}")
        plan = PlanDocument(
            name=document["name"],
            provenance=document["provenance"],
            nodes=tuple(_node_from_json(node, place) for place, node in enumerate(nodes)),
        )
        plan.check()
        return plan


def _check_streams(nodes: Iterable[Node], by_name: Mapping[str, Node]) -> None:
    """Every stream comes from somewhere and goes somewhere, and no two share a name."""
    consumed: set[str] = set()
    for node in nodes:
        for source in node.inputs:
            if source not in by_name:
                raise PlanError(f"its input {shown(source)} is bound to no stream of this plan", node.name)
            if by_name[source].operator in DELIVERING:
                raise PlanError(
                    f"its input {shown(source)} is a {by_name[source].operator}, which gives no stream", node.name
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
                raise PlanError(f"its stream is named {shown(stream)}, as is that of {streams[stream]!r}", node.name)
            streams[stream] = node.name


def in_order(plan: PlanDocument) -> list[Node]:
    """The nodes so that each comes after its inputs."""
    by_name = {node.name: node for node in plan.nodes}
    order, circle = sorted_or_circle(consumers_of(by_name.values()))
    if circle:
        raise PlanError(f"its result flows back into it: {chain(circle)}", circle[0])
    return [by_name[name] for name in order]


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
    document = fields(value, what, ("name", "operator"), ("inputs", "parameters", "functions"), operator)
    inputs = document.get("inputs", [])
    if not isinstance(inputs, list):
        raise PlanError(f"{what}: inputs is a list, not {shown(inputs)}", operator)
    return Node(
        name=document["name"],
        operator=document["operator"],
        inputs=tuple(inputs),
        parameters=document.get("parameters", {}),
        functions=document.get("functions", {}),
    )


def _parse(text: str | bytes) -> object:
    try:
        # No character is less than a byte: what has too many is not encoded to count them.
        if len(text) > MAX_JSON_BYTES or (isinstance(text, str) and len(text.encode()) > MAX_JSON_BYTES):
            raise PlanError(f"a plan's text has at most {MAX_JSON_BYTES} bytes")
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

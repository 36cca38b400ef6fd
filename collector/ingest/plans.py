"""The plan of a job that is not ours: given as a plan document, or in a few words, from which a document is made.

Whoever names the streams and how far a result reaches back in time has said all that labels depend on. With a plan at
hand, records can be held against it, so that a wrong name or a window that is too small is found before it does harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from collector.epochs import MOST_OWN_STREAMS
from collector.ingest.errors import BadDocument
from collector.ingest.fields import Object, agent_name, as_object, check_name, list_of, whole
from protocol.plan import JSON, Node, PlanDocument, PlanError, delays, delivering_name
from protocol.plan.errors import shown
from protocol.plan.node import TIME_LIMIT_MS

_SOURCE: dict[str, JSON] = {"ids": "uid", "watermarks": "explicit", "disorder_ms": 0}
_AGGREGATOR = "ingest:window"


@dataclass(frozen=True, slots=True)
class Declaration:
    """A plan, and what follows from it for the records of its job."""

    document: PlanDocument
    sources: frozenset[str]
    delivering: frozenset[str]
    received: dict[tuple[str, str], tuple[str, ...]]
    """Sender and stream -> the nodes that take it."""
    delays_ms: dict[str, dict[str, int]]
    """Source or receive -> sink or send -> how much older than a result it may be."""
    is_bounded: bool
    """Nothing is older than that: there are no length windows."""

    def reach_ms(self, origin: str, delivering: str) -> int | None:
        """How much older than a result of a stream a tuple of a source or receive may be, None if it is in none."""
        return self.delays_ms.get(origin, {}).get(delivering)


def read_plan(value: object, name: str) -> Declaration:
    """A plan document, or sources, sinks and so on in short; `name` is for one that has none."""
    try:
        if isinstance(value, dict) and "nodes" in value:
            document = PlanDocument.from_json(_as_json(value))
        else:
            document = _made(value, name)
        document.to_json()
    except PlanError as error:
        raise BadDocument("", str(error)) from error
    return _declaration(document)


def _as_json(value: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise BadDocument("", f"no plan: {error}") from error


@lru_cache(32)  # a job may repeat its plan in every document, so that each is held against it
def _declaration(document: PlanDocument) -> Declaration:
    nodes = document.nodes
    received: dict[tuple[str, str], tuple[str, ...]] = {}
    for node in nodes:
        if node.operator == "receive":
            key = str(node.parameters["sender"]), str(node.parameters["stream"])
            received[key] = (*received.get(key, ()), node.name)
    windows = [node.parameters.get("window") for node in nodes]
    sources = frozenset(node.name for node in nodes if node.operator == "source")
    delivering = frozenset(delivering_name(node) for node in nodes if node.operator in ("sink", "send"))
    if len(sources) + len(delivering) > MOST_OWN_STREAMS:
        raise BadDocument("", f"{len(sources) + len(delivering)} streams, and {MOST_OWN_STREAMS} are allowed")
    for stream in (*sources, *delivering):
        check_name(stream, "")
    return Declaration(
        document=document,
        sources=sources,
        delivering=delivering,
        received=received,
        delays_ms=delays(document),
        is_bounded=not any(isinstance(window, dict) and window["kind"] == "length" for window in windows),
    )


# In short


def _made(value: object, name: str) -> PlanDocument:
    plan = as_object(value, (), ("name", "sources", "receives", "sinks", "sends"))
    plan = {"name": name, "sources": [], "receives": {}, "sinks": {}, "sends": {}, **plan}
    title = check_name(plan["name"], "name")
    sources = [check_name(each, f"sources[{at}]") for at, each in enumerate(list_of(plan, "sources"))]
    nodes = [Node(each, "source", parameters=_SOURCE) for each in sources]
    for each, of in _entries(plan, "receives"):
        try:
            nodes.append(_receive(each, of))
        except BadDocument as error:
            raise error.inside(f"receives.{each}") from None
    origins = {node.name for node in nodes}
    # A sink is called as its stream; names of other operators are free to choose.
    taken = {*origins, *plan["sinks"]} if isinstance(plan["sinks"], dict) else origins
    for kind, key in (("sink", "sinks"), ("send", "sends")):
        for each, of in _entries(plan, key):
            try:
                nodes += _delivering(kind, each, of, origins, taken)
            except BadDocument as error:
                raise error.inside(f"{key}.{each}") from None
    return PlanDocument(title, "segments", tuple(nodes))


def _entries(plan: Object, key: str) -> list[tuple[str, Any]]:
    entries = plan[key]
    if not isinstance(entries, dict):
        raise BadDocument(key, f"an object is expected, not {shown(entries)}")
    return [(check_name(name, key), of) for name, of in entries.items()]


def _receive(name: str, value: object) -> Node:
    of = as_object(value, ("agent", "stream"))
    sender, stream = agent_name(of["agent"], "agent"), check_name(of["stream"], "stream")
    return Node(name, "receive", parameters={"sender": sender, "stream": stream})


def _delivering(kind: str, stream: str, value: object, origins: set[str], taken: set[str]) -> list[Node]:
    """From its origins over a window to a sink or send."""
    is_send = kind == "send"
    of = as_object(value, ("from", "window_ms", "to") if is_send else ("from", "window_ms"))
    inputs = [check_name(each, f"from[{at}]") for at, each in enumerate(list_of(of, "from", may_be_empty=False))]
    for at, each in enumerate(inputs):
        if each not in origins:
            raise BadDocument(f"from[{at}]", f"{shown(each)} is neither a source nor a receive of this plan")
    window_ms = whole(of, "window_ms", 0, TIME_LIMIT_MS - 1)
    nodes: list[Node] = []
    unique = list(dict.fromkeys(inputs))
    last = unique[0]
    if len(unique) > 1:
        last = _free(f"{stream} union", taken)
        nodes.append(Node(last, "union", tuple(unique)))
    if window_ms:
        window: JSON = {"kind": "time", "size_ms": window_ms, "advance_ms": window_ms, "offset_ms": 0}
        before, last = last, _free(f"{stream} window", taken)
        nodes.append(Node(last, "aggregate", (before,), {"window": window, "aggregators": [_AGGREGATOR]}))
    if is_send:
        to: list[JSON] = [agent_name(each, f"to[{at}]") for at, each in enumerate(list_of(of, "to"))]
        nodes.append(Node(_free(f"{stream} send", taken), "send", (last,), {"stream": stream, "to": to}))
    else:
        nodes.append(Node(stream, "sink", (last,)))
    return nodes


def _free(name: str, taken: set[str]) -> str:
    """A name like this one that no other operator has."""
    name = name[-150:]
    number, found = 2, name
    while found in taken:
        number, found = number + 1, f"{name} {number}"
    taken.add(found)
    return found

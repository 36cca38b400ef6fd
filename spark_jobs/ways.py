"""A plan as far as the pipeline cares: which way tuples go, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from protocol.ids import StreamId
from protocol.plan import PlanDocument, PlanError, delays, delivering_name
from protocol.records import Declared
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, decode_section

Node = tuple[str, str]  # an agent and a stream of it


class Ways(NamedTuple):
    """The ways through a plan."""

    delays: dict[str, dict[str, int]]
    """Source or receive -> sink or send stream -> U in ms."""
    sends: dict[str, tuple[str, ...]]
    receives: dict[str, Node]
    """Receive -> the agent and the stream it takes."""
    has_length_windows: bool

    @property
    def sinks(self) -> set[str]:
        return {stream for reached in self.delays.values() for stream in reached if stream not in self.sends}


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

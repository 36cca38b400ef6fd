"""Rows of the log, made by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from protocol.chunks import SEQ_BITS, pack
from protocol.plan import JSON, Node, PlanDocument
from protocol.records import END_OF_TIME, Declared, End, Gap, Received
from protocol.row import Row
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, encode_section, pending

PACKER = Packer()
_SOURCE: dict[str, JSON] = {"ids": "uid", "watermarks": "ordered", "disorder_ms": 0}


def source(name: str) -> Node:
    return Node(name, "source", parameters=_SOURCE)


def window(name: str, of: str, size_ms: int) -> Node:
    time: JSON = {"kind": "time", "size_ms": size_ms, "advance_ms": size_ms, "offset_ms": 0}
    return Node(name, "aggregate", (of,), {"window": time, "aggregators": ["edge_agent.stream:count"]})


def sink(name: str, of: str) -> Node:
    return Node(name, "sink", (of,))


def send(stream: str, of: str, *to: str) -> Node:
    return Node(f"{stream}-send", "send", (of,), {"stream": stream, "to": list(to)})


def receive(name: str, sender: str, stream: str) -> Node:
    return Node(name, "receive", parameters={"sender": sender, "stream": stream})


def document(*nodes: Node) -> PlanDocument:
    return PlanDocument("p", "segments", nodes)


def _section(kind: Kind, record: Any, agent: str, nonce: int) -> bytes:
    return bytes(encode_section(kind, [pending(record, PACKER)], agent, nonce, 0))


def plan(agent: str, *nodes: Node, nonce: int = 1) -> Row:
    told = Declared(document(*nodes).to_json())
    return Row(Kind.PLAN, agent, nonce, 0, _section(Kind.PLAN, told, agent, nonce))


def register(number: int, agent: str, name: str, nonce: int = 1, by: str | None = None) -> Row:
    """The agent itself names a stream of its own, or another one does."""
    named_by = (agent, nonce) if by is None else (by, 1)
    return Row(Kind.REGISTER, *named_by, 0, PACKER.encode([number, agent, nonce & 0xFFFF, name, nonce]))


def progress(agent: str, number: int, watermark: int, hold: int = END_OF_TIME, nonce: int = 1) -> Row:
    columns = [np.array([each], "<i8") for each in (number, watermark, hold)]
    return Row(Kind.PROGRESS, agent, nonce, 0, pack(columns))


def gap(agent: str, record: Gap, nonce: int = 1) -> Row:
    return Row(Kind.GAP, agent, nonce, 0, _section(Kind.GAP, record, agent, nonce))


def received(agent: str, sender: str, stream: str, of: int, nonce: int = 1) -> Row:
    """A start of an agent has taken something of the start `of` of another."""
    told = Received(sender, stream, 1, 1, of)
    return Row(Kind.RECEIVED, agent, nonce, 0, _section(Kind.RECEIVED, told, agent, nonce))


def end(agent: str, nonce: int = 1) -> Row:
    return Row(Kind.END, agent, nonce, 0, _section(Kind.END, End(0), agent, nonce))


def retire(agent: str, nonce: int = 1) -> Row:
    return Row(Kind.RETIRE, agent, nonce, 0, b"")


def tuple_id(stream: int, seq: int) -> int:
    return stream << SEQ_BITS | seq


class Told(NamedTuple):
    """A delivery: its origins are (id, ts, whether another agent has sent it)."""

    id: int
    ts: int
    origins: tuple[tuple[int, int, bool], ...]
    sent: bool = False
    part: int = 0


def delivered(agent: str, *tuples: Told, nonce: int = 1) -> Row:
    origins = [origin for each in tuples for origin in each.origins]
    columns = [
        np.array([each.id for each in tuples], "<i8"),
        np.array([each.ts for each in tuples], "<i8"),
        np.array([len(each.origins) for each in tuples], "<i4"),
        np.array([each.part for each in tuples], "<i4"),
        np.array([each.sent for each in tuples], "u1"),
        np.array([origin[0] for origin in origins], "<i8"),
        np.array([origin[1] for origin in origins], "<i8"),
        np.array([origin[2] for origin in origins], "u1"),
    ]
    return Row(Kind.DELIVERY, agent, nonce, 0, pack(columns))

"""Mode `genealog`: the paper's meta-attributes T, U1, U2, N and ID on every tuple.

The third field of a tuple is its `Meta`. The traversal differs from the paper's Listing 1 in one
place: it looks at U1 before it follows N, so a window of a single tuple stays one although later
tuples of the key have been chained behind it.
"""

from __future__ import annotations

from typing import Any

from edge_agent.stream.lineage.base import Lineage, StreamTuple, WindowLog, oldest_first
from edge_agent.stream.source_ids import SourceIds
from protocol.records import Origin, OriginKind

SOURCE = 0
REMOTE = 1
MAP = 2
MULTIPLEX = 3
JOIN = 4
AGGREGATE = 5


class Meta:
    """T, U1, U2, N and ID. The ID of a source tuple is its source until it first leaves the process."""

    __slots__ = ("id", "next", "type", "u1", "u2")

    def __init__(self, type: int, u1: StreamTuple | None, u2: StreamTuple | None, id: Any) -> None:
        self.type = type
        self.u1 = u1
        self.u2 = u2
        self.next: StreamTuple | None = None
        self.id = id


class ChainLog(WindowLog):
    """A key's chain of N, from the oldest tuple in the window to the newest."""

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first: StreamTuple | None = None
        self.last: StreamTuple | None = None

    def extend(self, tuples: list[StreamTuple]) -> None:
        if self.last is not None:
            self.last[2].next = tuples[0]
        if self.first is None:
            self.first = tuples[0]
        chain(tuples)
        self.last = tuples[-1]

    def drop(self, count: int) -> None:
        first = self.first
        for _ in range(count):
            assert first is not None
            first = first[2].next
        self.first = first

    def lineage(self) -> Any:
        return Meta(AGGREGATE, self.last, self.first, None)


class Genealog(Lineage):
    """The paper's mode, for comparison and for those who want it to the letter."""

    def born(self, batch: list[StreamTuple]) -> list[StreamTuple]:
        return [(ts, value, Meta(SOURCE, None, None, ids)) for ts, value, ids in batch]

    def arrived(self, ts: int, value: Any, origin: Origin) -> StreamTuple:
        return (ts, value, Meta(SOURCE if origin.kind is OriginKind.SOURCE else REMOTE, None, None, origin))

    def mapped(self, inputs: list[StreamTuple], values: list[Any]) -> list[StreamTuple]:
        return [(t[0], value, Meta(MAP, t, None, None)) for t, value in zip(inputs, values, strict=True)]

    def copied(self, batch: list[StreamTuple]) -> list[StreamTuple]:
        return [(t[0], t[1], Meta(MULTIPLEX, t, None, None)) for t in batch]

    def of_pair(self, newer: StreamTuple, older: StreamTuple) -> Any:
        return Meta(JOIN, newer, older, None)

    def of_window(self, tuples: list[StreamTuple]) -> Any:
        chain(tuples)
        return Meta(AGGREGATE, tuples[-1], tuples[0], None)

    def window_log(self) -> WindowLog | None:
        return ChainLog()

    def origins(self, root: StreamTuple) -> list[Origin]:
        found: dict[Any, Origin] = {}
        seen: set[int] = set()
        queue: list[list[StreamTuple]] = [[root]]
        for inputs in queue:
            for copy in inputs:
                t = _original(copy)
                meta: Meta = t[2]
                if meta.type <= REMOTE:
                    origin = _identified(t, meta)
                    found[origin.stream, origin.seq] = origin
                elif id(t) not in seen:
                    seen.add(id(t))
                    queue.append(_inputs(meta))
        return oldest_first(list(found.values()))

    def origin(self, t: StreamTuple) -> Origin | None:
        t = _original(t)
        meta: Meta = t[2]
        return _identified(t, meta) if meta.type <= REMOTE else None


def chain(tuples: list[StreamTuple]) -> None:
    """Set N from each tuple to the next."""
    previous: Meta | None = None
    for t in tuples:
        if previous is not None:
            previous.next = t
        previous = t[2]


def _inputs(meta: Meta) -> list[StreamTuple]:
    """Where the pointers lead: of an Aggregate from U2 along N up to and including U1, else to U1 and U2."""
    if meta.type != AGGREGATE:
        return [u for u in (meta.u1, meta.u2) if u is not None]
    tuples: list[StreamTuple] = []
    t = meta.u2
    while t is not None:
        tuples.append(t)
        if t is meta.u1:
            break
        t = t[2].next
    return tuples


def _original(t: StreamTuple) -> StreamTuple:
    """What a Multiplex copied, or the tuple itself."""
    while t[2].type == MULTIPLEX:
        t = t[2].u1
    return t


def _identified(t: StreamTuple, meta: Meta) -> Origin:
    if isinstance(meta.id, SourceIds):
        meta.id = meta.id.lasting_origin(t)
    origin: Origin = meta.id
    return origin

"""Mode `segments`: a derived tuple holds one reference, a source tuple nothing of its own.

The third field of a tuple is

    its source's `SourceIds`    a source tuple (one object shared by all of them)
    an `Origin`                 a tuple received from another agent
    a tuple                     Map: the input
    a list of tuples            Join: the pair, newer first; tumbling Aggregate: the window itself
    a `Segment`                 sliding windows: where the window lies in its key's log

A log is cut into chunks that span at least one window, so every window lies within two of them
and a Segment has a fixed size whatever the window holds. Nothing points from an older tuple to a
newer one, so a held result keeps its own key's two chunks alive and no more.
"""

from __future__ import annotations

from typing import Any

from edge_agent.stream.lineage.base import Lineage, StreamTuple, WindowLog, oldest_first
from edge_agent.stream.source_ids import SourceIds
from protocol.records import Origin


class Segment:
    """The tuples `older[start:]` and `newer[:stop]` of two append-only chunks."""

    __slots__ = ("newer", "older", "start", "stop")

    def __init__(self, older: list[StreamTuple], start: int, newer: list[StreamTuple], stop: int) -> None:
        self.older = older
        self.start = start
        self.newer = newer
        self.stop = stop

    def tuples(self) -> list[StreamTuple]:
        """The window's tuples, oldest first."""
        behind = self.start - len(self.older)
        if behind >= 0:
            return self.newer[behind : self.stop]
        return self.older[self.start :] + self.newer[: self.stop]


class SegmentLog(WindowLog):
    """Two chunks; `start` counts from the beginning of the older one."""

    __slots__ = ("newer", "older", "start")

    def __init__(self) -> None:
        self.older: list[StreamTuple] = []
        self.newer: list[StreamTuple] = []
        self.start = 0

    def extend(self, tuples: list[StreamTuple]) -> None:
        self.newer.extend(tuples)

    def drop(self, count: int) -> None:
        self.start += count

    def rotate(self) -> None:
        self.start -= len(self.older)
        self.older = self.newer
        self.newer = []

    def lineage(self) -> Any:
        return Segment(self.older, self.start, self.newer, len(self.newer))


class Segments(Lineage):
    """The default mode."""

    def arrived(self, ts: int, value: Any, origin: Origin) -> StreamTuple:
        return (ts, value, origin)

    def mapped(self, inputs: list[StreamTuple], values: list[Any]) -> list[StreamTuple]:
        return [(t[0], value, t) for t, value in zip(inputs, values, strict=True)]

    def of_pair(self, newer: StreamTuple, older: StreamTuple) -> Any:
        return [newer, older]

    def of_window(self, tuples: list[StreamTuple]) -> Any:
        return tuples

    def window_log(self) -> WindowLog | None:
        return SegmentLog()

    def origins(self, root: StreamTuple) -> list[Origin]:
        found: dict[Origin, None] = {}
        seen = {id(root)}
        queue = [root]
        for t in queue:
            up = t[2]
            if isinstance(up, SourceIds):
                found[up.origin(t)] = None
                continue
            if isinstance(up, Origin):
                found[up] = None
                continue
            if isinstance(up, list):
                parents = up
            elif isinstance(up, Segment):
                parents = up.tuples()
            else:
                parents = [up]
            for parent in parents:
                if id(parent) not in seen:
                    seen.add(id(parent))
                    queue.append(parent)
        return oldest_first(list(found))

    def origin(self, t: StreamTuple) -> Origin | None:
        up = t[2]
        if isinstance(up, SourceIds):
            return up.origin(t)
        return up if isinstance(up, Origin) else None

"""Mode `segments`: a derived tuple holds one reference, a source tuple nothing of its own unless a length window may
keep it for ever.

The third field of a tuple is

    its source's `SourceIds`             a source tuple (one object shared by all of them)
    its own `Remembered`                 a source tuple that a length window may keep for ever
    an `Origin`                          a tuple received from another agent
    a tuple of three: (ts, value, ...)   Map: the input
    a list of tuples                     Join: the pair, newer first; tumbling Aggregate: the window itself
    a tuple of four: a segment           sliding windows: where the window lies in its key's log

A log is cut into chunks that span at least one window, so every window lies within two of them: the
segment (older, start, newer, stop) stands for `(older + newer)[start : len(older) + stop]` and has a
fixed size whatever the window holds. Nothing points from an older tuple to a newer one, so a result
keeps its own key's two chunks alive and no more.
"""

from __future__ import annotations

from typing import Any

from edge_agent.stream.lineage.base import Lineage, StreamTuple, WindowLog, oldest_first
from edge_agent.stream.source_ids import SourceIds, UniqueIds
from protocol.records import Origin


class Remembered:
    """The origin of one source tuple, once it has left.

    Ids in a SourceIds are forgotten as time passes. Where a length window holds time back they would
    pile up there, so such tuples remember their own.
    """

    __slots__ = ("_ids", "_origin")

    def __init__(self, ids: SourceIds) -> None:
        self._ids = ids
        self._origin: Origin | None = None

    def origin(self, t: StreamTuple) -> Origin:
        if self._origin is None:
            self._origin = self._ids.lasting_origin(t)
        return self._origin


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
        return (self.older, self.start, self.newer, len(self.newer))


class Segments(Lineage):
    """The default mode."""

    def born(self, batch: list[StreamTuple]) -> list[StreamTuple]:
        if batch and batch[0][2].held_back:
            return [(t[0], t[1], Remembered(t[2])) for t in batch]
        return batch

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
        found: dict[Any, Origin] = {}
        seen: set[int] = set()
        # Inputs still to look at: the root first, then those of each derived tuple that is met.
        queue: list[list[StreamTuple]] = [[root]]
        for inputs in queue:
            for t in inputs:
                up = t[2]
                if type(up) is UniqueIds:  # most of them: a call less than up.origin(t)
                    known = up.known.get(id(t))
                    found[id(t)] = up.first_origin(t) if known is None else known
                elif isinstance(up, (SourceIds, Remembered)):
                    origin: Origin = up.origin(t)
                    found[id(origin)] = origin
                elif isinstance(up, Origin):
                    found[up.stream, up.seq] = up
                elif id(t) not in seen:
                    seen.add(id(t))
                    queue.append(_inputs(up))
        origins = list(found.values())
        # The tuples of a single window are in order already.
        return origins if len(queue) == 2 and len(origins) > 2 else oldest_first(origins)

    def origin(self, t: StreamTuple) -> Origin | None:
        up = t[2]
        if isinstance(up, (SourceIds, Remembered)):
            return up.origin(t)
        return up if isinstance(up, Origin) else None


def _inputs(up: Any) -> list[StreamTuple]:
    """The tuples that a derived tuple refers to."""
    if type(up) is list:
        return up
    if len(up) == 3:
        return [up]
    older, start, newer, stop = up
    behind = start - len(older)
    inputs: list[StreamTuple] = newer[behind:stop] if behind >= 0 else older[start:] + newer[:stop]
    return inputs

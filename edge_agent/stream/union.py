"""Union: several streams as one, in order of (ts, input, place in the input)."""

from __future__ import annotations

from edge_agent.stream.lineage.base import StreamTuple
from edge_agent.stream.merge import Merging, ts_of
from protocol.records import END_OF_TIME


class Union(Merging):
    """Forwards the tuples of all inputs as they are."""

    def pass_time(self, now: int, ready: list[list[StreamTuple]]) -> None:
        merged: list[StreamTuple] = []
        for each in ready:
            merged.extend(each)
        merged.sort(key=ts_of)
        self.give(merged)

    def kept_since(self, now: int) -> int:
        return now

    def held(self) -> int:
        return END_OF_TIME

"""Small examples: agents say a few things, and the graph grows by a few rows. The oracle watches all of them.

`a@3` is a tuple of the time 3; a window is [left, right). What a micro-batch adds is written as in the paper: K and S
are vertices, E an edge, L a label.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edge_agent.stream import Count, Plan
from protocol.chunks import SEQ_BITS
from protocol.graph import GraphBatch
from protocol.records import Origin
from tests.support.fleet_log import Shards, Speaker
from tests.support.pipeline import CheckedPipeline


def plan_of(*windows: int, source: str = "s", sink: str = "out", plan: Plan | None = None) -> Plan:
    """A source, windows of these sizes one behind the other, and a sink: so U is their sum."""
    plan = plan or Plan("example")
    through(plan.source(source), windows).sink(sink)
    return plan


def through(stream: Any, windows: Iterable[int]) -> Any:
    """A stream behind windows of these sizes."""
    for size in windows:
        stream = stream.window(size).aggregate(Count())
    return stream


class Example:
    """Agents, the log, the pipeline, and names for tuples."""

    def __init__(self, *, late: bool = False, levels: int = 2) -> None:
        self.shards = Shards()
        self.pipeline = CheckedPipeline(levels, 2, late=late, rerun=True)
        self._names: dict[tuple[str, int, str, int], str] = {}
        self._speakers: list[Speaker] = []

    def agent(self, plan: Plan | None, name: str = "car") -> Speaker:
        self._speakers.append(Speaker(self.shards, name, plan))
        return self._speakers[-1]

    def call(self, tuple_: Origin, name: str) -> Origin:
        """Give a tuple a name."""
        stream = tuple_.stream
        self._names[stream.agent, stream.nonce, stream.name, tuple_.seq] = name
        return tuple_

    def step(self) -> list[str]:
        """All that was said becomes a micro-batch; returns what it adds to the graph."""
        for speaker in self._speakers:
            if speaker.has_more:
                speaker.leave()
        return self.told(self.pipeline.run(self.shards.micro_batch()))

    def told(self, batch: GraphBatch) -> list[str]:
        of = self._name
        edges = zip(batch.edges.source.tolist(), batch.edges.sink.tolist(), strict=True)
        late = zip(batch.late.origin.tolist(), batch.late.sink.tolist(), strict=True)
        return [
            *sorted(f"K {of(sink)}" for sink in batch.sinks.id.tolist()),
            *sorted(f"S {of(source)}" for source in batch.sources.id.tolist()),
            *sorted(f"E {of(source)}-{of(sink)}" for source, sink in edges),
            *sorted(f"L {of(each)}" for each in [*batch.sink_labels.id.tolist(), *batch.source_labels.tolist()]),
            *sorted(f"late {of(origin)}-{of(sink)}" for origin, sink in late),
        ]

    def _name(self, number: int) -> str:
        agent, nonce, stream = self.pipeline.oracle.log.streams[number >> SEQ_BITS]
        seq = number & (1 << SEQ_BITS) - 1
        return self._names.get((agent, nonce, stream, seq), f"{agent}/{stream}:{seq}")

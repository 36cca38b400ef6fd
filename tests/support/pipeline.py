"""The pipeline without Spark: split, the stages and the assembly, called as Spark would call them.

Each stage is called once per bucket and micro-batch, with the chunk rows of the bucket in any order, and a state that
is a dictionary. With `rerun`, every micro-batch is computed twice from the same state, with another order of chunk
rows: Spark does the same after a failure, and what comes out must be the same.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from protocol.graph import GraphBatch
from protocol.row import Row
from spark_jobs.ank import Ank
from spark_jobs.assembly import Figures, assemble, figures
from spark_jobs.chunks import Chunk, Kind
from spark_jobs.mu import Mu
from spark_jobs.split import split
from spark_jobs.state import State
from tests.support.graph_oracle import GraphOracle
from tests.support.plain_state import PlainState


class Stage(Protocol):
    """One step of the pipeline."""

    def run(self, state: State, bucket: int, chunks: Sequence[Chunk]) -> list[Chunk]: ...


MicroBatch = Mapping[int, Sequence[Row]]
"""The rows that each shard adds."""
QUERY = "query"


States = dict[tuple[int, int], PlainState]


class Pipeline:
    """Takes micro-batches in order and gives what each adds to the graph."""

    def __init__(self, levels: int = 2, buckets: int = 3, *, seed: int = 0, rerun: bool = False) -> None:
        self.levels = levels
        self.buckets = buckets
        self.states: States = defaultdict(PlainState)
        """By stage (the first is 0) and bucket."""
        self.batches: list[GraphBatch] = []
        self.figures = Figures()
        self._stages: list[Stage] = [*(Mu(level, levels, buckets) for level in range(1, levels + 1)), Ank(buckets)]
        self._order = random.Random(seed)
        self._rerun = rerun

    def run(self, micro_batch: MicroBatch) -> GraphBatch:
        """What the micro-batch adds. It must not be empty: of nothing, Spark runs nothing."""
        assert any(micro_batch.values())
        number = len(self.batches)
        before = _copied(self.states) if self._rerun else None
        chunks = self._through(self.states, micro_batch, number)
        made = assemble(QUERY, number, chunks)
        if before is not None:
            again = assemble(QUERY, number, self._through(before, micro_batch, number))
            assert plain(again) == plain(made), f"micro-batch {number} gives something else when it is run again"
            if number % 2:  # either memory must do
                self.states = before
        self.figures = figures(chunks)
        self.batches.append(made)
        return made

    def run_all(self, micro_batches: Iterable[MicroBatch]) -> list[GraphBatch]:
        """What each of them adds."""
        return [self.run(each) for each in micro_batches]

    @property
    def state_bytes(self) -> int:
        """How much all stages remember."""
        return sum(len(value) for state in self.states.values() for value in state.values())

    def _through(self, states: States, micro_batch: MicroBatch, number: int) -> list[Chunk]:
        chunks = [chunk for shard, rows in micro_batch.items() if rows for chunk in split(shard, rows, self.buckets)]
        for place, stage in enumerate(self._stages):
            by_bucket: dict[int, list[Chunk]] = defaultdict(list)
            for chunk in chunks:
                assert 0 <= chunk.bucket < self.buckets, chunk
                assert type(chunk.data) is bytes
                by_bucket[chunk.bucket].append(chunk)
            for bucket in range(self.buckets):
                kinds = {chunk.kind for chunk in by_bucket[bucket]}
                assert Kind.CONTROL in kinds, f"bucket {bucket} of stage {place} would not be called"
            order = list(by_bucket)
            self._order.shuffle(order)
            chunks = []
            for bucket in order:
                self._order.shuffle(by_bucket[bucket])
                chunks += stage.run(states[place, bucket], bucket, tuple(by_bucket[bucket]))
        assert all(chunk.kind >= Kind.ROWS for chunk in chunks), "something is left that no stage takes"
        self._order.shuffle(chunks)
        return chunks


class CheckedPipeline(Pipeline):
    """A pipeline of which all that comes out is compared with the oracle at once."""

    def __init__(self, levels: int = 2, buckets: int = 3, *, late: bool = False, **options: Any) -> None:
        super().__init__(levels, buckets, **options)
        self.oracle = GraphOracle(levels, late=late)

    def run(self, micro_batch: MicroBatch) -> GraphBatch:
        made = super().run(micro_batch)
        findings = self.oracle.add(micro_batch, made)
        assert not findings, "\n".join(findings)
        return made

    def finish(self) -> None:
        """Everything has come. If all agents have ended, all is labelled and nothing is kept."""
        findings = self.oracle.finish()
        assert not findings, "\n".join(findings)


def _copied(states: States) -> States:
    copy: States = defaultdict(PlainState)
    copy.update({key: PlainState(state) for key, state in states.items()})
    return copy


def plain(batch: GraphBatch) -> dict[str, list[Any]]:
    """A batch as lists of rows, to compare and to print."""

    def rows(*columns: Any) -> list[Any]:
        return sorted(zip(*(column.tolist() for column in columns), strict=True))

    return {
        "stamp": [batch.stamp],
        "sinks": rows(batch.sinks.id, batch.sinks.ts),
        "sources": rows(batch.sources.id, batch.sources.ts, batch.sources.sent),
        "edges": rows(batch.edges.sink, batch.edges.source, batch.edges.flags),
        "sink labels": rows(batch.sink_labels.id, batch.sink_labels.flags),
        "source labels": sorted(batch.source_labels.tolist()),
        "late": rows(batch.late.sink, batch.late.origin, batch.late.origin_ts, batch.late.reason),
        "lost": rows(batch.lost.sink, batch.lost.origin),
        "sent": sorted(
            (int(sent), int(ts), origins)
            for chunk in batch.deliveries
            for sent, ts, origins in zip(
                chunk.id,
                chunk.ts,
                [part.tolist() for part in np.split(chunk.origin_id, np.cumsum(chunk.count)[:-1])],
                strict=True,
            )
        ),
        "rows": sorted(batch.rows),
    }

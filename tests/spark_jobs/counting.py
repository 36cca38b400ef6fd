"""A pipeline that only counts, and passes on what it was given: for tests of what is around the operators.

Spark's workers import it, so it is a module of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from protocol.graph import GraphBatch
from protocol.row import Row
from spark_jobs.assembly import Figures
from spark_jobs.binding import bind
from spark_jobs.chunk_rows import read_chunks
from spark_jobs.chunks import Chunk, Kind, pack_rows, read_rows
from spark_jobs.pipeline import Pipeline
from spark_jobs.placement import Placement
from spark_jobs.state import State

POISON = b"poison"


def split(shard: int, rows: Iterable[Row], buckets: int) -> Iterator[Chunk]:
    """All rows to the store, and for every bucket how many of agents they were."""
    rows = [*rows]
    if any(row.data == POISON for row in rows):
        raise ValueError("a row that nobody can swallow")
    of_agents = sum(row.kind > 0 for row in rows)  # the others are snapshots
    for bucket in range(buckets):
        yield Chunk(Kind.CONTROL, bucket, json.dumps([shard, of_agents]).encode())
    yield Chunk(Kind.ROWS, shard % buckets, pack_rows(rows))


@dataclass(frozen=True)
class Count:
    """Counts its calls and the rows of each shard, and hands all to the next bucket."""

    name: str
    buckets: int

    def run(self, state: State, bucket: int, chunks: Sequence[Chunk]) -> list[Chunk]:
        calls = int(state.get("calls", 0) or 0) + 1
        state.put("calls", 0, str(calls).encode())
        state.put("once", calls, b"")
        if calls > 1:
            assert state.get("once", calls - 1) == b""
            state.remove("once", calls - 1)
            assert state.get("once", calls - 1) is None
        for chunk in chunks:
            shard, rows = json.loads(chunk.data)
            state.put("rows", shard, str(int(state.get("rows", shard) or 0) + rows).encode())
        shards = {shard: int(counted) for shard in range(8) if (counted := state.get("rows", shard)) is not None}
        told = json.dumps([self.name, bucket, calls, shards]).encode()
        passing = [Chunk(chunk.kind, (bucket + 1) % self.buckets, chunk.data) for chunk in chunks]
        return [*passing, Chunk(Kind.FIGURES, bucket, told)]


@dataclass
class CountedBatch(GraphBatch):
    """What came out of a micro-batch: calls and rows by shard, of each stage and bucket."""

    counts: dict[tuple[str, int], tuple[int, dict[int, int]]] | None = None


def counting(placement: Placement, names: Sequence[str]) -> Pipeline:
    """A stage for each name."""

    def build(rows: DataFrame) -> DataFrame:
        for name in names:
            rows = bind(rows, Count(name, placement.buckets), placement)
        return rows

    def assembled(query: str, batch: int, table: pa.Table) -> tuple[GraphBatch, Figures]:
        made = CountedBatch(query, batch, 0, counts={})
        assert made.counts is not None
        for chunk in read_chunks(table, placement):
            if chunk.kind == Kind.ROWS:
                made.rows += read_rows(chunk.data)
            elif chunk.kind == Kind.FIGURES:
                name, bucket, calls, shards = json.loads(chunk.data)
                made.counts[name, bucket] = calls, {int(shard): rows for shard, rows in shards.items()}
        return made, Figures(waiting=len(made.rows), frontiers={"agent/sink": 1_000})

    return Pipeline(split, build, assembled)

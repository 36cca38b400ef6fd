"""The logs that bench/spark_graph.py measures with: as many edges as are counted, and those that the oracle says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench._graph_log import GraphLog, Shape
from tests.support.pipeline import CheckedPipeline, MicroBatch
from threadline.segment_log import SegmentLog


@pytest.mark.parametrize("shape", [Shape(50, 0.25, 2), Shape(10, 0.0, 2), Shape(10, 0.75, 3)], ids=str)
def test_the_graph_has_the_shape_that_was_asked_for(tmp_path: Path, shape: Shape) -> None:
    pipeline = CheckedPipeline(levels=shape.agents - 1)
    log = SegmentLog(tmp_path)
    read: dict[int, int] = {}

    def news() -> MicroBatch:
        found = {}
        for shard in log.shards():
            rows = list(log.rows(shard, log.start(shard), log.end(shard)))
            found[shard], read[shard] = rows[read.get(shard, 0) :], len(rows)
        return found

    with GraphLog(tmp_path, shape) as written:
        edges, sources = 0, set()
        for asked in (500, 1_000):
            appended = written.append(asked)
            assert asked - shape.size < appended <= asked
            made = pipeline.run(news())
            assert len(made.edges.sink) == appended
            edges += appended
            sources.update(made.sources.id.tolist())
        written.end()
        pipeline.run(news())
    pipeline.finish()
    sinks = edges // shape.size
    fresh = shape.size * (1 - shape.overlap)
    assert abs(len(sources) - (sinks * fresh + shape.size - fresh)) <= shape.fan

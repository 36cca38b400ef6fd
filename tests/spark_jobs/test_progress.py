"""What a job tells of itself."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.core import CollectorRegistry

from protocol.graph import Edges, GraphBatch, LateEdges
from protocol.records import BEGINNING
from spark_jobs.assembly import Figures
from spark_jobs.progress import CannotServe, Progress, serve


def report(batch: int, start: str, end: str, rows: int = 4) -> dict[str, Any]:
    """As Spark says it, as far as it matters."""
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 120},
        "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 2}] * 2,
        "observedMetrics": {},
        "sources": [{"startOffset": start, "endOffset": end}],
    }


def test_rows_are_counted_by_offsets_each_micro_batch_once() -> None:
    progress = Progress()
    first = report(0, "null", '{"0": [1, 10], "3": [1, 5]}')
    second = report(1, '{"0": [1, 10], "3": [1, 5]}', '{"0": [1, 12], "3": [2, 4], "5": [1, 1]}')
    for each in (first, first, second, first, second):
        progress.reported(each)
    assert progress.totals.rows == 15 + 2 + 4 + 1
    assert progress.totals.dropped == 8
    assert (progress.batch_ms, progress.state_rows, progress.state_memory_bytes) == (120, 6, 200)


def test_a_micro_batch_without_rows_says_nothing() -> None:
    progress = Progress()
    progress.reported(report(0, "null", "{}", rows=0))
    assert progress.batch_ms == 0


def test_line_and_metrics_tell_what_was_stored_and_how_far_sinks_are() -> None:
    progress = Progress()
    two = np.array([1, 2])
    batch = GraphBatch("q", 0, 0, edges=Edges(two, two, two.astype("u1")), late=LateEdges(two, two, two))
    now_ms = int(time.time() * 1000)
    frontiers = {"pump/out": now_ms - 5_000, "pump/new": BEGINNING}
    progress.stored(batch, Figures(waiting=7, live_sources=3, frontiers=frontiers))
    line = progress.line()
    for part in ("batches=1", "edges=2", "waiting=7", "live_sources=3", "late=2", "frontier_lag_s=5."):
        assert part in line, line
    registry = CollectorRegistry()
    registry.register(progress)
    told = generate_latest(registry).decode()
    for part in (
        "threadline_spark_edges_total 2.0",
        "threadline_spark_waiting 7.0",
        "threadline_spark_batches_total 1.0",
    ):
        assert part in told, told
    assert 'threadline_spark_frontier_lag_seconds{sink="pump/out"} 5.' in told
    assert "pump/new" not in told


def test_an_address_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotServe, match=rf"cannot serve metrics on 127\.0\.0\.1:{port} \(--metrics\)"):
            serve(Progress(), "127.0.0.1", port)

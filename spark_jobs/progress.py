"""What a job has done, for the line on stderr and for Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from prometheus_client import start_http_server
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric

from protocol.address import format_address
from protocol.graph import EdgeFlag, GraphBatch
from spark_jobs.ank_n import losses
from spark_jobs.assembly import Figures

_NO_TIME = 1 << 61  # a frontier beyond this, or before minus this, is no time


class CannotServe(RuntimeError):
    """The address cannot be listened on; the text says why."""


@dataclass(slots=True)
class Totals:
    """What was given to the store since the job began."""

    batches: int = 0
    sinks: int = 0
    sources: int = 0
    edges: int = 0
    sink_labels: int = 0
    source_labels: int = 0
    late: int = 0
    lost: int = 0
    too_deep: int = 0
    """Edges that end at a sent tuple: its chain of agents is longer than the pipeline."""
    rows: int = 0
    """Rows of the log that were read. The end of a segment that was passed is not counted."""
    dropped: int = 0
    """How often ANK-N has left out a row that came too late for Spark's watermark."""
    unsettled: int = 0
    """References that ANK-N has not settled: they wait, or are lost."""


class Progress:
    """Written by the job's threads, read by any."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.figures = Figures()
        self.batch_ms = 0
        self.state_rows = 0
        self.state_memory_bytes = 0
        """Of Spark's state stores, with their caches."""
        self.rows_per_s = 0.0
        self._last_batch = -1
        self._told_at = time.monotonic()
        self._told_rows = 0

    def stored(self, batch: GraphBatch, figures: Figures) -> None:
        """The store has a micro-batch."""
        totals = self.totals
        totals.batches += 1
        totals.sinks += len(batch.sinks.id)
        totals.sources += len(batch.sources.id)
        totals.edges += len(batch.edges.sink)
        totals.sink_labels += len(batch.sink_labels.id)
        totals.source_labels += len(batch.source_labels)
        totals.late += len(batch.late.sink)
        totals.lost += len(batch.lost.sink)
        totals.too_deep += int((batch.edges.flags & EdgeFlag.TOO_DEEP != 0).sum())
        self.figures = figures

    def reported(self, report: Mapping[str, Any]) -> None:
        """What Spark says of a micro-batch (`StreamingQuery.recentProgress`); one that is known is skipped."""
        if report["batchId"] <= self._last_batch or not report["numInputRows"]:
            return
        self._last_batch = report["batchId"]
        self.batch_ms = report["durationMs"].get("triggerExecution", 0)
        self.state_rows = sum(each["numRowsTotal"] for each in report["stateOperators"])
        self.state_memory_bytes = sum(each["memoryUsedBytes"] for each in report["stateOperators"])
        lost = losses(report)
        self.totals.dropped += lost.late
        self.totals.unsettled += lost.unsettled
        for source in report["sources"]:
            self.totals.rows += _rows_between(_offset(source["startOffset"]), _offset(source["endOffset"]))

    @property
    def frontier_lags_s(self) -> dict[str, float]:
        """How far the sinks that are furthest behind are behind the clock of this machine."""
        now_ms = time.time() * 1000
        return {
            sink: (now_ms - reached) / 1000
            for sink, reached in self.figures.frontiers.items()
            if abs(reached) < _NO_TIME
        }

    def line(self) -> str:
        """Now, in one line; rates are those since the last one."""
        now = time.monotonic()
        elapsed_s = max(now - self._told_at, 0.001)
        self.rows_per_s = (self.totals.rows - self._told_rows) / elapsed_s
        self._told_at, self._told_rows = now, self.totals.rows
        lag_s = max(self.frontier_lags_s.values(), default=None)
        lag = "-" if lag_s is None else f"{lag_s:.1f}"
        totals, figures = self.totals, self.figures
        return (
            f"batches={totals.batches} rows={totals.rows} rows_per_s={self.rows_per_s:.0f} edges={totals.edges} "
            f"batch_ms={self.batch_ms} waiting={figures.waiting} live_sources={figures.live_sources} "
            f"late={totals.late + totals.dropped} lost={totals.lost} frontier_lag_s={lag}"
        )

    def collect(self) -> Iterator[Metric]:
        """For Prometheus."""
        for each in fields(self.totals):
            kind = GaugeMetricFamily if each.name == "unsettled" else CounterMetricFamily
            yield kind(f"threadline_spark_{each.name}", each.name.replace("_", " "), getattr(self.totals, each.name))
        gauges = {
            "batch_seconds": self.batch_ms / 1000,
            "input_rows_per_second": self.rows_per_s,
            "state_rows": self.state_rows,
            "state_memory_bytes": self.state_memory_bytes,
            **{each.name: getattr(self.figures, each.name) for each in fields(Figures) if each.type == "int"},
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"threadline_spark_{name}", name.replace("_", " "), value)
        lags = GaugeMetricFamily(
            "threadline_spark_frontier_lag_seconds", "how far sinks are behind, the furthest ones", labels=["sink"]
        )
        for sink, lag_s in self.frontier_lags_s.items():
            lags.add_metric([sink], lag_s)
        yield lags


def serve(progress: Progress, host: str, port: int) -> None:
    """Answer Prometheus on this address for as long as the process lives."""
    registry = CollectorRegistry()
    registry.register(progress)
    try:
        start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CannotServe(f"cannot serve metrics on {format_address(host, port)} (--metrics): {why}") from error


def _offset(text: str | None) -> dict[str, list[int]]:
    """Spark does not say where its first micro-batch began."""
    return dict(json.loads(text or "null") or {})


def _rows_between(start: Mapping[str, list[int]], end: Mapping[str, list[int]]) -> int:
    rows = 0
    for shard, (segment, row) in end.items():
        before_segment, before_row = start.get(shard, [0, 0])
        rows += row - before_row if segment == before_segment else row
    return rows

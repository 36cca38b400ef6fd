"""Streaming queries under measurement: a log that grows, a query that follows it, and what that costs."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from bench._graph_log import U_MS, GraphLog, Shape
from collector.store import open_store
from protocol.chunks import pack, read_deliveries, unpack
from protocol.graph import GraphBatch
from protocol.row import Row
from protocol.wire.sections import Kind as RowKind
from spark_jobs.assembly import Figures
from spark_jobs.checkpoint import opened
from spark_jobs.chunks import Chunk, Kind
from spark_jobs.job import Job, JobOptions
from spark_jobs.log_source import Log
from spark_jobs.native_end import EndingLog
from spark_jobs.native_mu import NativeOptions
from spark_jobs.pipeline import Pipeline, ank_1, ank_n
from spark_jobs.placement import Placement
from spark_jobs.session import SessionOptions, start_session, stop_session
from spark_jobs.sink import GraphWriter
from threadline.segment_log import SegmentLog

PLACEMENT = Placement(4, 2)
PATIENCE_S = 300.0
Contender = Callable[[Path, SegmentLog, Shape], tuple[Pipeline, Log]]


@dataclass(slots=True)
class Watch:
    """Counts what is stored, and passes it on to a store if there is one."""

    store: GraphWriter | None = None
    edges: int = 0
    labels: int = 0
    sinks: int = 0
    vertices: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    stored_at: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many sink tuples had been stored by then."""

    def last_batch(self, query: str) -> int | None:
        """Queries under measurement are new."""

    def told_upto(self) -> list[str]:
        return []

    def write(self, batch: GraphBatch) -> None:
        if self.store is not None:
            self.store.write(batch)
        with self.changed:
            self.edges += len(batch.edges.sink)
            self.labels += len(batch.source_labels)
            self.vertices += len(batch.sources.id)
            self.sinks += len(batch.sinks.id)
            self.stored_at.append((time.monotonic(), self.sinks))
            self.changed.notify_all()

    def wait(self, edges: int) -> None:
        """Until so many edges are stored."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.edges >= edges, PATIENCE_S):
                raise SystemExit(f"only {self.edges} of {edges} edges were stored within {PATIENCE_S:.0f} s")


class Bench:
    """One Spark session for all measurements."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self._folder = folder
        self._number = 0

    @contextmanager
    def query(self, make: Contender, shape: Shape, *, to_store: bool, trigger_s: float = 0.1) -> Iterator[Query]:
        """A query that follows a new log into a new store."""
        self._number += 1
        folder = self._folder / str(self._number)
        log_folder = folder / "log"
        log_folder.mkdir(parents=True)
        stopping = threading.Event()
        with GraphLog(log_folder, shape) as log, opened(folder / "checkpoint", {}, {}) as checkpoint:
            store = open_store(f"sqlite:///{folder / 'graph.db'}").writer() if to_store else None
            watch = Watch(store)
            options = JobOptions(
                folder / "checkpoint", PLACEMENT, {}, trigger_s=trigger_s, most_rows=1 << 30, most_bytes=1 << 40
            )
            pipeline, read = make(checkpoint.folder, SegmentLog(log_folder), shape)
            before = {name: self.spark.conf.get(name) for name in pipeline.settings}
            job = Job(options, pipeline, read, watch, stopping)
            thread = threading.Thread(target=job.stream, args=(self.spark, checkpoint))
            thread.start()
            try:
                yield Query(log, watch, job)
            finally:
                stopping.set()
                thread.join()
                for name, value in before.items():
                    self.spark.conf.set(name, str(value))
                if store is not None:
                    store.close()


@contextmanager
def bench(driver_memory: str = "1g") -> Iterator[Bench]:
    """A session, with the settings that the job has."""
    with (
        tempfile.TemporaryDirectory(prefix="threadline-bench-") as folder,
        opened(Path(folder) / "session", {}, {}) as checkpoint,
    ):
        spark = start_session(SessionOptions(partitions=PLACEMENT.partitions, driver_memory=driver_memory), checkpoint)
        try:
            yield Bench(spark, Path(folder))
        finally:
            stop_session(spark)


@dataclass(frozen=True, slots=True)
class Cost:
    """What so many edges took."""

    edges: int
    wall_s: float
    cpu_s: float

    @property
    def edges_per_s(self) -> float:
        return self.edges / self.wall_s

    @property
    def cpu_ms_per_100k(self) -> float:
        return self.cpu_s * 1e8 / self.edges


@dataclass(slots=True)
class Query:
    """A query that runs."""

    log: GraphLog
    watch: Watch
    job: Job

    def feed(self, edges: int) -> Cost:
        """Append so many edges at once, and wait until they are stored."""
        appended = self.log.append(edges)
        wanted = self.watch.edges + appended
        cpu_before, begun = _cpu_s(), time.monotonic()
        self.watch.wait(wanted)
        return Cost(appended, time.monotonic() - begun, _cpu_s() - cpu_before)

    def feed_steadily(self, edges_per_s: int, seconds: float, step_s: float = 0.1) -> list[float]:
        """Append at a steady rate; returns for each step how long it took until its results were stored."""
        shape, appended, latencies = self.log.shape, list[tuple[float, int]](), list[float]()
        before, stored_before = self.watch.sinks, len(self.watch.stored_at)
        total, begun = 0, time.monotonic()
        steps = int(seconds / step_s)
        for step in range(steps):
            time.sleep(max(0.0, begun + step * step_s - time.monotonic()))
            total += self.log.append(round(edges_per_s * step_s)) // shape.size
            appended.append((time.monotonic(), before + total))
        self.watch.wait(appended[-1][1] * shape.size)
        stored = self.watch.stored_at[stored_before:]
        for at, sinks in appended:
            latencies.append(next(when for when, count in stored if count >= sinks) - at)
        return latencies


def chunked(_: Path, log: SegmentLog, shape: Shape) -> tuple[Pipeline, Log]:
    """Our pipeline, with as many levels as the chain needs."""
    return ank_1(shape.agents - 1, PLACEMENT), log


def by_default(_: Path, log: SegmentLog, shape: Shape) -> tuple[Pipeline, Log]:
    """The same with two levels, as the job has unless asked otherwise."""
    return ank_1(max(shape.agents - 1, 2), PLACEMENT), log


def native(checkpoint: Path, log: SegmentLog, shape: Shape) -> tuple[Pipeline, Log]:
    """The same graph from Spark's own operators."""
    ending = EndingLog(log, checkpoint)
    return ank_n(NativeOptions(shape.agents - 1, U_MS, 10_000), checkpoint, ending), ending


def counting(_: Path, log: SegmentLog, shape: Shape) -> tuple[Pipeline, Log]:
    """The least that a query over the log can do: read it, and count what it would have had to do."""

    def count(shard: int, rows: Iterable[Row], buckets: int) -> Iterator[Chunk]:
        chunks = [read_deliveries(row.data) for row in rows if row.kind == RowKind.DELIVERY]
        sinks = sum(int((chunk.sent == 0).sum()) for chunk in chunks)
        yield Chunk(Kind.FIGURES, shard % buckets, pack([np.array([sinks], "<i8")]))

    def assembled(query: str, number: int, rows: pa.Table) -> tuple[GraphBatch, Figures]:
        sinks = sum(int(unpack(data)[0][0]) for data in rows.column("data").to_pylist())
        batch = GraphBatch(query, number, 0)
        batch.edges.sink = np.empty(sinks * shape.size, "<i8")
        return batch, Figures()

    return Pipeline(count, lambda rows: rows, assembled), log


def _cpu_s() -> float:
    """CPU time of this process and all below it: Spark and its Python workers."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total

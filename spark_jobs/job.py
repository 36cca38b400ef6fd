"""The job: one streaming query from the log to the store, until it is stopped."""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.checkpoint import Checkpoint, Settings, opened
from spark_jobs.log_source import Log, LogStream, LogUnreadable, furthest, log_source, offset_of, positions_of
from spark_jobs.pipeline import Pipeline
from spark_jobs.placement import Placement
from spark_jobs.progress import Progress, serve
from spark_jobs.session import SessionFailed, SessionOptions, start_session, stop_session
from spark_jobs.sink import GraphSink, GraphWriter

_LOG = logging.getLogger(__name__)
_LOOK_S = 1
_TELL_S = 5.0
_LAST_BATCH_S = 10.0
_NO_ROOM = "No space left on device"
_LOST_PROCESS = "Broken pipe|Connection (reset|refused)|Python worker (exited|failed|crashed)|SocketException"
_OF_SPARK = ("py4j.", "java.", "javax.", "scala.", "org.")


class JobFailed(RuntimeError):
    """The query ended by itself; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Where and how; what depends on the algorithm is in the pipeline."""

    checkpoint: Path
    placement: Placement
    settings: Settings
    """What the checkpoint is made with, by the names of the options."""
    session: SessionOptions = field(default_factory=SessionOptions)
    trigger_s: float = 1.0
    most_rows: int = 20_000
    most_bytes: int = 64 << 20
    once: bool = False
    """Stop when all is done that was in the log at the beginning."""
    metrics: tuple[str, int] | None = None


class Job:
    """Runs once; when `stopping` is set, it stops after the running micro-batch."""

    def __init__(
        self, options: JobOptions, pipeline: Pipeline, log: Log, writer: GraphWriter, stopping: threading.Event
    ) -> None:
        self._options = options
        self._pipeline = pipeline
        self._log = log
        self._writer = writer
        self._stopping = stopping
        self.progress = Progress()

    def run(self) -> None:
        """Until SIGTERM or SIGINT, or until all is done. JobFailed, and what is wrong with folders and Java."""
        options = self._options
        if options.metrics is not None:
            serve(self.progress, *options.metrics)
        start = offset_of({shard: self._log.start(shard) for shard in self._log.shards()})
        self._listen()
        with opened(options.checkpoint, options.settings, start) as checkpoint:
            checkpoint.check_files()
            checkpoint.belongs_to(self._writer.last_batch)
            try:
                spark = start_session(options.session, checkpoint)
            except (SessionFailed, KeyboardInterrupt) as error:  # of signals, Spark may hear first
                if isinstance(error, SessionFailed) and not self._stopping.is_set():
                    raise
                _LOG.info("spark was stopped before it had started")
                return
            try:
                self._listen()  # Spark has taken SIGINT for itself
                self.stream(spark, checkpoint)
                while options.once and not self._stopping.is_set() and self._pipeline.finish():
                    self.stream(spark, checkpoint)
            finally:
                stop_session(spark)
        _LOG.info("spark stopped %s", self.progress.line())

    def stream(self, spark: SparkSession, checkpoint: Checkpoint) -> None:
        """Run the query in a session that is there."""
        if self._stopping.is_set():
            return
        sink = GraphSink(self._pipeline, checkpoint, self._writer, self.progress)
        try:
            query = self._started(spark, checkpoint, sink)
            _LOG.info("spark ready checkpoint=%s query=%s", checkpoint.folder, query.id)
            try:
                self._watch(query)
            finally:
                query.stop()
        except PySparkException as error:
            _LOG.debug("the query failed", exc_info=True)
            if sink.failure is None and self._is_ended_with_us():
                return
            raise JobFailed(_reason(error, sink)) from error
        except (Py4JError, OSError) as error:
            _LOG.debug("Spark does not answer", exc_info=True)
            if self._is_ended_with_us():
                return
            raise JobFailed(f"Spark's process has ended: {checkpoint.spark_log} may say why") from error

    def _is_ended_with_us(self) -> bool:
        """Whether Spark was told to stop like the job itself: that is no failure."""
        if self._stopping.is_set():
            _LOG.info("spark was stopped together with the job, the running micro-batch will be run again")
        return self._stopping.is_set()

    def _started(self, spark: SparkSession, checkpoint: Checkpoint, sink: GraphSink) -> StreamingQuery:
        options = self._options
        stream = LogStream(
            log=self._log,
            split=self._pipeline.split,
            placement=options.placement,
            checkpoint=checkpoint.folder,
            start=positions_of(checkpoint.start),
            most_rows=options.most_rows,
            most_bytes=options.most_bytes,
            cuts=furthest(json.loads(upto) for upto in self._writer.told_upto() if upto),
        )
        for name, value in self._pipeline.settings.items():
            spark.conf.set(name, value)
        source = log_source(stream)
        spark.dataSource.register(source)
        rows = self._pipeline.build(spark.readStream.format(source.name()).load())
        writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint.folder))
        if options.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(options.trigger_s * 1000)} milliseconds").start()

    def _watch(self, query: StreamingQuery) -> None:
        """Until the query ends, or is to."""
        tell_at, told = time.monotonic() + _TELL_S, 0
        while not query.awaitTermination(_LOOK_S):
            self._look(query)
            if time.monotonic() >= tell_at and self.progress.totals.batches > told:
                _LOG.info("progress %s", self.progress.line())
                tell_at, told = time.monotonic() + _TELL_S, self.progress.totals.batches
            if self._stopping.is_set():
                _await_batch(query)
                break
        self._look(query)

    def _look(self, query: StreamingQuery) -> None:
        for report in query.recentProgress:
            self.progress.reported(report)

    def _listen(self) -> None:
        """SIGTERM and SIGINT stop the job."""

        def stop(_: int, __: FrameType | None) -> None:
            self._stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)


def _await_batch(query: StreamingQuery) -> None:
    """Let the running micro-batch end. Were it cut short, it would have to be run again."""
    give_up = time.monotonic() + _LAST_BATCH_S
    before = query.lastProgress
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < give_up:
        last = query.lastProgress
        if last is not None and (before is None or last["batchId"] > before["batchId"]):
            break
        time.sleep(0.02)


def _reason(error: PySparkException, sink: GraphSink) -> str:
    """Why a query failed, in one line: what our own code has said, or else what Spark says first."""
    if sink.failure is not None:
        return " ".join(str(sink.failure).split()) or repr(sink.failure)
    text = str(error)
    unreadable = re.findall(rf"^[\w.]+\.{LogUnreadable.__name__}: (.+)$", text, re.MULTILINE)
    raised = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception): .+$", text, re.MULTILINE)
    ours = unreadable or [each for each in raised if not each.startswith(_OF_SPARK)]
    if ours:
        return str(ours[-1])
    of_java = [each for each in raised if not each.startswith("py4j.")]
    causes = of_java or re.findall(r"^Caused by: (.+)$", text, re.MULTILINE) or text.strip().splitlines()[:1]
    said = re.sub(r"^\[STREAM_FAILED\].* terminated with exception: |\s*SQLSTATE: \w+", "", causes[-1])
    if re.search(_LOST_PROCESS, said):
        return f"one of Spark's processes has ended ({said}): start the job again, it goes on where it was"
    if _NO_ROOM in said:
        return (
            f"the disk of the checkpoint is full ({said}): make room and start the job again, it goes on where it was"
        )
    return f"Spark: {said} (if files of the checkpoint are damaged or gone, a new --checkpoint folder replays the log)"

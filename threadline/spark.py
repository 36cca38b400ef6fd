"""Runs the Spark job: gives it the log and the store, which it knows only as interfaces."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collector.log import LogError, Position, ReaderMark, log_id
from collector.store import StoreError, StoreUnavailable, StoreWriter, open_store
from protocol.graph import GraphBatch
from spark_jobs.checkpoint import CheckpointUnusable, Settings, made_with
from spark_jobs.java import NoJava
from spark_jobs.job import Job, JobFailed, JobOptions
from spark_jobs.log_source import Log, LogUnreadable, furthest
from spark_jobs.native_end import EndingLog, horizon_of
from spark_jobs.native_mu import NativeOptions
from spark_jobs.pipeline import Pipeline, ank_1, ank_n
from spark_jobs.placement import Placement
from spark_jobs.progress import CannotServe
from spark_jobs.session import SessionFailed, SessionOptions
from threadline.repeated import repeated
from threadline.retention import remove_passed, remove_results, removing
from threadline.segment_log import SegmentLog

_LOG = logging.getLogger(__name__)
_RETRY_S = 1.0
_MARK_S = 5.0


class SparkUnusable(RuntimeError):
    """The job cannot run, or could not go on; the text says why, in one line."""

    def __init__(self, text: str, has_begun: bool = False) -> None:
        super().__init__(text)
        self.has_begun = has_begun


class StoreMark:
    """Tells the translators how much of the log is in the store, whichever checkpoint has brought it there."""

    def __init__(self, mark: ReaderMark, told_upto: Iterable[str]) -> None:
        self._mark = mark
        self._reached = furthest(json.loads(upto) for upto in told_upto if upto)
        self._trouble = ""
        self._lock = threading.Lock()
        self._leave()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Meanwhile, leave it again and again. While nothing comes nobody moves it, and if it is lost, nothing comes:
        all of the log would look unread."""
        with repeated(self._leave, _MARK_S, "mark"):
            yield

    def move(self, upto: str) -> None:
        """A batch is in the store. One that is told once more, after others, is nothing new."""
        with self._lock:
            self._reached = furthest([json.loads(upto), {str(at): place for at, place in self._reached.items()}])
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            try:
                self._mark.leave({shard: Position(*place) for shard, place in self._reached.items() if shard >= 0})
                self._trouble = ""
            except OSError as error:
                if self._trouble != str(error):
                    _LOG.warning("translators are not told how far the log is read error=%s", error)
                self._trouble = str(error)


class PatientWriter:
    """Writes to the store; while its disk is full, it waits."""

    def __init__(
        self, store: StoreWriter, job_stops: threading.Event, stored: Callable[[str], None] = lambda upto: None
    ) -> None:
        """`stored` is told up to where the log is in the store."""
        self._store = store
        self._job_stops = job_stops
        self._stored = stored

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that the store has."""
        return self._store.last_batch(query)

    def told_upto(self) -> list[str]:
        """Up to where each query has told the log."""
        return self._store.told_upto()

    def write(self, batch: GraphBatch) -> object:
        """Keep a batch, as soon as the store takes it."""
        told = ""
        while True:
            try:
                written = self._store.write(batch)
                self._stored(batch.upto)
                return written
            except StoreUnavailable as error:
                if self._job_stops.wait(_RETRY_S):
                    raise
                if str(error) != told:
                    _LOG.warning("the store does not take it, trying again error=%s", error)
                    told = str(error)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """What `threadline spark` was asked for."""

    log: Path
    store: str
    checkpoint: Path
    master: str = "local[2]"
    algorithm: str = "ank-1"
    levels: int = 2
    buckets: int = 4
    partitions: int = 2
    u_ms: int | None = None
    """For ANK-N: for how long tuples matter. None: what the checkpoint was made with, or what the log's plans say."""
    delay_ms: int = 10_000
    """For ANK-N: how much later than others a tuple may come."""
    trigger_s: float = 1.0
    most_rows: int = 20_000
    most_bytes: int = 64 << 20
    driver_memory: str = "1g"
    metrics: tuple[str, int] | None = None
    remove_segments_after_s: float | None = None
    remove_results_after_s: float | None = None
    once: bool = False
    verbose: bool = False


def run(options: SparkOptions) -> None:
    """Run the job until it is stopped, or SparkUnusable."""
    try:
        identity = log_id(options.log)
    except LogError as error:
        raise SparkUnusable(str(error)) from error
    stopping = threading.Event()
    placement = Placement(options.buckets, options.partitions)
    try:
        pipeline, log, settings = _algorithm(options, placement)
        store = open_store(options.store)
        with (
            store.writer() as writer,
            removing(
                options.remove_segments_after_s,
                lambda age: remove_passed(options.log, options.checkpoint, age),
                at_last=options.once,
            ),
            removing(
                options.remove_results_after_s,
                lambda age: remove_results(writer, age, stopping.is_set),
                at_last=options.once,
            ),
        ):
            writer.made_from({"log": identity, "--algorithm": options.algorithm, "--levels": str(options.levels)})
            mark = StoreMark(ReaderMark(options.log, f"the Spark job of {store.path.resolve()}"), writer.told_upto())
            job_options = _job_options(options, placement, settings)
            with mark.kept():
                Job(job_options, pipeline, log, PatientWriter(writer, stopping, mark.move), stopping).run()
    except JobFailed as error:
        raise SparkUnusable(str(error), has_begun=True) from error
    except (CannotServe, CheckpointUnusable, LogUnreadable, NoJava, SessionFailed, StoreError) as error:
        raise SparkUnusable(str(error)) from error


def _algorithm(options: SparkOptions, placement: Placement) -> tuple[Pipeline, Log, Settings]:
    """The pipeline, the log that it reads, and what the checkpoint has to keep."""
    log = SegmentLog(options.log)
    settings: dict[str, int | str] = {
        "log": str(options.log.resolve()),
        "algorithm": options.algorithm,
        "levels": options.levels,
        "buckets": options.buckets,
        "partitions": options.partitions,
    }
    if options.algorithm == "ank-1":
        return ank_1(options.levels, placement), log, settings
    if options.algorithm != "ank-n":
        raise SparkUnusable(f"--algorithm {options.algorithm} is neither ank-1 nor ank-n")
    u_ms = options.u_ms
    if u_ms is None:
        kept = made_with(options.checkpoint).get("u-ms")
        u_ms = horizon_of(log).u_ms if kept is None else int(kept)
    native = NativeOptions(options.levels, u_ms, options.delay_ms)
    ending = EndingLog(log, options.checkpoint)
    settings |= {"u-ms": u_ms, "delay-ms": options.delay_ms}
    return ank_n(native, options.checkpoint, ending), ending, settings


def _job_options(options: SparkOptions, placement: Placement, settings: Settings) -> JobOptions:
    return JobOptions(
        checkpoint=options.checkpoint,
        placement=placement,
        settings=settings,
        session=SessionOptions(options.master, options.partitions, options.driver_memory, options.verbose),
        trigger_s=options.trigger_s,
        most_rows=options.most_rows,
        most_bytes=options.most_bytes,
        once=options.once,
        metrics=options.metrics,
    )

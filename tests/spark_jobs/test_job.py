"""The whole job on a real Spark, with stages that only count, and ANK-N.

Starting Spark takes seconds, and so does a query: so this is one story, told in one test.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from collector.log import FIRST as LOG_START
from collector.log import Position as FilePosition
from collector.log import ShardWriter, remove_segments
from protocol.graph import GraphBatch
from protocol.row import Row
from spark_jobs.checkpoint import Checkpoint, opened
from spark_jobs.job import Job, JobFailed, JobOptions
from spark_jobs.log_source import passed
from spark_jobs.placement import Placement, hash_of
from spark_jobs.session import SessionFailed, SessionOptions, start_session, stop_session
from spark_jobs.sink import GraphSink
from tests.collector.log.batches import NextSeqs, batch
from tests.spark_jobs.counting import POISON, CountedBatch, counting
from tests.spark_jobs.test_ank_n import ank_n_without_windows
from tests.support.waiting import wait_until
from threadline.segment_log import SegmentLog

PLACEMENT = Placement(3, 2)
SETTINGS = {"buckets": 3, "partitions": 2}


class ListWriter:
    """A store in memory, which can be made to fail after it has kept a batch, as a crash would."""

    def __init__(self) -> None:
        self.batches: dict[int, CountedBatch] = {}
        self.again: list[int] = []
        self.fails_at = -1

    def last_batch(self, query: str) -> int | None:
        return max((number for number, each in self.batches.items() if each.query == query), default=None)

    def told_upto(self) -> list[str]:
        return [self.batches[max(self.batches)].upto] if self.batches else []

    def write(self, batch: GraphBatch) -> None:
        assert isinstance(batch, CountedBatch)
        if batch.batch in self.batches:
            before = self.batches[batch.batch]
            assert (batch.rows, batch.counts) == (before.rows, before.counts), "it was another when it was run again"
            self.again.append(batch.batch)
            return
        self.batches[batch.batch] = batch
        if batch.batch == self.fails_at:
            raise OSError("the store is\naway")

    @property
    def rows(self) -> list[Row]:
        """Of agents."""
        return [row for number in sorted(self.batches) for row in self.batches[number].rows if row.kind]


class Fixture:
    """A log, a store and jobs between them."""

    def __init__(self, folder: Path, spark: SparkSession, checkpoint: Checkpoint) -> None:
        self.log = folder / "log"
        self.writer = ListWriter()
        self.logged: list[Row] = []
        self.spark = spark
        self.checkpoint = checkpoint

    def append(self, shard: int, batches: int, data: bytes | None = None) -> None:
        """Agent batches in a segment of their own."""
        with ShardWriter(self.log, shard) as writer:
            state = NextSeqs(writer.tail())
            writer.begin(state.snapshot)
            seq = state.next.get((f"agent-{shard}", batch("", 0)[0].nonce), 0)
            for each in range(seq, seq + batches):
                rows = batch(f"agent-{shard}", each)
                writer.append([row._replace(data=data) for row in rows] if data else rows)
                self.logged += rows
            writer.commit()

    def job(self, stopping: threading.Event | None = None, **options: Any) -> Job:
        return Job(
            JobOptions(self.checkpoint.folder, PLACEMENT, SETTINGS, **{"once": True, **options}),
            counting(PLACEMENT, ["first"]),
            SegmentLog(self.log),
            self.writer,
            stopping or threading.Event(),
        )

    def run(self, **options: Any) -> Job:
        job = self.job(**options)
        job.stream(self.spark, self.checkpoint)
        return job

    @contextmanager
    def running(self, **options: Any) -> Iterator[threading.Event]:
        """Until it is stopped."""
        stopping = threading.Event()
        job = self.job(stopping, once=False, **options)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(job.stream, self.spark, self.checkpoint)
            try:
                yield stopping
            finally:
                stopping.set()
            ended.result()


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[Fixture]:
    """In a checkpoint in which a job has died while it wrote where its first micro-batch ends: not a word of it is
    there, but Spark finds that something is, and would not begin."""
    with opened(tmp_path / "checkpoint", SETTINGS, {}) as checkpoint:
        (checkpoint.folder / "offsets").mkdir()
        for name in (".0.2759154e-e5c4-4b27-8edd-d7b26e17b4a9.tmp", "..0.2759154e-e5c4-4b27-8edd-d7b26e17b4a9.tmp.crc"):
            (checkpoint.folder / "offsets" / name).touch()
    with opened(tmp_path / "checkpoint", SETTINGS, {}) as checkpoint:
        spark = start_session(SessionOptions(), checkpoint)
        try:
            yield Fixture(tmp_path, spark, checkpoint)
        finally:
            stop_session(spark)


@pytest.mark.timeout(300)
def test_the_job_on_spark(fixture: Fixture, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _our_hash_is_that_of_spark(fixture.spark)
    _everything_once_in_bounded_micro_batches(fixture)
    _a_batch_that_was_stored_but_not_committed_is_run_again_and_is_the_same(fixture)
    _what_comes_while_it_runs_is_taken_until_it_is_stopped(fixture)
    assert "spark ready" in caplog.text
    _what_is_wrong_with_a_row_is_said_in_one_line(fixture)
    _a_removed_segment_is_said_in_one_line(fixture)
    ank_n_without_windows(fixture.spark, tmp_path / "ank-n")
    _if_the_jvm_dies_the_job_says_so(fixture)


def _our_hash_is_that_of_spark(spark: SparkSession) -> None:
    keys = [0, 1, 2, 3, 41, 1_000_003, 2**31 - 1, -1, -(2**31)]
    found = spark.createDataFrame([(key,) for key in keys], "key int").select(F.hash("key")).collect()
    assert [row[0] for row in found] == [hash_of(key & 0xFFFFFFFF) for key in keys]


def _everything_once_in_bounded_micro_batches(fixture: Fixture) -> None:
    fixture.append(0, 5)
    fixture.append(1, 5)
    job = fixture.run(most_rows=8)
    batches = [fixture.writer.batches[number] for number in sorted(fixture.writer.batches)]
    assert Counter(fixture.writer.rows) == Counter(fixture.logged)
    assert len(batches) == 3
    assert all(len(each.rows) <= 8 for each in batches)
    for number, each in enumerate(batches, 1):
        assert each.counts is not None
        assert set(each.counts) == {("first", bucket) for bucket in range(3)}
        assert {calls for calls, _ in each.counts.values()} == {number}, "a bucket was not called"
    _every_bucket_has_counted_all(fixture)
    assert job.progress.totals.batches == 3
    assert job.progress.totals.rows == 20  # snapshots were empty
    assert job.progress.state_rows > 0
    assert "frontier_lag_s=" in job.progress.line()


def _every_bucket_has_counted_all(fixture: Fixture) -> None:
    last = fixture.writer.batches[max(fixture.writer.batches)].counts
    assert last is not None
    every = Counter(int(row.agent.removeprefix("agent-")) for row in fixture.logged)
    for _, rows in last.values():
        assert {shard: rows[shard] for shard in every} == every


def _a_batch_that_was_stored_but_not_committed_is_run_again_and_is_the_same(fixture: Fixture) -> None:
    queries = {each.query for each in fixture.writer.batches.values()}
    number = len(fixture.writer.batches)
    fixture.append(1, 2)
    fixture.append(4, 3)  # a new shard
    fixture.writer.fails_at = number
    with pytest.raises(JobFailed, match=r"\Athe store is away\Z"):
        fixture.run()
    fixture.append(4, 2)  # more than the micro-batch had
    fixture.run()
    assert fixture.writer.again == [number]
    assert sorted(fixture.writer.batches) == list(range(number + 2))
    assert {each.query for each in fixture.writer.batches.values()} == queries
    assert Counter(fixture.writer.rows) == Counter(fixture.logged)
    _every_bucket_has_counted_all(fixture)


def _what_comes_while_it_runs_is_taken_until_it_is_stopped(fixture: Fixture) -> None:
    with fixture.running(trigger_s=0.05) as stopping:
        for shard in (0, 5):
            fixture.append(shard, 1)
            wait_until(lambda: Counter(fixture.writer.rows) == Counter(fixture.logged), "every row", 60)
        stopping.set()
    assert passed(fixture.checkpoint.folder)[0] > LOG_START


def _what_is_wrong_with_a_row_is_said_in_one_line(fixture: Fixture) -> None:
    fixture.append(6, 1, POISON)
    with pytest.raises(JobFailed, match=r"\AValueError: a row that nobody can swallow\Z"):
        fixture.run()


def _a_removed_segment_is_said_in_one_line(fixture: Fixture) -> None:
    for _ in range(2):
        fixture.append(6, 1)
    remove_segments(fixture.log, 6, FilePosition(3, 0))
    said = r"the log cannot be read: .*segment 1 has been removed, the oldest is \d: a new --checkpoint folder begins"
    with pytest.raises(JobFailed, match=rf"\A{said} with what is left\Z"):
        fixture.run()


def _if_the_jvm_dies_the_job_says_so(fixture: Fixture) -> None:
    gateway: Any = SparkContext._gateway
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(fixture.job(once=False).stream, fixture.spark, fixture.checkpoint)
        gateway.proc.kill()
        gateway.proc.wait()
        with pytest.raises(JobFailed, match=r"\ASpark's process has ended: .*spark\.log may say why\Z"):
            ended.result()


@pytest.mark.parametrize("failure", [OSError("the disk is full"), None])
def test_a_store_that_fails_while_the_job_stops_is_a_failure(tmp_path: Path, failure: Exception | None) -> None:
    """If only Spark has ended, it was told to stop like the job."""
    stopping = threading.Event()

    class Ending(Job):
        def _started(self, spark: SparkSession, checkpoint: Checkpoint, sink: GraphSink) -> NoReturn:
            stopping.set()
            sink.failure = failure
            raise PySparkException("the query has ended")

    with opened(tmp_path, SETTINGS, {}) as checkpoint:
        options = JobOptions(checkpoint.folder, PLACEMENT, SETTINGS)
        job = Ending(options, counting(PLACEMENT, []), SegmentLog(tmp_path), ListWriter(), stopping)
        no_spark: Any = None
        with pytest.raises(JobFailed, match="the disk is full") if failure else nullcontext():
            job.stream(no_spark, checkpoint)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "java.io.IOException: Broken pipe",
            r"\Aone of Spark's processes has ended \(java.*pipe\): start the job again",
        ),
        ("org.apache.spark.SparkException: Python worker exited unexpectedly", r"\Aone of Spark's processes has ended"),
        (
            "java.io.IOException: No space left on device",
            r"\Athe disk of the checkpoint is full \(java.*: make room and",
        ),
        ("java.io.EOFException: a file of the state", r"\ASpark: .*a new --checkpoint folder replays the log"),
    ],
)
def test_only_damage_is_a_reason_for_a_new_checkpoint(tmp_path: Path, said: str, words: str) -> None:
    class Failing(Job):
        def _started(self, spark: SparkSession, checkpoint: Checkpoint, sink: GraphSink) -> NoReturn:
            raise PySparkException(
                f"[STREAM_FAILED] Query terminated with exception: Job aborted\n{said}\n\tat Some.java"
            )

    with opened(tmp_path, SETTINGS, {}) as checkpoint:
        options = JobOptions(checkpoint.folder, PLACEMENT, SETTINGS)
        job = Failing(options, counting(PLACEMENT, []), SegmentLog(tmp_path), ListWriter(), threading.Event())
        no_spark: Any = None
        with pytest.raises(JobFailed, match=words):
            job.stream(no_spark, checkpoint)


@pytest.mark.parametrize("is_stopping", [True, False])
@pytest.mark.parametrize("error", [SessionFailed("Spark did not start"), KeyboardInterrupt()])
def test_a_job_that_is_told_to_stop_while_spark_starts_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, is_stopping: bool
) -> None:
    """The same signal may have ended Spark's process, and Spark takes SIGINT for itself while it starts."""
    stopping = threading.Event()

    def start_session(*_: object) -> NoReturn:
        if is_stopping:
            stopping.set()
        raise error

    monkeypatch.setattr("spark_jobs.job.start_session", start_session)
    (tmp_path / "log").mkdir()
    options = JobOptions(tmp_path / "checkpoint", PLACEMENT, SETTINGS)
    job = Job(options, counting(PLACEMENT, []), SegmentLog(tmp_path / "log"), ListWriter(), stopping)
    monkeypatch.setattr(job, "_listen", lambda: None)
    is_failure = isinstance(error, SessionFailed) and not is_stopping
    with pytest.raises(SessionFailed) if is_failure else nullcontext():
        job.run()

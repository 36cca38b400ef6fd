"""`threadline spark`: what it says when something is wrong, and what it does beside Spark."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collector.log import ShardWriter
from collector.store import StoreReader, StoreUnavailable, open_store
from protocol.graph import GraphBatch
from spark_jobs.checkpoint import write_durably
from tests.collector.log.batches import NextSeqs, batch
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from tests.support.waiting import wait_until
from threadline import spark
from threadline.cli import app
from threadline.spark import PatientWriter, parse_duration_s, remove_passed, remove_results, removing


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("spark", *arguments))


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("threadline: "), result.output
    for word in words:
        assert word in result.stderr, result.output


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    (tmp_path / "log").mkdir()
    return [
        *("--log", str(tmp_path / "log"), "--store", f"sqlite:///{tmp_path / 'graph.db'}"),
        *("--checkpoint", str(tmp_path / "checkpoint")),
    ]


def test_a_log_that_is_not_there_is_told(tmp_path: Path, options: list[str]) -> None:
    refused(run(*options, "--log", str(tmp_path / "none")), "there is no log in", "threadline translate")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--algorithm", "ank-7", "neither ank-1 nor ank-n"),
        ("--trigger", "soon", "'soon' is no time such as 1s or 200ms"),
        ("--store", "mysql://x", "there is no store of kind 'mysql'"),
        ("--metrics", "nowhere", "--metrics"),
    ],
)
def test_what_makes_no_sense_is_told(options: list[str], option: str, value: str, words: str) -> None:
    refused(run(*options, option, value), words)


def test_a_store_that_somebody_writes_to_is_told(tmp_path: Path, options: list[str]) -> None:
    with open_store(f"sqlite:///{tmp_path / 'graph.db'}").writer():
        refused(run(*options), "is being written by")


def test_a_checkpoint_of_other_settings_is_told_before_spark_starts(tmp_path: Path, options: list[str]) -> None:
    settings = f'{{"log": "{tmp_path / "log"}", "algorithm": "ank-1", "levels": 2, "buckets": 4, "partitions": 2}}'
    (tmp_path / "checkpoint").mkdir()
    write_durably(
        tmp_path / "checkpoint" / "threadline.json", f'{{"format": 1, "settings": {settings}, "start": {{}}}}'
    )
    refused(run(*options, "--levels", "3"), "made with --levels 2, not 3", "new --checkpoint")
    refused(run(*options, "--algorithm", "ank-n"), "made with --algorithm ank-1, not ank-n")


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1.0), ("200ms", 0.2), ("1.5s", 1.5), ("0ms", 0.0)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


class FullStore:
    """A store whose disk is full for a while."""

    def __init__(self) -> None:
        self.tries = 0

    def write(self, batch: GraphBatch) -> str:
        self.tries += 1
        if self.tries < 3:
            raise StoreUnavailable("disk full")
        return "written"


def test_while_the_store_is_full_the_writer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_RETRY_S", 0.01)
    stopping = threading.Event()
    store = FullStore()
    writer = PatientWriter(store, stopping)  # type: ignore[arg-type]
    assert writer.write(GraphBatch("q", 0, 0)) == "written"
    assert store.tries == 3
    stopping.set()
    with pytest.raises(StoreUnavailable):
        PatientWriter(FullStore(), stopping).write(GraphBatch("q", 0, 0))  # type: ignore[arg-type]


def test_segments_go_when_they_are_passed_and_old(tmp_path: Path) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    checkpoint.mkdir()
    state = NextSeqs()
    with ShardWriter(log, 3, segment_bytes=1) as writer:
        writer.begin(state.snapshot)
        for seq in range(6):
            writer.append(batch("a", seq))
            writer.commit()
    segments = sorted((log / "shard-03").glob("*.arrows"))
    long_ago = time.time() - 7_200
    for path in segments[:4]:
        os.utime(path, (long_ago, long_ago))
    assert remove_passed(log, checkpoint, 3_600) == {}  # nothing was passed
    write_durably(checkpoint / "log-position.json", '{"3": [3, 1], "9": [1, 0]}')
    assert remove_passed(log, checkpoint, 3_600) == {3: [1, 2]}  # the third is not passed
    write_durably(checkpoint / "log-position.json", '{"3": [7, 0]}')
    assert remove_passed(log, checkpoint, 3_600) == {3: [3, 4]}  # the fifth is young
    assert remove_passed(log, checkpoint, 0) == {3: [5, 6]}  # the last is being written


def test_results_go_when_they_are_complete_and_old(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    old, young, open_ = tuple_id(5, 0), tuple_id(5, 1), tuple_id(5, 2)
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        times = {old: now_ms - 7_200_000, young: now_ms, open_: now_ms - 7_200_000}
        writer.write(graph_batch("q", 0, sinks=times, sink_labels=[old, young]))
        assert remove_results(writer, 3_600).sinks == 1
        assert [each.id for each in reader.every_sink()] == [young, open_]


def test_what_is_old_is_removed_again_and_again_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_REMOVE_EVERY_S", 0.001)
    asked: list[float] = []

    def remove(age_s: float) -> None:
        asked.append(age_s)
        raise StoreUnavailable("disk full")

    with removing(0.0, remove):
        wait_until(lambda: len(asked) >= 3, "three tries", 10)
    assert set(asked) == {0.0}
    before = len(asked)
    with removing(None, remove, at_last=True):
        assert len(asked) == before, "nobody has asked for it"
    assert len(asked) == before
    monkeypatch.setattr(spark, "_REMOVE_EVERY_S", 60.0)
    with removing(5.0, remove, at_last=True):
        pass
    assert asked[before:] == [5.0], "a job that is soon done removes as well"

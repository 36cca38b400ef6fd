"""What is old goes, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from collector.log import ShardWriter
from collector.store import StoreReader, StoreUnavailable
from spark_jobs.checkpoint import write_checked
from tests.collector.log.batches import NextSeqs, batch
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from tests.support.waiting import wait_until
from tests.support.whole_graph import every_sink
from threadline import retention
from threadline.retention import remove_passed, remove_results, removing


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
    write_checked(checkpoint / "log-position.json", {"3": [3, 1], "9": [1, 0]})
    assert remove_passed(log, checkpoint, 3_600) == {3: [1, 2]}  # the third is not passed
    write_checked(checkpoint / "log-position.json", {"3": [7, 0]})
    assert remove_passed(log, checkpoint, 3_600) == {3: [3, 4]}  # the fifth is young
    assert remove_passed(log, checkpoint, 0) == {3: [5, 6]}  # the last is being written


def test_results_go_when_they_are_complete_and_old(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    old, young, open_ = tuple_id(5, 0), tuple_id(5, 1), tuple_id(5, 2)
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        times = {old: now_ms - 7_200_000, young: now_ms, open_: now_ms - 7_200_000}
        writer.write(graph_batch("q", 0, sinks=times, sink_labels=[old, young]))
        assert remove_results(writer, 3_600).sinks == 1
        assert [each.id for each in every_sink(reader)] == [young, open_]


def test_what_is_old_is_removed_again_and_again_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_EVERY_S", 0.001)
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
    monkeypatch.setattr(retention, "_EVERY_S", 60.0)
    with removing(5.0, remove, at_last=True):
        pass
    assert asked[before:] == [5.0], "a job that is soon done removes as well"

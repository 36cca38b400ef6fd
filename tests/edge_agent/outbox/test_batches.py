"""Records become batches, and are on disk before that."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config import Fsync
from protocol.records import Declared, Delivery, End, Progress
from protocol.wire.sections import Kind
from tests.edge_agent.records import (
    ALERTS,
    STREAM,
    Bench,
    begun,
    crashed,
    ended,
    path_of,
    records_after_crash,
)
from tests.support.waiting import wait_until


def test_a_record_is_on_disk_after_the_flush_interval(tmp_path: Path) -> None:
    with Bench(tmp_path / "agent", flush_s=0.2, batch_age_s=5.0) as bench:
        bench.put(begun(0))
        assert bench.step() == pytest.approx(bench.now + 0.2)
        assert records_after_crash(crashed(tmp_path / "agent", "too-early")) == []
        bench.put(begun(1))
        bench.step(0.2)
        assert [each.number for each in records_after_crash(crashed(tmp_path / "agent"))] == [0, 1]
        assert bench.spool.count == 0, "it is in the journal, the batch waits for more"


def test_a_batch_closes_when_it_is_old_enough(tmp_path: Path) -> None:
    with Bench(tmp_path, flush_s=0.1, batch_age_s=1.0) as bench:
        bench.put(begun(0))
        bench.step()
        bench.step(0.1)
        bench.put(begun(1))
        bench.step(0.5)
        assert bench.spool.count == 0
        bench.step(0.5)
        assert bench.events() == [[0, 1]]


def test_when_records_come_often_more_are_looked_for_without_being_told(tmp_path: Path) -> None:
    with Bench(tmp_path, flush_s=0.1, batch_records=1, fsync="never") as bench:
        bench.put(begun(0))
        bench.step()
        bench.step(0.11)
        bench.put(begun(1))
        for _ in range(15):
            assert bench.step(0.11) == pytest.approx(bench.now + 0.1), "whoever leaves a record need not wake anybody"
        bench.put(begun(2))
        bench.step(0.11)
        assert bench.events() == [[0], [1], [2]]
        for _ in range(25):
            bench.step(0.11)
        assert bench.step(0.11) == float("inf"), "when nothing comes for long, it sleeps"


def synced_aside(bench: Bench) -> None:
    """Return when the sync that was ordered has come to its end."""
    wait_until(lambda: not bench.outbox._syncer.busy, "the syncer", every_s=0.001)


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_after_a_record_that_comes_alone_nobody_looks_for_more(tmp_path: Path, fsync: Fsync) -> None:
    with Bench(tmp_path, flush_s=0.1, batch_records=1, fsync=fsync) as bench:
        for key in range(3):
            synced_aside(bench)
            bench.put(begun(key))
            bench.step(5.0)
            assert bench.step(0.11) == float("inf")
        assert bench.events() == [[0], [1], [2]]


def test_a_batch_closes_when_it_has_enough_records(tmp_path: Path) -> None:
    with Bench(tmp_path, batch_records=4) as bench:
        bench.put(*[begun(key) for key in range(9)])
        bench.step()
        bench.step(1.0)
        assert bench.events() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        bench.step(1.0)
        assert bench.events()[2:] == [[8]]


def test_batches_are_of_about_the_size_that_was_asked_for(tmp_path: Path) -> None:
    with Bench(tmp_path, batch_bytes=600) as bench:
        bench.put(*[begun(key, os.urandom(16)) for key in range(400)])
        bench.step()
        bench.step(0.2)
        sizes = [len(entry.data) for entry in bench.spool.entries()]
        assert len(sizes) > 5
        assert max(sizes) <= 600 * 1.25
        numbers = [number for batch in bench.events() for number in batch]
        assert numbers == list(range(len(numbers)))


def test_flush_returns_when_all_is_on_disk(tmp_path: Path) -> None:
    with Bench(tmp_path / "agent", flush_s=3600, batch_age_s=3600) as bench:
        bench.put(begun(0))
        flushing = threading.Thread(target=bench.outbox.flush)
        flushing.start()
        while not bench.spool.size_bytes or flushing.is_alive():
            bench.outbox.wait(time.monotonic() + 0.01)
            bench.step()
        assert [each.number for each in records_after_crash(crashed(tmp_path / "agent"))] == [0]


@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
def test_flush_syncs_whatever_the_policy_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(path_of(fd)))
    with Bench(tmp_path, fsync=fsync, flush_s=0.1, batch_age_s=3600) as bench:
        bench.put(begun(0))
        bench.step()
        bench.step(0.2)
        if fsync == "interval":
            wait_until(lambda: bool(synced), "a sync aside")
        assert bool(synced) == (fsync != "never")
        bench.put(begun(1))
        with pytest.raises(TimeoutError):
            bench.outbox.flush(0.0)
        synced.clear()
        bench.step()
        assert any(path.endswith("journal") for path in synced)


def test_a_slow_sync_keeps_nothing_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, test = threading.Event(), threading.current_thread()
    monkeypatch.setattr(os, "fdatasync", lambda fd: threading.current_thread() is test or slow.wait(30))
    try:
        with Bench(tmp_path / "agent", fsync="interval", flush_s=0.1, batch_age_s=3600) as bench:
            for key in range(3):  # the first sync has not come back yet when the others are due
                bench.put(begun(key))
                bench.step()
                bench.step(0.2)
            assert [each.number for each in records_after_crash(crashed(tmp_path / "agent"))] == [0, 1, 2]
            slow.set()
    finally:
        slow.set()


def test_a_sync_that_is_skipped_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Event()
    synced: list[str] = []

    def sync(fd: int) -> None:
        slow.wait(30)
        synced.append(path_of(fd))

    monkeypatch.setattr(os, "fdatasync", sync)
    with Bench(tmp_path, fsync="interval", flush_s=0.1, batch_age_s=3600) as bench:
        for key in range(2):
            bench.put(begun(key))
            bench.step()
            bench.step(0.2)
        slow.set()
        wait_until(lambda: not bench.outbox._syncer.busy, "the first sync")
        before = len(synced)
        assert before > 0
        bench.step(0.4)
        wait_until(lambda: len(synced) > before, "the sync of what came meanwhile")


def test_a_sync_that_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [True]
    real = os.fdatasync

    def sync(fd: int) -> None:
        if failing:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    with Bench(tmp_path, fsync="interval", flush_s=0.1, batch_age_s=3600) as bench:
        bench.put(begun(0))
        bench.step()
        bench.step(0.2)
        wait_until(lambda: bench.outbox._syncer.error is not None, "the error")
        bench.put(begun(1))
        bench.step()
        bench.step(0.4)
        assert "cannot be synced" in bench.outbox.trouble
        failing.clear()
        bench.step(2.0)
        synced_aside(bench)
        bench.step(0.1)
        assert bench.outbox.trouble == ""


def test_a_sync_that_fails_is_tried_again_though_nothing_else_is_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [True]

    def sync(fd: int) -> None:
        if failing:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    with Bench(tmp_path, fsync="interval", flush_s=0.1, batch_age_s=1.0) as bench:
        bench.put(begun(0))
        bench.step(5.0)
        bench.step(0.2)
        wait_until(lambda: bench.outbox._syncer.error is not None, "the error")
        bench.step(1.0)
        assert "cannot be synced" in bench.outbox.trouble
        assert bench.events() == [[0]]
        failing.clear()
        bench.step(1.1)
        synced_aside(bench)
        bench.step(0.1)
        assert bench.outbox.trouble == ""


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """While there is something in the list, no file can be synced."""
    failing = [True]

    def sync(fd: int) -> None:
        if failing:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    return failing


def in_sync_trouble(bench: Bench) -> float:
    """A record comes alone, and that it cannot be synced is seen; returns when to come back."""
    bench.put(begun(0))
    bench.step()
    bench.step(0.2)
    synced_aside(bench)
    bench.outbox.hurry()
    until = bench.step(1.0)
    assert "cannot be synced" in bench.outbox.trouble
    return until


def test_as_long_as_no_sync_succeeds_there_is_trouble_though_nothing_comes(
    tmp_path: Path, no_sync: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with Bench(tmp_path, fsync="interval", flush_s=0.1, batch_age_s=3600) as bench:
        until, began, looks = in_sync_trouble(bench), bench.now, 0
        while bench.now < began + 20:
            until = bench.step(until - bench.now)
            assert "cannot be synced" in bench.outbox.trouble, f"{bench.now - began} s later"
            assert until <= bench.now + 1.0, "it is looked at how that went"
            synced_aside(bench)
            looks += 1
        assert looks < 20 * 3, "a disk that fails is left alone for a while"
        no_sync.clear()
        for _ in range(3):
            until = bench.step(until - bench.now)
            synced_aside(bench)
        assert (bench.outbox.trouble, until) == ("", float("inf")), "and nobody looks any more"
    told = [message.split(" agent")[0] for message in caplog.messages]
    assert told == ["records wait in memory", "records are written again"]


def test_a_sync_that_somebody_waits_for_ends_the_trouble_too(tmp_path: Path, no_sync: list[bool]) -> None:
    with Bench(tmp_path, fsync="interval", flush_s=0.1, batch_age_s=3600) as bench:
        until = in_sync_trouble(bench)
        no_sync.clear()
        with pytest.raises(TimeoutError):
            bench.outbox.flush(0.0)
        bench.step(until - bench.now)
        assert bench.outbox.trouble == ""


def test_a_sync_of_the_plan_ends_the_trouble_too(tmp_path: Path, no_sync: list[bool]) -> None:
    with Bench(tmp_path, fsync="interval", flush_s=0.1, batch_age_s=3600) as bench:
        until = in_sync_trouble(bench)
        no_sync.clear()
        bench.put(Declared("{}"))
        bench.outbox.hurry()
        bench.step(until - bench.now)
        assert bench.outbox.trouble == "", "nothing is left to be synced"


def test_with_block_callers_wait_until_a_sync_has_succeeded(tmp_path: Path, no_sync: list[bool]) -> None:
    with Bench(tmp_path, fsync="interval", when_full="block", flush_s=0.1, batch_age_s=3600) as bench:
        bench.put(begun(1))
        until = in_sync_trouble(bench)
        bench.outbox._held_bytes += 1  # as if there were a record that cannot be written
        calling = threading.Thread(target=bench.put, args=[begun(2)], daemon=True)
        calling.start()
        for _ in range(4):
            until = bench.step(until - bench.now)
            synced_aside(bench)
            calling.join(0.05)
            assert calling.is_alive()
        no_sync.clear()
        for _ in range(3):
            until = bench.step(until - bench.now)
            synced_aside(bench)
        calling.join(10.0)
        assert not calling.is_alive()


def test_a_flush_that_takes_too_long_says_why(tmp_path: Path, disk: list[str]) -> None:
    with Bench(tmp_path) as bench:
        disk.append("journal")
        bench.put(begun(0))
        with pytest.raises(TimeoutError, match="the disk is slow"):
            bench.outbox.flush(0.0)
        bench.step()
        with pytest.raises(TimeoutError, match="No space left"):
            bench.outbox.flush(0.0)


def test_actions_come_after_what_was_put_before_them(tmp_path: Path) -> None:
    with Bench(tmp_path / "agent", flush_s=0.2) as bench:
        found: list[list[Any]] = []
        bench.put(begun(0))
        bench.outbox.after(lambda: found.append(records_after_crash(crashed(tmp_path / "agent"))))
        bench.step()
        assert found == []
        bench.step(0.2)
        assert [[each.number for each in records] for records in found] == [[0]]


def test_only_the_last_progress_of_a_batch_is_told_and_it_comes_after_the_tuples(tmp_path: Path) -> None:
    with Bench(tmp_path, batch_age_s=1.0) as bench:
        for seq in range(3):
            bench.put(Delivery(ALERTS, seq, seq, "alert", ()), Progress(ALERTS, seq, seq), Progress(STREAM, seq, seq))
        bench.step()
        bench.step(0.2)
        bench.step(1.0)
        (batch,) = bench.batches()
        assert [each for each in batch.records() if isinstance(each, Progress)] == [
            Progress(ALERTS, 2, 2),
            Progress(STREAM, 2, 2),
        ]
        assert [kind for kind, _, _ in batch.sections] == [Kind.DELIVERY, Kind.PROGRESS]


# Grouping as ProvLight does


def test_with_provlights_grouping_only_ended_tasks_wait(tmp_path: Path) -> None:
    with Bench(tmp_path, grouping="ended", batch_records=2, batch_age_s=3600, flush_s=0.1) as bench:
        bench.put(begun(0), ended(0), begun(1))
        bench.step()
        bench.step(0.1)
        assert [[type(each).__name__ for each in batch.records()] for batch in bench.batches()] == [["TaskBegun"] * 2]
        bench.put(ended(1), begun(2))
        bench.step()
        bench.step(0.1)
        kinds = [[type(each).__name__ for each in batch.records()] for batch in bench.batches()]
        assert kinds == [["TaskBegun"] * 2, ["TaskBegun"], ["TaskEnded"] * 2]
        assert bench.events() == [[0, 1], [2], [3, 4]], "numbers are given in the order of writing"


def test_with_provlights_grouping_the_end_comes_last(tmp_path: Path) -> None:
    with Bench(tmp_path, grouping="ended", batch_age_s=3600) as bench:
        bench.put(begun(0), ended(0), End(5))
        bench.outbox.finish()
        bench.step()
        bench.step(0.2)
        kinds = [[type(each).__name__ for each in batch.records()] for batch in bench.batches()]
        assert kinds == [["TaskBegun"], ["End", "TaskEnded"]]


def test_with_provlights_grouping_no_promise_overtakes_its_tuples(tmp_path: Path) -> None:
    with Bench(tmp_path, grouping="ended", batch_records=1, batch_age_s=3600) as bench:
        bench.put(Delivery(ALERTS, 0, 0, "alert", ()), Progress(ALERTS, 1, 1), ended(0), ended(1))
        bench.step()
        bench.step(0.2)
        kinds = [[type(each).__name__ for each in batch.records()] for batch in bench.batches()]
        assert kinds.index(["Delivery"]) < min(at for at, names in enumerate(kinds) if "Progress" in names)


def test_ended_tasks_that_wait_do_not_fill_the_spool_with_their_copies(tmp_path: Path) -> None:
    """Each batch that leaves before them has them written again, for the batch after it."""
    with Bench(tmp_path, spool_bytes=64 << 10, grouping="ended", batch_age_s=3600, flush_s=0.1) as bench:
        for key in range(100):
            bench.put(begun(key), ended(key))
            bench.step(0.2)
            bench.step(0.2)
            bench.spool.release(bench.spool.next - 1)
            assert bench.spool.size_bytes < 16_000


def test_ended_tasks_survive_a_crash_while_others_leave(tmp_path: Path) -> None:
    """The batch that leaves makes the journal obsolete: what waits there is written again."""
    with Bench(tmp_path / "agent", grouping="ended", batch_age_s=3600) as bench:
        for key in range(3):
            bench.put(begun(key), ended(key))
            bench.step()
            bench.step(0.2)
            folder = crashed(tmp_path / "agent", f"after-{key}")
            found = records_after_crash(folder)
            assert sorted((type(each).__name__, each.key) for each in found) == sorted(
                (name, each) for each in range(key + 1) for name in ("TaskBegun", "TaskEnded")
            )
            assert len({each.number for each in found}) == len(found)


def test_the_rest_of_a_batch_that_was_too_large_survives_a_crash(tmp_path: Path) -> None:
    with Bench(tmp_path / "agent", batch_bytes=300, batch_records=60, batch_age_s=3600) as bench:
        bench.put(*[begun(key, os.urandom(60)) for key in range(7)])
        bench.step()
        bench.step(0.2)
        assert bench.spool.count == 0, "all in the journal"
        append = bench.spool.append
        copies: list[Path] = []

        def spied(data: bytes) -> int:
            copies.append(crashed(tmp_path / "agent", f"before-{len(copies)}"))
            number = append(data)
            copies.append(crashed(tmp_path / "agent", f"after-{len(copies)}"))
            return number

        bench.spool.append = spied  # type: ignore[method-assign,assignment]
        bench.outbox.finish()
        with pytest.raises(TimeoutError):
            bench.outbox.flush(0.0)
        bench.step()
        assert len(copies) > 2, "it was divided"
        for folder in copies:
            assert [each.number for each in records_after_crash(folder)] == list(range(7)), folder.name


@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
def test_the_plan_is_safe_before_anything_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync
) -> None:
    """A power cut that takes it and leaves what follows would make results of what is for other agents."""
    with Bench(tmp_path, fsync=fsync, batch_records=1) as bench:
        safe: list[bool] = []
        append = bench.spool.append

        def spied(data: bytes) -> int:
            safe.append(bench.spool.is_synced)
            return append(data)

        monkeypatch.setattr(bench.spool, "append", spied)
        bench.put(Declared("{}"), begun(0), begun(1))
        bench.step()
        bench.step(0.3)
        assert len(safe) >= 2
        assert safe[1], "when the next batch is written"

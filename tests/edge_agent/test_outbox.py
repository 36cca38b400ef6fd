from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_agent.memory import Memory
from edge_agent.recovery import close_journal
from edge_agent.spool import Spool
from protocol.records import Declared, Delivery, End, Gap, Progress, SourcePayload
from protocol.wire.batch import decode_batch, read_header
from protocol.wire.sections import Kind
from tests.edge_agent.records import AGENT, ALERTS, EPOCH, EVENT_BYTES, STREAM, Bench, begun, crashed, ended
from tests.support.waiting import wait_until

LEAST_MEMORY_BYTES = 64 << 10


def path_of(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """While there is something in the list, files whose path holds it cannot be written."""
    full: list[str] = []
    write = os.pwrite

    def maybe(fd: int, data: Any, offset: int) -> int:
        path = path_of(fd)
        if any(part in path for part in full):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", maybe)
    yield full
    full.clear()


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with a writer that does nothing nor with the disk: a test reads through the same kernel."""
    monkeypatch.setattr("edge_agent.outbox._PATIENCE_S", 0.1)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def records_after_crash(folder: Path) -> list[Any]:
    """What the next process finds: entries of the spool, those made from the journal included."""
    with Spool.open(folder / "up") as spool:
        assert close_journal(spool, AGENT) is None
        return [record for entry in spool.entries() for record in decode_batch(entry.data, AGENT).records()]


# From the caller to the disk


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
        assert bench.step(0.1) == pytest.approx(bench.now + 1.0)
        bench.put(begun(1))
        bench.step(0.5)
        assert bench.spool.count == 0
        bench.step(0.5)
        assert bench.events() == [[0, 1]]


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
        assert bench.outbox.trouble == ""


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


# Too much for the memory


def filled(bench: Bench) -> int:
    """Put events until the memory is full; how many that were."""
    count = LEAST_MEMORY_BYTES // EVENT_BYTES
    bench.put(*[begun(key) for key in range(count)])
    return count


def test_a_caller_is_slowed_down_to_the_pace_of_the_writer(tmp_path: Path) -> None:
    with Bench(tmp_path, memory_bytes=LEAST_MEMORY_BYTES, flush_s=3600) as bench:
        count = filled(bench)
        putting = threading.Thread(target=bench.put, args=[begun(count)])
        putting.start()
        bench.outbox.wait(time.monotonic() + 5.0)
        bench.step()
        putting.join(5.0)
        bench.step(3600)
        bench.step(3600)
        bench.step(3600)
        assert [number for batch in bench.events() for number in batch] == list(range(count + 1))
        assert bench.outbox.dropped == 0


def test_a_caller_does_not_wait_for_a_disk_that_stands_still(tmp_path: Path, disk: list[str]) -> None:
    """The oldest records go, and a Gap names them; their numbers are used up."""
    with Bench(tmp_path, memory_bytes=LEAST_MEMORY_BYTES, flush_s=0.1, batch_age_s=0.2) as bench:
        bench.put(begun(0))
        bench.step()
        bench.step(0.2)
        bench.step(0.2)
        assert bench.events() == [[0]]
        disk += ["up/"]
        count = filled(bench)
        started = time.monotonic()
        bench.put(*[begun(key) for key in range(count + 50)])
        assert time.monotonic() - started < 3.0, "patience once, not for each record"
        assert bench.outbox.held_bytes <= LEAST_MEMORY_BYTES
        disk.clear()
        for _ in range(5):
            bench.step(1.0)
        numbers = [number for batch in bench.events() for number in batch]
        (gap,) = [each for batch in bench.batches() for each in batch.records() if isinstance(each, Gap)]
        assert gap.events is not None
        assert (gap.batches, gap.tuples, gap.nonce) == (None, (), EPOCH.nonce)
        lost = set(range(gap.events[0], gap.events[1] + 1))
        assert bench.outbox.dropped == len(lost)
        assert not lost & set(numbers)
        assert lost | set(numbers) == set(range(1 + 2 * count + 50))


def test_tuples_that_are_dropped_from_memory_are_named(tmp_path: Path, disk: list[str]) -> None:
    with Bench(tmp_path, memory_bytes=LEAST_MEMORY_BYTES, flush_s=0.1, batch_age_s=0.2) as bench:
        bench.put(Declared("{}"))
        disk += ["up/"]
        for seq in range(400):
            bench.put(SourcePayload(STREAM, seq, seq, "x" * 300), Progress(ALERTS, seq, seq))
        disk.clear()
        for _ in range(6):
            bench.step(1.0)
        records = [each for batch in bench.batches() for each in batch.records()]
        (gap,) = [each for each in records if isinstance(each, Gap)]
        seqs = [each.seq for each in records if isinstance(each, SourcePayload)]
        ((name, first, last),) = [(each.name, each.first, each.last) for each in gap.tuples]
        assert (name, first, last + 1) == ("reports", 0, seqs[0])
        assert seqs == list(range(last + 1, 400))
        assert bench.outbox.dropped == last + 1
        assert any(isinstance(each, Declared) for each in records), "what nothing could replace is not dropped"
        assert [each for each in records if isinstance(each, Progress)][-1] == Progress(ALERTS, 399, 399)
        assert bench.outbox.state.next_seqs == {"reports": 400}


def test_what_can_be_done_without_is_forgone_when_memory_is_full(tmp_path: Path, disk: list[str]) -> None:
    """Tuples for other agents wait for the records before them, which a full disk does not take."""
    done: list[int] = []
    forgone: list[int] = []
    with Bench(tmp_path, memory_bytes=LEAST_MEMORY_BYTES, flush_s=0.1) as bench:
        disk += ["up/"]
        bench.put(begun(0))
        for number in range(300):
            size = LEAST_MEMORY_BYTES // 50
            bench.outbox.after(partial(done.append, number), size, partial(forgone.append, number))
            assert bench.outbox.held_bytes <= LEAST_MEMORY_BYTES
        disk.clear()
        for _ in range(3):
            bench.step(1.0)
        assert len(forgone) > 200 and len(done) > 20
        assert sorted(forgone + done) == list(range(300))
        assert bench.outbox.held_bytes == 0


def test_memory_stays_bounded_however_long_the_disk_stands_still(tmp_path: Path, disk: list[str]) -> None:
    with Bench(tmp_path, memory_bytes=LEAST_MEMORY_BYTES, flush_s=0.1) as bench:
        disk += ["up/"]
        filled(bench)
        most = 0
        for key in range(300):
            bench.put(begun(key), begun(key))
            bench.step(1.0)
            most = max(most, bench.outbox.held_bytes)
        assert most <= LEAST_MEMORY_BYTES + 2 * EVENT_BYTES


def test_with_block_a_caller_waits_for_the_disk(tmp_path: Path, disk: list[str]) -> None:
    options: dict[str, Any] = {"when_full": "block", "memory_bytes": LEAST_MEMORY_BYTES, "flush_s": 0.1}
    with Bench(tmp_path, batch_age_s=0.2, **options) as bench:
        disk += ["up/"]
        count = filled(bench)
        putting = threading.Thread(target=bench.put, args=[begun(count)])
        putting.start()
        bench.step(1.0)
        putting.join(0.3)
        assert putting.is_alive()
        disk.clear()
        for _ in range(4):
            bench.step(1.0)
        putting.join(5.0)
        for _ in range(4):
            bench.step(1.0)
        assert [number for batch in bench.events() for number in batch] == list(range(count + 1))
        assert bench.outbox.dropped == 0


def test_who_waits_for_room_need_not_wait_when_it_is_over(tmp_path: Path) -> None:
    with Bench(tmp_path, when_full="block", memory_bytes=LEAST_MEMORY_BYTES, flush_s=3600) as bench:
        putting = threading.Thread(target=bench.put, args=[begun(key) for key in range(filled(bench) + 1)])
        putting.start()
        putting.join(0.1)
        assert putting.is_alive()
        bench.outbox.close()
        putting.join(5.0)
        assert not putting.is_alive()


# Trouble with the disk


def test_a_full_disk_is_told_and_writing_goes_on_by_itself(
    tmp_path: Path, disk: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with Bench(tmp_path, flush_s=0.1, batch_records=3) as bench:
        disk += ["up/"]
        bench.put(*[begun(key) for key in range(10)])
        bench.step()
        for _ in range(3):
            bench.step(1.0)
            assert "No space left" in bench.outbox.trouble
            bench.put(begun(99))
        disk.clear()
        bench.step(1.0)
        assert bench.outbox.trouble == ""
        bench.step(2.0)
        bench.step(2.0)
        assert [number for batch in bench.events() for number in batch] == list(range(13)), "each once, in order"
        assert [record.message.split(" agent")[0] for record in caplog.records] == [
            "records wait in memory",
            "records are written again",
        ]


@pytest.mark.parametrize("which", ["journal", ".v1", "memory-"])
def test_trouble_with_any_file_loses_and_repeats_nothing(tmp_path: Path, disk: list[str], which: str) -> None:
    with Bench(tmp_path / "agent", flush_s=0.1, batch_records=5, batch_age_s=2.0) as bench:
        for key in range(40):
            if key % 7 == 3:
                disk.append(which)
            elif key % 7 == 6:
                disk.clear()
            bench.put(begun(key))
            bench.step(0.4)
        disk.clear()
        for _ in range(4):
            bench.step(1.5)
        assert [number for batch in bench.events() for number in batch] == list(range(40))
        keys = [each.key for batch in bench.batches() for each in batch.records() if hasattr(each, "key")]
        assert keys == list(range(40))


def test_a_full_spool_gives_up_the_oldest_batches(tmp_path: Path) -> None:
    with Bench(tmp_path, spool_bytes=6_000, flush_s=0.1, batch_records=2, batch_age_s=0.2) as bench:
        told: list[bool] = []
        bench.outbox.given_up = lambda: told.append(True)
        for key in range(150):
            bench.put(begun(key, os.urandom(20)))
            bench.step(0.3)
        assert told
        first, *others = bench.batches()
        (gap,) = [each for each in first.records() if isinstance(each, Gap)]
        assert (gap.batches, first.header.seq) == ((0, first.header.next_seq - 1), 0)
        assert others[0].header.seq == first.header.next_seq
        numbers = [number for batch in bench.events() for number in batch]
        assert gap.events == (0, numbers[0] - 1)
        assert bench.outbox.dropped == numbers[0]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_with_block_a_full_spool_is_trouble_until_there_is_room(tmp_path: Path) -> None:
    with Bench(tmp_path, spool_bytes=6_000, when_full="block", flush_s=0.1, batch_age_s=0.2) as bench:
        put = 0
        while not bench.outbox.trouble:
            bench.put(begun(put, os.urandom(50)))
            put += 1
            bench.step(0.5)
        assert "is full" in bench.outbox.trouble
        numbers = [number for batch in bench.events() for number in batch]
        bench.spool.release(bench.spool.next - 1)
        for _ in range(4):
            bench.step(1.0)
        numbers += [number for batch in bench.events() for number in batch]
        assert (bench.outbox.trouble, numbers) == ("", list(range(put)))


def test_a_journal_does_not_fill_a_small_spool(tmp_path: Path) -> None:
    """Records that are all alike fit into a batch by the hundred, but each is a piece of the journal by itself."""
    most_bytes = 64 << 10
    options: dict[str, Any] = {"when_full": "block", "batch_age_s": 3600, "batch_bytes": 32_000}
    with Bench(tmp_path, spool_bytes=most_bytes, **options) as bench:
        for key in range(950):
            bench.put(begun(key))
            with pytest.raises(TimeoutError):
                bench.outbox.flush(0.0)
            bench.step()
            assert bench.outbox.trouble == ""
            if bench.spool.count:
                bench.spool.release(bench.spool.next - 1)


# What is remembered


def test_progress_is_remembered_whenever_something_was_written(tmp_path: Path) -> None:
    with Bench(tmp_path / "agent", batch_age_s=0.1) as bench:
        bench.put(SourcePayload(STREAM, 4, 0, "x"), begun(0), begun(1), Progress(ALERTS, 7, 5), End(9))
        bench.step()
        bench.step(0.2)
        bench.step(0.2)
        memory = Memory(crashed(tmp_path / "agent"))
        memory.close()
        last = memory.last
        assert last is not None
        assert (last.epoch, last.nonce, last.next_seq, last.next_event) == (EPOCH.counter, EPOCH.nonce, 1, 2)
        assert (last.next_seqs, last.progress, last.ended) == ({"reports": 5}, {"alerts": [7, 5]}, True)


def test_an_epoch_is_remembered_only_when_it_has_told_of_the_one_before(tmp_path: Path, disk: list[str]) -> None:
    with Bench(tmp_path) as bench:
        bench.outbox.begin()
    with Bench(tmp_path, epoch=type(EPOCH)(4, 77)) as bench:
        disk += ["up/"]
        bench.put(Gap("crash: ...", EPOCH.counter, EPOCH.nonce))
        bench.outbox.begin()
        assert bench.outbox.trouble
    memory = Memory(tmp_path)
    memory.close()
    assert memory.last is not None
    assert memory.last.nonce == EPOCH.nonce


def test_what_an_earlier_process_had_no_room_for_comes_first(tmp_path: Path) -> None:
    with Bench(tmp_path / "other", batch_age_s=0.1) as other:
        other.put(begun(0))
        other.step()
        other.step(0.2)
        other.step(0.2)
        (left,) = [entry.data for entry in other.spool.entries()]
    with Bench(tmp_path / "agent", epoch=type(EPOCH)(4, 77)) as bench:
        bench.put(Declared("{}"))
        bench.outbox.begin(left)
        bench.outbox.finish()
        bench.step(1.0)
        with pytest.raises(TimeoutError):
            bench.outbox.flush(0.0)
        bench.step(1.0)
        assert [read_header(entry.data)[0].nonce for entry in bench.spool.entries()] == [EPOCH.nonce, 77]


def test_what_belongs_together_is_on_disk_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may end in the middle of it: then all of it is in the journal before."""
    with Bench(tmp_path / "agent", batch_bytes=100, flush_s=0.1) as bench:
        images: list[Path] = []
        append = bench.spool.append

        def spied(data: bytes) -> int:
            images.append(crashed(tmp_path / "agent", f"before-{len(images)}"))
            number = append(data)
            images.append(crashed(tmp_path / "agent", f"after-{len(images)}"))
            return number

        monkeypatch.setattr(bench.spool, "append", spied)
        bench.put(begun(0), begun(1))
        bench.outbox.put_all([(begun(key, os.urandom(40)), EVENT_BYTES) for key in range(2, 10)])
        bench.put(begun(10))
        bench.outbox.finish()  # so that batches are closed with the very step that takes the records
        bench.step()
        bench.step(0.2)
        assert len(images) > 2
        for image in images:
            found = [each.key for each in records_after_crash(image)]
            assert found == list(range(len(found)))
            assert len(found) in (0, 2) or len(found) >= 10, f"{image.name}: a part of it only"


def test_callers_that_wait_for_room_do_not_wake_each_other(tmp_path: Path) -> None:
    with Bench(tmp_path, when_full="block", memory_bytes=LEAST_MEMORY_BYTES) as bench:
        bench.put(*[begun(key) for key in range(LEAST_MEMORY_BYTES // EVENT_BYTES)])
        waiting = [threading.Thread(target=bench.put, args=(begun(key),), daemon=True) for key in range(2)]
        for thread in waiting:
            thread.start()
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.25, "a hot loop"
        while any(thread.is_alive() for thread in waiting):
            bench.step(1.0)


def test_after_a_defect_memory_does_not_grow(tmp_path: Path) -> None:
    with Bench(tmp_path, memory_bytes=LEAST_MEMORY_BYTES) as bench:
        bench.outbox.fail()
        bench.put(*[begun(key) for key in range(3 * LEAST_MEMORY_BYTES // EVENT_BYTES)])
        assert bench.outbox.held_bytes <= LEAST_MEMORY_BYTES
        assert bench.outbox.dropped > 0

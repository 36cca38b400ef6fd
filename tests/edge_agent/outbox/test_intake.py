"""More than memory can hold."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_agent.outbox.memory import Memory
from protocol.records import Declared, Gap, Progress, SourcePayload
from protocol.wire.sections import pending_sized
from tests.edge_agent.records import (
    ALERTS,
    EPOCH,
    EVENT_BYTES,
    LEAST_MEMORY_BYTES,
    PACKER,
    STREAM,
    Bench,
    begun,
    crashed,
)


def filled(bench: Bench) -> int:
    """Put events until the memory is full; how many that were."""
    count = LEAST_MEMORY_BYTES // EVENT_BYTES
    bench.put(*[begun(key) for key in range(count)])
    return count


def readings(first: int, end: int) -> list[SourcePayload]:
    return [SourcePayload(STREAM, seq, seq, "x" * 300) for seq in range(first, end)]


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


def test_numbers_of_what_was_dropped_are_used_up_only_when_a_gap_on_disk_names_them(
    tmp_path: Path, disk: list[str]
) -> None:
    """A disk that is full takes no batch, but notes, which have their room already; and the process is killed."""
    with Bench(tmp_path / "agent", memory_bytes=LEAST_MEMORY_BYTES, flush_s=0.1, batch_age_s=0.2) as bench:
        bench.put(begun(0), SourcePayload(STREAM, 0, 0, "x"))
        bench.outbox.begin()
        bench.outbox.hurry()
        bench.step()
        disk += ["up/"]
        count = filled(bench)
        bench.put(*[SourcePayload(STREAM, seq, seq, "x" * 300) for seq in range(1, 400)])
        bench.step(1.0)
        assert bench.outbox.trouble and bench.outbox.dropped > count
        with_gap_in_memory = Memory(crashed(tmp_path / "agent"))
        with_gap_in_memory.close()
        disk.clear()
        for _ in range(8):
            bench.step(1.0)
        records = [each for batch in bench.batches() for each in batch.records()]
        with_gap_on_disk = Memory(crashed(tmp_path / "agent", "later"))
        with_gap_on_disk.close()
    last, later = with_gap_in_memory.last, with_gap_on_disk.last
    assert last is not None and later is not None
    assert (last.next_event, last.next_seqs) == (1, {"reports": 1})
    assert len([each for each in records if isinstance(each, Gap)]) == 1, "though it was tried twice"
    assert (later.next_event, later.next_seqs) == (1 + count, {"reports": 400})


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


def test_after_a_moment_of_standing_still_callers_are_slowed_down_again(tmp_path: Path) -> None:
    """A disk that was only slow, once, has not failed: nothing ends that could be waited for."""
    with Bench(tmp_path, memory_bytes=LEAST_MEMORY_BYTES, flush_s=0.1, batch_age_s=0.2) as bench:
        filled(bench)
        bench.put(begun(0))
        dropped = bench.outbox.dropped
        assert dropped, "nobody writes, and that takes too long"
        for _ in range(3):
            bench.step(1.0)
        filled(bench)
        putting = threading.Thread(target=bench.put, args=[begun(0)])
        putting.start()
        bench.step(1.0)
        bench.step(1.0)
        putting.join(5.0)
        assert bench.outbox.dropped == dropped


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


@pytest.mark.parametrize("when_full", ["drop-oldest", "block"])
def test_when_it_is_over_nobody_waits_and_memory_stays_bounded(tmp_path: Path, disk: list[str], when_full: Any) -> None:
    """What those say who come to their end has room yet; whoever goes on and on loses the oldest records, by name."""
    options: dict[str, Any] = {"when_full": when_full, "memory_bytes": LEAST_MEMORY_BYTES, "flush_s": 0.1}
    with Bench(tmp_path, batch_age_s=0.2, **options) as bench:
        count = filled(bench)
        disk += ["up/"]
        bench.outbox.close()
        bench.outbox.pause()
        started = time.monotonic()
        bench.put(*[begun(count + key) for key in range(count)])
        assert bench.outbox.dropped == 0
        bench.outbox.close()  # once more: that makes no more room
        bench.put(*[begun(key) for key in range(3 * count)])
        assert time.monotonic() - started < 1.0
        assert bench.outbox.held_bytes <= 2 * LEAST_MEMORY_BYTES
        disk.clear()
        for _ in range(5):
            bench.step(1.0)
        (gap,) = [each for batch in bench.batches() for each in batch.records() if isinstance(each, Gap)]
        assert gap.events == (0, bench.outbox.dropped - 1)
        written = [number for batch in bench.events() for number in batch]
        assert written == list(range(bench.outbox.dropped, 5 * count))


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


def test_when_nothing_is_written_any_more_what_comes_is_refused_and_each_record_counted(tmp_path: Path) -> None:
    told: list[int] = []
    forgone: list[int] = []
    with Bench(tmp_path, memory_bytes=LEAST_MEMORY_BYTES) as bench:
        bench.outbox.refuse(lambda: told.append(bench.outbox.dropped))
        for key in range(3 * LEAST_MEMORY_BYTES // EVENT_BYTES):
            bench.put(begun(key))
        count = bench.outbox.dropped
        assert (count, told) == (3 * LEAST_MEMORY_BYTES // EVENT_BYTES, list(range(1, count + 1)))
        together = [pending_sized(record, PACKER) for record in (*readings(0, 3), Progress(ALERTS, 3, 3))]
        bench.outbox.put_all(together)
        assert bench.outbox.dropped == count + 3, "three records, and what the next one would say again"
        bench.outbox.after(partial(told.append, -1), 10, partial(forgone.append, 10))
        assert (bench.outbox.dropped, forgone) == (count + 3, [10]), "that is no record"
        bench.outbox.resume()  # the disk is well again, late
        bench.put(begun(0))
        assert (bench.outbox.dropped, bench.outbox.held_bytes, len(told)) == (count + 4, 0, count + 2)


def test_who_is_told_that_a_record_is_refused_does_not_hold_up_others(tmp_path: Path) -> None:
    """A log may have a lock of its own, which another thread holds that captures what is logged."""
    with Bench(tmp_path) as bench:
        putting = threading.Thread(target=bench.put, args=[begun(1)])
        is_held_up: list[bool] = []

        def tell() -> None:
            if threading.current_thread() is not putting:
                putting.start()
                putting.join(5.0)
                is_held_up.append(putting.is_alive())

        bench.outbox.refuse(tell)
        bench.put(begun(0))
        assert (is_held_up, bench.outbox.dropped) == ([False], 2)

"""Disks and spools that are full, and what is remembered meanwhile."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from edge_agent.outbox.memory import Memory
from edge_agent.spool import Spool
from protocol.records import Declared, Delivery, End, Gap, Lost, Origin, OriginKind, Progress, Received, SourcePayload
from protocol.wire.batch import Header, encode_batch, read_header
from protocol.wire.sections import pending, pending_sized
from tests.edge_agent.records import (
    AGENT,
    ALERTS,
    EPOCH,
    EVENT_BYTES,
    PACKER,
    STREAM,
    Bench,
    begun,
    crashed,
    records_after_crash,
)
from tests.support.waiting import wait_until


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


def test_room_in_a_full_spool_is_used_as_soon_as_there_is_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or else a device that has much to catch up with would take a spool's worth a second, however fast the link is."""
    caplog.set_level(logging.WARNING)
    with Bench(tmp_path, spool_bytes=8_000, when_full="block", flush_s=0.1, batch_records=2) as bench:
        bench.put(*[begun(key, os.urandom(50)) for key in range(300)])
        numbers: list[int] = []
        bench.step()
        bench.step(0.2)
        begun_at = bench.now
        for _ in range(100):
            numbers += [number for batch in bench.events() for number in batch]
            if not bench.outbox.trouble:
                break
            bench.spool.release(bench.spool.next - 1)
            bench.step(0.01)
        assert numbers == list(range(300)) and bench.now - begun_at < 1.0
        for _ in range(3):  # full again, and not for long
            bench.put(*[begun(key, os.urandom(50)) for key in range(100)])
            bench.step()
            bench.step(0.2)
            assert bench.outbox.trouble
            while bench.outbox.trouble:
                bench.spool.release(bench.spool.next - 1)
                bench.step(0.01)
        told = [record.message.split(" agent")[0] for record in caplog.records]
        assert told == ["records wait in memory", "records are written again"], "told now and then, not each time"


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
        bench.outbox.begin([left])
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


def test_what_belongs_together_and_exceeds_the_spool_is_given_up_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It could never be written at once. What was taken of others for it is remembered, and what follows is written."""
    origins = tuple([Origin(OriginKind.SOURCE, STREAM, seq, seq) for seq in range(200)])
    results = [Delivery(ALERTS, seq, seq, seq, origins) for seq in range(5, 155)]
    received = Received("sender", "s", 7, 41, 1)
    promise = Progress(ALERTS, 155, 155)
    with Bench(tmp_path) as bench:
        bench.put(SourcePayload(STREAM, 0, 0, "before"))
        bench.outbox.put_all([pending_sized(each, PACKER) for each in (*results, received, promise)])
        bench.put(SourcePayload(STREAM, 1, 1, "after"))
        for _ in range(3):
            bench.step(1.0)
        told = [record for batch in bench.batches() for record in batch.records()]
        assert bench.outbox.held_bytes == 0
        assert (bench.outbox.dropped, bench.outbox.trouble) == (150, "")
        assert bench.outbox.state.positions == {"sender/s": [7, 41]}
    (gap,) = [each for each in told if isinstance(each, Gap)]
    assert gap.tuples == (Lost("alerts", 5, 154),)
    assert [each.seq for each in told if isinstance(each, SourcePayload)] == [0, 1]
    assert [each for each in told if isinstance(each, (Received, Progress))] == [promise, received]
    assert "exceed the spool" in caplog.text


def test_what_is_no_batch_does_not_keep_a_full_spool_from_giving_up_others(tmp_path: Path) -> None:
    """An agent that died of it would die of it at every start."""
    with Bench(tmp_path, spool_bytes=64 << 10) as bench:
        bench.spool.append(encode_batch(Header(1, 1, 0), [pending(End(0), PACKER)], AGENT)[:-1])
        bench.spool.append(b"\x01")
        for key in range(200):
            bench.put(begun(key, os.urandom(500)))
            bench.step(1.0)
        bench.step(1.0)
        assert bench.outbox.trouble == ""
        assert bench.spool.lost == [range(2)]
        told = [record for batch in bench.batches() for record in batch.records()]
    (gap,) = [each for each in told if isinstance(each, Gap)]
    assert gap.events is not None
    kept = [each.number for each in told if hasattr(each, "number")]
    assert [*range(gap.events[1] + 1), *kept] == list(range(200))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_segments_of_short_starts_are_synced_without_taking_up_all_handles(tmp_path: Path) -> None:
    """A program that runs every minute leaves a segment each time, for as long as nobody takes them."""
    for number in range(100):
        with Spool.open(tmp_path / "up") as spool:
            spool.append(encode_batch(Header(1, 1, number), [pending(End(0), PACKER)], AGENT))
    with Bench(tmp_path) as bench:
        handles = [open_files()]
        for key in range(60):
            bench.put(begun(key))
            bench.step(0.2)
            handles.append(open_files())
            wait_until(lambda: not bench.outbox._syncer.busy, "the syncer", every_s=0.001)
        assert all(segment.is_synced for segment in bench.spool._segments.all[:-1])
        assert max(handles) - handles[0] < 40

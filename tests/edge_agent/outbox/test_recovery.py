from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from edge_agent.epoch import Epoch
from edge_agent.outbox.memory import Memory, Progressed
from edge_agent.outbox.pieces import Piece, encode_piece
from edge_agent.outbox.recovery import CRASH, DAMAGE, close_journal, gap_after_crash
from edge_agent.spool import Spool, SpoolFull
from protocol.records import Assertion, Declared, Delivery, End, Gap, Lost, Progress, Received, SourcePayload
from protocol.wire.batch import Header, decode_batch, encode_batch
from protocol.wire.sections import Kind, pending
from tests.edge_agent.records import AGENT, ALERTS, EPOCH, PACKER, STREAM, Bench, begun, crashed, ended, path_of

NOW = Epoch(1, 9)


def rows(*records: Any) -> list[Any]:
    return [each if isinstance(each, tuple) and each[0] is Kind.EVENT else pending(each, PACKER) for each in records]


def batch(seq: int, *records: Any, first_event: int = 0, nonce: int = EPOCH.nonce, epoch: int = EPOCH.counter) -> bytes:
    return encode_batch(Header(epoch, nonce, seq), rows(*records), AGENT, first_event=first_event)


def piece(seq: int, *records: Any, first_event: int = 0) -> bytes:
    header = Header(EPOCH.counter, EPOCH.nonce, seq)
    return encode_piece(Piece(header, first_event, rows(*records)))


def numbers(data: bytes) -> list[int]:
    return [each.number for each in decode_batch(data, AGENT).records() if hasattr(each, "number")]


# The journal


def test_the_pieces_of_a_batch_become_the_batch(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        assert close_journal(spool, AGENT) == []
        assert spool.count == 0
        spool.append(batch(0, begun(0)))
        spool.journal(piece(1, begun(1), Progress(ALERTS, 1, 1), first_event=1))
        spool.journal(piece(1, begun(2), Progress(ALERTS, 2, 2), first_event=2))
    with Spool.open(tmp_path) as spool:
        assert close_journal(spool, AGENT) == []
        _, last = spool.entries()
        assert numbers(last.data) == [1, 2]
        header = decode_batch(last.data, AGENT).header
        assert (header.nonce, header.epoch, header.seq, header.covers) == (EPOCH.nonce, EPOCH.counter, 1, 1)
    with Spool.open(tmp_path) as spool:
        assert spool.recovered_journal == []
        assert spool.count == 2


def test_pieces_for_the_batch_after_it_are_told_once(tmp_path: Path) -> None:
    """The process died when it had journaled the rest of a batch for the next one, and not written the batch."""
    with Spool.open(tmp_path) as spool:
        spool.journal(piece(0, begun(0)), 0)
        spool.journal(piece(0, begun(1), first_event=1), 0)
        spool.journal(piece(1, begun(1), first_event=1), 1)
    with Spool.open(tmp_path) as spool:
        close_journal(spool, AGENT)
        (entry,) = spool.entries()
        assert numbers(entry.data) == [0, 1]


def test_a_journal_for_which_there_is_no_room_is_handed_on(tmp_path: Path) -> None:
    with Spool.open(tmp_path, max_bytes=8_000) as spool:
        while spool.size_bytes < 7_700:
            spool.append(os.urandom(60))
        spool.journal(piece(spool.next, begun(7), first_event=7))  # small: to give it up makes no room for a batch
    with Spool.open(tmp_path, max_bytes=8_000) as spool:
        (left,) = close_journal(spool, AGENT)
        assert numbers(left) == [7]


def test_a_journal_that_fills_the_spool_makes_room_for_its_own_batch(tmp_path: Path) -> None:
    with Spool.open(tmp_path, max_bytes=8_000) as spool:
        for number in range(1_000):
            try:
                spool.journal(piece(0, begun(number), first_event=number))
            except SpoolFull:
                break
    with Spool.open(tmp_path, max_bytes=8_000) as spool:
        assert close_journal(spool, AGENT) == []
        (entry,) = spool.entries()
        assert numbers(entry.data) == list(range(number))
        assert spool.size_bytes < 4_000


def test_a_journal_that_cannot_be_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Spool.open(tmp_path) as spool:
        spool.journal(b"\x09")
    with Spool.open(tmp_path) as spool:
        assert close_journal(spool, AGENT) == []
        assert spool.count == 0
    assert "the journal cannot be read" in caplog.text


# The end of the last epoch


def test_the_first_start_and_a_clean_end_leave_no_gap(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        assert gap_after_crash(spool, None, AGENT, [], NOW) is None
        assert gap_after_crash(spool, Progressed(1, 5, ended=True), AGENT, [], NOW) is None
        spool.append(batch(0, End(1)))
        assert gap_after_crash(spool, Progressed(EPOCH.counter, EPOCH.nonce), AGENT, [], NOW) is None


@pytest.mark.parametrize("ended", [True, False])
def test_batches_that_the_disk_has_lost_at_the_end_are_named(
    tmp_path: Path, ended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Bench(tmp_path, batch_age_s=0.1) as bench:
        for key in range(6):
            bench.put(begun(key))
            bench.step()
            bench.step(0.2)
            bench.step(0.2)
        if ended:
            bench.put(End(9))
            bench.step()
            bench.step(0.2)
            bench.step(0.2)
        written = bench.spool.count
    (segment,) = [path for path in (tmp_path / "up").iterdir() if ".v" in path.name]
    os.truncate(segment, segment.stat().st_size // 2)
    with Bench(tmp_path) as after:
        held = after.spool.count
        assert 0 < held < written
        gap = gap_after_crash(after.spool, after.memory.last, AGENT, [], NOW)
        assert gap is not None
        assert gap.reason == (DAMAGE if ended else f"{CRASH}; {DAMAGE}")
        assert (gap.batches, gap.nonce, gap.next_event) == ((held, written - 1), EPOCH.nonce, 6)
    assert f"batches cannot be read count={written - held}" in caplog.text


def test_batches_that_are_lost_before_others_are_told_of_too(tmp_path: Path) -> None:
    """They may be the last ones of an earlier start, which the cloud could not miss."""
    last = Progressed(EPOCH.counter, EPOCH.nonce, 1, 1, True, spool_next=3)
    with Spool.open(tmp_path) as spool:
        spool.append(batch(0, begun(0), nonce=1, epoch=1))
        spool.append(batch(1, begun(1), nonce=1, epoch=1, first_event=1))
        spool.append(batch(0, begun(0), End(1)))
    (segment,) = [path for path in tmp_path.iterdir() if ".v" in path.name]
    content = bytearray(segment.read_bytes())
    content[content.index(batch(1, begun(1), nonce=1, epoch=1, first_event=1)) + 12] ^= 0x55
    segment.write_bytes(content)
    with Spool.open(tmp_path) as spool:
        assert (spool.count, spool.lost) == (2, [range(1, 2)])
        gap = gap_after_crash(spool, last, AGENT, [], NOW)
        assert gap is not None and (gap.reason, gap.batches) == (DAMAGE, None)


def test_a_spool_of_which_nothing_is_left_is_not_taken_for_one_that_was_sent(tmp_path: Path) -> None:
    with Bench(tmp_path, batch_age_s=0.1) as bench:
        bench.put(begun(0), End(9))
        bench.step()
        bench.step(0.2)
        bench.step(0.2)
        folder = crashed(tmp_path, tmp_path.name + "-sent")
        assert bench.spool.count == 1
    shutil.rmtree(tmp_path / "up")
    with Bench(tmp_path) as after:
        gap = gap_after_crash(after.spool, after.memory.last, AGENT, [], NOW)
        assert gap is not None and (gap.reason, gap.batches) == (DAMAGE, (0, 0))
    with Bench(folder) as sent:
        sent.spool.release(0)
    with Bench(folder) as after:
        assert gap_after_crash(after.spool, after.memory.last, AGENT, [], NOW) is None


def test_a_crash_is_told_with_what_was_remembered(tmp_path: Path) -> None:
    last = Progressed(3, 9, 7, 12, False, {"reports": 4, "alerts": 2}, {"alerts": [50, 40]})
    with Spool.open(tmp_path) as spool:
        gap = gap_after_crash(spool, last, AGENT, [], NOW)
    expected = Gap(
        CRASH, 3, 9, progress=(("alerts", 50, 40),), next_seqs=(("alerts", 2), ("reports", 4)), next_event=12
    )
    assert gap == expected


def test_what_was_written_after_it_was_last_remembered_counts(tmp_path: Path) -> None:
    last = Progressed(EPOCH.counter, EPOCH.nonce, 1, 2, False, {"alerts": 1}, {"alerts": [5, 5]})
    with Spool.open(tmp_path) as spool:
        spool.append(batch(0, begun(0), begun(1)))  # known
        spool.append(
            batch(
                1,
                begun(2),
                Delivery(ALERTS, 1, 0, "x", ()),
                SourcePayload(STREAM, 0, 0, "x"),
                Assertion(STREAM._replace(name="keys"), 6, 0, 0),
                Progress(ALERTS, 9, 8),
                Received("b", "s", 77, 4, 5),
                first_event=2,
            )
        )
        gap = gap_after_crash(spool, last, AGENT, [], NOW)
        assert gap is not None
        assert (gap.progress, gap.next_event) == ((("alerts", 9, 8),), 3)
        assert gap.next_seqs == (("alerts", 2), ("keys", 7), ("reports", 1))
        assert last.positions == {"b/s": [77, 4]}


def test_numbers_of_what_is_known_to_be_lost_are_used_up(tmp_path: Path) -> None:
    lost = Gap("dropped: ...", EPOCH.counter, EPOCH.nonce, None, (Lost("reports", 0, 5),), (0, 9))
    with Spool.open(tmp_path) as spool:
        spool.append(batch(0, lost))
        gap = gap_after_crash(spool, Progressed(EPOCH.counter, EPOCH.nonce), AGENT, [], NOW)
        assert gap is not None
        assert (gap.next_seqs, gap.next_event) == ((("reports", 6),), 10)


def test_batches_of_older_epochs_say_nothing_about_the_last_one(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append(batch(5, begun(0), End(0), nonce=4, epoch=1, first_event=99))
        gap = gap_after_crash(spool, Progressed(EPOCH.counter, EPOCH.nonce), AGENT, [], NOW)
        assert gap is not None
        assert (gap.nonce, gap.next_event) == (EPOCH.nonce, 0)


def test_an_epoch_that_nobody_remembers_is_known_by_its_batches(tmp_path: Path) -> None:
    """It had written how the one before had ended, and died before it was remembered itself."""
    crash = Gap(CRASH, 1, 4, next_event=3)
    with Spool.open(tmp_path) as spool:
        spool.append(batch(0, crash, Declared("{}"), begun(0)))
        gap = gap_after_crash(spool, Progressed(1, 4, 9, 3, False, {"alerts": 8}), AGENT, [], NOW)
        assert gap is not None
        assert (gap.epoch, gap.nonce, gap.next_event, gap.next_seqs) == (EPOCH.counter, EPOCH.nonce, 1, ())


def test_what_is_still_to_be_written_counts(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        left = [batch(0, begun(0), begun(1))]
        gap = gap_after_crash(spool, Progressed(EPOCH.counter, EPOCH.nonce), AGENT, left, NOW)
        assert gap is not None
        assert gap.next_event == 2


def test_an_entry_that_cannot_be_read_is_reported_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with Spool.open(tmp_path) as spool:
        spool.append(b"\x00")
        spool.append(batch(0, begun(0)))
        gap = gap_after_crash(spool, Progressed(EPOCH.counter, EPOCH.nonce), AGENT, [], NOW)
        assert gap is not None
        assert gap.next_event == 1
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("grouping", ["all", "ended"])
def test_after_a_kill_at_any_write_the_gap_begins_where_the_records_end(tmp_path: Path, grouping: str) -> None:
    """A process is killed before and after each of its writes; the next one knows exactly how far it had come."""
    folder = tmp_path / "agent"
    copies: list[Path] = []
    with Bench(folder, flush_s=0.1, batch_records=3, batch_age_s=0.5, grouping=grouping) as bench:
        for owner, name in ((bench.spool, "append"), (bench.spool, "journal"), (bench.memory, "keep")):
            real = getattr(owner, name)

            def spied(*args: Any, real: Any = real, **options: Any) -> Any:
                copies.append(crashed(folder, f"{len(copies)}"))
                return real(*args, **options)

            setattr(owner, name, spied)
        bench.outbox.begin()
        for key in range(16):
            bench.put(begun(key), ended(key))
            bench.step(0.15)
    assert len(copies) > 20
    for copy in copies[2:]:
        with Bench(copy) as after:
            assert close_journal(after.spool, AGENT) == []
            gap = gap_after_crash(after.spool, after.memory.last, AGENT, [], NOW)
            found = [number for numbers in after.events() for number in numbers]
            assert found == list(range(len(found)))
            assert gap is not None
            assert gap.next_event == len(found)


# What released batches have told


def not_now() -> None:
    raise OSError("the power was cut before it was done")


def test_what_batches_told_is_known_though_they_are_released_and_a_power_cut_has_taken_the_notes(
    tmp_path: Path,
) -> None:
    with Bench(tmp_path / "agent", fsync="batch", flush_s=0.1, batch_records=1) as bench:
        bench.spool._segment_bytes = 1  # every batch has its own, which can be deleted
        bench.outbox.begin()
        notes = {path.name: path.read_bytes() for path in (tmp_path / "agent").glob("memory-*")}
        for sender in ("car-7", "car-8", "car-8"):
            bench.put(Received(sender, "sums", 77, 3))
            bench.step(0.11)
            bench.step(0.11)
        bench.spool.before_deleting = not_now
        bench.spool.release(bench.spool.next - 1)
        after = crashed(tmp_path / "agent")
    for name, content in notes.items():
        (after / name).write_bytes(content)
    spool, memory = Spool.open(after / "up", fsync="batch"), Memory(after)
    assert close_journal(spool, AGENT) == []
    spool.append(b"the next process begins a segment")
    gap_after_crash(spool, memory.last, AGENT, [], NOW)
    assert memory.last is not None
    assert memory.last.positions == {"car-7/sums": [77, 3], "car-8/sums": [77, 3]}


def test_batches_leave_the_disk_only_when_what_they_told_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(path_of(fd)).name))
    with Bench(tmp_path, spool_bytes=8_000, fsync="interval", flush_s=0.1, batch_records=1) as bench:
        bench.outbox.begin()
        for seq in range(1, 40):
            bench.put(Received("car-8", "sums", 77, seq))
            bench.step(0.11)
            bench.step(0.11)
        segments = sorted((tmp_path / "up").glob("*.v1"))
        synced.clear()
        bench.spool.release(bench.spool.next - 1)
        assert len(list((tmp_path / "up").glob("*.v1"))) < len(segments)
        assert any(name.startswith("memory-") for name in synced)
        last = Memory(tmp_path).last
    assert last is not None
    assert last.positions == {"car-8/sums": [77, 39]}


def test_batches_of_an_earlier_start_are_missed_though_the_one_after_it_had_written_none(tmp_path: Path) -> None:
    """Killed; started again, which is noted; then a power cut takes the first start's batches, and what the second one
    had told of it, but not the note."""
    folder = tmp_path / "agent"
    folder.mkdir()
    with Bench(folder, fsync="never") as first:
        for key in range(10):
            first.put(begun(key))
            first.outbox.hurry()
            first.step()
        assert first.spool.next == 10
    after = crashed(folder)
    with Bench(after, epoch=Epoch(EPOCH.counter + 1, 77)) as second:
        second.outbox.begin()
    newest = max((after / "up").glob("0*.v1"))
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    (after / "up" / "journal").unlink(missing_ok=True)
    with Bench(after, epoch=Epoch(EPOCH.counter + 2, 78)) as third:
        assert third.spool.next < 10
        gap = gap_after_crash(third.spool, third.memory.last, AGENT, [], NOW)
    assert gap is not None
    assert DAMAGE in gap.reason

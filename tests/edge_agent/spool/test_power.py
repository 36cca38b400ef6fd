"""What was promised to be safe is there after a power cut, though the disk keeps only what was synced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.spool import Fsync, Spool, SpoolUnwritable, Unsynced
from tests.edge_agent.spool.folders import contents, ones, segments
from tests.edge_agent.spool.strict_disk import PowerCut, StrictDisk

POLICIES: list[Fsync] = ["batch", "interval", "never"]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StrictDisk:
    return StrictDisk(tmp_path / "spool", monkeypatch)


def after_kill(disk: StrictDisk, spool: Spool, **options: Fsync) -> Spool:
    """The spool as the next process opens it."""
    disk.kill()
    return opened_anew(disk, spool, **options)


def after_power_cut(disk: StrictDisk, spool: Spool, **options: Fsync) -> Spool:
    """The spool as the next process opens it when the power is back."""
    disk.cut_power()
    return opened_anew(disk, spool, **options)


def opened_anew(disk: StrictDisk, gone: Spool, **options: Fsync) -> Spool:
    gone._lock_fd = gone._folder_fd = -1  # its handles are closed, and their numbers are others' now
    return Spool.open(disk.folder, **options)


def told(spool: Spool) -> list[bytes]:
    return [entry.data for entry in spool.entries()] + spool.recovered_journal


def finish(unsynced: Unsynced) -> None:
    for handle in unsynced.handles:
        os.fdatasync(handle)
        os.close(handle)


# Names


def test_a_segment_that_a_killed_process_has_named_is_safe_before_its_pieces_are_written_over(disk: StrictDisk) -> None:
    """A power cut may take the name of a segment that the last process gave and did not come to sync."""
    spool = Spool.open(disk.folder, fsync="never")
    spool.journal(b"flushed")
    spool.sync(force=True)
    spool.append(b"flushed")
    spool = after_kill(disk, spool, fsync="never")
    assert not spool.is_synced
    spool.sync(force=True)
    assert spool.is_synced
    spool.journal(b"later")
    spool.sync(force=True)
    with after_power_cut(disk, spool, fsync="never") as after:
        assert told(after) == [b"flushed", b"later"]


def test_a_journal_that_a_killed_process_has_made_is_in_the_folder_for_good_when_a_piece_is_safe(
    disk: StrictDisk,
) -> None:
    """A power cut may take the journal as a whole, if only the process that made it would sync its name."""
    spool = Spool.open(disk.folder)
    spool.append(b"zero")
    spool.journal(b"one")
    spool.append(b"one")
    spool = after_kill(disk, spool)
    spool.journal(b"flushed")
    spool.sync()
    with after_power_cut(disk, spool) as after:
        assert told(after) == [b"zero", b"one", b"flushed"]


def test_what_another_thread_is_to_sync_is_not_safe_before_it_has(disk: StrictDisk) -> None:
    """A power cut may come while another thread waits for the disk."""
    spool = Spool.open(disk.folder)
    spool.journal(b"flushed")
    aside = spool.unsynced()
    assert aside is not None and not spool.is_synced
    spool.sync(force=True)
    assert spool.is_synced
    with after_power_cut(disk, spool) as after:
        assert told(after) == [b"flushed"]


def test_a_name_that_was_given_while_another_thread_synced_is_not_safe(disk: StrictDisk) -> None:
    """A power cut may take the name of a segment that came after the other thread had been given its orders."""
    spool = Spool.open(disk.folder, fsync="never")
    spool.append(b"zero")
    aside = spool.unsynced()
    assert aside is not None
    finish(aside)
    spool._segment_bytes = 1
    spool.append(b"one")
    spool.synced(aside)
    assert not spool.is_synced
    spool.sync(force=True)
    with after_power_cut(disk, spool) as after:
        assert told(after) == [b"zero", b"one"]


def test_a_sync_that_failed_on_another_thread_has_made_no_name_safe(disk: StrictDisk) -> None:
    """A power cut may take a name of which the disk has said that it could not be synced."""
    spool = Spool.open(disk.folder, fsync="never")
    spool.append(b"zero")
    aside = spool.unsynced()
    assert aside is not None
    spool.synced(aside, failed=True)
    spool.sync(force=True)
    with after_power_cut(disk, spool) as after:
        assert told(after) == [b"zero"]


def test_no_handle_stays_open_if_one_of_them_cannot_be_had(disk: StrictDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError("too many open files")

    with Spool.open(disk.folder) as spool:
        spool.append(b"zero")
        spool.journal(b"piece")
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr("edge_agent.spool.journal.Journal.handle", lambda journal: refuse())
            with pytest.raises(SpoolUnwritable, match="too many open files"):
                spool.unsynced()
        assert len(os.listdir("/proc/self/fd")) == before

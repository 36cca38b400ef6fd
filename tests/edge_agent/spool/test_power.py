"""What was promised to be safe is there after a power cut, though the disk keeps only what was synced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.spool import Fsync, Spool, SpoolUnwritable, Unsynced
from tests.edge_agent.spool.folders import contents, segments
from tests.edge_agent.spool.strict_disk import PowerCut, StrictDisk

POLICIES: list[Fsync] = ["batch", "interval", "never"]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StrictDisk:
    return StrictDisk(tmp_path / "spool", monkeypatch)


def after_kill(disk: StrictDisk, spool: Spool, fsync: Fsync = "interval") -> Spool:
    """The spool as the next process opens it."""
    disk.kill()
    return opened_anew(disk, spool, fsync)


def after_power_cut(disk: StrictDisk, spool: Spool, fsync: Fsync = "interval") -> Spool:
    """The spool as the next process opens it when the power is back."""
    disk.cut_power()
    return opened_anew(disk, spool, fsync)


def opened_anew(disk: StrictDisk, gone: Spool, fsync: Fsync) -> Spool:
    gone._folder._lock_fd = gone._folder._fd = -1  # its handles are closed, and their numbers are others' now
    return Spool.open(disk.folder, fsync=fsync)


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
        before = list(Path("/proc/self/fd").iterdir())
        with monkeypatch.context() as patch:
            patch.setattr("edge_agent.spool.journal.Journal.handle", lambda journal: refuse())
            with pytest.raises(SpoolUnwritable, match="too many open files"):
                spool.unsynced()
        assert list(Path("/proc/self/fd").iterdir()) == before


# Pieces for two entries


@pytest.mark.parametrize("fsync", POLICIES)
def test_a_kill_between_the_pieces_for_a_later_entry_and_the_entry_loses_nothing(
    disk: StrictDisk, fsync: Fsync
) -> None:
    """Nor does a power cut, at any moment in which the next process makes the entry of the pieces."""
    spool = Spool.open(disk.folder, fsync=fsync)
    spool.journal(b"a b")
    spool.journal(b"b", 1)
    spool.sync(force=True)
    spool = after_kill(disk, spool, fsync=fsync)
    assert (spool.recovered_journal, spool.next, spool.lost) == ([b"a b", b"b"], 1, [])
    cuts = 0
    while spool.recovered_journal:
        disk.cut_after(cuts)
        with pytest.raises(PowerCut):
            spool.append(b"a b")
            spool.sync(force=True)
        disk.keep_names()  # but not what is in the files
        spool = after_power_cut(disk, spool, fsync=fsync)
        assert b"a b" in told(spool)
        assert spool.lost == []
        cuts += 1
    assert cuts == 3, "before the folder, the entry and its name are synced"
    with spool:
        assert contents(spool) == [(0, 1, b"a b")]
        assert spool.append(b"c") == 2


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_two_power_cuts_leave_what_was_flushed_before_the_first(disk: StrictDisk, fsync: Fsync) -> None:
    """The first may take entries and leave pieces that were written before and after them, the second comes when the
    next process has made an entry of these."""
    spool = Spool.open(disk.folder, fsync=fsync)
    spool.journal(b"flushed")
    spool.sync(force=True)
    spool.append(b"flushed")
    spool.append(b"one")
    spool.journal(b"two")
    os.fsync(spool._journal._opened())  # the system may write it whenever it likes
    if fsync == "interval":
        segments(disk.folder)[0].unlink()
        disk.keep_names()
    spool = after_power_cut(disk, spool, fsync=fsync)
    assert (spool.recovered_journal, spool.next, spool.lost) == ([b"flushed", b"two"], 2, [range(1)])
    spool.append(b"flushed")
    disk.keep_names()
    with after_power_cut(disk, spool, fsync=fsync) as after:
        assert told(after) == [b"flushed"]


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_entries_are_safe_before_an_entry_of_recovered_pieces_has_its_name(disk: StrictDisk, fsync: Fsync) -> None:
    """A power cut may take an entry that a killed process has left, and leave the segment after it."""
    spool = Spool.open(disk.folder, fsync=fsync)
    spool.journal(b"flushed")
    spool.sync(force=True)
    spool.append(b"flushed")
    spool.journal(b"a b")
    spool.journal(b"b", 2)
    spool = after_kill(disk, spool, fsync)
    assert spool.append(b"a b") == 2
    disk.keep_names()
    with after_power_cut(disk, spool, fsync) as after:
        assert told(after) == [b"flushed", b"a b"]


def test_entries_are_safe_before_pieces_of_later_ones(disk: StrictDisk) -> None:
    """A power cut during a sync may leave a part of it; pieces without the entries before them would be told of."""
    spool = Spool.open(disk.folder, fsync="never")
    spool.append(b"zero")
    spool.journal(b"one")
    disk.cut_before = lambda name: name == "journal"
    with pytest.raises(PowerCut):
        spool.sync(force=True)
    with after_power_cut(disk, spool) as after:
        assert (told(after), after.lost) == ([b"zero"], [])


def test_what_is_given_up_does_not_make_pieces_obsolete_that_are_still_needed(disk: StrictDisk) -> None:
    """A power cut may come when room was made for what the pieces have become, and before that is written."""
    spool = Spool.open(disk.folder)
    spool.append(b"zero")
    spool.journal(b"a b")
    spool.journal(b"b", 2)
    spool.sync()
    spool = after_kill(disk, spool)
    spool.replace_oldest(b"gap")
    spool = after_power_cut(disk, spool)
    assert (told(spool), spool.lost) == ([b"gap", b"a b", b"b"], [])
    assert spool.append(b"a b") == 2
    spool = after_power_cut(disk, spool)
    assert told(spool) == [b"gap", b"a b", b"b"], "the name was not synced, and the pieces are still there"
    spool.append(b"a b")
    spool.sync()
    with after_power_cut(disk, spool) as after:
        assert contents(after) == [(0, 0, b"gap"), (1, 2, b"a b")]


def test_a_full_disk_takes_what_the_pieces_have_become_later(disk: StrictDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool.open(disk.folder)
    spool.journal(b"a b")
    spool.journal(b"b", 1)
    with after_kill(disk, spool) as after:
        size_bytes = after.size_bytes
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", lambda fd, data, offset: 0)
            with pytest.raises(SpoolUnwritable, match="No space left"):
                after.append(b"a b")
        assert not (disk.folder / "draft").exists()
        assert (after.size_bytes, after.next, contents(after)) == (size_bytes, 1, [])
        assert after.append(b"a b") == 1
        assert after.size_bytes == size_bytes + segments(disk.folder)[0].stat().st_size


# Deleting


@pytest.mark.parametrize("fsync", POLICIES)
def test_numbers_go_on_when_released_entries_were_deleted(disk: StrictDisk, fsync: Fsync) -> None:
    """A power cut may take the name of the newest segment, which alone knows the next number, and not the others'."""
    spool = Spool.open(disk.folder, fsync=fsync, segment_bytes=1)
    for number in range(3):
        spool.append(b"%d" % number)
        spool.release(number)
    assert [int(path.stem) for path in segments(disk.folder)] == [2]
    with after_power_cut(disk, spool, fsync) as after:
        assert after.next >= 2


def test_released_entries_stay_while_the_name_of_the_newest_segment_is_not_safe(
    disk: StrictDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may take a name that the disk has refused to sync."""
    strict_sync = os.fsync

    def refuse(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == disk.folder:
            raise OSError("broken")
        strict_sync(fd)

    spool = Spool.open(disk.folder, segment_bytes=1)
    spool.append(b"zero")
    spool.release(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(SpoolUnwritable, match="broken"):
            spool.append(b"one")
        assert spool.append(b"one") == 1
        spool.release(1)
        assert [int(path.stem) for path in segments(disk.folder)] == [0, 1]
    spool.delete_released()
    assert [int(path.stem) for path in segments(disk.folder)] == [1]
    with after_power_cut(disk, spool) as after:
        assert after.next >= 1


def test_what_was_replaced_is_deleted_only_when_the_replacement_has_its_name_for_good(
    disk: StrictDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may give the old segment its name back, and take the names of those that were replaced with it."""
    happened: list[str] = []
    spool = Spool.open(disk.folder, segment_bytes=1)
    for number in range(3):
        spool.append(b"%d" % number)
    spool.replace_oldest(b"gap")
    disk.cut_before = disk.folder.name.__eq__
    with pytest.raises(PowerCut):
        spool.replace_oldest(b"gap of two")
    disk.cut_before = lambda name: False
    strict_sync, unlink = os.fsync, os.unlink

    def noting_sync(fd: int) -> None:
        happened.append("sync")
        strict_sync(fd)

    def noting_unlink(path: str) -> None:
        happened.append(Path(path).name)
        unlink(path)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "unlink", noting_unlink)
    with after_kill(disk, spool) as after:
        assert contents(after) == [(0, 1, b"gap of two"), (2, 2, b"2")]
    assert [name for name in happened if name != "draft"][:2] == ["sync", f"{1:020}.v1"]

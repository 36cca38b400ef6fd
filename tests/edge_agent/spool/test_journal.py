from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.spool import Fsync, Spool, Unsynced
from tests.edge_agent.spool.folders import contents, crashed, ones, spoil

POLICIES: list[Fsync] = ["batch", "interval", "never"]


@pytest.mark.parametrize("fsync", POLICIES)
def test_pieces_are_recovered_until_their_entry_is_there(tmp_path: Path, fsync: Fsync) -> None:
    """Before and after every call, a crash shows either the entry or its pieces."""
    folder = tmp_path / "spool"
    with Spool.open(folder, fsync=fsync) as spool:
        for number in range(6):
            for count in range(4):
                folder_then = crashed(folder)
                with Spool.open(folder_then) as after:
                    assert after.recovered_journal == [b"%d.%d" % (number, piece) for piece in range(count)]
                    assert (after.next, after.lost) == (number, [])
                spool.journal(b"%d.%d" % (number, count), number)
                folder_then.rename(tmp_path / f"{number}.{count}")
            spool.append(b"%d" % number)
            if number == 3:
                spool.sync(force=True)
    with Spool.open(folder, fsync=fsync) as spool:
        assert spool.recovered_journal == []
        assert list(spool.entries()) == ones(*(b"%d" % number for number in range(6)))


def test_recovered_pieces_stay_until_the_new_process_has_appended(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.journal(b"one")
        spool.journal(b"two")
    for _ in range(2):
        with Spool.open(tmp_path) as spool:
            spool.sync()
            assert spool.recovered_journal == [b"one", b"two"]
    with Spool.open(tmp_path) as spool:
        spool.journal(b"three")
    with Spool.open(tmp_path) as spool:
        assert spool.recovered_journal == [b"one", b"two", b"three"]
        assert spool.append(b"one two three") == 0
    with Spool.open(tmp_path) as spool:
        assert spool.recovered_journal == []


@pytest.mark.parametrize("fsync", POLICIES)
def test_the_journal_does_not_grow_without_bound(tmp_path: Path, fsync: Fsync) -> None:
    with Spool.open(tmp_path, max_bytes=1 << 20, fsync=fsync) as spool:
        for number in range(100):
            for _ in range(10):
                spool.journal(b"p" * 100, number)
            if number % 7 == 3:
                spool.sync()
            spool.append(b"e")
        assert (tmp_path / "journal").stat().st_size <= (1 << 20) // 32 + 2000
        for _ in range(1000):
            spool.journal(b"p" * 100)
        assert (tmp_path / "journal").stat().st_size > 100_000
        spool.append(b"e")
        spool.sync()
        assert (tmp_path / "journal").stat().st_size == 0
        assert spool.size_bytes < 100_000


def test_synced_pieces_are_not_overwritten_before_their_entry_is_synced(tmp_path: Path) -> None:
    """A power cut may take the entry and keep what was written to the journal after it."""
    with Spool.open(tmp_path) as spool:
        spool.append(b"zero")
        spool.sync()
        good = {path: path.read_bytes() for path in tmp_path.glob("*.v1")}
        spool.journal(b"for one")
        spool.sync()
        spool.append(b"one")
        spool.journal(b"for two")
    for path, data in good.items():
        path.write_bytes(data)
    with Spool.open(tmp_path) as spool:
        assert spool.recovered_journal == [b"for one", b"for two"]
        assert (spool.next, spool.lost) == (2, []), "what was in the first is still to be made"
        assert spool.append(b"one, made again") == 2
    with Spool.open(tmp_path) as spool:
        assert (spool.recovered_journal, spool.lost) == ([], [])
        assert contents(spool) == [(0, 0, b"zero"), (1, 2, b"one, made again")]
        spool.release(2)
    with Spool.open(tmp_path) as spool:
        assert spool.lost == []


def test_entries_between_the_pieces_that_a_power_cut_has_left_are_lost(tmp_path: Path) -> None:
    """A power cut may take entries that were not synced, and keep pieces that were written before and after them."""
    with Spool.open(tmp_path) as spool:
        spool.journal(b"for zero")
        spool.sync()
        for number in range(4):
            spool.append(b"%d" % number)
        spool.journal(b"for four")
    (path,) = tmp_path.glob("*.v1")
    path.unlink()
    for _ in range(2):
        with Spool.open(tmp_path) as spool:
            assert spool.recovered_journal == [b"for zero", b"for four"]
            assert (spool.next, spool.lost) == (4, [range(3)]), "four were made, and one can be made again"
    with Spool.open(tmp_path) as spool:
        assert spool.append(b"0, made again") == 4
        assert spool.append(b"five") == 5
    (tmp_path / "released").write_bytes(b"")
    with Spool.open(tmp_path) as spool:
        assert (spool.recovered_journal, spool.next) == ([], 6)
        assert contents(spool) == [(3, 4, b"0, made again"), (5, 5, b"five")]


@pytest.mark.parametrize("fsync", ["interval", "never"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_later_segment_comes_only_when_entries_of_synced_pieces_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync, is_killed: bool
) -> None:
    """A power cut may take the end of a segment and leave the next one: pieces of what is gone count for nothing."""
    folder, synced = tmp_path / "spool", dict[str, int]()

    def sync(fd: int) -> None:
        synced[Path(f"/proc/self/fd/{fd}").readlink().name] = os.fstat(fd).st_size

    with Spool.open(folder, segment_bytes=1, fsync=fsync) as spool:
        spool.append(b"zero")
        spool.journal(b"for one")
        spool.sync(force=True)
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "fdatasync", sync)
        spool._segment_bytes = 1000
        spool.append(b"one")
        assert not synced, "this is the entry that can be lost"
        if is_killed:
            folder = crashed(folder)
            spool = Spool.open(folder, fsync=fsync)
        spool._segment_bytes = 1
        spool.append(b"two")
        first = min(folder.glob("*.v1"))
        assert synced.get(first.name) == first.stat().st_size
        spool.close()


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_synced_pieces_are_not_overwritten_before_the_name_of_their_entry_s_segment_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync
) -> None:
    """A power cut may keep what is in a new segment, and take the segment itself out of the folder."""
    with Spool.open(tmp_path / "spool", max_bytes=1 << 16, fsync=fsync) as spool:
        spool.journal(b"for zero")
        spool.sync(force=True)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    with Spool.open(tmp_path / "spool", max_bytes=1 << 16, fsync=fsync) as spool:
        spool.append(b"zero")
        spool.journal(b"p" * 4000)
        spool.append(b"one")
        assert spool._journal.round == 1, "it had grown large, and its room is used again"
        assert "spool" in synced


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_what_was_safe_and_does_not_fit_the_next_entry_is_safe_in_the_pieces_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync
) -> None:
    """A power cut may leave the entry, and take the pieces that repeat what it does not hold."""
    synced: list[str] = []
    real = os.fdatasync

    def sync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real(fd)

    with Spool.open(tmp_path, fsync=fsync) as spool:
        spool.journal(b"one and two", 0)
        spool.sync(force=True)
        spool.journal(b"two", 1)
        monkeypatch.setattr(os, "fdatasync", sync)
        spool.append(b"one")
        assert synced[:1] == ["journal"]
        synced.clear()
        spool.journal(b"three", 2)
        spool.append(b"two")
        assert synced[:1] == ["journal"], "it holds what was safe"
        synced.clear()
        spool.journal(b"three and four", 2)
        spool.append(b"three and four")
        assert "journal" not in synced, "nobody was promised that"


def test_what_an_earlier_round_left_in_the_file_is_not_taken_for_new(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    with Spool.open(folder, fsync="batch") as spool:
        for _ in range(5):
            spool.journal(b"old")
        size_bytes = (folder / "journal").stat().st_size
        spool.append(b"entry")
        spool.journal(b"new")
        spool.journal(b"new")
        assert (folder / "journal").stat().st_size == size_bytes
        with Spool.open(crashed(folder)) as after:
            assert after.recovered_journal == [b"new", b"new"]


def test_a_torn_piece_and_what_follows_it_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    with Spool.open(folder) as spool:
        for piece in (b"one", b"two", b"three"):
            spool.journal(piece)
    whole = (folder / "journal").read_bytes()
    recovered = set()
    for size_bytes in range(len(whole) + 1):
        (folder / "journal").write_bytes(whole[:size_bytes])
        with Spool.open(folder) as spool:
            recovered.add(tuple(spool.recovered_journal))
    assert recovered == {(), (b"one",), (b"one", b"two"), (b"one", b"two", b"three")}
    (folder / "journal").write_bytes(whole)
    spoil(folder / "journal", len(whole) // 2)
    with Spool.open(folder) as spool:
        assert spool.recovered_journal == [b"one"]
        spool.journal(b"again")
    with Spool.open(folder) as spool:
        assert spool.recovered_journal == [b"one", b"again"]


def test_a_piece_for_an_entry_that_exists_is_refused(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append(b"zero")
        with pytest.raises(ValueError, match="a piece for entry 0, the next entry is 1"):
            spool.journal(b"late", 0)


def test_a_piece_may_be_for_a_later_entry(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.journal(b"for one", 1)
        spool.append(b"zero")
    with Spool.open(tmp_path) as spool:
        assert spool.recovered_journal == [b"for one"]
        assert spool.next == 1


def test_the_journal_waits_for_a_sync_on_another_thread(tmp_path: Path) -> None:
    """Pieces that are safe are not written over before the entry that they are part of is safe too."""
    folder = tmp_path / "spool"
    with Spool.open(folder, fsync="interval") as spool:
        spool.journal(b"first")
        pieces = spool.unsynced()
        assert pieces is not None
        sync_all(pieces)
        spool.synced(pieces)
        assert spool.unsynced() is None
        spool.append(b"entry of first")
        spool.journal(b"second")
        size_bytes = (folder / "journal").stat().st_size
        entry = spool.unsynced()
        assert entry is not None
        spool.append(b"entry of second")
        assert b"first" in (folder / "journal").read_bytes()
        sync_all(entry)
        spool.synced(entry)  # of the first entry; the second came later
        assert b"first" in (folder / "journal").read_bytes()
        rest = spool.unsynced()
        assert rest is not None
        sync_all(rest)
        spool.synced(rest)
        spool.journal(b"third")
        assert (folder / "journal").stat().st_size == size_bytes, "the room is used again"
        assert b"first" not in (folder / "journal").read_bytes()


def test_a_sync_that_failed_leaves_it_to_be_done(tmp_path: Path) -> None:
    with Spool.open(tmp_path / "spool", fsync="interval") as spool:
        spool.append(b"entry")
        unsynced = spool.unsynced()
        assert unsynced is not None
        sync_all(unsynced)
        spool.synced(unsynced, failed=True)
        again = spool.unsynced()
        assert again is not None
        sync_all(again)
        spool.synced(again)
        assert spool.unsynced() is None


def sync_all(unsynced: Unsynced) -> None:
    for handle in unsynced.handles:
        os.fdatasync(handle)
        os.close(handle)

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from edge_agent.spool import Spool
from tests.edge_agent.spool.folders import contents, folder_bytes, ones, read, segments, spoil

DATA = [b"%03d" % number * 20 for number in range(12)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve entries in three files."""
    with Spool.open(tmp_path, segment_bytes=400) as spool:
        for data in DATA:
            spool.append(data)
    assert [int(path.stem) for path in segments(tmp_path)] == [0, 4, 8]
    return tmp_path


def test_a_file_torn_at_any_byte_keeps_the_entries_before(folder: Path) -> None:
    path = segments(folder)[-1]
    whole = path.read_bytes()
    kept = []
    for size_bytes in range(len(whole) - 1, -1, -1):
        path.write_bytes(whole[:size_bytes])
        with Spool.open(folder) as spool:
            assert list(spool.entries()) == ones(*DATA[: spool.next])
            assert spool.lost == []
            assert folder_bytes(folder) <= spool.size_bytes
            kept.append(spool.next)
            torn_bytes = spool.torn_bytes
        assert path.stat().st_size == size_bytes - torn_bytes
        with Spool.open(folder) as spool:
            assert (spool.torn_bytes, spool.next) == (0, kept[-1])
    assert kept == sorted(kept, reverse=True)
    assert set(kept) == {11, 10, 9, 8}


@pytest.mark.parametrize("tail", [b"\0" * 4096, random.Random(1).randbytes(5000), b"TLs" * 500, b"T"])
def test_a_tail_that_is_no_entry_is_cut_and_counted(folder: Path, tail: bytes) -> None:
    path = segments(folder)[-1]
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    with Spool.open(folder) as spool:
        assert spool.torn_bytes == len(tail)
        assert list(spool.entries()) == ones(*DATA)
        assert spool.append(b"new") == 12
    assert path.read_bytes() == whole


def test_entries_of_another_file_in_a_tail_are_not_believed(folder: Path) -> None:
    first, second, third = segments(folder)
    third.write_bytes(third.read_bytes() + first.read_bytes() + second.read_bytes())
    with Spool.open(folder) as spool:
        assert list(spool.entries()) == ones(*DATA)


def test_rot_takes_the_entries_it_hits_and_no_others(folder: Path) -> None:
    path = segments(folder)[1]
    whole = path.read_bytes()
    seen = set()
    for offset in range(len(whole)):
        spoil(path, offset)
        with Spool.open(folder) as spool:
            gone = {number for lost in spool.lost for number in lost}
            assert len(gone) <= 1
            assert [entry.first for entry in spool.entries()] == [n for n in range(12) if n not in gone]
            assert all(entry.data == DATA[entry.first] for entry in spool.entries())
            assert (spool.next, spool.count, spool.torn_bytes) == (12, 12 - len(gone), 0)
            for number in gone:
                assert read(spool, number) is None
        seen |= gone
        path.write_bytes(whole)
    assert seen == {4, 5, 6, 7}


def test_a_lost_sector_in_the_middle_of_the_newest_file_is_no_torn_tail(folder: Path) -> None:
    path = segments(folder)[-1]
    size_bytes = path.stat().st_size
    spoil(path, size_bytes // 2 - 20, 60)
    with Spool.open(folder) as spool:
        (lost,) = spool.lost
        assert 8 < lost.start < lost.stop < 12
        assert (spool.next, spool.torn_bytes) == (12, 0)


def test_a_file_of_which_nothing_is_left_is_reported_as_lost(folder: Path) -> None:
    path = segments(folder)[1]
    path.write_bytes(b"\0" * path.stat().st_size)
    with Spool.open(folder) as spool:
        assert spool.lost == [range(4, 8)]
        assert [entry.first for entry in spool.entries()] == [0, 1, 2, 3, 8, 9, 10, 11]
        spool.release(5)
        assert spool.count == 4
    with Spool.open(folder) as spool:
        assert spool.lost == [range(6, 8)]
        assert [entry.first for entry in spool.entries()] == [8, 9, 10, 11]
        spool.release(7)
        assert not path.exists()


def test_a_file_that_was_deleted_is_reported_as_lost(folder: Path) -> None:
    segments(folder)[1].unlink()
    with Spool.open(folder) as spool:
        assert spool.lost == [range(4, 8)]
        assert [entry.first for entry in spool.entries(2)] == [2, 3, 8, 9, 10, 11]


def test_rot_that_comes_while_the_spool_is_open_is_skipped_and_noted(folder: Path) -> None:
    with Spool.open(folder) as spool:
        with segments(folder)[0].open("r+b") as file:
            file.seek(150)
            file.write(b"rot")
        assert [entry.first for entry in spool.entries()] == [0, *range(2, 12)]
        assert spool.lost == [range(1, 2)]
        assert spool.count == 11
        assert len(contents(spool)) == 11
        assert spool.lost == [range(1, 2)]
        spool.release(11)
        assert spool.count == 0


def test_blocks_that_the_disk_cannot_read_cost_only_what_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [b"%d" % (number % 10) * 1000 for number in range(40)]
    with Spool.open(tmp_path) as spool:
        for each in data:
            spool.append(each)
    pread = os.pread

    def failing_pread(fd: int, length: int, offset: int) -> bytes:
        if offset < 12_288 + 100 < offset + length and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".v1":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", failing_pread)
    with Spool.open(tmp_path) as spool:
        (lost,) = spool.lost
        assert 4 <= len(lost) <= 6
        assert [entry.first for entry in spool.entries()] == [n for n in range(40) if n not in lost]


def test_any_file_may_be_garbage(folder: Path) -> None:
    generator = random.Random(5)
    names = [path.name for path in folder.iterdir()]
    for _ in range(60):
        path = folder / generator.choice(names)
        if not path.exists():
            continue
        data = bytearray(path.read_bytes())
        for _ in range(generator.randrange(8)):
            at = generator.randrange(len(data) + 1)
            data[at : at + generator.randrange(40)] = generator.randbytes(generator.randrange(40))
        path.write_bytes(data)
        with Spool.open(folder) as spool:
            for entry in spool.entries():
                assert entry.data in DATA or entry.data == b"new"
            spool.append(b"new")


def test_numbers_go_on_from_a_newest_file_of_which_a_power_cut_left_only_the_name(tmp_path: Path) -> None:
    for _ in range(2):
        with Spool.open(tmp_path, fsync="never") as spool:
            spool.append(b"entry")
    os.truncate(segments(tmp_path)[-1], 7)
    with Spool.open(tmp_path) as spool:
        assert (spool.next, spool.torn_bytes) == (1, 7)
        spool.release(0)
    assert [(int(path.stem), path.stat().st_size) for path in segments(tmp_path)] == [(1, 0)]
    (tmp_path / "released").unlink()
    with Spool.open(tmp_path) as spool:
        assert (spool.first, spool.next, spool.count, spool.lost) == (1, 1, 0, [])
        assert spool.append(b"one") == 1
    with Spool.open(tmp_path) as spool:
        assert contents(spool) == ones(b"one", start=1)


def test_rot_in_what_was_released_is_not_counted(folder: Path) -> None:
    with Spool.open(folder) as spool:
        count = spool.count
        spool.release(spool.first)
        assert spool.count == count - 1
        spoil(segments(folder)[0], 60)
        list(spool.kept())
        assert spool.count == len(list(spool.entries())) == count - 1


def test_what_has_no_meaning_counts_as_unreadable(folder: Path) -> None:
    with Spool.open(folder) as spool:
        first, second, *others = spool.entries()
        spool.disbelieve(second)
        spool.disbelieve(second)
        assert list(spool.entries()) == [first, *others]
        assert (spool.count, spool.lost) == (1 + len(others), [range(second.first, second.last + 1)])

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edge_agent
from edge_agent.spool import EntryTooLarge, Spool, SpoolFull, SpoolLocked, SpoolUnusable
from tests.edge_agent.spool.folders import contents, crashed, folder_bytes, ones, read, segments

ROOT = Path(edge_agent.__file__).parent.parent


def test_a_new_spool_is_empty(tmp_path: Path) -> None:
    with Spool.open(tmp_path / "not" / "yet") as spool:
        assert (spool.first, spool.next, spool.count) == (0, 0, 0)
        assert list(spool.entries()) == []
        assert (spool.lost, spool.torn_bytes, spool.recovered_journal) == ([], 0, [])


def test_entries_come_back_in_order_and_by_number(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        assert [spool.append(data) for data in (b"a", b"", b"c" * 5000)] == [0, 1, 2]
        assert list(spool.entries()) == ones(b"a", b"", b"c" * 5000)
        assert list(spool.entries(2)) == ones(b"c" * 5000, start=2)
        assert read(spool, 1) == b""
        assert (spool.first, spool.next, spool.count) == (0, 3, 3)


def test_numbers_go_on_after_a_restart_and_after_everything_was_released(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append(b"a")
        spool.append(b"b")
        spool.release(1)
    for number in (2, 3):
        with Spool.open(tmp_path) as spool:
            assert (spool.first, spool.next, spool.count) == (number, number, 0)
            assert spool.append(b"x") == number
            spool.release(number)
    (tmp_path / "released").unlink()
    with Spool.open(tmp_path) as spool:
        assert spool.next == 4


def test_every_process_life_begins_a_file_of_its_own_when_it_first_appends(tmp_path: Path) -> None:
    for number in range(3):
        with Spool.open(tmp_path) as spool:
            assert len(segments(tmp_path)) == number
            spool.append(b"a")
            spool.append(b"b")
            assert len(segments(tmp_path)) == number + 1
    assert [int(path.stem) for path in segments(tmp_path)] == [0, 2, 4]


def test_released_entries_are_gone_and_their_files_deleted_but_the_newest(tmp_path: Path) -> None:
    with Spool.open(tmp_path, segment_bytes=300) as spool:
        for number in range(20):
            spool.append(b"%03d" % number * 30)
        files = segments(tmp_path)
        assert len(files) == 10
        spool.release(6)
        assert segments(tmp_path) == files[3:]
        assert (spool.first, spool.count) == (7, 13)
        assert next(spool.entries()).first == 7
        assert (read(spool, 6), read(spool, 20)) == (None, None)
        spool.release(3)
        assert spool.first == 7
        spool.release(19)
        assert segments(tmp_path) == files[-1:]
        assert (spool.first, spool.next, spool.count) == (20, 20, 0)
        spool.append(b"x" * 200)
        assert [path.name for path in segments(tmp_path)] == ["00000000000000000020.v1"]
        with pytest.raises(ValueError, match="entry 21 released"):
            spool.release(21)


def test_the_released_position_survives_a_crash(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    with Spool.open(folder) as spool:
        for data in (b"a", b"b", b"c"):
            spool.append(data)
        spool.release(1)
        with Spool.open(crashed(folder)) as after:
            assert list(after.entries()) == ones(b"c", start=2)


@pytest.mark.parametrize("damage", [b"", b"\0" * 12, b"\xff" * 12, b"long" * 9])
def test_a_damaged_released_file_only_means_sending_again(tmp_path: Path, damage: bytes) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append(b"a")
        spool.append(b"b")
        spool.release(0)
    (tmp_path / "released").write_bytes(damage)
    with Spool.open(tmp_path) as spool:
        assert list(spool.entries()) == ones(b"a", b"b")


def test_a_released_position_ahead_of_the_entries_that_a_power_cut_has_left(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append(b"a")
        size_bytes = segments(tmp_path)[0].stat().st_size
        spool.append(b"b")
        spool.append(b"c")
        spool.release(2)
    os.truncate(segments(tmp_path)[0], size_bytes)
    with Spool.open(tmp_path) as spool:
        assert (spool.first, spool.next, spool.lost) == (3, 3, [])
        spool.append(b"d")
    with Spool.open(tmp_path) as spool:
        assert list(spool.entries()) == ones(b"d", start=3)


def test_the_owner_may_append_and_release_while_it_reads(tmp_path: Path) -> None:
    with Spool.open(tmp_path, segment_bytes=200) as spool:
        for number in range(10):
            spool.append(b"%d" % number * 50)
        seen = []
        for first, last, data in spool.entries():
            assert first == last
            assert data == b"%d" % (first % 10) * 50
            seen.append(first)
            if first % 3 == 2:
                spool.release(first)
            if first < 5:
                spool.append(b"%d" % (spool.next % 10) * 50)
        assert seen == list(range(15))


def test_a_full_spool_takes_nothing_and_everything_in_the_folder_counts(tmp_path: Path) -> None:
    with Spool.open(tmp_path, max_bytes=16_384) as spool:
        spool.journal(b"p" * 1000)
        with pytest.raises(SpoolFull, match=r"would exceed 16384"):
            while True:
                spool.append(b"x" * 500)
        size_bytes = spool.size_bytes
        assert 16_384 - 700 < size_bytes <= 16_384
        assert folder_bytes(tmp_path) <= size_bytes < folder_bytes(tmp_path) + 64
        count, before = spool.count, {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(SpoolFull):
            spool.append(b"y" * 1000)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert (spool.count, spool.next, spool.size_bytes) == (count, count, size_bytes)
        with pytest.raises(SpoolFull):
            for _ in range(20):
                spool.journal(b"p" * 1000)
        spool.release(3)
        assert spool.append(b"x" * 500) == count
    with Spool.open(tmp_path, max_bytes=16_384) as spool:
        assert folder_bytes(tmp_path) <= spool.size_bytes < folder_bytes(tmp_path) + 64


def test_an_entry_that_can_never_fit_is_told_apart_from_a_full_spool(tmp_path: Path) -> None:
    with Spool.open(tmp_path, max_bytes=8192) as spool:
        with pytest.raises(EntryTooLarge, match="more than half of 8192"):
            spool.append(b"x" * 4096)
        assert spool.append(b"x" * 4000) == 0
        assert read(spool, 0) == b"x" * 4000


def test_a_spool_that_may_be_smaller_now_still_opens_and_empties(tmp_path: Path) -> None:
    with Spool.open(tmp_path, max_bytes=65_536) as spool:
        for _ in range(50):
            spool.append(b"x" * 1000)
    with Spool.open(tmp_path, max_bytes=8192) as spool:
        assert spool.count == 50
        with pytest.raises(SpoolFull):
            spool.append(b"y")
        spool.release(49)
        assert spool.append(b"y") == 50


def test_the_newest_file_keeps_the_numbers_though_all_is_released_and_a_power_cut_forgets_that(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    with Spool.open(folder, segment_bytes=300) as spool:
        for _ in range(6):
            spool.append(b"x" * 200)
        spool.release(5)
        assert [int(path.stem) for path in segments(folder)] == [5]
        folder = crashed(folder)
    (folder / "released").unlink()
    with Spool.open(folder) as spool:
        assert (spool.next, contents(spool)) == (6, ones(b"x" * 200, start=5))  # it is sent again
        spool.release(5)
        assert spool.append(b"y") == 6
        assert [int(path.stem) for path in segments(folder)] == [6]


def test_a_file_without_entries_keeps_its_number_and_its_name_is_used_again(tmp_path: Path) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append(b"a")
        spool.release(0)
    with Spool.open(tmp_path) as spool:
        spool.append(b"b")
        (path,) = segments(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    (tmp_path / "released").unlink()
    for _ in range(2):
        with Spool.open(tmp_path) as spool:
            assert (spool.next, spool.count) == (1, 0)
    with Spool.open(tmp_path) as spool:
        assert spool.append(b"c") == 1
        assert segments(tmp_path) == [path]
    with Spool.open(tmp_path) as spool:
        assert list(spool.entries()) == ones(b"c", start=1)


def test_a_second_process_is_told_who_has_the_spool(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from edge_agent.spool import Spool, SpoolLocked\n"
        "try: Spool.open(Path(sys.argv[1]))\n"
        "except SpoolLocked as error: print(error)"
    )
    with Spool.open(tmp_path) as spool:
        spool.append(b"a")
        output = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout
        assert output == f"spool {tmp_path}: process {os.getpid()} has it open\n"
        with pytest.raises(SpoolLocked):
            Spool.open(tmp_path)
        assert read(spool, 0) == b"a"
    Spool.open(tmp_path).close()


def test_files_of_another_version_are_not_touched(tmp_path: Path) -> None:
    other = tmp_path / "00000000000000000007.v2"
    other.write_bytes(b"something new")
    with pytest.raises(SpoolUnusable, match=r"00000000000000000007\.v2 was written by another version"):
        Spool.open(tmp_path)
    assert other.read_bytes() == b"something new"
    other.unlink()
    Spool.open(tmp_path).close()


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(SpoolUnusable, match="spool"):
        Spool.open(tmp_path / "spool")


def test_sizes_and_policies_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_bytes is 100"):
        Spool.open(tmp_path, max_bytes=100)
    with pytest.raises(ValueError, match="fsync is 'often'"):
        Spool.open(tmp_path, fsync="often")  # type: ignore[arg-type]


def test_few_files_are_open_and_the_index_is_small(tmp_path: Path) -> None:
    with Spool.open(tmp_path, max_bytes=1 << 20, segment_bytes=4096) as spool:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5000):
            spool.append(b"x" * 100)
        spool.sync()
        assert len(contents(spool)) == 5000
        spool.release(2500)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4
        index_bytes = sum(sys.getsizeof(segment.offsets) for segment in spool._segments.all)
        assert index_bytes < 2500 * 16


def test_a_closed_spool_takes_nothing(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path)
    spool.append(b"zero")
    spool.close()
    spool.close()
    for use in (
        lambda: spool.append(b"one"),
        lambda: spool.journal(b"piece"),
        lambda: spool.release(0),
        lambda: spool.replace_oldest(b"gap"),
    ):
        with pytest.raises(SpoolUnusable, match="it is closed"):
            use()
    with Spool.open(tmp_path) as spool:
        assert contents(spool) == ones(b"zero")


def test_a_spool_that_was_deleted_takes_nothing_more(tmp_path: Path) -> None:
    """Its files are still open, but whatever is written there is gone with the process."""
    with Spool.open(tmp_path / "spool") as spool:
        spool.append(b"one")
        spool.journal(b"piece")
        shutil.rmtree(tmp_path / "spool")
        with pytest.raises(SpoolUnusable, match="somebody has deleted it"):
            spool.append(b"two")
        with pytest.raises(SpoolUnusable, match="somebody has deleted it"):
            spool.journal(b"piece")
        assert [entry.data for entry in spool.entries()] == [b"one"], "what was not sent yet can still be"

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.spool import EntryMissing, Spool, SpoolFull
from tests.edge_agent.spool.folders import contents, crashed, folder_bytes, ones, read, segments, spoil


def filled(folder: Path, count: int, **options: Any) -> Spool:
    """A spool with four entries to a file."""
    spool = Spool.open(folder, segment_bytes=4 * 128 + 50, **options)
    for number in range(count):
        spool.append(b"%02d" % number * 50)
    return spool


def data(start: int, stop: int) -> list[bytes]:
    return [b"%02d" % number * 50 for number in range(start, stop)]


def test_the_entries_of_the_oldest_file_become_one(tmp_path: Path) -> None:
    with filled(tmp_path, 12) as spool:
        assert spool.oldest() == ones(*data(0, 4))
        before = spool.size_bytes
        spool.replace_oldest(b"gap")
        assert contents(spool) == [(0, 3, b"gap"), *ones(*data(4, 12), start=4)]
        assert (spool.first, spool.next, spool.count) == (0, 12, 9)
        assert read(spool, 2) == b"gap"
        assert spool.size_bytes < before - 350
        assert folder_bytes(tmp_path) <= spool.size_bytes
        folder = crashed(tmp_path)
    for each in (tmp_path, folder):
        with Spool.open(each) as spool:
            assert contents(spool) == [(0, 3, b"gap"), *ones(*data(4, 12), start=4)]
            assert (spool.lost, spool.count) == ([], 9)


def test_a_replacement_is_replaced_together_with_the_next_file(tmp_path: Path) -> None:
    with filled(tmp_path, 14) as spool:
        spool.replace_oldest(b"gap")
        assert contents(spool)[:5] == [tuple(entry) for entry in spool.oldest()]
        spool.replace_oldest(b"wider gap")
        assert contents(spool) == [(0, 7, b"wider gap"), *ones(*data(8, 14), start=8)]
        assert len(segments(tmp_path)) == 3
    with filled(tmp_path, 0) as spool:
        spool.replace_oldest(b"third")
        spool.replace_oldest(b"all")
        assert contents(spool) == [(0, 13, b"all")]
        assert len(segments(tmp_path)) == 1
        assert spool.oldest() == []
        with pytest.raises(EntryMissing, match="no entry is left to be replaced"):
            spool.replace_oldest(b"nothing")
        assert spool.append(b"next") == 14
        assert contents(spool) == [(0, 13, b"all"), (14, 14, b"next")]
        spool.release(13)
        assert contents(spool) == [(14, 14, b"next")]
        assert len(segments(tmp_path)) == 1


def test_the_active_file_can_be_given_up_too(tmp_path: Path) -> None:
    with filled(tmp_path, 2) as spool:
        assert spool.oldest() == ones(*data(0, 2))
        spool.replace_oldest(b"gap")
        folder = crashed(tmp_path)
        assert spool.append(b"two") == 2
        assert contents(spool) == [(0, 1, b"gap"), (2, 2, b"two")]
    with Spool.open(folder) as spool:
        assert contents(spool) == [(0, 1, b"gap")]
        assert spool.next == 2


def test_released_entries_are_not_given_up_and_stay_released(tmp_path: Path) -> None:
    with filled(tmp_path, 8) as spool:
        spool.release(1)
        assert spool.oldest() == ones(*data(2, 4), start=2)
        spool.replace_oldest(b"gap")
        assert contents(spool)[0] == (2, 3, b"gap")
        assert (spool.first, spool.count) == (2, 5)
        spool.release(2)
        assert contents(spool)[0] == (3, 3, b"gap")
        assert spool.count == 5
        spool.release(3)
        assert contents(spool) == ones(*data(4, 8), start=4)
        assert spool.count == 4
        spool.release(7)
        assert spool.oldest() == []


def test_a_replacement_stands_for_unreadable_entries_too(tmp_path: Path) -> None:
    filled(tmp_path, 12).close()
    spoil(segments(tmp_path)[0], segments(tmp_path)[0].stat().st_size - 5)
    spoil(segments(tmp_path)[1], 60)
    with Spool.open(tmp_path) as spool:
        assert spool.lost == [range(3, 5)]
        assert spool.oldest() == ones(*data(0, 3))
        spool.replace_oldest(b"gap")
        assert contents(spool)[:2] == [(0, 3, b"gap"), (5, 5, data(5, 6)[0])]
        spool.replace_oldest(b"gap")
        assert contents(spool)[0] == (0, 7, b"gap")
    with Spool.open(tmp_path) as spool:
        assert spool.lost == []


def test_a_file_of_which_nothing_is_left_is_given_up_with_the_next(tmp_path: Path) -> None:
    filled(tmp_path, 12).close()
    segments(tmp_path)[0].write_bytes(b"\0" * 400)
    with Spool.open(tmp_path) as spool:
        assert spool.oldest() == ones(*data(4, 8), start=4)
        spool.replace_oldest(b"gap")
        assert contents(spool)[0] == (0, 7, b"gap")


def test_an_unreadable_replacement_is_lost_as_a_whole(tmp_path: Path) -> None:
    with filled(tmp_path, 8) as spool:
        spool.replace_oldest(b"gap")
        with segments(tmp_path)[0].open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")
        assert contents(spool) == ones(*data(4, 8), start=4)
        assert spool.lost == [range(4)]
        assert spool.count == 4
    with Spool.open(tmp_path) as spool:
        assert spool.lost == [range(4)]


def test_a_file_that_rots_while_it_is_given_up_takes_the_next_with_it(tmp_path: Path) -> None:
    with filled(tmp_path, 12) as spool:
        oldest = segments(tmp_path)[0]
        with oldest.open("r+b") as file:
            file.write(b"?" * oldest.stat().st_size)
        assert spool.oldest() == ones(*data(4, 8), start=4)
        assert spool.lost == [range(4)]
        spool.replace_oldest(b"gap")
        assert contents(spool) == [(0, 7, b"gap"), *ones(*data(8, 12), start=8)]
        assert spool.count == 5


def test_an_endless_outage_keeps_the_newest_and_one_replacement(tmp_path: Path) -> None:
    with Spool.open(tmp_path, max_bytes=8192) as spool:
        for number in range(1000):
            while True:
                try:
                    assert spool.append(b"%04d" % number * 25) == number
                    break
                except SpoolFull:
                    old = spool.oldest()
                    spool.replace_oldest(b"%d..%d" % (old[0].first, old[-1].last))
            assert folder_bytes(tmp_path) <= spool.size_bytes <= 8192
        gap, *rest = spool.entries()
        assert gap.data == b"%d..%d" % (gap.first, gap.last)
        assert (gap.first, rest[-1].last) == (0, 999)
        assert rest == ones(*(b"%04d" % number * 25 for number in range(rest[0].first, 1000)), start=gap.last + 1)
        assert len(rest) > 45


def test_a_replacement_that_is_larger_must_have_room(tmp_path: Path) -> None:
    with filled(tmp_path, 40, max_bytes=8192) as spool:
        before = contents(spool)
        with pytest.raises(SpoolFull):
            spool.replace_oldest(b"x" * 4000)
        assert contents(spool) == before


class Witness:
    """Copies a folder before every call that changes something on the disk."""

    def __init__(self, folder: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._copies = copies
        self.images: list[Path] = []
        for name in ("pwrite", "ftruncate", "truncate", "fsync", "fdatasync", "rename", "unlink"):
            monkeypatch.setattr(os, name, self._watching(getattr(os, name)))

    def _watching(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            self.look()
            return call(*arguments, **named)

        return watched

    def look(self) -> None:
        image = self._copies / f"{len(self.images):03}"
        shutil.copytree(self._folder, image)
        self.images.append(image)


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_crash_at_any_moment_leaves_the_entries_or_the_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    folder = tmp_path / "spool"
    with filled(folder, 12) as spool:
        for _ in range(earlier):
            spool.replace_oldest(b"earlier")
        before = contents(spool)
        with monkeypatch.context() as patch:
            witness = Witness(folder, tmp_path, patch)
            spool.replace_oldest(b"gap")
            witness.look()
        after = contents(spool)
    assert before != after
    seen = []
    for image in witness.images:
        with Spool.open(image) as spool:
            seen.append(contents(spool))
            assert (spool.next, spool.lost, spool.torn_bytes) == (12, [], 0)
            assert spool.append(b"goes on") == 12
        with Spool.open(image) as spool:
            assert contents(spool) == [*seen[-1], (12, 12, b"goes on")]
            files = len(segments(folder)) + 1
            assert len(segments(image)) == (files if seen[-1] == after else files + earlier)
    turn = seen.index(after)
    assert seen == [before] * turn + [after] * (len(seen) - turn)
    assert turn > 2


def test_a_crash_at_any_moment_of_a_roll_and_a_release_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "spool"
    with filled(folder, 4) as spool, monkeypatch.context() as patch:
        witness = Witness(folder, tmp_path, patch)
        spool.journal(b"piece", 4)
        spool.append(b"04" * 50)
        spool.release(3)
        witness.look()
    for image in witness.images:
        with Spool.open(image) as spool:
            assert contents(spool) in ([], ones(*data(0, 4)), ones(*data(0, 5)), ones(*data(4, 5), start=4))
            assert not (spool.recovered_journal and spool.next == 5)
            assert spool.next in (4, 5)
            assert spool.lost == []

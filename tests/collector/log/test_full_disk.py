"""A disk that takes no more: the log stays as it was, nothing is lost, and it goes on once there is room.

The room is bounded by the largest size that the process may give a file, so writes fail half-way as on a full disk.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

from collector.log import (
    FIRST,
    LogReader,
    LogUnwritable,
    Position,
    ShardWriter,
    verify,
)
from tests.collector.log.batches import SHARD, SNAPSHOT, batch, log_batches, opened, segments


@contextmanager
def room(size_bytes: int) -> Iterator[None]:
    """No file may become longer than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def in_a_process_of_its_own(check: Callable[[Path], None], folder: Path) -> None:
    """The bound holds for a whole process, and this one has other files to write."""
    process = get_context("spawn").Process(target=check, args=(folder,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def check_commits(folder: Path) -> None:
    writer, _ = opened(folder, compression=None)
    writer.append(batch("a", 0))
    end = writer.commit()
    content = segments(folder)[0].read_bytes()
    for sizes in ((100, 5_000), (5_000, 100)):  # what comes next may be shorter than what was half-written
        for seq, size_bytes in enumerate(sizes, 1):
            writer.append(batch("a", seq, size_bytes=size_bytes))
            with room(len(content) + 300), pytest.raises(LogUnwritable, match="shard-05: File too large"):
                writer.commit()
            assert (segments(folder)[0].read_bytes(), writer.position, writer.held_rows) == (content, end, 2 * seq)
        if sizes[0] == 100:
            writer.rollback()
    assert writer.commit() == Position(1, 6)
    reader = LogReader(folder)
    wanted = batch("a", 0) + batch("a", 1, size_bytes=5_000) + batch("a", 2, size_bytes=100)
    assert list(reader.rows(SHARD, FIRST, reader.end(SHARD))) == wanted
    writer.close()


def check_rolls(folder: Path) -> None:
    writer, state = opened(folder, segment_bytes=3_000, compression=None)
    state.next = {(f"agent-{number}", 1): 0 for number in range(200)}  # a snapshot that needs the most room
    with room(8_000):
        for seq in range(5):
            writer.append(batch("a", seq, kinds=[1], size_bytes=600))
            assert writer.commit() == Position(1, seq + 1)
        assert len(segments(folder)) == 1
        assert list((folder / "shard-05").glob("*.new")) == []
    writer.append(batch("a", 5, kinds=[1]))
    assert writer.commit() == Position(2, 200)
    assert len(list(LogReader(folder).rows(SHARD, FIRST, Position(2, 0)))) == 6
    writer.close()


def check_opening(folder: Path) -> None:
    log_batches(folder, "a", range(3))
    with room(0), pytest.raises(LogUnwritable):
        ShardWriter(folder, SHARD)
    with ShardWriter(folder, SHARD) as writer:
        with room(100), pytest.raises(LogUnwritable):
            writer.begin(list)
        assert len(segments(folder)) == 1
        assert writer.begin(list) == Position(2, 0)


@pytest.mark.parametrize("check", [check_commits, check_rolls, check_opening])
def test_there_is_no_room(tmp_path: Path, check: Callable[[Path], None]) -> None:
    in_a_process_of_its_own(check, tmp_path)
    assert [each.findings for each in verify(tmp_path, own_kinds=[SNAPSHOT])] == [[]]


# Failures that no bound can cause


def failing(error: OSError) -> Callable[..., None]:
    def fail(*args: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_a_commit_whose_sync_or_publication_fails_may_be_tried_again(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = opened(tmp_path)
    writer.append(batch("a", 0))
    with monkeypatch.context() as patched, pytest.raises(LogUnwritable, match="broken"):
        patched.setattr(f"os.{call}", failing(OSError(5, "broken")))
        writer.commit()
    assert LogReader(tmp_path).end(SHARD) == FIRST
    assert writer.commit() == Position(1, 2)
    assert list(LogReader(tmp_path).rows(SHARD, FIRST, Position(1, 2))) == batch("a", 0)
    writer.close()


def test_what_could_not_be_cut_off_at_once_is_cut_off_before_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = opened(tmp_path)
    writer.append(batch("a", 0, size_bytes=9_000))
    with monkeypatch.context() as patched, pytest.raises(LogUnwritable):
        patched.setattr("os.fdatasync", failing(OSError(5, "broken")))
        patched.setattr("os.ftruncate", failing(OSError(5, "broken")))
        writer.commit()
    writer.rollback()
    writer.append(batch("b", 0))
    writer.commit()
    writer.close()
    with ShardWriter(tmp_path, SHARD) as successor:
        assert successor.repair.cut_bytes == 0
        assert list(successor.tail()) == batch("b", 0)


def test_a_next_segment_that_cannot_be_published_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, _ = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("collector.log.layout.sync_folder", failing(OSError(5, "broken")))
        writer._segment_bytes = 0
        writer.append(batch("a", 0))
        assert writer.commit() == Position(1, 2)
    assert len(segments(tmp_path)) == 1
    writer.append(batch("a", 1))
    assert writer.commit() == Position(2, 0)
    writer.close()

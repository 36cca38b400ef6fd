"""Appending and committing: what is in the log, when it can be seen, and what a successor finds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collector.log import (
    FIRST,
    LogError,
    LogReader,
    LogUnwritable,
    Position,
    Row,
    ShardInUse,
    ShardWriter,
    TooMuchHeld,
    UnfitRow,
)
from tests.collector.log.batches import NONCE, SHARD, SNAPSHOT, NextSeqs, batch, log_batches, opened, segments


def read(folder: Path, start: Position = FIRST) -> list[Row]:
    reader = LogReader(folder)
    return list(reader.rows(SHARD, start, reader.end(SHARD)))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_what_was_committed_is_read_back(tmp_path: Path, compression: str) -> None:
    writer, _ = opened(tmp_path, compression=compression)
    rows = [
        Row(0, "", 0, -(2**63), b""),
        Row(255, "zug-\N{SNOWMAN}", 2**64 - 1, 2**63 - 1, bytes(range(256)) * 40),
        Row(1, "car-7", 2**63, 0, b"\x00"),
    ]
    writer.append(rows)
    assert writer.commit() == Position(1, 3)
    assert read(tmp_path) == rows
    writer.close()


def test_nothing_is_seen_before_its_commit(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    writer.append(batch("a", 0))
    writer.append(batch("b", 0))
    assert (writer.held_rows, writer.position, read(tmp_path)) == (4, FIRST, [])
    assert writer.commit() == Position(1, 4)
    assert read(tmp_path) == batch("a", 0) + batch("b", 0)
    assert writer.held_rows == 0
    writer.close()


def test_a_commit_of_nothing_changes_nothing(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    writer.append(batch("a", 0))
    position = writer.commit()
    size = segments(tmp_path)[0].stat().st_size
    assert writer.commit() == position
    assert segments(tmp_path)[0].stat().st_size == size
    writer.close()


def test_rows_rolled_back_never_come(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    writer.append(batch("a", 0))
    writer.rollback()
    writer.append(batch("b", 0))
    writer.commit()
    assert read(tmp_path) == batch("b", 0)
    writer.close()


def test_rows_not_committed_are_gone_with_the_writer(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    writer.append(batch("a", 0))
    writer.close()
    writer.close()
    assert read(tmp_path) == []


# The successor


def test_a_successor_rebuilds_its_state_before_its_snapshot_is_asked_for(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(3))
    log_batches(tmp_path, "b", range(7, 9))
    writer = ShardWriter(tmp_path, SHARD)
    tail = list(writer.tail())
    assert tail == [Row(SNAPSHOT, "a", NONCE, 3, b""), *batch("b", 7), *batch("b", 8)]
    state = NextSeqs(tail)
    assert state.next == {("a", NONCE): 3, ("b", NONCE): 9}
    assert writer.begin(state.snapshot) == Position(3, 2)
    assert read(tmp_path, Position(3, 0)) == state.snapshot()
    assert list(writer.tail()) == tail
    writer.close()


def test_each_opening_that_was_followed_by_rows_has_its_segment(tmp_path: Path) -> None:
    for seq in range(3):
        log_batches(tmp_path, "a", [seq])
    assert len(segments(tmp_path)) == 3


def test_restarts_without_rows_leave_no_segments(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    positions = {log_batches(tmp_path, "a", []) for _ in range(5)}
    assert positions == {Position(2, 1)}
    assert len(segments(tmp_path)) == 2
    assert log_batches(tmp_path, "a", [2]) == Position(2, 3)
    assert [row.seq for row in read(tmp_path, Position(2, 0))] == [2, 2, 2]


def test_a_snapshot_that_has_changed_starts_a_segment_and_leaves_the_offsets_of_readers(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    log_batches(tmp_path, "a", [])
    with ShardWriter(tmp_path, SHARD) as writer:
        assert writer.begin(list) == Position(3, 0)
    assert read(tmp_path, Position(2, 0)) == [Row(SNAPSHOT, "a", NONCE, 2, b"")]


def test_nothing_can_be_appended_before_the_snapshot(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, SHARD) as writer, pytest.raises(LogError, match=r"before begin\(\)"):
        writer.append(batch("a", 0))


# Segments


def test_a_full_segment_is_followed_by_one_that_begins_with_all_that_came_before(tmp_path: Path) -> None:
    writer, state = opened(tmp_path, segment_bytes=2_000, compression=None)
    for seq in range(20):
        rows = batch("ab"[seq % 2], seq // 2, size_bytes=300)
        state.note(rows)
        writer.append(rows)
        writer.commit()
    writer.close()
    assert len(segments(tmp_path)) > 3
    seen = NextSeqs()
    for number in range(1, len(segments(tmp_path)) + 1):
        rows = list(LogReader(tmp_path).rows(SHARD, Position(number, 0), Position(number + 1, 0)))
        assert {(row.agent, row.nonce): row.seq for row in rows if row.kind == SNAPSHOT} == seen.next
        seen.note(rows)
    assert seen.next == {("a", NONCE): 10, ("b", NONCE): 10}


def test_a_snapshot_larger_than_a_segment_does_not_start_one_at_each_commit(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, SHARD, segment_bytes=5_000, compression=None)
    writer.begin(lambda: [Row(SNAPSHOT, "a", NONCE, 1, b"s" * 9_000)])
    for seq in range(12):
        writer.append(batch("a", seq, kinds=[1]))
        writer.commit()
    assert len(segments(tmp_path)) == 2
    writer.close()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    writer, _ = opened(tmp_path, segment_bytes=100)
    for seq in range(20):
        writer.append(batch("a", seq))
        writer.commit()
    with pytest.raises(ShardInUse):
        ShardWriter(tmp_path, SHARD)
    read(tmp_path)
    LogReader(tmp_path).ahead(SHARD, FIRST, 3, 1000)
    writer.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Bounds


def test_more_than_may_be_held_is_refused_until_a_commit(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, SHARD, most_held_bytes=3_000)
    writer.begin(list)
    writer.append(batch("a", 0, size_bytes=1_000))
    with pytest.raises(TooMuchHeld, match="wait for a commit"):
        writer.append(batch("a", 1, size_bytes=1_000))
    writer.commit()
    writer.append(batch("a", 1, size_bytes=1_000))
    writer.commit()
    assert read(tmp_path) == batch("a", 0, size_bytes=1_000) + batch("a", 1, size_bytes=1_000)
    writer.close()


@pytest.mark.parametrize(
    "row",
    [
        Row(256, "a", 0, 0, b""),
        Row(-1, "a", 0, 0, b""),
        Row(1, "a", 2**64, 0, b""),
        Row(1, "a", -1, 0, b""),
        Row(1, "a", 0, 2**63, b""),
        Row(1, "\udc80", 0, 0, b""),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_all_that_came_with_it(tmp_path: Path, row: Row) -> None:
    writer, _ = opened(tmp_path)
    with pytest.raises(UnfitRow, match="agent"):
        writer.append([*batch("b", 0), row])
    assert writer.held_rows == 0
    writer.close()


# The lock


def test_a_second_writer_is_told_who_has_the_shard(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    with pytest.raises(ShardInUse, match=rf"shard 5 is being written by process {os.getpid()} on ") as caught:
        ShardWriter(tmp_path, SHARD)
    assert str(os.getpid()) in caught.value.holder
    ShardWriter(tmp_path, SHARD + 1).close()
    writer.close()
    ShardWriter(tmp_path, SHARD).close()


def test_a_child_process_has_no_part_in_the_lock(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    program = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held = [path.readlink() for path in Path(f"/proc/{child.pid}/fd").iterdir()]
        child.kill()
    assert held
    assert not [path for path in held if path.is_relative_to(tmp_path)]
    writer.close()


# Files that are taken away


@pytest.mark.parametrize("gone", ["000000000001.arrows", "position", "lock", ""])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_committed_into_files_that_are_not_there_any_more(
    tmp_path: Path, gone: str, is_replaced: bool
) -> None:
    writer, _ = opened(tmp_path)
    writer.append(batch("a", 0))
    end = writer.commit()
    path, elsewhere = tmp_path / "shard-05" / gone, tmp_path / "elsewhere"
    path.rename(elsewhere)
    if is_replaced:
        shutil.copytree(elsewhere, path) if path.name == "shard-05" else shutil.copy(elsewhere, path)
    with pytest.raises(LogUnwritable, match=r"shard-05: [0-9a-z.]+ was deleted or moved while in use"):
        writer.commit()
    writer.append(batch("a", 1))
    for _ in range(2):
        with pytest.raises(LogUnwritable, match="was deleted or moved while in use"):
            writer.commit()
    assert (writer.position, writer.held_rows) == (end, 2)
    if path.is_dir():
        shutil.rmtree(path)
    elsewhere.rename(path)
    assert writer.commit() == Position(1, 4)
    assert list(LogReader(tmp_path).rows(SHARD, FIRST, Position(1, 4))) == batch("a", 0) + batch("a", 1)
    writer.close()

"""What may be removed, and what must stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.log import FIRST, LogReader, Position, ShardWriter, remove_segments
from collector.log.position import position_path
from tests.collector.log.batches import SHARD, batch, log_batches, opened, segments


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four segments of one batch each."""
    for seq in range(4):
        log_batches(tmp_path, "a", [seq])
    return tmp_path


@pytest.mark.parametrize(
    ("before", "removed"),
    [
        (FIRST, []),
        (Position(1, 99), []),
        (Position(2, 0), [1]),
        (Position(3, 2), [1, 2]),
        (Position(99, 0), [1, 2, 3]),
    ],
)
def test_whole_segments_before_the_position_go_but_never_the_last(
    folder: Path, before: Position, removed: list[int]
) -> None:
    assert remove_segments(folder, SHARD, before) == removed
    assert [int(path.stem) for path in segments(folder)] == [each for each in range(1, 5) if each not in removed]
    assert remove_segments(folder, SHARD, before) == []


def test_a_segment_that_is_started_but_not_published_does_not_count_as_the_last(folder: Path) -> None:
    position = position_path(folder / "shard-05").read_bytes()
    log_batches(folder, "a", [])
    position_path(folder / "shard-05").write_bytes(position)
    assert remove_segments(folder, SHARD, Position(99, 0)) == [1, 2, 3]


def test_the_writer_goes_on_and_its_successor_finds_its_state(folder: Path) -> None:
    writer, state = opened(folder)
    remove_segments(folder, SHARD, writer.position)
    writer.append(batch("a", 4))
    end = writer.commit()
    writer.close()
    reader = LogReader(folder)
    assert [row.seq for row in reader.rows(SHARD, reader.start(SHARD), end)] == [4, 4, 4]
    with ShardWriter(folder, SHARD) as successor:
        assert [row.seq for row in successor.tail()] == [4, 4, 4]
    assert state.next


def test_nothing_to_remove_where_nothing_is(tmp_path: Path) -> None:
    assert remove_segments(tmp_path, 3, Position(9, 9)) == []


def test_what_tells_of_lost_segments_goes_with_them(tmp_path: Path) -> None:
    for seq in range(3):
        log_batches(tmp_path, "a", [seq])
    segments(tmp_path)[2].write_bytes(b"gone")
    for seq in range(2, 5):
        log_batches(tmp_path, "a", [seq])
    marks = [path.name for path in (tmp_path / "shard-05").glob("*.lost")]
    assert marks == ["000000000003.lost"]
    remove_segments(tmp_path, SHARD, Position(2, 0))
    assert len(list((tmp_path / "shard-05").glob("*.lost"))) == 1
    remove_segments(tmp_path, SHARD, Position(5, 0))
    assert list((tmp_path / "shard-05").glob("*.lost")) == []

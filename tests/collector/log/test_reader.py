"""Reading: exact offsets, bounds that respect agent batches, and nothing beyond what was published."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.log import FIRST, LogDamaged, LogReader, Position, Row, SegmentRemoved, ShardWriter, remove_segments
from collector.log.segment import Frame, Segment
from tests.collector.log.batches import SHARD, batch, log_batches, opened, segments

AGENT_BATCHES = [batch("ab"[number % 2], number // 2, kinds=range(1, 2 + number % 3)) for number in range(24)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several segments, commits of one to five agent batches."""
    folder = tmp_path_factory.mktemp("log")
    writer, state = opened(folder, segment_bytes=1_500, compression=None)
    for number, rows in enumerate(AGENT_BATCHES):
        state.note(rows)
        writer.append(rows)
        if number % 6 in (0, 5):
            writer.commit()
    writer.close()
    assert len(segments(folder)) > 2
    return folder


@pytest.fixture(scope="module")
def everything(folder: Path) -> list[tuple[Position, Row]]:
    """Each row with its offset, as any Arrow reader sees the files."""
    rows = []
    for number, path in enumerate(segments(folder), 1):
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            for row, fields in enumerate(stream.read_all().drop_columns(["check"]).to_pylist()):
                rows.append((Position(number, row), Row(**fields)))
    return rows


def test_any_arrow_reader_reads_the_files(everything: list[tuple[Position, Row]]) -> None:
    data = [row for _, row in everything if row.kind != 0]
    assert data == [row for rows in AGENT_BATCHES for row in rows]


def test_every_range_is_read_exactly(folder: Path, everything: list[tuple[Position, Row]]) -> None:
    reader = LogReader(folder)
    places = [place for place, _ in everything]
    for start in places[::3]:
        for end in [*places[::4], Position(places[-1].segment, places[-1].row + 1)]:
            wanted = [row for place, row in everything if start <= place < end]
            assert list(reader.rows(SHARD, start, end)) == wanted
            batches = list(reader.batches(SHARD, start, end))
            assert [Row(**fields) for each in batches for fields in each.to_pylist()] == wanted


def test_an_end_beyond_what_was_published_is_cut_to_it(folder: Path, everything: list[tuple[Position, Row]]) -> None:
    reader = LogReader(folder)
    assert list(reader.rows(SHARD, FIRST, Position(99, 99))) == [row for _, row in everything]
    assert list(reader.rows(SHARD, Position(99, 0), Position(99, 99))) == []


@settings(deadline=None, max_examples=60)
@given(most_rows=st.integers(1, 30), most_bytes=st.integers(1, 600))
def test_bites_cover_everything_once_and_end_between_agent_batches(
    folder: Path, everything: list[tuple[Position, Row]], most_rows: int, most_bytes: int
) -> None:
    reader = LogReader(folder)
    at = FIRST
    read: list[Row] = []
    while (end := reader.ahead(SHARD, at, most_rows, most_bytes)) != at:
        assert end > at
        bite = list(reader.rows(SHARD, at, end))
        groups = {row[1:4] for row in bite if row.kind}
        assert len(groups) <= 1 or (len(bite) <= most_rows and sum(len(row.data) for row in bite) <= most_bytes)
        assert not groups & {row[1:4] for row in read if row.kind}
        read += bite
        at = end
    assert read == [row for _, row in everything]
    assert reader.end(SHARD) == at


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_the_bound_in_bytes_is_of_the_data_not_of_the_file(tmp_path: Path, compression: str | None) -> None:
    writer, _ = opened(tmp_path, compression=compression)
    for seq in range(10):
        writer.append(batch("a", seq, kinds=[1], size_bytes=5_000))
        writer.commit()
    writer.close()
    assert LogReader(tmp_path).ahead(SHARD, FIRST, 100, 19_999) == Position(1, 3)
    assert LogReader(tmp_path).ahead(SHARD, FIRST, 100, 20_000) == Position(1, 4)


def test_what_lies_before_the_start_is_not_decoded(tmp_path: Path) -> None:
    end = log_batches(tmp_path, "a", range(3))
    path = segments(tmp_path)[0]
    with Segment(path) as segment:
        first_body_end = list(segment.frames())[1].end
    content = bytearray(path.read_bytes())
    content[first_body_end - 200 : first_body_end] = b"\xff" * 200
    path.write_bytes(content)
    reader = LogReader(tmp_path)
    assert list(reader.rows(SHARD, Position(1, 2), end)) == batch("a", 1) + batch("a", 2)
    with pytest.raises(LogDamaged, match="byte"):
        list(reader.rows(SHARD, Position(1, 1), end))


def test_who_follows_a_log_does_not_walk_it_from_its_beginning_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = log_batches(tmp_path, "a", range(100))
    walked: list[int] = []
    frame_at = Segment._frame

    def counted(segment: Segment, offset: int, row: int, prefix: bytes) -> Frame:
        walked.append(row)
        return frame_at(segment, offset, row, prefix)

    monkeypatch.setattr(Segment, "_frame", counted)
    reader = LogReader(tmp_path)
    read: list[Row] = []
    for row in range(end.row):
        reader.ahead(SHARD, Position(1, row), 1, 1 << 30)
        read += reader.rows(SHARD, Position(1, row), Position(1, row + 1))
    assert read == [each for number in range(100) for each in batch("a", number)]
    assert len(walked) < 6 * end.row, "twice for each row, not once for every row before it"


def test_a_header_longer_than_usual_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = log_batches(tmp_path, "a", range(2))
    monkeypatch.setattr("collector.log.segment._PROBE_BYTES", 8)
    assert list(LogReader(tmp_path).rows(SHARD, FIRST, end)) == batch("a", 0) + batch("a", 1)


# Shards that are empty, removed, damaged


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    reader = LogReader(tmp_path / "none")
    assert reader.shards() == []
    assert (reader.start(3), reader.end(3), reader.ahead(3, FIRST, 9, 9)) == (FIRST, FIRST, FIRST)
    assert list(reader.rows(3, FIRST, Position(7, 7))) == []


def test_a_reader_that_comes_before_the_first_row_misses_nothing(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    start = reader.start(SHARD)
    writer = ShardWriter(tmp_path, SHARD)
    assert (reader.shards(), reader.start(SHARD), reader.end(SHARD)) == ([SHARD], start, start)
    writer.begin(list)
    assert (reader.start(SHARD), reader.end(SHARD)) == (start, start)
    writer.append(batch("a", 0))
    assert list(reader.rows(SHARD, start, writer.commit())) == batch("a", 0)
    writer.close()


def test_shards_are_those_with_a_folder(tmp_path: Path) -> None:
    for shard in (11, 2):
        ShardWriter(tmp_path, shard).close()
    (tmp_path / "shard-x").mkdir()
    (tmp_path / "registry.db").touch()
    assert LogReader(tmp_path).shards() == [2, 11]


def test_a_reader_may_be_sent_to_another_process(folder: Path) -> None:
    reader = pickle.loads(pickle.dumps(LogReader(folder)))
    assert reader.end(SHARD) == LogReader(folder).end(SHARD)


def test_a_segment_removed_by_retention_is_told(tmp_path: Path) -> None:
    for seq in range(3):
        end = log_batches(tmp_path, "a", [seq])
    remove_segments(tmp_path, SHARD, Position(2, 0))
    reader = LogReader(tmp_path)
    assert reader.start(SHARD) == Position(2, 0)
    assert len(list(reader.rows(SHARD, reader.start(SHARD), end))) == 6
    with pytest.raises(SegmentRemoved, match="segment 1 has been removed, the oldest is 2"):
        list(reader.rows(SHARD, FIRST, end))
    with pytest.raises(SegmentRemoved):
        reader.ahead(SHARD, FIRST, 10, 1000)


def test_a_reader_in_a_segment_that_is_removed_reads_it_to_its_end(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(3))
    end = log_batches(tmp_path, "a", [3])
    rows = LogReader(tmp_path).rows(SHARD, FIRST, end)
    first = next(rows)
    remove_segments(tmp_path, SHARD, end)
    assert [first, *rows][:6] == batch("a", 0) + batch("a", 1) + batch("a", 2)


def test_a_segment_that_just_vanished_is_damage(tmp_path: Path) -> None:
    for seq in range(3):
        end = log_batches(tmp_path, "a", [seq])
    segments(tmp_path)[1].unlink()
    with pytest.raises(LogDamaged, match="segment 2 is missing"):
        list(LogReader(tmp_path).rows(SHARD, FIRST, end))


def test_a_segment_shorter_than_published_is_damage(tmp_path: Path) -> None:
    end = log_batches(tmp_path, "a", range(3))
    with Segment(segments(tmp_path)[0]) as segment:
        frames = list(segment.frames())
    with segments(tmp_path)[0].open("r+b") as handle:
        handle.truncate(frames[3].end - 1)
    with pytest.raises(LogDamaged, match="row 4: the record batch is not whole"):
        LogReader(tmp_path).ahead(SHARD, FIRST, 100, 10_000)
    with segments(tmp_path)[0].open("r+b") as handle:
        handle.truncate(frames[2].end)
    with pytest.raises(LogDamaged, match="ends at row 4, but was published up to row 6"):
        list(LogReader(tmp_path).rows(SHARD, FIRST, end))

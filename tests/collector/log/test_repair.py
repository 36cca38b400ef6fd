"""Opening after a crash: the longest sound part of the last segment stays, and what readers have seen is not unsaid."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.log import FIRST, LogDamaged, LogReader, Position, Repair, Row, ShardWriter
from collector.log.ends import note_end
from collector.log.position import PublishedPosition, position_path
from collector.log.segment import HEADER, SEGMENT_SCHEMA, Segment
from tests.collector.log.batches import NONCE, SHARD, SNAPSHOT, NextSeqs, batch, log_batches, opened, segments


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments; the last has its snapshot and three commits, of which none has been published."""
    folder = tmp_path_factory.mktemp("crashed")
    log_batches(folder, "a", range(2))
    log_batches(folder, "a", [])
    position = position_path(folder / "shard-05").read_bytes()
    log_batches(folder, "a", range(2, 5))
    position_path(folder / "shard-05").write_bytes(position)
    assert LogReader(folder).end(SHARD) == Position(2, 1)
    return folder


def frame_ends(path: Path) -> list[int]:
    with Segment(path) as segment:
        return [frame.end for frame in segment.frames()]


def reopened(folder: Path) -> tuple[Repair, list[Row]]:
    """What an opening cuts, and the tail it then finds."""
    with ShardWriter(folder, SHARD) as writer:
        tail = list(writer.tail())
        writer.begin(NextSeqs(tail).snapshot)
        return writer.repair, tail


SNAPSHOT_ROW = Row(SNAPSHOT, "a", NONCE, 2, b"")


def test_commits_that_were_not_published_yet_are_kept(crashed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(crashed, tmp_path / "log"))
    assert reopened(folder) == (Repair(), [SNAPSHOT_ROW, *batch("a", 2), *batch("a", 3), *batch("a", 4)])


def test_what_an_opening_finds_is_synced_before_it_is_published(
    crashed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(crashed, tmp_path / "log"))
    done: list[str] = []

    def noted(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def note(handle: int, *args: Any) -> Any:
            done.append(f"{call} {Path(f'/proc/self/fd/{handle}').readlink().name}")
            return real(handle, *args)

        return note

    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(os, "pwrite", noted("pwrite", os.pwrite))
    ShardWriter(folder, SHARD).close()
    publication = done.index("pwrite position")
    assert {"fsync 000000000002.arrows", "fsync shard-05", "fsync log"} <= set(done[:publication])


def test_a_file_torn_anywhere_is_cut_to_its_whole_commits(crashed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(crashed, tmp_path / "log"))
    path, younger = segments(folder)[1], folder / "shard-05" / "000000000003.arrows"
    content, position = path.read_bytes(), position_path(folder / "shard-05").read_bytes()
    snapshot_end, *ends = frame_ends(path)
    for length in range(snapshot_end, len(content), 29):
        path.write_bytes(content[:length])
        position_path(folder / "shard-05").write_bytes(position)
        younger.unlink(missing_ok=True)
        whole = [end for end in ends if end <= length]
        repair, tail = reopened(folder)
        assert repair == Repair(length - max(whole, default=snapshot_end)), length
        assert tail == [SNAPSHOT_ROW, *(row for seq in range(2, 2 + len(whole)) for row in batch("a", seq))], length
        assert path.stat().st_size >= length - repair.cut_bytes
        assert list(LogReader(folder).rows(SHARD, Position(2, 0), LogReader(folder).end(SHARD)))[: len(tail)] == tail


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_no_row_is_ever_read_otherwise_than_it_was_written(
    crashed: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = Path(shutil.copytree(crashed, tmp_path_factory.mktemp("rotten") / "log"))
    path = segments(folder)[1]
    content = bytearray(path.read_bytes())
    snapshot_end = frame_ends(path)[0]
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(snapshot_end, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    _, tail = reopened(folder)
    wanted = [SNAPSHOT_ROW, *batch("a", 2), *batch("a", 3), *batch("a", 4)]
    assert tail in [wanted[:length] for length in (1, 3, 5, 7)]


def test_a_batch_with_values_missing_is_not_sound(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    columns = zip([1, "a", NONCE, 2, None, 0], SEGMENT_SCHEMA.types, strict=True)
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, SEGMENT_SCHEMA)
    writer.write_batch(pa.record_batch([pa.array([value], kind) for value, kind in columns], schema=SEGMENT_SCHEMA))
    rotten = sink.getvalue().to_pybytes()[len(HEADER) :]
    with segments(tmp_path)[0].open("ab") as handle:
        handle.write(rotten)
    assert reopened(tmp_path) == (Repair(len(rotten)), batch("a", 0) + batch("a", 1))


def test_what_was_cut_is_told(crashed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(shutil.copytree(crashed, tmp_path / "log"))
    with segments(folder)[1].open("ab") as handle:
        handle.write(b"half a commit")
    with caplog.at_level(logging.WARNING):
        assert reopened(folder)[0] == Repair(13)
    assert "shard=shard-05 segment=2 bytes=13" in caplog.text


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff\xff", b"\0" * 4096, b"no segment at all"])
def test_a_last_file_without_a_header_is_removed(tmp_path: Path, content: bytes) -> None:
    log_batches(tmp_path, "a", range(2))
    (tmp_path / "shard-05" / "000000000002.arrows").write_bytes(content)
    repair, tail = reopened(tmp_path)
    assert repair == Repair(len(content))
    assert tail == batch("a", 0) + batch("a", 1)
    assert LogReader(tmp_path).end(SHARD) == Position(2, 1)
    assert len(segments(tmp_path)) == 2


def test_a_shard_whose_only_file_is_empty_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "shard-05").mkdir()
    (tmp_path / "shard-05" / "000000000001.arrows").touch()
    assert reopened(tmp_path) == (Repair(), [])
    assert log_batches(tmp_path, "a", [0]) == Position(1, 2)


def test_a_segment_that_was_started_but_never_published_does_not_hide_the_rows_that_went_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, unlink = PublishedPosition.publish, Path.unlink

    def refuse_to_publish(self: PublishedPosition, position: Position) -> None:
        if position.segment > 1:
            raise OSError(errno.EIO, "it cannot be published")
        publish(self, position)

    def refuse_to_delete(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".arrows":
            raise OSError(errno.EIO, "nor be deleted")
        unlink(self, missing_ok)

    writer, state = opened(tmp_path, segment_bytes=1)
    with writer, monkeypatch.context() as broken:
        broken.setattr(PublishedPosition, "publish", refuse_to_publish)
        broken.setattr(Path, "unlink", refuse_to_delete)
        for seq in range(2):  # each time, a segment is begun in vain
            rows = batch("a", seq)
            state.note(rows)
            writer.append(rows)
            writer.commit()
    assert len(segments(tmp_path)) == 2
    note_end(tmp_path / "shard-05", 1, 2)  # as the first of them has noted it
    _, tail = reopened(tmp_path)
    assert tail == batch("a", 0) + batch("a", 1)


def test_a_position_that_a_power_cut_has_taken_back_costs_no_reader_its_place(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    log_batches(tmp_path, "b", [0])
    position = position_path(tmp_path / "shard-05").read_bytes()
    read_to = log_batches(tmp_path, "a", [])
    assert read_to == Position(3, 2), "a snapshot of both"
    position_path(tmp_path / "shard-05").write_bytes(position)
    log_batches(tmp_path, "c", [0])
    reader = LogReader(tmp_path)
    found = [row for row in reader.rows(SHARD, read_to, reader.end(SHARD)) if row.kind != SNAPSHOT]
    assert found == batch("c", 0)


def test_unfinished_files_are_removed(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    for name in ("000000000002.arrows.new", "position.new"):
        (tmp_path / "shard-05" / name).write_bytes(b"unfinished")
    assert reopened(tmp_path)[0] == Repair()
    assert list((tmp_path / "shard-05").glob("*.new")) == []


# The position


@pytest.mark.parametrize("content", [None, b"", b"rubbish", b"\0" * 28])
def test_a_lost_position_is_published_again(tmp_path: Path, content: bytes | None) -> None:
    end = log_batches(tmp_path, "a", range(3))
    path = position_path(tmp_path / "shard-05")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with ShardWriter(tmp_path, SHARD) as writer:
        assert (writer.position, LogReader(tmp_path).end(SHARD)) == (end, end)
        assert writer.repair == Repair()


def test_a_lost_position_does_not_cost_the_only_snapshot(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    log_batches(tmp_path, "a", [])
    segments(tmp_path)[0].unlink()
    position_path(tmp_path / "shard-05").unlink()
    assert reopened(tmp_path) == (Repair(), [SNAPSHOT_ROW])


def test_rows_that_readers_have_seen_and_that_cannot_be_read_any_more_are_lost_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end = log_batches(tmp_path, "a", range(4))
    path = segments(tmp_path)[0]
    ends = frame_ends(path)
    content = bytearray(path.read_bytes())
    content[ends[2] + 500] ^= 1
    path.write_bytes(content)
    repair, tail = reopened(tmp_path)
    assert (repair.cut_bytes, repair.lost) == (len(content) - ends[2], (1,))
    assert "what followed row 4 of segment 1, up to row 8 of segment 1," in repair.loss
    assert repair.loss.endswith("kept as found: shard-05/000000000001.arrows.damaged")
    assert tail == batch("a", 0) + batch("a", 1)
    assert path.with_suffix(".arrows.damaged").read_bytes() == content
    assert "published rows cannot be read any more" in caplog.text
    reader = LogReader(tmp_path)
    assert reader.end(SHARD) == Position(2, 1) > end
    for start in (Position(1, 4), end):
        assert list(reader.rows(SHARD, start, reader.end(SHARD))) == [SNAPSHOT_ROW]
    assert list(reader.rows(SHARD, Position(1, 2), end)) == batch("a", 1)


def test_a_segment_that_readers_have_seen_and_that_is_wholly_lost_leaves_its_number_free(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    end = log_batches(tmp_path, "a", range(2, 4))
    segments(tmp_path)[1].write_bytes(b"gone")
    repair, tail = reopened(tmp_path)
    assert (repair.cut_bytes, repair.lost) == (4, (2,))
    assert "what followed row 4 of segment 1," in repair.loss
    assert tail == batch("a", 0) + batch("a", 1)
    reader = LogReader(tmp_path)
    assert reader.end(SHARD) == Position(3, 1) > end
    assert list(reader.rows(SHARD, FIRST, reader.end(SHARD))) == [*tail, SNAPSHOT_ROW]
    assert list(reader.rows(SHARD, end, reader.end(SHARD))) == [SNAPSHOT_ROW]


TOLD = Row(9, "", 0, 0, b"rows are lost")


def damaged(folder: Path) -> Position:
    """Four batches, of which the third cannot be read any more. Returns where they ended."""
    end = log_batches(folder, "a", range(4))
    path = segments(folder)[0]
    content = bytearray(path.read_bytes())
    content[frame_ends(path)[2] + 500] ^= 1
    path.write_bytes(content)
    return end


def test_a_loss_is_told_with_the_first_snapshot_after_it_and_once(tmp_path: Path) -> None:
    damaged(tmp_path)
    for _ in range(2):  # an opening that does not come to its snapshot has told nothing
        with ShardWriter(tmp_path, SHARD) as writer:
            assert writer.repair.lost == (1,)
    with ShardWriter(tmp_path, SHARD) as writer:
        writer.begin(lambda: [SNAPSHOT_ROW], [TOLD])
    reader = LogReader(tmp_path)
    assert list(reader.rows(SHARD, Position(2, 0), reader.end(SHARD))) == [SNAPSHOT_ROW, TOLD]
    assert reopened(tmp_path)[0] == Repair()


def test_who_takes_away_what_was_set_aside_does_not_stop_the_readers(tmp_path: Path) -> None:
    end = damaged(tmp_path)
    reopened(tmp_path)
    log_batches(tmp_path, "a", [4])
    segments(tmp_path)[1].write_bytes(b"gone as well")
    reopened(tmp_path)
    set_aside = sorted((tmp_path / "shard-05").glob("*.damaged"))
    assert len(set_aside) == 2
    for path in set_aside:
        path.unlink()
    reader = LogReader(tmp_path)
    assert list(reader.rows(SHARD, FIRST, end)) == batch("a", 0) + batch("a", 1)
    assert list(reader.rows(SHARD, FIRST, reader.end(SHARD)))[:4] == batch("a", 0) + batch("a", 1)
    assert reopened(tmp_path)[0] == Repair()


def test_the_first_find_is_kept(tmp_path: Path) -> None:
    damaged(tmp_path)
    found = segments(tmp_path)[0].read_bytes()
    ShardWriter(tmp_path, SHARD).close()
    ShardWriter(tmp_path, SHARD).close()
    assert segments(tmp_path)[0].with_suffix(".arrows.damaged").read_bytes() == found


@pytest.mark.parametrize("content", [None, b"rubbish"])
def test_without_a_position_all_that_cannot_be_read_may_have_been_seen(tmp_path: Path, content: bytes | None) -> None:
    damaged(tmp_path)
    path = position_path(tmp_path / "shard-05")
    path.unlink() if content is None else path.write_bytes(content)
    with ShardWriter(tmp_path, SHARD) as writer:
        assert writer.repair.lost == (1,)
    repair, tail = reopened(tmp_path)
    assert (repair.lost, tail) == ((1,), batch("a", 0) + batch("a", 1))
    assert LogReader(tmp_path).end(SHARD) == Position(2, 1)


def test_a_wholly_lost_segment_without_a_position_leaves_its_number_free(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    log_batches(tmp_path, "a", range(2, 4))
    segments(tmp_path)[1].write_bytes(b"gone")
    position_path(tmp_path / "shard-05").unlink()
    assert reopened(tmp_path)[0].lost == (2,)
    assert [path.name for path in segments(tmp_path)] == ["000000000001.arrows", "000000000003.arrows"]


def test_segments_that_are_all_gone_are_a_loss(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    end = log_batches(tmp_path, "a", range(2, 4))
    for path in segments(tmp_path):
        path.unlink()
    repair, tail = reopened(tmp_path)
    assert (repair.lost, tail) == ((2,), [])
    assert "everything, up to row 5 of segment 2," in repair.loss
    assert "000000000002.arrows.damaged (empty, as the segment was not there)" in repair.loss
    reader = LogReader(tmp_path)
    assert reader.end(SHARD) == Position(3, 0) > end
    assert list(reader.rows(SHARD, end, reader.end(SHARD))) == []


def test_a_segment_of_another_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shard-05").mkdir()
    path = tmp_path / "shard-05" / "000000000001.arrows"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, pa.schema([("shape", pa.int8())])) as writer:
        writer.write_table(pa.table({"shape": pa.array([1], pa.int8())}))
    content = path.read_bytes()
    for _ in range(2):  # the lock is free again
        with pytest.raises(LogDamaged, match="not a segment of this version"):
            ShardWriter(tmp_path, SHARD)
    assert path.read_bytes() == content


@pytest.mark.parametrize("given_bytes", [0, 1024])
def test_a_segment_that_the_disk_does_not_give_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_bytes: int
) -> None:
    """Neither its beginning, nor what is behind a header: all of it may be there again tomorrow."""
    log_batches(tmp_path, "a", range(2))
    path = segments(tmp_path)[0]
    content = path.read_bytes()

    pread = os.pread

    def broken(handle: int, size_bytes: int, offset: int) -> bytes:
        if given_bytes and size_bytes in (len(HEADER), given_bytes):
            return pread(handle, size_bytes, offset)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched, pytest.raises(LogDamaged, match="cannot be read: Input/output error"):
        patched.setattr(os, "pread", broken)
        ShardWriter(tmp_path, SHARD)
    assert path.read_bytes() == content
    assert reopened(tmp_path) == (Repair(), batch("a", 0) + batch("a", 1))
    last = segments(tmp_path)[-1]
    last.unlink()
    last.mkdir()
    told = rf"{last.name} cannot be read: Is a directory"
    with pytest.raises(LogDamaged, match=told):
        ShardWriter(tmp_path, SHARD)
    reader = LogReader(tmp_path)
    with pytest.raises(LogDamaged, match=told):
        list(reader.rows(SHARD, FIRST, reader.end(SHARD)))


def test_the_same_columns_laid_out_otherwise_are_read(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    path = segments(tmp_path)[0]
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        table = stream.read_all()
    table = table.replace_schema_metadata({"written by": "another version of the library"})
    with pa.OSFile(str(path), "wb") as sink:
        writer = pa.ipc.new_stream(sink, table.schema)
        writer.write_batch(table.to_batches()[0].slice(0, 0))
        for part in table.to_batches():
            writer.write_batch(part)
    assert reopened(tmp_path) == (Repair(), batch("a", 0) + batch("a", 1))


def test_damage_in_older_segments_does_not_keep_the_writer_from_opening(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    writer, _ = opened(tmp_path)
    writer.append(batch("a", 2))
    writer.commit()
    writer.close()
    segments(tmp_path)[0].write_bytes(b"")
    assert reopened(tmp_path) == (Repair(), [SNAPSHOT_ROW, *batch("a", 2)])

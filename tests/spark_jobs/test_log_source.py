"""Offsets of the source on a real log: bounds, new shards, the same rows for the same offsets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from collector.log import Position as FilePosition
from collector.log import ShardWriter, remove_segments
from protocol.row import Row
from spark_jobs.chunk_rows import SCHEMA, read_chunks
from spark_jobs.chunks import Chunk, Kind, pack_rows, read_rows
from spark_jobs.log_source import (
    LogStream,
    LogStreamReader,
    LogUnreadable,
    Position,
    Spans,
    furthest,
    log_source,
    offset_of,
    passed,
    positions_of,
)
from spark_jobs.placement import Placement
from tests.collector.log.batches import NextSeqs, batch
from threadline.segment_log import SegmentLog

PLACEMENT = Placement(3, 2)
BATCH_ROWS = 2  # of an agent batch

Offset = dict[str, Any]


class Writers:
    """Translators of several shards, each with one agent."""

    def __init__(self, folder: Path, segment_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._open: dict[int, tuple[ShardWriter, NextSeqs]] = {}
        self.rows: dict[int, list[Row]] = {}

    def log(self, shard: int, batches: int, size_bytes: int = 20) -> None:
        """So many agent batches more, in a commit each."""
        if shard not in self._open:
            self._open[shard] = ShardWriter(self.folder, shard, segment_bytes=self._segment_bytes), NextSeqs()
            self._open[shard][0].begin(self._open[shard][1].snapshot)
        writer, state = self._open[shard]
        logged = self.rows.setdefault(shard, [])
        for _ in range(batches):
            rows = batch(f"agent-{shard}", len(logged) // BATCH_ROWS, size_bytes=size_bytes)
            state.note(rows)
            writer.append(rows)
            logged += rows
            writer.commit()

    def close(self) -> None:
        for writer, _ in self._open.values():
            writer.close()


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Writers]:
    made = Writers(tmp_path / "log")
    yield made
    made.close()


def split(shard: int, rows: Iterable[Row], buckets: int) -> Iterator[Chunk]:
    """The rows as they are, in one chunk."""
    yield Chunk(Kind.ROWS, shard % buckets, pack_rows([*rows]))


Source = Callable[..., LogStreamReader]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    def made(
        most_rows: int = 1_000,
        most_bytes: int = 1 << 20,
        start: dict[int, Position] | None = None,
        cuts: dict[int, Position] | None = None,
    ) -> Any:
        (tmp_path / "checkpoint").mkdir(exist_ok=True)
        log = SegmentLog(tmp_path / "log")
        checkpoint, bounds = tmp_path / "checkpoint", (most_rows, most_bytes)
        stream = LogStream(log, split, PLACEMENT, checkpoint, start or {}, *bounds, cuts=cuts or {})
        return log_source(stream)({}).streamReader(SCHEMA)

    return made


def ahead(reader: LogStreamReader, start: Offset) -> Offset:
    """As Spark asks: offsets are texts to it."""
    return dict(json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))))


def read(reader: LogStreamReader, start: Offset, end: Offset) -> dict[int, list[Row]]:
    """The agents' rows between two offsets, by shard."""
    found: dict[int, list[Row]] = {}
    for partition in reader.partitions(start, end):
        for record_batch in reader.read(partition):
            for chunk in read_chunks(pa.Table.from_batches([record_batch]), PLACEMENT):
                for row in read_rows(chunk.data):
                    if row.kind:  # no snapshot
                        found.setdefault(int(row.agent.removeprefix("agent-")), []).append(row)
    return found


def read_all(reader: LogStreamReader, start: Offset) -> tuple[list[dict[int, list[Row]]], Offset]:
    """Micro-batch by micro-batch."""
    found = []
    while (end := ahead(reader, start)) != start:
        found.append(read(reader, start, end))
        start = end
    return found, start


def joined(batches: Iterable[dict[int, list[Row]]]) -> dict[int, list[Row]]:
    rows: dict[int, list[Row]] = {}
    for each in batches:
        for shard, more in each.items():
            rows.setdefault(shard, []).extend(more)
    return rows


def test_every_row_once_and_in_order(writers: Writers, source: Source) -> None:
    for shard, batches in ((0, 5), (3, 1), (7, 9)):
        writers.log(shard, batches)
    found, end = read_all(source(), source().initialOffset())
    assert len(found) == 1
    assert found[0] == writers.rows
    assert list(end) == ["0", "3", "7"]


def test_a_log_that_was_longer_before_is_told(writers: Writers, source: Source, tmp_path: Path) -> None:
    writers.log(0, 5)
    writers.log(3, 1)
    _, end = read_all(source(), source().initialOffset())
    with pytest.raises(LogUnreadable, match=r"shard 0 was read up to row \d+ of segment 1, and ends at"):
        ahead(source(), {**end, "0": [1, end["0"][1] + 1]})
    shutil.rmtree(tmp_path / "log" / "shard-03")
    with pytest.raises(LogUnreadable, match=r"shard 3 was read up to row \d+ of segment 1, and is gone"):
        ahead(source(), end)


def test_an_empty_log_has_nothing_and_is_watched(writers: Writers, source: Source, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    reader = source()
    assert ahead(reader, {}) == {}
    assert reader.partitions({}, {}) == []
    writers.log(2, 1)
    assert joined(read_all(reader, {})[0]) == writers.rows


def test_micro_batches_keep_to_the_bounds_and_are_cut_between_agent_batches(writers: Writers, source: Source) -> None:
    for shard in (0, 1):
        writers.log(shard, 20)
    most_rows = 13
    found, _ = read_all(source(most_rows), {})
    assert joined(found) == writers.rows
    for each in found:
        assert sum(len(rows) for rows in each.values()) <= most_rows
        assert all(len(rows) % BATCH_ROWS == 0 for rows in each.values())
    assert all(set(each) == {0, 1} for each in found[:3])  # they share


def test_micro_batches_end_where_others_ended(writers: Writers, source: Source) -> None:
    """What another query has told of a shard, and what it has not, are never in the same micro-batch."""
    for shard, batches in ((0, 3), (1, 1)):
        writers.log(shard, batches)
    _, told = read_all(source(), {})
    writers.log(0, 4)
    writers.log(1, 2)
    writers.log(2, 1)
    cuts = furthest([told, {"0": [1, 2]}, {}])
    assert cuts == positions_of(told)
    found, _ = read_all(source(cuts=cuts), {})
    sizes = [{shard: len(rows) // BATCH_ROWS for shard, rows in each.items()} for each in found]
    assert sizes == [{0: 3, 1: 1, 2: 1}, {0: 4, 1: 2}]
    assert joined(found) == writers.rows


def test_bytes_are_bounded_too(writers: Writers, source: Source) -> None:
    writers.log(0, 10, size_bytes=1_000)
    found, _ = read_all(source(most_bytes=5_000), {})
    assert joined(found) == writers.rows
    assert [len(each[0]) for each in found] == [4, 4, 4, 4, 4]


def test_what_is_larger_than_the_bounds_comes_alone(writers: Writers, source: Source) -> None:
    writers.log(0, 3, size_bytes=5_000)
    found, _ = read_all(source(most_rows=1, most_bytes=1), {})
    assert joined(found) == writers.rows
    assert all(len(each.get(0, [])) <= BATCH_ROWS for each in found)


def test_who_wants_everything_gets_it(writers: Writers, source: Source) -> None:
    writers.log(0, 20)
    reader = source(most_rows=2)
    assert reader.getDefaultReadLimit() == ReadMaxRows(2)
    end = reader.latestOffset({}, ReadAllAvailable())
    assert read(reader, {}, end) == writers.rows


def test_the_same_offsets_give_the_same_rows_when_more_has_come(writers: Writers, source: Source) -> None:
    writers.log(0, 3)
    end = ahead(source(), {})
    before = read(source(), {}, end)
    writers.log(0, 3)
    writers.log(1, 3)
    assert read(source(), {}, end) == before
    rest = read_all(source(), end)[0]
    assert joined([before, *rest]) == writers.rows


def test_a_shard_that_appears_later_is_read_from_its_beginning(writers: Writers, source: Source) -> None:
    writers.log(4, 2)
    reader = source()
    first, start = read_all(reader, reader.initialOffset())
    writers.log(1, 3)
    second, start = read_all(reader, start)
    assert joined([*first, *second]) == writers.rows
    assert list(start) == ["1", "4"]


def test_segments_may_end_within_a_micro_batch(tmp_path: Path, source: Source) -> None:
    writers = Writers(tmp_path / "log", segment_bytes=1)
    writers.log(0, 12)
    writers.close()
    for most_rows in (1, 5, 1_000):
        assert joined(read_all(source(most_rows), {})[0]) == writers.rows


def reads(reader: LogStreamReader, start: Offset, end: Offset) -> list[list[int]]:
    """The shards of each task."""
    tasks = reader.partitions(start, end)
    return [[span.shard for span in task.spans] for task in tasks if isinstance(task, Spans)]


def test_tasks_share_the_shards(writers: Writers, source: Source) -> None:
    for shard in range(5):
        writers.log(shard, 1)
    reader = source()
    end = ahead(reader, {})
    assert reads(reader, {}, end) == [[0, 2, 4], [1, 3]]
    writers.log(3, 1)
    assert reads(reader, end, ahead(reader, end)) == [[3]]


def test_available_now_ends_where_the_log_ended_then(writers: Writers, source: Source) -> None:
    writers.log(0, 4)
    before = {shard: [*rows] for shard, rows in writers.rows.items()}
    reader = source(most_rows=3)
    reader.prepareForTriggerAvailableNow()
    writers.log(0, 4)
    writers.log(1, 4)
    found, end = read_all(reader, reader.initialOffset())
    assert joined(found) == before
    assert joined(read_all(source(), end)[0]) == {0: writers.rows[0][8:], 1: writers.rows[1]}


def test_a_checkpoint_begins_where_it_was_told(tmp_path: Path, source: Source) -> None:
    writers = Writers(tmp_path / "log", segment_bytes=1)
    writers.log(0, 6)
    writers.close()
    assert remove_segments(tmp_path / "log", 0, FilePosition(4, 0)) == [1, 2, 3]
    start = {0: SegmentLog(tmp_path / "log").start(0)}
    assert start == {0: Position(4, 0)}
    reader = source(start=start)
    assert joined(read_all(reader, reader.initialOffset())[0]) == {0: writers.rows[0][6:]}


def test_rows_that_were_removed_are_missed(tmp_path: Path, source: Source) -> None:
    writers = Writers(tmp_path / "log", segment_bytes=1)
    writers.log(0, 6)
    writers.close()
    end = ahead(source(), {})
    remove_segments(tmp_path / "log", 0, FilePosition(4, 0))
    with pytest.raises(LogUnreadable, match="segment 1 has been removed, the oldest is 4"):
        read(source(), {}, end)
    with pytest.raises(LogUnreadable, match="segment 1 has been removed"):
        ahead(source(), {})


def test_how_far_the_checkpoint_is_can_be_looked_up(writers: Writers, source: Source, tmp_path: Path) -> None:
    writers.log(0, 2)
    reader = source()
    assert passed(tmp_path / "checkpoint") == {}
    end = ahead(reader, {})
    reader.commit(end)
    assert passed(tmp_path / "checkpoint") == positions_of(end)
    assert offset_of(passed(tmp_path / "checkpoint")) == end

"""The log as a source of Spark: exact offsets, bounded micro-batches, and chunks right where the rows are read.

An offset says for every shard how far it was read. Spark keeps it with the checkpoint before it runs a micro-batch, so
a micro-batch that is run again reads the same rows. A shard that an offset does not name was not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from protocol.row import Row
from spark_jobs.checkpoint import read_checked, write_checked
from spark_jobs.chunk_rows import SCHEMA, record_batches
from spark_jobs.chunks import Chunk
from spark_jobs.placement import Placement
from spark_jobs.workers import settle

POSITION_FILE = "log-position.json"
_ALL = 1 << 62


class Position(NamedTuple):
    """A place in a shard: behind all older segments and the first `row` rows of `segment`."""

    segment: int
    row: int


FIRST = Position(1, 0)
Positions = dict[int, Position]


class LogUnreadable(RuntimeError):
    """The log does not have what the checkpoint needs; the text says what and where."""


class Log(Protocol):
    """The log as this source reads it, in several processes: it can be pickled. Its errors are LogUnreadable."""

    def shards(self) -> Sequence[int]:
        """The shards that were ever written."""

    def start(self, shard: int) -> Position:
        """Where the oldest row is that is still there."""

    def end(self, shard: int) -> Position:
        """Up to where the shard may be read now."""

    def ahead(self, shard: int, start: Position, most_rows: int, most_bytes: int) -> Position:
        """How far to read to stay within the bounds, never to a place inside an agent batch."""

    def rows(self, shard: int, start: Position, end: Position) -> Iterator[Row]:
        """The rows between the two."""


Split = Callable[[int, Iterable[Row], int], Iterable[Chunk]]


@dataclass(frozen=True)
class LogStream:
    """What to read, and how."""

    log: Log
    split: Split
    placement: Placement
    checkpoint: Path
    start: Positions
    """Where the checkpoint began: the same however often its first micro-batch is run."""
    most_rows: int
    most_bytes: int
    cuts: Positions = field(default_factory=dict)
    """No micro-batch goes from before such a place to behind it."""


class Span(NamedTuple):
    """Rows of a shard."""

    shard: int
    start: Position
    end: Position


@dataclass
class Spans(InputPartition):
    """What one task reads."""

    spans: list[Span]


def log_source(stream: LogStream) -> type[DataSource]:
    """A source of chunk rows, to be registered with a session."""

    class LogSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "threadline_log"

        def schema(self) -> StructType:
            return SCHEMA

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return LogStreamReader(stream)

    return LogSource


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark asks one of these how far to go, and others, in the tasks, for the rows."""

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._target: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where the checkpoint began."""
        return offset_of(self._stream.start)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark is to say to `latestOffset`."""
        return ReadMaxRows(self._stream.most_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, go no further than the log goes now."""
        log = self._stream.log
        self._target = {shard: log.end(shard) for shard in log.shards()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes: the shards that have something new share the bounds."""
        log = self._stream.log
        reached = positions_of(start)
        known = log.shards() if self._target is None else [*self._target]
        ends = {shard: log.end(shard) if self._target is None else self._target[shard] for shard in known}
        for shard, place in reached.items():
            if place > ends.get(shard, FIRST):
                raise LogUnreadable(
                    f"the log cannot be read: shard {shard} was read up to row {place.row} of segment {place.segment}, "
                    + ("and is gone" if shard not in ends else f"and ends at {ends[shard]} now")
                )
        new = [shard for shard, end in ends.items() if reached.get(shard, FIRST) < end]
        most_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else _ALL
        for shard in new:
            share_rows, share_bytes = (max(most // len(new), 1) for most in (most_rows, self._stream.most_bytes))
            before = reached.get(shard, FIRST)
            ahead = min(log.ahead(shard, before, share_rows, share_bytes), ends[shard])
            cut = self._stream.cuts.get(shard, before)
            reached[shard] = cut if before < cut < ahead else ahead
        return offset_of(reached)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The shards that have something new, dealt out to the tasks."""
        before = positions_of(start)
        spans = [
            Span(shard, before.get(shard, FIRST), until)
            for shard, until in positions_of(end).items()
            if before.get(shard, FIRST) < until
        ]
        tasks = self._stream.placement.partitions
        return [Spans(dealt) for place in range(tasks) if (dealt := spans[place::tasks])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of some shards, split into chunks."""
        assert isinstance(partition, Spans)
        stream = self._stream
        for shard, start, end in partition.spans:
            rows = stream.log.rows(shard, start, end)
            yield from record_batches(stream.split(shard, rows, stream.placement.buckets), stream.placement)
        settle()

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint is so far that nothing before this place will be read for it again."""
        write_checked(self._stream.checkpoint / POSITION_FILE, end)


def passed(checkpoint: Path) -> Positions:
    """Up to where a checkpoint needs the log no more: what retention may go by. ValueError if nobody knows any more."""
    try:
        return positions_of(read_checked(checkpoint / POSITION_FILE))
    except FileNotFoundError:
        return {}


def furthest(offsets: Iterable[Mapping[str, Any]]) -> Positions:
    """How far the furthest has come in each shard."""
    found: Positions = {}
    for offset in offsets:
        for shard, place in positions_of(offset).items():
            found[shard] = max(place, found.get(shard, place))
    return found


def offset_of(positions: Mapping[int, Position]) -> dict[str, Any]:
    """As Spark keeps it. It compares the text, so the shards are in order."""
    return {str(shard): [*positions[shard]] for shard in sorted(positions)}


def positions_of(offset: Mapping[str, Any]) -> Positions:
    """What `offset_of` made."""
    return {int(shard): Position(*place) for shard, place in offset.items()}

"""The log in a folder, as the Spark job reads it, also in Spark's workers: they need not load anything else for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collector import log as files
from protocol.row import Row
from spark_jobs.log_source import LogUnreadable, Position


@dataclass(frozen=True, slots=True)
class SegmentLog:
    """A log by its folder; `spark_jobs.log_source.Log` says what it does."""

    folder: Path

    def shards(self) -> list[int]:
        with _unreadable():
            return files.LogReader(self.folder).shards()

    def start(self, shard: int) -> Position:
        with _unreadable():
            return Position(*files.LogReader(self.folder).start(shard))

    def end(self, shard: int) -> Position:
        with _unreadable():
            return Position(*files.LogReader(self.folder).end(shard))

    def ahead(self, shard: int, start: Position, most_rows: int, most_bytes: int) -> Position:
        with _unreadable():
            reader = files.LogReader(self.folder)
            return Position(*reader.ahead(shard, files.Position(*start), most_rows, most_bytes))

    def rows(self, shard: int, start: Position, end: Position) -> Iterator[Row]:
        with _unreadable():
            yield from files.LogReader(self.folder).rows(shard, files.Position(*start), files.Position(*end))


@contextmanager
def _unreadable() -> Iterator[None]:
    try:
        yield
    except files.SegmentRemoved as error:
        way_out = "a new --checkpoint folder begins with what is left"
        raise LogUnreadable(f"the log cannot be read: {error}: {way_out}") from error
    except (files.LogError, OSError) as error:
        raise LogUnreadable(f"the log cannot be read: {error}; `threadline log verify` says more") from error

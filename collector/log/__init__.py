"""The durable log between the translators and what is built from their rows.

Each shard is a sequence of segment files. One writer appends and commits; any number of readers, in any process, read
up to the position that the writer has published, and name where they are by exact offsets.
"""

from collector.log.errors import (
    LogDamaged,
    LogError,
    LogUnwritable,
    SegmentRemoved,
    ShardInUse,
    TooMuchHeld,
    UnfitRow,
)
from collector.log.identity import log_id
from collector.log.layout import has_segments, listed, parse_shards
from collector.log.reader import LogReader
from collector.log.readers import Backlog, ReaderMark, Unread
from collector.log.retention import remove_segments
from collector.log.row import FIRST, NOBODY, Position
from collector.log.verify import Fault, Finding, ShardReport, verify
from collector.log.writer import Repair, ShardWriter
from protocol.row import Row

__all__ = [
    "FIRST",
    "NOBODY",
    "Backlog",
    "Fault",
    "Finding",
    "LogDamaged",
    "LogError",
    "LogReader",
    "LogUnwritable",
    "Position",
    "ReaderMark",
    "Repair",
    "Row",
    "SegmentRemoved",
    "ShardInUse",
    "ShardReport",
    "ShardWriter",
    "TooMuchHeld",
    "UnfitRow",
    "Unread",
    "has_segments",
    "listed",
    "log_id",
    "parse_shards",
    "remove_segments",
    "verify",
]

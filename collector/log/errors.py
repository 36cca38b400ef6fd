"""What can go wrong with the log, one type per thing that its user would do about it."""

from __future__ import annotations


class LogError(RuntimeError):
    """Anything about the log; the text says what and where."""


class ShardInUse(LogError):
    """Another writer holds the shard: wait for it to end, and try again."""

    def __init__(self, shard: int, holder: str) -> None:
        super().__init__(f"shard {shard} is being written by {holder}")
        self.shard = shard
        self.holder = holder


class LogUnwritable(LogError):
    """The disk does not take it now. Nothing half-written stays; the same call may be made again later."""


class LogDamaged(LogError):
    """Bytes that were committed are not as they were written."""


class SegmentRemoved(LogError):
    """The reader is so far behind that retention has removed what it asks for."""


class TooMuchHeld(LogError):
    """More rows than a writer may hold without a commit; none of those just given were taken."""


class UnfitRow(LogError, ValueError):
    """A row that no segment can hold: a field is out of its range."""

"""Takes away old segments."""

from __future__ import annotations

from pathlib import Path

from collector.log.layout import (
    end_path,
    lost_numbers,
    lost_path,
    segment_numbers,
    segment_path,
    shard_folder,
    sync_folder,
)
from collector.log.position import published
from collector.log.row import Position


def remove_segments(folder: Path, shard: int, before: Position) -> list[int]:
    """Delete the segments that lie wholly before the position, and say which these were.

    The segment that is being written stays, as a writer rebuilds its state from it. The oldest goes first, so that what
    is left has no holes, whenever this is interrupted.
    """
    shard_path = shard_folder(folder, shard)
    keep = min(before.segment, published(shard_path).segment)
    removed = [number for number in segment_numbers(shard_path)[:-1] if number < keep]
    for number in removed:
        end_path(shard_path, number).unlink(missing_ok=True)  # first: else it would be missed
        segment_path(shard_path, number).unlink(missing_ok=True)
    for number in [each for each in lost_numbers(shard_path) if removed and each <= removed[-1]]:
        lost_path(shard_path, number).unlink(missing_ok=True)
    if removed:
        sync_folder(shard_path)
    return removed

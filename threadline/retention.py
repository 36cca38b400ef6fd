"""What is old goes: segments of the log that the Spark job has worked through, and results in the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.log import LogError, Position, remove_segments
from collector.log.layout import segment_numbers, segment_path, shard_folder
from collector.store import Removed, StoreError, StoreWriter
from spark_jobs.log_source import passed
from threadline.repeated import repeated

_LOG = logging.getLogger(__name__)
_EVERY_S = 60.0  # at the most; if things are kept for long, a tenth of that time, up to an hour


@contextmanager
def removing(after_s: float | None, remove: Callable[[float], object], *, at_last: bool = False) -> Iterator[None]:
    """Meanwhile, remove what is older than so many seconds, again and again, and, if asked for, when all is done."""
    if after_s is None:
        yield
        return

    def remove_now() -> None:
        try:
            remove(after_s)
        except (OSError, ValueError, LogError, StoreError) as error:
            _LOG.warning("what is old is not removed error=%s", error)

    with repeated(remove_now, max(_EVERY_S, min(after_s / 10, 3_600.0)), "retention"):
        yield
    if at_last:
        remove_now()


def remove_passed(log: Path, checkpoint: Path, after_s: float) -> dict[int, list[int]]:
    """Delete the segments that the checkpoint has passed and that were last written so long ago; say which."""
    removed: dict[int, list[int]] = {}
    for shard, (segment, _) in passed(checkpoint).items():
        folder = shard_folder(log, shard)
        old = time.time() - after_s
        young = [number for number in segment_numbers(folder) if segment_path(folder, number).stat().st_mtime > old]
        gone = remove_segments(log, shard, Position(min([segment, *young]), 0))
        if gone:
            removed[shard] = gone
            _LOG.info("segments removed shard=%d segments=%d-%d", shard, gone[0], gone[-1])
    return removed


def remove_results(store: StoreWriter, after_s: float, is_over: Callable[[], bool] = lambda: False) -> Removed:
    """Delete results that are complete and so old, and readings that have expired and that no result is left of, as
    long as it is not over."""
    removed = store.retain(int((time.time() - after_s) * 1000), is_over)
    if removed.sinks or removed.sources:
        _LOG.info("results removed sinks=%d sources=%d edges=%d", removed.sinks, removed.sources, removed.edges)
    return removed

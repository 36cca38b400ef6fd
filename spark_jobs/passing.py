"""When a stream has passed: as far as the log says, no sink will name a tuple of it any more."""

from __future__ import annotations

from collections.abc import Iterable

from spark_jobs.fleet import Fleet, Frontiers
from spark_jobs.limits import Limits
from spark_jobs.split import Control
from spark_jobs.state import State


class Passing:
    """The youngest tuple of each stream, wherever it is kept: all buckets are told of it."""

    def __init__(self, state: State, fleet: Fleet) -> None:
        self._fleet = fleet
        self._latest = Limits(state, "latest")

    def note(self, controls: Iterable[Control]) -> None:
        """What the log has told now."""
        gone = self._fleet.gone
        for control in controls:
            for stream, ts in zip(control.streams.tolist(), control.latest.tolist(), strict=True):
                if not gone.firsts or stream not in gone:
                    self._latest.rise(stream, ts)

    def has_passed(self, stream: int, frontiers: Frontiers) -> bool:
        """Whether even the youngest tuple of a stream is too old for every sink that it can reach."""
        return self._latest.get(stream) < frontiers.bound(stream)

    def save(self, gone: Iterable[int]) -> None:
        """Keep it for the next micro-batch, without streams that are forgotten."""
        self._latest.forget(gone)
        self._latest.save()

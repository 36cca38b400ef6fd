"""Nothing more is taken into the log while too much of it is unread: what the agents keep, they keep well.

Their spools are bounded, and so is the log from now on. They send again, after pauses that grow, and are told as soon
as the log is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from collector.log import Backlog, Unread

_LOG = logging.getLogger(__name__)
MOST_UNREAD_BYTES = 8 << 30
EVERY_S = 0.25  # while it is on
CALM_S = 1.0  # else, unless so much was taken that it may be too much
_AT_MOST = 2  # bytes that a byte of a batch may take in the log, as a rule
_ENOUGH = 0.75  # of what may be unread: more is taken again when no more than this is


class Brake:
    """Looks at a log every now and then. Without a bound it never holds anything back."""

    def __init__(self, log: Path, most_bytes: int | None, clock: Callable[[], float] = monotonic) -> None:
        self._backlog = Backlog(log)
        self._clock = clock
        self._look_at = self._held_since = 0.0
        self._taken_bytes = 0
        self.most_bytes = most_bytes
        self.unread = Unread(0)
        self.is_on = False
        self._held_before_s = 0.0

    @property
    def held_s(self) -> float:
        """For how long all was held back, as often as that was."""
        return self._held_before_s + (self._clock() - self._held_since if self.is_on else 0.0)

    def look(self, taken_bytes: int) -> float:
        """Whether there is room, when so much was taken in all. Returns for how long nothing could be taken, if that is
        over now."""
        now = self._clock()
        if self.most_bytes is None:
            return 0.0
        may_have_grown_bytes = _AT_MOST * (taken_bytes - self._taken_bytes)
        if now < self._look_at and (self.is_on or self.unread.size_bytes + may_have_grown_bytes < self.most_bytes):
            return 0.0
        self._taken_bytes = taken_bytes
        try:
            self.unread = self._backlog.unread()
        except OSError as error:  # a disk that cannot be read will not be written either
            _LOG.warning("nobody knows how much of the log is unread error=%s", error)
        if not self.is_on and self.unread.size_bytes >= self.most_bytes:
            self.is_on, self._held_since = True, now
            _LOG.warning(
                "nothing is taken until more of the log is read unread_bytes=%d most_bytes=%d reader=%s",
                self.unread.size_bytes, self.most_bytes, _named(self.unread),
            )  # fmt: skip
        elif self.is_on and self.unread.size_bytes <= self.most_bytes * _ENOUGH:
            self.is_on = False
            held_s = now - self._held_since
            self._held_before_s += held_s
            self._look_at = now + CALM_S
            _LOG.warning("batches are taken again unread_bytes=%d held_s=%.1f", self.unread.size_bytes, held_s)
            return held_s
        self._look_at = now + (EVERY_S if self.is_on else CALM_S)
        return 0.0


def _named(unread: Unread) -> str:
    if unread.mark is None:
        return "nobody, so far: start `threadline spark`, or say --max-unread-bytes 0 if nobody shall"
    if unread.trouble:
        return (
            f"one whose mark cannot be read ({unread.mark}: {unread.trouble}); its `threadline spark` writes it anew "
            "while it runs. If it will not come back, delete the mark and start another, or say --max-unread-bytes 0"
        )
    return f"{unread.reader} (if it will not come back, delete {unread.mark})"

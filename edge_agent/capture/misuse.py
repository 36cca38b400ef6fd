"""What was done wrong with the capture API: counted every time, logged the first time of its kind, raised when strict.

Capturing must not break the program that is watched, so nothing here raises unless it was asked to.
"""

from __future__ import annotations

import os
import threading

from edge_agent.capture.errors import CaptureError, error_text
from edge_agent.logger import Logger
from protocol.wire.packer import Unserialisable

_LOG = Logger("edge_agent.capture")


class Misuse:
    """All of a process. `counts` is by kind."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.counts: dict[str, int] = {}
        self._lock = threading.RLock()  # a signal handler or destructor may capture, too

    def tell(self, kind: str, text: str, cause: BaseException | None = None) -> None:
        """Note one case of a kind; `text` says what it was and what happens instead."""
        if self.strict:
            raise CaptureError(text) from cause
        if self.count(kind) == 1:
            _LOG.warning("%s (further ones are only counted) kind=%s", text, kind)

    def count(self, kind: str) -> int:
        """One more of a kind; returns how many that makes."""
        with self._lock:
            found = self.counts[kind] = self.counts.get(kind, 0) + 1
        return found

    def lost(self, what: str, error: Exception) -> None:
        """Something could not be recorded, whatever the reason."""
        if self.strict or isinstance(error, Unserialisable):
            raise error
        self.tell("not_recorded", f"{what} could not be recorded: {error_text(error)}")

    def forked(self) -> None:
        """In a child process, whose parent may have held the lock."""
        self._lock = threading.RLock()


STRICT_BY_ENVIRONMENT = os.environ.get("THREADLINE_STRICT", "").lower() in ("1", "true", "yes")
misuse = Misuse(strict=STRICT_BY_ENVIRONMENT)

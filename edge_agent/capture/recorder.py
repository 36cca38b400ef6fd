"""Where rows go: the border between the capture API and whatever keeps and sends what it made."""

from __future__ import annotations

from itertools import count
from typing import Any, Protocol

from edge_agent.capture.misuse import misuse
from protocol.wire.packer import Packer

Row = tuple[Any, ...]


class Recorder(Protocol):
    """Takes rows over from any thread and does not let the caller wait for network or disk."""

    packer: Packer
    durable: bool  # then each call ends with `flush`

    def put(self, row: Row, size: int) -> None:
        """Take one row, which holds about `size` bytes."""

    def new_key(self) -> int:
        """0, 1, 2, ... within an epoch; workflows and tasks share the numbering."""

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything put so far is on disk."""


class Nowhere:
    """A recorder for when there is none: it counts what it was given, so that the loss is known. `reason` is for the
    user, unless that was said before."""

    durable = False

    def __init__(self, reason: str = "") -> None:
        self.packer = Packer()
        self._keys = count()
        self._reason = reason

    def put(self, row: Row, size: int) -> None:
        if self._reason:
            misuse.tell("discarded", self._reason)
        else:
            misuse.count("discarded")

    def new_key(self) -> int:
        return next(self._keys)

    def flush(self, timeout: float | None = None) -> None:
        """There is nothing to wait for."""


NOWHERE = Nowhere()
TOO_LATE = Nowhere("the program ends, and so has its agent: what is captured now is discarded")

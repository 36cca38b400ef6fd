"""What is told by one query after another has told it, as when a new checkpoint reads the log once more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replay:
    """Much of what comes is known."""

    removed_before: int
    """What is older and not here was removed, and stays so."""

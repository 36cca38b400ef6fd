"""What a stage remembers of one bucket between micro-batches: values by name and number, nothing else.

A stage reads and writes no more than it needs: behind it, each call is a round trip to another process.
"""

from __future__ import annotations

from typing import Protocol


class State(Protocol):
    """The memory of one bucket of one stage."""

    def get(self, name: str, number: int) -> bytes | None:
        """A value, None if there is none."""

    def put(self, name: str, number: int, value: bytes) -> None:
        """Remember a value."""

    def remove(self, name: str, number: int) -> None:
        """Forget a value that is there."""

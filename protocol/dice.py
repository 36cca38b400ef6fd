"""Chance, so that what many devices do again they do not do at the same moment.

`random.Random` is a Dice, and the one for tests; it loads more than a small board wants to spare for a few numbers.
"""

from __future__ import annotations

import os
from typing import Protocol


class Dice(Protocol):
    """Whatever gives random numbers."""

    def random(self) -> float:
        """At least 0 and less than 1."""


class SystemDice:
    """The numbers of the operating system."""

    def random(self) -> float:
        """At least 0 and less than 1."""
        return int.from_bytes(os.urandom(6), "little") / (1 << 48)

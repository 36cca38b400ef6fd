"""When the next step of a process is due: at equal distances in time, whoever's turn it is.

Processes share a rate, so each has a place of its own between two steps of another; and as no step is due at the moment
at which a rate is set or ends, there are as many in a time as were asked for.
"""

from __future__ import annotations

import math

_MOST_BEHIND_S = 1.0


class Pace:
    """Counts steps. Whoever cannot keep up does not try to make up for it: that is missed."""

    def __init__(self, phase: float) -> None:
        self.steps = 0
        self.missed = 0
        self._phase = phase
        self._per_s = 0.0
        self._begun = 0.0

    def set_rate(self, per_s: float, now: float) -> None:
        """From now on; none at all is 0."""
        if self._per_s:
            self._miss(now)
        self._per_s = per_s
        self._begun = now - (self.steps / per_s if per_s else 0.0)

    def wait_s(self, now: float) -> float:
        """0 if a step is due, which counts as made then; else how long it is until the next one."""
        if not self._per_s:
            return math.inf
        early_s = self._miss(now)
        if early_s > 0:
            return early_s
        self.steps += 1
        return 0.0

    def _miss(self, now: float) -> float:
        """Leave out what is long overdue. How long it is until the next step is due, less than 0 if it is overdue."""
        early_s = self._begun + (self.steps + self._phase) / self._per_s - now
        if -early_s > _MOST_BEHIND_S:
            missed = int(-early_s * self._per_s)
            self.missed += missed
            self._begun += missed / self._per_s
        return early_s

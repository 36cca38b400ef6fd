"""When to send a packet again: round-trip estimate, exponential back-off, jitter (RFC 6298's rules, used by both ends).

The wait follows the measured round trip, so a fast link repairs a loss in a fraction of a second and a slow one is
not flooded. Answers to packets that were sent twice are not measured: one cannot tell which copy they answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_ALIVE_GROWTH = 1.15
_SILENT_GROWTH = 1.35


@dataclass(slots=True)
class RetryPolicy:
    """The bounds within which the estimate may move. `attempts` counts every sending of one packet."""

    first_s: float = 1.0
    least_s: float = 0.2
    most_s: float = 30.0
    attempts: int = 12


@dataclass(slots=True)
class RoundTrip:
    """The smoothed round trip of one peer and the wait that follows from it."""

    policy: RetryPolicy
    smoothed_s: float = -1.0
    deviation_s: float = 0.0

    def measured(self, seconds: float) -> None:
        """Take in the time between a packet that was sent once and its answer."""
        if self.smoothed_s < 0:
            self.smoothed_s, self.deviation_s = seconds, seconds / 2
        else:
            self.deviation_s += (abs(seconds - self.smoothed_s) - self.deviation_s) / 4
            self.smoothed_s += (seconds - self.smoothed_s) / 8

    def wait_s(self, attempt: int, random: Random, alive: bool = False) -> float:
        """How long to wait for an answer after sending for the `attempt`-th time (from 1), jitter included.

        `alive` says that the peer has been heard of since the packet was last sent: then the packet or its answer was
        lost on a working link, and the wait grows gently. Towards a silent peer it grows faster.
        """
        policy = self.policy
        base = policy.first_s if self.smoothed_s < 0 else self.smoothed_s + 4 * self.deviation_s
        base = max(base, policy.least_s) * (_ALIVE_GROWTH if alive else _SILENT_GROWTH) ** min(attempt - 1, 16)
        return min(base, policy.most_s) * (1 + random.random() / 4)

"""When to send a packet again: round-trip estimate, exponential back-off, jitter (RFC 6298's rules, used by both ends).

The wait follows the measured round trip, so a fast link repairs a loss in a fraction of a second and a slow one is
not flooded. Answers to packets that were sent twice are not measured: one cannot tell which copy they answer.
"""

from __future__ import annotations

from protocol.dice import Dice
from protocol.structs import Struct

_ALIVE_GROWTH = 1.15
_SILENT_GROWTH = 1.35
_AMBIGUOUS = 8
_MOST_KEPT_BACK_OFF = 6
_LONGEST_KEPT_WAIT_S = 4.0
"""A back-off that is kept by mistake, on a link that loses much and is not slow, must not cost more than this."""


class RetryPolicy(Struct):
    """The bounds within which the estimate may move. `attempts` counts every sending of one packet."""

    first_s: float = 1.0
    least_s: float = 0.2
    most_s: float = 30.0
    attempts: int = 12


class RoundTrip(Struct):
    """The smoothed round trip of one peer and the wait that follows from it.

    If every answer is to a packet that was sent twice, packets may not be lost but slow, and the round trip would never
    be measured again: then a longer wait is kept until an answer is unambiguous (Karn's rule).
    """

    policy: RetryPolicy
    smoothed_s: float = -1.0
    deviation_s: float = 0.0
    _ambiguous: int = 0
    _back_off: int = 0

    def answered(self, attempts: int, seconds: float) -> bool:
        """Take in the answer to a packet that was sent so many times, the last time so many seconds ago.

        True: a kept back-off has just ended, and nobody need wait so long any more.
        """
        was_backed_off = self._back_off > 0
        if attempts == 1:
            self.measured(seconds)
            self._ambiguous = self._back_off = 0
        elif attempts > 1:
            self._ambiguous += 1
            if self._ambiguous >= _AMBIGUOUS:
                self._back_off = min(self._back_off + attempts - 1, _MOST_KEPT_BACK_OFF)
        return was_backed_off and not self._back_off

    def measured(self, seconds: float) -> None:
        """Take in the time between a packet that was sent once and its answer."""
        if self.smoothed_s < 0:
            self.smoothed_s, self.deviation_s = seconds, seconds / 2
        else:
            self.deviation_s += (abs(seconds - self.smoothed_s) - self.deviation_s) / 4
            self.smoothed_s += (seconds - self.smoothed_s) / 8

    def wait_s(self, attempt: int, random: Dice, alive: bool = False) -> float:
        """How long to wait for an answer after sending for the `attempt`-th time (from 1), jitter included.

        `alive` says that the peer has been heard of since the packet was last sent: then the packet or its answer was
        lost on a working link, and the wait grows gently. Towards a silent peer it grows faster.
        """
        policy = self.policy
        base = policy.first_s if self.smoothed_s < 0 else self.smoothed_s + 4 * self.deviation_s
        wait = max(base, policy.least_s) * (_ALIVE_GROWTH if alive else _SILENT_GROWTH) ** min(attempt - 1, 16)
        if self._back_off:
            wait = max(wait, min(wait * 2.0**self._back_off, _LONGEST_KEPT_WAIT_S))
        return min(wait, policy.most_s) * (1 + random.random() / 4)

    def least_wait_s(self) -> float:
        """The wait that the measured round trip alone asks for, without the policy's caution."""
        return self.smoothed_s + 4 * self.deviation_s

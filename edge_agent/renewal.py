"""When to connect anew although the connection seems to be well.

The gateway takes what is sent, and yet nothing of it is answered: as a rule the cloud is away. But it may also be that
a topic was registered, or a subscription made, under a name that was damaged on its way, or that somebody in between
has lost it. Neither end can see that, and it would stay so for ever. To connect anew repairs it, since all topics are
registered and all subscriptions made again; if that was not it, it is done more and more rarely. No I/O, and no clock.
"""

from __future__ import annotations

FIRST_S = 60.0
MOST_S = 600.0
_NEVER = float("inf")


class Renewal:
    """Of one agent's connection."""

    def __init__(self) -> None:
        self.count = 0
        self._last = -_NEVER
        self._silent_since = _NEVER
        self._wait_s = FIRST_S

    def is_due(self, now: float, silent_since: float, connected: bool) -> bool:
        """Whether it is time. `silent_since`: when the oldest of those who should answer was heard, or first asked;
        infinity if nobody has to."""
        if silent_since != self._silent_since:  # somebody has answered
            self._silent_since, self._wait_s = silent_since, FIRST_S
        if not connected:  # it will connect anew anyway
            self._last = now
            return False
        if now - max(silent_since, self._last) < self._wait_s:
            return False
        self._wait_s = min(2 * self._wait_s, MOST_S)
        self._last = now
        self.count += 1
        return True

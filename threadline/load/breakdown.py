"""What ends a run before its time: a process that has died, or does not do what it has to."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from signal import Signals

_LAST_LINES = 15


class Breakdown(RuntimeError):
    """Without that the run cannot go on; the text ends with the last lines of its log, if there are any."""

    def __init__(self, who: str, what: str, why: str = "", log: Sequence[str] = ()) -> None:
        self._who, self._what, self._why, self._log = who, what, why, log[-_LAST_LINES:]
        super().__init__(self.told())

    @classmethod
    def died(cls, who: str, code: int, log: Sequence[str]) -> Breakdown:
        """A process has ended though it should not have."""
        return cls(who, "died", f"killed by {_signal(-code)}" if code < 0 else f"exit code {code}", log)

    @classmethod
    def failed(cls, who: str, error: Exception) -> Breakdown:
        """Something that nobody has thought of: it says where, as that is all there will be to find out why."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        return cls(who, "failed", f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})")

    def told(self, at_s: float | None = None) -> str:
        """With the time of the run at which it was seen, if there is one."""
        words = [self._who, self._what] + ([] if at_s is None else [f"at {at_s:.0f} s"])
        first = " ".join(words) + (f": {self._why}" if self._why else "")
        return "\n".join([f"{first}; its log ends with", *self._log] if self._log else [first])


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"

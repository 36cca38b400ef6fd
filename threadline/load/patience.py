"""How a run waits: as long as it comes nearer, nothing has broken down, and nobody has told it to stop."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from threadline.load.quiet import distance, is_quiet
from threadline.load.watch import Watch

LOOK_S = 0.1
_ASK_S = 0.5


class Patience:
    """Of one run. Breakdown from all that waits if what is watched cannot go on; `look_around` is told what time it is,
    again and again."""

    def __init__(
        self, stop: threading.Event, watch: Watch, drain_s: float, look_around: Callable[[float], None]
    ) -> None:
        self._stop = stop
        self._watch = watch
        self._drain_s = drain_s
        self._look_around = look_around

    @property
    def is_over(self) -> bool:
        """It was told to stop."""
        return self._stop.is_set()

    def sleep(self, duration_s: float, although_stopped: bool = False) -> bool:
        """Whether it was not told to stop meanwhile."""
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            self._watch.check()
            self._look_around(self._watch.now_s)
            if self.is_over and not although_stopped:
                return False
            time.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
        return True

    def wait_for(
        self, condition: Callable[[], bool], distance_to: Callable[[], float], although_stopped: bool = False
    ) -> None:
        """Until it is true, or it comes no nearer for too long."""
        nearest, give_up = math.inf, time.monotonic() + self._drain_s
        while not condition() and (although_stopped or not self.is_over) and time.monotonic() < give_up:
            if (now := distance_to()) < nearest:
                nearest, give_up = now, time.monotonic() + self._drain_s
            self.sleep(_ASK_S, although_stopped)

    def settle(self, before_s: float) -> None:
        """Until what has piled up since then is gone, or it comes no nearer."""
        samples = self._watch.samples
        self.wait_for(lambda: is_quiet(samples, before_s), lambda: distance(samples))

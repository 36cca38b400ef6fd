"""Threads that leave signals to the program.

The system may give a signal to any thread. Python handles it in the main thread, but does not wake that one from a
sleep for it: Ctrl-C or SIGTERM would wait until the sleep is over.
"""

from __future__ import annotations

import signal
import threading

_PROGRAMS_OWN = frozenset(
    (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
)


class Background(threading.Thread):
    """A thread that takes no signals. Not for the user's code: processes that it starts would take none either."""

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _PROGRAMS_OWN)
        super().run()

"""Threads that leave signals to the program, and do not get in the way of a fork.

The system may give a signal to any thread. Python handles it in the main thread, but does not wake that one from a
sleep for it: Ctrl-C or SIGTERM would wait until the sleep is over.

A process that is forked while another thread loads a module waits for that module for ever.
"""

from __future__ import annotations

import os
import signal
import threading

importing = threading.RLock()
"""To be held by whatever loads a module on one of our threads. A fork waits until that is done."""
os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)

_PROGRAMS_OWN = frozenset(
    (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
)


class Background(threading.Thread):
    """A thread that takes no signals. Not for the user's code: processes that it starts would take none either."""

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _PROGRAMS_OWN)
        super().run()

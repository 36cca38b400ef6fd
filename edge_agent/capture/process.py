"""The recorder of this process: the one it was told to use, or else an agent that the first workflow starts.

An agent cannot be carried over a fork: its thread stays behind, and its files are the parent's. So a child process
begins with none and starts its own when it captures something.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from typing import Protocol

from edge_agent.capture.misuse import STRICT_BY_ENVIRONMENT, misuse
from edge_agent.capture.recorder import Nowhere, Recorder

EXIT_S = 2.0  # how long the end of the program may wait for the network
_LOG = logging.getLogger("edge_agent.capture")


class _Agent(Recorder, Protocol):
    def close(self, timeout: float) -> object: ...


class _Process:
    """Which recorder is in use, and whether it is ours to end."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """In a child process: whatever runs belongs to the parent."""
        self._lock = threading.Lock()
        self._recorder: Recorder | None = None
        self._started: _Agent | None = None
        self._registered = False
        self.token = os.urandom(4).hex()
        """Tells the ids that this process makes up from those of any other."""

    def recorder(self) -> Recorder:
        """The recorder for a new workflow."""
        found = self._recorder
        return self._start() if found is None else found

    def use(self, recorder: Recorder | None, *, strict: bool | None = None) -> None:
        """Record everything from now on with this; None: with an agent of the process's own, when it is needed.

        Workflows that exist already stay where they are.
        """
        self._end_started(EXIT_S)
        with self._lock:
            self._recorder = recorder
            misuse.strict = getattr(recorder, "strict", STRICT_BY_ENVIRONMENT) if strict is None else strict

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything captured so far is on disk."""
        if self._recorder is not None:
            self._recorder.flush(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Send what is left, for so long at most, and end the agent that the process started by itself.

        What could not be sent stays on disk for the next start. A recorder given by `use` is only flushed.
        """
        if not self._end_started(timeout):
            self.flush(timeout)

    def counts(self) -> dict[str, int]:
        """What went wrong so far: misuse by kind, values that were replaced, rows that nobody took."""
        found = dict(misuse.counts)
        if self._recorder is not None:
            found["replaced"] = self._recorder.packer.replaced
        if isinstance(self._recorder, Nowhere):
            found["discarded"] = self._recorder.discarded
        return found

    def _start(self) -> Recorder:
        with self._lock:
            if self._recorder is None:
                try:
                    from edge_agent.agent import default_agent

                    self._recorder = self._started = default_agent()
                    misuse.strict = getattr(self._started, "strict", misuse.strict)
                    self._end_with_process()
                except Exception as error:
                    if misuse.strict:
                        raise
                    _LOG.warning("nothing is captured: no agent could be started error=%s", error)
                    self._recorder = Nowhere()
            return self._recorder

    def _end_started(self, timeout: float) -> bool:
        with self._lock:
            started, self._started = self._started, None
            if started is not None:
                self._recorder = None
        if started is not None:
            started.close(timeout)
        return started is not None

    def _end_with_process(self) -> None:
        if not self._registered:
            self._registered = True
            atexit.register(self._exit)
            if "multiprocessing.util" in sys.modules:
                # Its child processes leave without the handlers of atexit.
                from multiprocessing.util import Finalize

                Finalize(None, self._exit, exitpriority=0)

    def _exit(self) -> None:
        if self._end_started(EXIT_S):
            self._recorder = Nowhere()  # too late for another agent


process = _Process()
use, flush, close, counts = process.use, process.flush, process.close, process.counts
os.register_at_fork(after_in_child=process.forked)
os.register_at_fork(after_in_child=misuse.forked)

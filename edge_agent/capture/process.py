"""The recorder of this process: the one it was told to use, or else an agent that the first workflow starts.

An agent cannot be carried over a fork: its thread stays behind, and its files are the parent's. So a child process
begins with none and starts its own when it captures something. Workflows outlive agents and are bound to the next one
when they need it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Protocol
from weakref import WeakSet

from edge_agent.capture.misuse import STRICT_BY_ENVIRONMENT, misuse
from edge_agent.capture.recorder import NOWHERE, TOO_LATE, Recorder
from edge_agent.logger import Logger

EXIT_S = 2.0  # how long the end of the program may wait for the network
_LOG = Logger("edge_agent.capture")


class _Agent(Recorder, Protocol):
    def close(self, timeout: float) -> object: ...


class Bound(Protocol):
    """Whatever holds on to the recorder, until it is told to let go."""

    def unbind(self) -> None: ...


class _Process:
    """Which recorder is in use, who uses it, and whether it is ours to end."""

    def __init__(self) -> None:
        self._bound: WeakSet[Bound] = WeakSet()
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self._recorder: Recorder | None = None
        self._started: _Agent | None = None
        self._registered = False
        self.token = os.urandom(4).hex()
        """Tells the ids that this process makes up from those of any other."""

    def forked(self) -> None:
        """In a child process: whatever runs belongs to the parent."""
        self._begin()
        self._unbind()

    def bind(self, user: Bound) -> Recorder:
        """The recorder, for someone who lets go of it when it ends."""
        with self.lock:
            recorder = self._start() if self._recorder is None else self._recorder
            self._bound.add(user)
            return recorder

    def use(self, recorder: Recorder | None, *, strict: bool | None = None) -> None:
        """Record everything from now on with this; None: with an agent of the process's own, when it is needed.

        Workflows stay with the recorder that they have, unless it is the process's own agent, which is ended.
        """
        self._end_started(EXIT_S)
        with self.lock:
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
        return found

    def _start(self) -> Recorder:
        try:
            from edge_agent.agent import default_agent

            self._recorder = self._started = default_agent()
        except Exception as error:
            if misuse.strict:
                raise
            _LOG.warning("nothing is captured: no agent could be started error=%s", error)
            self._recorder = NOWHERE
        else:
            misuse.strict = getattr(self._started, "strict", misuse.strict)
            self._end_with_process()
        return self._recorder

    def _end_started(self, timeout: float, successor: Recorder | None = None) -> bool:
        with self.lock:
            started, self._started = self._started, None
            if started is None:
                return False
            self._recorder = successor
            self._unbind()
        started.close(timeout)
        return True

    def _unbind(self) -> None:
        for user in self._bound:
            user.unbind()
        self._bound.clear()

    def _end_with_process(self) -> None:
        if not self._registered:
            self._registered = True
            atexit.register(self._exit)
            if "multiprocessing.util" in sys.modules:
                # Its child processes leave without the handlers of atexit.
                from multiprocessing.util import Finalize

                Finalize(None, self._exit, exitpriority=0)

    def _exit(self) -> None:
        self._end_started(EXIT_S, TOO_LATE)


process = _Process()
use, flush, close, counts = process.use, process.flush, process.close, process.counts
os.register_at_fork(after_in_child=process.forked)
os.register_at_fork(after_in_child=misuse.forked)

"""Simulated time, and the processes that live in it.

Everything happens at a moment of one heap or at the deadline of a process. A process only ever works in `step`, on what
lies in its inbox by then: so it can be stopped (SIGSTOP) and finds everything when it goes on, as in a socket's buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

BEGIN_S = 1_000_000.0
_LEAST_S = 0.0005  # between two steps of one process: nothing is that quick, and time must go on
_MOST_WAITING = 20_000  # a socket's buffer


class Process(ABC):
    """Something that runs, until it is killed."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.due = timeline.now
        self.inbox: list[Callable[[], None]] = []
        self.paused_until = 0.0
        timeline.processes.append(self)

    @abstractmethod
    def step(self, now: float) -> float:
        """All that there is to do now; returns when there is more."""

    def put(self, news: Callable[[], None]) -> None:
        """Something for the next step."""
        if len(self.inbox) < _MOST_WAITING:
            self.inbox.append(news)
        self.due = min(self.due, self.timeline.now)

    def take(self) -> list[Callable[[], None]]:
        """What has come."""
        came, self.inbox = self.inbox, []
        return came

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self.paused_until = max(self.paused_until, self.timeline.now + seconds)

    def leave(self) -> None:
        """It does not run any more."""
        if self in self.timeline.processes:
            self.timeline.processes.remove(self)


class Timeline:
    """The clock of the simulation."""

    def __init__(self) -> None:
        self.now = BEGIN_S
        self.processes: list[Process] = []
        self.on_killed: Callable[[Process, BaseException], None]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def later(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen."""
        heappush(self._events, (self.now + delay_s, next(self._order), event))

    def forget(self, is_gone: Callable[[Callable[[], None]], bool]) -> None:
        """Some of what was to happen does not."""
        self._events = [each for each in self._events if not is_gone(each[2])]
        heapify(self._events)

    def run(self, seconds: float) -> None:
        """Let time pass; anything that is due happens in its order."""
        end = self.now + seconds
        while True:
            due = min([each.due for each in self.processes], default=inf)
            if self._events:
                due = min(due, self._events[0][0])
            if due >= end:
                break
            self.now = max(self.now, due)
            while self._events and self._events[0][0] <= self.now:
                heappop(self._events)[2]()
            for process in list(self.processes):
                if process.due <= self.now and process in self.processes:
                    self._step(process)
        self.now = end

    def _step(self, process: Process) -> None:
        if process.paused_until > self.now:
            process.due = process.paused_until
            return
        process.due = inf  # what comes meanwhile counts
        try:
            due = process.step(self.now)
        except BaseException as error:
            self.on_killed(process, error)
        else:
            process.due = max(min(process.due, due), self.now + _LEAST_S)

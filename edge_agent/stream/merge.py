"""Operators with several inputs. They wait until time has passed on all of them, so the result does
not depend on which input came first."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter

from edge_agent.stream.lineage.base import StreamTuple
from edge_agent.stream.operator import Faults, HoldHistory, Operator
from protocol.records import BEGINNING, END_OF_TIME

ts_of = itemgetter(0)


class Merging(Operator):
    """Keeps what comes until the lowest watermark of the inputs that are not idle has passed it."""

    def __init__(self, name: str, faults: Faults, histories: list[HoldHistory | None]) -> None:
        super().__init__(name, faults)
        self._waiting: list[list[StreamTuple]] = [[] for _ in histories]
        self._watermarks = [BEGINNING] * len(histories)
        self._holds = [BEGINNING] * len(histories)
        self._idle = [False] * len(histories)
        self._histories = histories
        self._now = BEGINNING

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        if batch[0][0] < self._now:  # the input had been idle
            batch = self._in_time(batch)
            if not batch:
                return
        self._waiting[port].extend(batch)
        history = self._histories[port]
        if history is not None:
            history.note(batch)

    def advance(self, port: int, watermark: int, hold: int, idle: bool) -> None:
        self._watermarks[port] = watermark
        self._holds[port] = hold
        self._idle[port] = idle
        history = self._histories[port]
        if history is not None:
            history.promise(watermark, hold)
        awaited = [
            each for each, idle in zip(self._watermarks, self._idle, strict=True) if not idle and each < END_OF_TIME
        ]
        if awaited or min(self._watermarks) == END_OF_TIME:
            now = max(self._now, min(awaited, default=END_OF_TIME))
            ready = [cut(waiting, now) for waiting in self._waiting]
        else:
            # There is nobody to wait for: let everything go, and go on from there.
            ready, self._waiting = self._waiting, [[] for _ in self._waiting]
            now = max([self._now, *(each[-1][0] for each in ready if each)])
        self._now = now
        self.pass_time(now, ready)
        kept_since = self.kept_since(now)
        holds = [
            hold if history is None else history.since(kept_since)
            for hold, history in zip(self._holds, self._histories, strict=True)
        ]
        self.promise(now, min(*holds, self.held()), not awaited)

    def waiting(self) -> int:
        """How many tuples are kept."""
        return sum(len(each) for each in self._waiting)

    def _in_time(self, batch: list[StreamTuple]) -> list[StreamTuple]:
        for t in batch:
            if t[0] < self._now:
                self.faults.late(t[0], t[1], self._now)
        return [t for t in batch if t[0] >= self._now]

    def pass_time(self, now: int, ready: list[list[StreamTuple]]) -> None:
        """Everything below `now` has come; `ready` is what came since the last time, per input."""
        raise NotImplementedError

    def kept_since(self, now: int) -> int:
        """A ts that all tuples kept here have reached."""
        raise NotImplementedError

    def held(self) -> int:
        """The oldest ts in a length window of this operator."""
        raise NotImplementedError


def cut(waiting: list[StreamTuple], now: int) -> list[StreamTuple]:
    """Take out what is below `now`."""
    if not waiting or waiting[0][0] >= now:
        return []
    end = bisect_left(waiting, now, key=ts_of)
    ready = waiting[:end]
    del waiting[:end]
    return ready

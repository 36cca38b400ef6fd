"""Operators with several inputs. They wait until time has passed on all of them, so the result does
not depend on which input came first."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter

from edge_agent.stream.lineage.base import StreamTuple
from edge_agent.stream.operator import Faults, HoldHistory, Operator
from protocol.records import BEGINNING

ts_of = itemgetter(0)


class Merging(Operator):
    """Keeps what comes until the lowest watermark has passed it."""

    def __init__(self, name: str, faults: Faults, histories: list[HoldHistory | None]) -> None:
        super().__init__(name, faults)
        self._waiting: list[list[StreamTuple]] = [[] for _ in histories]
        self._watermarks = [BEGINNING] * len(histories)
        self._holds = [BEGINNING] * len(histories)
        self._histories = histories

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        self._waiting[port].extend(batch)
        history = self._histories[port]
        if history is not None:
            history.note(batch)

    def advance(self, port: int, watermark: int, hold: int) -> None:
        self._watermarks[port] = watermark
        self._holds[port] = hold
        history = self._histories[port]
        if history is not None:
            history.promise(watermark, hold)
        now = min(self._watermarks)
        self.pass_time(now, [cut(waiting, now) for waiting in self._waiting])
        kept_since = self.kept_since(now)
        holds = [
            hold if history is None else history.since(kept_since)
            for hold, history in zip(self._holds, self._histories, strict=True)
        ]
        self.promise(now, min(*holds, self.held()))

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

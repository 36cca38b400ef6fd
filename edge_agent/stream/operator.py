"""What every running operator is: lists of tuples in, lists of tuples out, and promises about time.

Tuples travel in lists, in event-time order on every stream. After each list comes a promise: later
tuples have ts >= watermark, and nothing older than `hold` is kept in a length window upstream; if the
stream is idle, nobody should wait for it. A list that was given is never changed by anyone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from edge_agent.stream.errors import StreamError, described
from edge_agent.stream.functions import name_of
from edge_agent.stream.lineage.base import StreamTuple
from protocol.ids import StreamId
from protocol.records import BEGINNING, END_OF_TIME, Late, Record, Skipped


class Faults:
    """What an operator leaves out, counted and told: tuples that come late, and those that user code raises on."""

    def __init__(self, stream: StreamId, skip: bool, emit: Callable[[Record], None]) -> None:
        self.stream = stream
        self.skip = skip
        self.skipped = 0
        self.lates = 0
        self._emit = emit

    def late(self, ts: int, payload: Any, watermark: int) -> None:
        """A tuple came although a watermark had passed it."""
        self.lates += 1
        self._emit(Late(self.stream, ts, payload, watermark))

    def failed(self, function: Any, ts: int | None, payload: Any, error: Exception) -> None:
        """Raise a StreamError that names all of this, or note it and return."""
        operator = self.stream.name
        if not self.skip:
            raise StreamError(operator, name_of(function), ts, payload, error)
        self.skipped += 1
        self._emit(Skipped(operator, name_of(function), ts, payload, described(error)))


class Operator:
    """Base of all operators; a port is the number of an input."""

    def __init__(self, name: str, faults: Faults) -> None:
        self.name = name
        self.faults = faults
        self.taken = 0
        self.given = 0
        self._results: list[StreamTuple] = []
        self._outputs: list[tuple[Operator, int]] = []

    def to(self, consumer: Operator, port: int) -> None:
        """Connect the output to an input of `consumer`."""
        self._outputs.append((consumer, port))

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        """The next tuples of an input."""
        raise NotImplementedError

    def advance(self, port: int, watermark: int, hold: int, idle: bool) -> None:
        """A promise about an input. Passed on as it is unless the operator keeps tuples."""
        self.promise(watermark, hold, idle)

    def give(self, batch: list[StreamTuple]) -> None:
        """Pass tuples on."""
        if batch:
            self.given += len(batch)
            for consumer, port in self._outputs:
                consumer.feed(port, batch)

    def give_results(self) -> None:
        """Pass on the results that were made one by one."""
        if self._results:
            results = self._results
            self._results = []
            self.give(results)

    def promise(self, watermark: int, hold: int, idle: bool) -> None:
        """Pass a promise on."""
        for consumer, port in self._outputs:
            consumer.advance(port, watermark, hold, idle)


class HoldHistory:
    """How far back the tuples of an input reach that an operator may still keep.

    A length window upstream lets go of an old tuple when newer ones come, but the results that it
    gave before still carry that tuple and may wait in an operator downstream. So each list is
    remembered with the promise that was in force before it.
    """

    def __init__(self) -> None:
        self._lists: deque[tuple[int, int]] = deque()
        self._reach = BEGINNING
        self._hold = END_OF_TIME

    def note(self, batch: list[StreamTuple]) -> None:
        """Tuples came in."""
        if self._lists and self._lists[-1][1] == self._reach:
            self._lists.pop()
        self._lists.append((batch[-1][0], self._reach))

    def promise(self, watermark: int, hold: int) -> None:
        """What holds for the lists that follow."""
        self._reach = min(watermark, hold)
        self._hold = hold

    def since(self, ts: int) -> int:
        """The hold that covers every tuple with at least this ts, and all that are still to come."""
        lists = self._lists
        while lists and lists[0][0] < ts:
            lists.popleft()
        return min(lists[0][1], self._hold) if lists else self._hold

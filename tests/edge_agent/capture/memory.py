"""A recorder that keeps rows in memory and reads them back through the batch codec, as the cloud would."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any, TypeVar

from edge_agent.capture.recorder import Row
from protocol.events import Event, TaskBegun, TaskEnded
from protocol.wire.batch import Header, decode_batch, encode_batch
from protocol.wire.packer import Packer

E = TypeVar("E")


class Memory:
    """Rows in the order in which they came."""

    def __init__(self, *, strict: bool = False, durable: bool = False) -> None:
        self.packer = Packer(strict=strict)
        self.strict = strict
        self.durable = durable
        self.rows: list[Row] = []
        self.sizes: list[int] = []
        self.flushed: list[int] = []  # how many rows there were at each flush
        self.closed: list[float | None] = []
        self._keys = count()
        self._lock = threading.Lock()

    def put(self, row: Row, size: int) -> None:
        with self._lock:
            self.rows.append(row)
            self.sizes.append(size)

    def new_key(self) -> int:
        return next(self._keys)

    def flush(self, timeout: float | None = None) -> None:
        self.flushed.append(len(self.rows))

    def close(self, timeout: float | None = None) -> None:
        self.closed.append(timeout)

    def events(self) -> list[Event]:
        """What the cloud would read."""
        found: list[Any] = []
        for at in range(0, len(self.rows), 100):
            part = self.rows[at : at + 100]
            batch = decode_batch(encode_batch(Header(1, 7, 0), part, "car-7", first_event=at), "car-7")
            found += batch.records()
        assert [event.number for event in found] == list(range(len(self.rows)))
        return found

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events() if isinstance(event, kind)]

    def tasks(self) -> list[tuple[TaskBegun, TaskEnded]]:
        """Every task as it began and ended, by key."""
        ended = {event.key: event for event in self.of(TaskEnded)}
        begun = sorted(self.of(TaskBegun), key=lambda event: event.key)
        assert sorted(ended) == [event.key for event in begun]
        return [(event, ended[event.key]) for event in begun]

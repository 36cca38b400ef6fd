"""Where tuples leave the plan. SU, the paper's single-stream unfold, stands before every Sink and Send:
it tells each tuple together with the tuples that it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_agent.stream.lineage.base import Lineage, StreamTuple
from edge_agent.stream.operator import Faults, Operator
from protocol.ids import StreamId
from protocol.records import BEGINNING, Delivery, Origin, OriginKind, Progress, Record

# What crosses to another agent: tuples as (ts, value, origin), then a promise (watermark, hold, idle).
Transmit = Callable[[StreamId, list[tuple[int, Any, Origin]], int, int, bool], None]


class Sink(Operator):
    """Unfolds each tuple into a Delivery and hands its payload to the user's function, if there is one."""

    def __init__(
        self,
        name: str,
        faults: Faults,
        lineage: Lineage,
        stream: StreamId,
        emit: Callable[[Record], None],
        function: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(name, faults)
        self.stream = stream
        self.watermark = BEGINNING
        self.hold = BEGINNING
        self._lineage = lineage
        self._emit = emit
        self._function = function

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        for t in batch:
            self.unfold(t)
            if self._function is not None:
                try:
                    self._function(t[1])
                except Exception as error:
                    self.faults.failed(self._function, t[0], t[1], error)

    def advance(self, port: int, watermark: int, hold: int, idle: bool) -> None:
        if watermark != self.watermark or hold != self.hold:
            self.watermark = watermark
            self.hold = hold
            self._emit(Progress(self.stream, watermark, hold))

    def unfold(self, t: StreamTuple) -> Delivery:
        """Tell the tuple and its origins."""
        origins = self._lineage.origins(t)
        delivery = Delivery(self.stream, self.given, t[0], t[1], tuple(origins))
        self.given += 1
        self._emit(delivery)
        return delivery


class Send(Sink):
    """A Sink whose tuples go on to other agents: a source tuple as the source tuple that it is, all
    others as REMOTE, known by their delivery."""

    def __init__(
        self,
        name: str,
        faults: Faults,
        lineage: Lineage,
        stream: StreamId,
        emit: Callable[[Record], None],
        transmit: Transmit,
    ) -> None:
        super().__init__(name, faults, lineage, stream, emit, None)
        self._transmit = transmit
        self._leaving: list[tuple[int, Any, Origin]] = []

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        for t in batch:
            delivery = self.unfold(t)
            origin = self._lineage.origin(t)
            if origin is None or origin.kind is not OriginKind.SOURCE:
                origin = Origin(OriginKind.REMOTE, self.stream, delivery.seq, t[0])
            else:
                origin = Origin(OriginKind.SOURCE, origin.stream, origin.seq, origin.ts)  # without its payload
            self._leaving.append((t[0], t[1], origin))

    def advance(self, port: int, watermark: int, hold: int, idle: bool) -> None:
        super().advance(port, watermark, hold, idle)
        self._transmit(self.stream, self._leaving, watermark, hold, idle)
        self._leaving = []

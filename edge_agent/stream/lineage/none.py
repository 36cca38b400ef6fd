"""Mode `none`: tuples remember nothing. The baseline that the other modes are measured against."""

from __future__ import annotations

from typing import Any

from edge_agent.stream.lineage.base import Lineage, StreamTuple, WindowLog
from protocol.records import Origin


class NoLineage(Lineage):
    """Every third field of a derived tuple is None."""

    def arrived(self, ts: int, value: Any, origin: Origin) -> StreamTuple:
        return (ts, value, origin)

    def mapped(self, inputs: list[StreamTuple], values: list[Any]) -> list[StreamTuple]:
        return [(t[0], value, None) for t, value in zip(inputs, values, strict=True)]

    def of_pair(self, newer: StreamTuple, older: StreamTuple) -> Any:
        return None

    def of_window(self, tuples: list[StreamTuple]) -> Any:
        return None

    def window_log(self) -> WindowLog | None:
        return None

    def origins(self, root: StreamTuple) -> list[Origin]:
        return []

    def origin(self, t: StreamTuple) -> Origin | None:
        return None

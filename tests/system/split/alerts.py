"""Sink tuples and the readings behind them, as one process finds them and as the log tells them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collector.log_view import entries
from edge_agent.stream import Results
from protocol.ids import TupleId
from protocol.records import Delivery, SourcePayload
from protocol.wire.sections import Kind
from tests.support import oracle

# timestamp, values of the alert, and (timestamp, values) of the readings behind it
Alert = tuple[int, tuple[Any, ...], list[tuple[int, tuple[Any, ...]]]]


def values_of(payload: Any) -> tuple[Any, ...]:
    """A payload without the names of its fields: the log knows no types of ours."""
    return tuple(payload.values()) if isinstance(payload, dict) else dataclasses.astuple(payload)


def _alert(delivery: Delivery, upstream: Mapping[TupleId, Any], said: Mapping[TupleId, SourcePayload]) -> Alert:
    readings = [said[origin.id] for origin in oracle.resolve(delivery.origins, upstream)]
    behind = sorted((each.ts, values_of(each.payload)) for each in readings)
    return delivery.ts, values_of(delivery.payload), behind


def found_by_one(results: Results, sink: str) -> list[Alert]:
    """The alerts of a query that ran in one process."""
    return [_alert(each, {}, results.sources) for each in results.of(sink)]


def found_in_log(folder: Path) -> dict[tuple[str, str], list[Alert]]:
    """The alerts that each agent has delivered to each sink, in the order of the log. What came from others stands
    for what their deliveries name."""
    told: list[Delivery] = []
    said: dict[TupleId, SourcePayload] = {}
    for each in entries(folder, [Kind.DELIVERY, Kind.SOURCE]):
        if each.kind is Kind.DELIVERY:
            told.append(each.record)
        else:
            said[each.record.id] = each.record
    upstream = {each.id: each.origins for each in told}
    assert len(upstream) == len(told), "a delivery is in the log twice"
    found: dict[tuple[str, str], list[Alert]] = {}
    for delivery in told:
        place = delivery.stream.agent, delivery.stream.name
        found.setdefault(place, []).append(_alert(delivery, upstream, said))
    return found

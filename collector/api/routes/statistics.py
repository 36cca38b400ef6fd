"""Figures over time, for charts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from collector.api.checked_route import CheckedRoute
from collector.api.context import Shared, reply
from collector.api.parameters import AgentFilter, From, StreamFilter, To, check_span, patterns
from collector.api.problems import bad_field, responses
from collector.api.rows import Series, Statistics
from collector.api.view import View
from collector.store.reader import SinkCount
from protocol.records import BEGINNING, END_OF_TIME

router = APIRouter(route_class=CheckedRoute, tags=["statistics"])
MOST_SLOTS = 1_000
MOST_SERIES = 100
MOST_MS = 1 << 53


@router.get("/statistics", response_model=Statistics, responses=responses())
async def statistics(
    shared: Shared,
    agent: AgentFilter = None,
    stream: StreamFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    slots: Annotated[int, Query(description="So many slots of equal width.", ge=1, le=MOST_SLOTS)] = 60,
) -> Response:
    """Results of each stream by event time, from how many readings they came, how many are open or incomplete; tasks by
    when they began. Without `from` and `to`: over all the time of which there are results or, unless `stream` says of
    which, tasks."""
    check_span(from_ms, to_ms)
    version = shared.version()

    def find(view: View) -> Statistics:
        reader = view.reader
        streams = view.streams_meant(patterns(stream), agent)
        # Whoever asks for streams is not answered with the times of tasks, which have none.
        first, last = reader.times(streams, agent) if stream is None else _times(view, streams)
        first, last = (first if from_ms is None else from_ms), (last if to_ms is None else to_ms)
        if first is None or last is None or last < first:
            return Statistics(
                from_ms=first,
                to_ms=last,
                width_ms=0,
                starts_ms=[],
                streams=[],
                tasks_begun=[],
                tasks_failed=[],
                totals=reader.counters(),
            )
        if last - first > MOST_MS:
            raise bad_field("from", "this is too long a time: give from and to")
        width = (last - first) // slots + 1
        by_stream: dict[str, list[SinkCount]] = {}
        for count in reader.count_sinks(first, last, width, streams):
            of = view.stream_of(count.stream)
            by_stream.setdefault(f"{of.agent}/{of.name}", []).append(count)
        begun, failed = reader.count_tasks(first, last, width, agent)
        return Statistics(
            from_ms=first,
            to_ms=last,
            width_ms=width,
            starts_ms=[first + slot * width for slot in range(slots)],
            streams=[_series(name, by_stream[name], slots) for name in sorted(by_stream)[:MOST_SERIES]],
            truncated=len(by_stream) > MOST_SERIES,
            tasks_begun=[begun.get(slot, 0) for slot in range(slots)],
            tasks_failed=[failed.get(slot, 0) for slot in range(slots)],
            totals=reader.counters(),
        )

    return reply(await shared.readers.ask(find), version)


def _times(view: View, streams: list[int] | None) -> tuple[int | None, int | None]:
    """From when to when there are results of some streams. What is at the ends of time does not count."""
    first, last = (
        view.reader.sinks(
            from_ts=BEGINNING + 1, to_ts=END_OF_TIME - 1, streams=streams, newest_first=is_newest, limit=1
        )
        for is_newest in (False, True)
    )
    return (first[0].ts, last[0].ts) if first and last else (None, None)


def _series(name: str, counts: list[SinkCount], slots: int) -> Series:
    columns = {field: [0] * slots for field in ("results", "origins", "open", "incomplete")}
    for count in counts:
        for field, value in zip(columns, count[2:], strict=True):
            columns[field][count.slot] += value
    return Series(stream=name, **columns)

"""Results: the alerts that people begin with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from collector.api import cursors
from collector.api.checked_route import CheckedRoute
from collector.api.context import Shared, documents, reply_graph
from collector.api.graphs import shown_graph
from collector.api.models import ProvDocument, Sinks
from collector.api.parameters import (
    AgentFilter,
    Cursor,
    ExportFormat,
    From,
    Limit,
    Payloads,
    StreamFilter,
    To,
    Where,
    conditions,
    patterns,
    span,
)
from collector.api.problems import responses
from collector.api.view import Shown, View
from collector.export import FORMATS
from collector.filters import Condition

router = APIRouter(route_class=CheckedRoute, tags=["graph"])
MOST_EXAMINED = 20_000
_AT_ONCE = 500


@router.get("/sinks", response_model=Sinks | ProvDocument, responses={**responses(400), **documents(FORMATS)})
async def sinks(
    shared: Shared,
    agent: AgentFilter = None,
    streams: StreamFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    state: Annotated[
        Literal["open", "complete", "incomplete"] | None, Query(description="Only results in this state.")
    ] = None,
    where: Where = None,
    order: Annotated[Literal["newest", "oldest"], Query(description="Which come first, by event time.")] = "newest",
    payload: Payloads = True,
    limit: Limit = 100,
    cursor: Cursor = None,
    format: ExportFormat = "json",
) -> Response:
    """Results (alerts) by event time, with what they say. `where` searches in their payloads."""
    after = cursors.decode("sinks", cursor, int, int)
    version = shared.version()

    def find(view: View) -> Shown:
        numbers = view.streams_meant(patterns(streams), agent)
        return _found(
            view, numbers, span(from_ms, to_ms), state, conditions(where), order == "newest", payload, limit, after
        )

    return await reply_graph(await shared.readers.ask(find), format, "sinks", version)


def _found(
    view: View,
    streams: list[int] | None,
    times: tuple[int, int],
    state: Any,
    where: tuple[Condition, ...],
    newest_first: bool,
    with_payloads: bool,
    limit: int,
    after: Any,
) -> Shown:
    shown: list[Shown] = []
    examined = 0
    while True:
        page = view.reader.sinks(
            from_ts=times[0],
            to_ts=times[1],
            streams=streams,
            state=state,
            after=after,
            newest_first=newest_first,
            limit=_AT_ONCE if where else limit + 1,
        )
        vertices = view.tuple_list([each.id for each in page], with_payloads or bool(where))
        for sink, vertex in zip(page, vertices, strict=True):
            if len(shown) == limit or examined == MOST_EXAMINED:
                return _sinks(shown, after, examined, with_payloads)
            examined += 1
            after = sink.ts, sink.id
            if all(each.matches(vertex["payload"]) for each in where):
                shown.append(vertex)
        if len(page) < (_AT_ONCE if where else limit + 1):
            return _sinks(shown, None, examined, with_payloads)
        view.reader.check_time()


def _sinks(shown: list[Shown], after: Any, examined: int, with_payloads: bool) -> Shown:
    if not with_payloads:
        shown = [each | {"payload": None} for each in shown]
    return shown_graph(shown, [], None if after is None else cursors.encode("sinks", *after), examined=examined)

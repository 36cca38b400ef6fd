"""What went wrong, made visible: gaps, what came too late, and what could not be read."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from collector.api import cursors
from collector.api.checked_route import CheckedRoute
from collector.api.context import Shared, reply
from collector.api.parameters import AgentFilter, Cursor, From, Limit, StreamFilter, To, patterns, span
from collector.api.problems import responses
from collector.api.rows import GapRow, Gaps, LateRow, LateRows, LateTuple, LateTuples, RefusedRow, RefusedRows
from collector.api.view import View, time_or_none
from collector.names import StreamPattern
from collector.plain import as_plain
from collector.store.people import Span
from protocol.wire.sections import Kind

router = APIRouter(route_class=CheckedRoute, tags=["troubles"])
_ROWS_AT_ONCE = 100
_KINDS = {int(kind): kind.name.lower() for kind in Kind}


@router.get("/gaps", response_model=Gaps, responses=responses(400))
async def gaps(
    shared: Shared,
    agent: AgentFilter = None,
    stream: StreamFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """What will never come, and why, in the order in which it was told. `stream`: only gaps that name such a stream;
    `from` and `to` are about when it was stored."""
    after = cursors.decode("gaps", cursor, int)
    version = shared.version()

    def find(view: View) -> Gaps:
        seen = Span(*span(from_ms, to_ms))
        meant = patterns(stream)
        items: list[GapRow] = []
        last = after[0] if after else 0
        while True:
            page = view.reader.gaps(agent=agent, seen=seen, after=last, limit=limit + 1)
            for gap in page:
                if meant is not None and not any(_names(gap.detail, each, gap.agent) for each in meant):
                    last = gap.number
                    continue
                if len(items) == limit:
                    return Gaps(items=items, next=cursors.encode("gaps", last))
                last = gap.number
                items.append(
                    GapRow(
                        agent=gap.agent or None,
                        epoch=gap.detail.get("epoch"),
                        batch=gap.seq,
                        reason=gap.reason,
                        detail={name: told for name, told in gap.detail.items() if name not in ("reason", "nonce")},
                        seen_ms=gap.seen_ms,
                    )
                )
            if len(page) <= limit:
                return Gaps(items=items, next=None)
            view.reader.check_time()

    return reply(await shared.readers.ask(find), version)


def _names(detail: dict[str, Any], pattern: StreamPattern, agent: str) -> bool:
    """Whether a gap says something of such a stream."""
    lost = [str(each.get("name") if isinstance(each, dict) else each[0]) for each in detail.get("tuples") or ()]
    known = [str(each[0]) for part in ("progress", "next_seqs") for each in detail.get(part) or ()]
    start = detail.get("epoch"), detail.get("nonce")
    return any(pattern.matches(agent, name, *start) for name in (*lost, *known))


@router.get("/late", response_model=LateRows, responses=responses(400))
async def late(
    shared: Shared,
    agent: AgentFilter = None,
    stream: StreamFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Edges that came too late for the graph, by result. `agent` and `stream` are about the results, `from` and `to`
    about the time of the origins."""
    after = cursors.decode("late", cursor, int, int)
    version = shared.version()

    def find(view: View) -> LateRows:
        streams = view.streams_meant(patterns(stream), agent)
        first = (after[0], after[1]) if after else (-1, -1)
        found = view.reader.late(streams, Span(*span(from_ms, to_ms)), first, limit + 1)
        items = [
            LateRow(
                sink=view.name_of(each.sink),
                origin=view.name_of(each.origin),
                origin_ts=time_or_none(each.origin_ts),
                reason=each.reason.name.lower(),  # type: ignore[arg-type]
                via=None if each.via is None else view.name_of(each.via),
            )
            for each in found[:limit]
        ]
        has_more = len(found) > limit
        last = cursors.encode("late", found[limit - 1].sink, found[limit - 1].origin) if has_more else None
        return LateRows(items=items, next=last)

    return reply(await shared.readers.ask(find), version)


@router.get("/late/tuples", response_model=LateTuples, responses=responses(400))
async def late_tuples(
    shared: Shared,
    agent: AgentFilter = None,
    stream: StreamFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Tuples that came to an agent after what their source had promised: they are in no result. `from` and `to` are
    about when they were stored."""
    after = cursors.decode("late-tuples", cursor, int, int)
    version = shared.version()

    def find(view: View) -> LateTuples:
        seen = Span(*span(from_ms, to_ms))
        meant = patterns(stream)
        items: list[LateTuple] = []
        row, passed = (after[0], after[1]) if after else (1, 0)
        while True:
            page = view.reader.kept(Kind.LATE, agent=agent, seen=seen, after=row - 1, limit=_ROWS_AT_ONCE)
            for kept in page:
                first = passed if kept.number == row else 0
                for place, record in enumerate(kept.records[first:], first):
                    if len(items) == limit:
                        return LateTuples(items=items, next=cursors.encode("late-tuples", kept.number, place))
                    of = record.stream
                    if meant is None or any(each.matches(of.agent, of.name, of.epoch, of.nonce) for each in meant):
                        items.append(_late_tuple(record, kept.seen_ms))
                row, passed = kept.number + 1, 0
            if len(page) < _ROWS_AT_ONCE:
                return LateTuples(items=items, next=None)
            view.reader.check_time()

    return reply(await shared.readers.ask(find), version)


def _late_tuple(record: Any, seen_ms: int) -> LateTuple:
    return LateTuple(
        agent=record.stream.agent,
        epoch=record.stream.epoch,
        stream=record.stream.name,
        ts=time_or_none(record.ts),
        watermark=time_or_none(record.watermark),
        payload=as_plain(record.payload),
        seen_ms=seen_ms,
    )


@router.get("/refused", response_model=RefusedRows, responses=responses(400))
async def refused(
    shared: Shared,
    agent: AgentFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Rows of the log that could not be read; they are kept as they were. `from` and `to` are about when."""
    after = cursors.decode("refused", cursor, int)
    version = shared.version()

    def find(view: View) -> RefusedRows:
        seen = Span(*span(from_ms, to_ms))
        found = view.reader.refused(agent=agent, seen=seen, after=after[0] if after else 0, limit=limit + 1)
        items = [
            RefusedRow(
                agent=each.agent,
                nonce=f"{each.nonce:016x}",
                batch=each.seq,
                kind=_KINDS.get(each.kind, str(each.kind)),
                reason=each.reason,
                seen_ms=each.seen_ms,
            )
            for each in found[:limit]
        ]
        return RefusedRows(
            items=items, next=cursors.encode("refused", found[limit - 1].number) if len(found) > limit else None
        )

    return reply(await shared.readers.ask(find), version)

"""A reading turns out to be wrong or private: which results did it touch, and can it still touch more?"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Self, cast

import numpy as np
from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from collector.api import cursors
from collector.api.checked_route import CheckedRoute
from collector.api.context import Shared, documents, reply_graph
from collector.api.graphs import Tuples, shown_edge, shown_graph
from collector.api.models import Impact, ProvDocument
from collector.api.parameters import (
    MOST_NAMED,
    AgentFilter,
    Cursor,
    ExportFormat,
    From,
    Limit,
    Payloads,
    ReadingId,
    StreamText,
    TimeMs,
    To,
    span,
)
from collector.api.problems import Problem, bad_field, responses
from collector.api.view import Shown, View
from collector.export import FORMATS
from collector.lineage import walk
from collector.names import StreamPattern, TupleName, parse_name, parse_stream
from collector.reach import Promise, Stream, still_reached
from collector.store.packing import distinct
from collector.store.vertices import Sent, Sink
from protocol.chunks import SEQ_BITS, Numbers
from protocol.plan import Node, PlanDocument, PlanError
from protocol.records import END_OF_TIME

router = APIRouter(route_class=CheckedRoute, tags=["graph"])
MOST_SOURCES = 200_000
MOST_EDGES = 20_000
"""In an answer."""
_MOST_UNKNOWN = 100
MOST_SENT = 20_000
"""Tuples that came from one that was sent on."""
_MOST_POSTED = 10_000


class Readings(BaseModel):
    """Readings by their ids, or all of a stream within a span of time."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"sources": ["accidents-roadside/reports@1:39"]},
                {"stream": "accidents-roadside/reports", "from": 300_000, "to": 420_000},
            ]
        },
    )

    sources: list[ReadingId] | None = Field(default=None, max_length=_MOST_POSTED, min_length=1)
    stream: StreamText | None = None
    agent: Annotated[str, Field(description="Only what is of this agent.", min_length=1, max_length=64)] | None = None
    from_ms: TimeMs | None = Field(default=None, alias="from")
    to_ms: TimeMs | None = Field(default=None, alias="to")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.sources is None) == (self.stream is None):
            raise ValueError("give either sources, or stream with from and to")
        if self.sources is not None and (self.agent, self.from_ms, self.to_ms) != (None, None, None):
            raise ValueError("agent, from and to go with stream, not with sources")
        return self


@router.get("/impact", response_model=Impact | ProvDocument, responses={**responses(400, 404), **documents(FORMATS)})
async def impact(
    shared: Shared,
    source: Annotated[
        list[ReadingId] | None,
        Query(
            description="A reading; may be repeated. For many, POST them.",
            max_length=MOST_NAMED,
            examples=["accidents-roadside/reports@1:39"],
        ),
    ] = None,
    stream: Annotated[StreamText | None, Query(description="Or all readings of [AGENT/]STREAM[@EPOCH].")] = None,
    agent: AgentFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    edges: Annotated[bool, Query(description="With the readings, and the edges from them.")] = False,
    payload: Payloads = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    format: ExportFormat = "json",
) -> Response:
    """Every result that readings have touched, and where they can still contribute to something: for readings by id, or
    for all of a stream within a span of time."""
    if (source is None) == (stream is None):
        raise bad_field("source", "give either source, or stream with from and to")
    if source is not None and (from_ms, to_ms) != (None, None):
        raise bad_field("from" if to_ms is None else "to", "from and to go with stream, not with source")
    if source is not None and agent is not None:
        raise bad_field("agent", "agent goes with stream, not with source")
    asked = Readings.model_construct(sources=source, stream=stream, agent=agent, from_ms=from_ms, to_ms=to_ms)
    return await _answer(shared, asked, edges, payload, limit, cursor, format)


@router.post(
    "/impact",
    response_model=Impact | ProvDocument,
    responses={**responses(400, 404, 413, 415), **documents(FORMATS)},
    summary="Impact of many readings",
)
async def impact_of_many(
    shared: Shared,
    readings: Annotated[Readings, Body()],
    edges: Annotated[bool, Query(description="With the readings, and the edges from them.")] = False,
    payload: Payloads = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    format: ExportFormat = "json",
) -> Response:
    """The same for up to 10,000 readings by id."""
    return await _answer(shared, readings, edges, payload, limit, cursor, format)


async def _answer(
    shared: Shared, asked: Readings, edges: bool, payload: bool, limit: int, cursor: str | None, format: str
) -> Response:
    after = cursors.decode("impact", cursor, int)
    version = shared.version()

    def find(view: View) -> Shown:
        return _impact(view, asked, edges, payload, limit, after[0] if after else -1)

    return await reply_graph(await shared.readers.ask(find), format, "impact", version)


class _Chosen(NamedTuple):
    """The readings that were asked for: those with an id, names of those without, and their streams."""

    ids: Numbers
    unknown: list[str]
    streams: list[Stream]


def _impact(view: View, asked: Readings, with_edges: bool, with_payloads: bool, limit: int, after: int) -> Shown:
    chosen = _chosen(view, asked)
    reader = view.reader
    is_known, is_expired = reader.states_of(chosen.ids)
    sources, sinks = reader.touched(chosen.ids[is_known])
    sent, sent_sinks, is_cut = _touched_by_sent(view, chosen.ids[~is_known].tolist())
    sources, sinks = np.concatenate([sources, sent]), np.concatenate([sinks, sent_sinks])
    late_sources, late_sinks = reader.late_touched(chosen.ids)
    results = distinct(np.concatenate([sinks, late_sinks]))
    page = results[results > after]
    if with_edges:
        limit = min(limit, _fitting(page[:limit], np.concatenate([sinks, late_sinks])))
    shown, following = page[:limit], cursors.encode("impact", int(page[limit - 1])) if len(page) > limit else None
    vertices = view.tuple_list(shown.tolist(), with_payloads)
    edges: list[Shown] = []
    if with_edges:
        pairs = _edges_into(shown, sources, sinks)
        late = _edges_into(shown, late_sources, late_sinks)
        is_cut |= len(pairs) + len(late) > MOST_EDGES  # of one result alone
        pairs = pairs[:MOST_EDGES]
        late = late[: MOST_EDGES - len(pairs)]
        edges = [_edge(view, *pair, []) for pair in pairs] + [_edge(view, *pair, ["late"]) for pair in late]
        vertices += view.tuple_list(sorted({source for source, _ in (*pairs, *late)}), with_payloads)
    alive = chosen.ids[is_known & ~is_expired]
    touching = np.concatenate([late_sources, sent])
    unknown = [view.name_of(each) for each in chosen.ids[~is_known & ~np.isin(chosen.ids, touching)].tolist()]
    unknown = [*chosen.unknown, *unknown]
    return shown_graph(
        vertices,
        edges,
        following,
        is_cut,
        sources=int(is_known.sum()),
        alive=len(alive),
        expired=int((is_known & is_expired).sum()),
        unknown=unknown[:_MOST_UNKNOWN],
        unknown_count=len(unknown),
        results=len(results),
        still_reached=_reached(view, chosen, asked),
    )


def _touched_by_sent(view: View, ids: list[int]) -> tuple[Numbers, Numbers, bool]:
    """The results of tuples that are no readings but were sent to other agents, as columns of tuples and results, and
    whether there are more: edges lead from readings, so they have to be followed."""
    pairs: list[tuple[int, int]] = []
    is_cut = False
    for each, found in view.reader.tuples(ids).items():
        if isinstance(found, Sent):
            part = walk(Tuples(view), [each], backward=False, most=MOST_SENT, check=view.reader.check_time)
            is_cut |= part.is_cut
            reached = view.reader.tuples([node for node in part.levels if isinstance(node, int)])
            pairs += [(each, number) for number, result in reached.items() if isinstance(result, Sink)]
    tuples, results = np.array(pairs, "<i8").reshape(-1, 2).T
    return tuples, results, is_cut


def _chosen(view: View, asked: Readings) -> _Chosen:
    if asked.stream is not None:
        return _of_stream(view, parse_stream(asked.stream), asked.agent, asked.from_ms, asked.to_ms)
    ids: set[int] = set()
    unknown: list[str] = []
    for text in asked.sources or []:
        tuple_id = view.tuple_of(cast("TupleName", parse_name(text)))
        if tuple_id is None:
            unknown.append(text)
        else:
            ids.add(tuple_id)
    found = np.array(sorted(ids), "<i8")
    streams = {view.stream_of(number) for number in np.unique(found >> SEQ_BITS).tolist()}
    return _Chosen(found, unknown, [(each.agent, each.name) for each in streams])


def _of_stream(
    view: View, pattern: StreamPattern, agent: str | None, from_ms: int | None, to_ms: int | None
) -> _Chosen:
    numbers = view.streams_meant([pattern], agent)
    if not numbers:
        raise Problem(404, f"there is no stream {pattern.stream!r}", "stream")
    parts: list[Numbers] = []
    for number in numbers:
        if view.reader.is_sent_on(number):
            name = view.stream_of(number).name
            raise bad_field("stream", f"{name!r} is what agents send to each other: ask for readings, or for ids")
        left = MOST_SOURCES - sum(map(len, parts))
        found = view.reader.sources_of(number, *span(from_ms, to_ms), left)
        if found is None:
            raise bad_field("from", f"more than {MOST_SOURCES} readings: ask for a shorter span of time")
        parts.append(found)
    streams = {view.stream_of(number) for number in numbers}
    return _Chosen(distinct(np.concatenate(parts)), [], [(each.agent, each.name) for each in streams])


def _fitting(results: Numbers, sinks: Numbers) -> int:
    """How many of these results, but one at least, have as many edges together as an answer may have."""
    ordered = np.sort(sinks)
    counts = np.searchsorted(ordered, results, "right") - np.searchsorted(ordered, results, "left")
    return max(1, int(np.searchsorted(np.cumsum(counts), MOST_EDGES, "right")))


def _edges_into(shown: Numbers, sources: Numbers, sinks: Numbers) -> list[tuple[int, int]]:
    is_shown = np.isin(sinks, shown)
    return sorted(zip(sources[is_shown].tolist(), sinks[is_shown].tolist(), strict=True))


def _edge(view: View, source: int, sink: int, flags: list[str]) -> Shown:
    return shown_edge(view.name_of(source), view.name_of(sink), flags)


def _reached(view: View, chosen: _Chosen, asked: Readings) -> list[Shown]:
    """Where the readings that have not expired can still get to, among them those that are not in the graph yet."""
    youngest = END_OF_TIME if asked.to_ms is None else asked.to_ms
    if asked.sources is not None:
        named = view.tuple_list(chosen.ids.tolist(), with_payloads=False)
        times = [each["ts"] for each in named if each["state"] != "expired"]
        if not times:
            return []
        # One of which nothing is known may be of any time.
        youngest = END_OF_TIME if None in times else max(times)
    plans, promises = _onward(view, {agent for agent, _ in chosen.streams})
    return [
        {"source": "/".join(each.source), "sink": "/".join(each.sink), "from_ms": each.from_ms}
        for each in still_reached(plans, promises, chosen.streams)
        if each.from_ms is None or each.from_ms <= youngest
    ]


def _onward(view: View, agents: set[str]) -> tuple[dict[str, PlanDocument], dict[Stream, Promise]]:
    """The newest plans of these agents and of all that they send to, and what their sinks have promised."""
    plans: dict[str, PlanDocument] = {}
    promises: dict[Stream, Promise] = {}
    seen: set[str] = set()
    while agents:
        view.reader.check_time()
        agent = agents.pop()
        seen.add(agent)
        starts = view.reader.starts_of(agent)
        for plan in view.reader.plans(agent=agent):
            if starts and plan.nonce == starts[-1].nonce:
                try:
                    plans[agent] = PlanDocument.from_json(plan.plan)
                except PlanError:
                    continue
                agents |= {str(to) for node in plans[agent].nodes for to in _receivers(node)} - seen
        for each in view.reader.streams(agent=agent):
            if starts and each.nonce == starts[-1].nonce and each.watermark is not None and each.hold is not None:
                promises[agent, each.name] = Promise(each.watermark, each.hold)
    return plans, promises


def _receivers(node: Node) -> list[Any]:
    return cast("list[Any]", node.parameters["to"]) if node.operator == "send" else []

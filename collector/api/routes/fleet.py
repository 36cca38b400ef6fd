"""Agents and what they run: who is there and how they are, their plans and streams."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response

from collector.api import cursors
from collector.api.checked_route import CheckedRoute
from collector.api.context import Context, Shared, reply
from collector.api.parameters import AgentFilter, Cursor, EpochFilter, From, Limit, StreamFilter, To, patterns, span
from collector.api.problems import Problem, responses
from collector.api.rows import Agent, AgentDetails, Agents, AgentStart, AgentState, PlanRow, Plans, StreamRow, Streams
from collector.api.view import View, time_or_none
from collector.names import StreamPattern
from collector.store.people import Plan, Span, Start, Stream
from protocol.plan import PlanDocument, PlanError, delivering_name
from protocol.plan_picture import to_dot, to_svg, to_text
from protocol.records import END_OF_TIME

router = APIRouter(route_class=CheckedRoute, tags=["fleet"])
AgentName = Annotated[str, Path(description="The agent's name.", max_length=64)]
MOST_STARTS = 1_000
_PICTURES = {"svg": "image/svg+xml", "dot": "text/vnd.graphviz", "text": "text/plain; charset=utf-8"}

_PICTURED = {kind.partition(";")[0]: {"schema": {"type": "string"}} for kind in _PICTURES.values()}


@router.get("/agents", response_model=Agents, responses=responses(400))
async def agents(
    shared: Shared,
    agent: AgentFilter = None,
    stream: StreamFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """All agents by name: whether each is there, when it was last heard, how its clock, spool and link are. `stream`:
    only those that have such a stream; `from` and `to` are about when it was last heard."""
    after = cursors.decode("agents", cursor, str)

    def find(view: View) -> Agents:
        having = None if stream is None else _agents_having(view, patterns(stream) or [])
        found: list[Start] = []
        last = after[0] if after else ""
        while len(found) <= limit:
            page = view.reader.agents(name=agent, seen=Span(*span(from_ms, to_ms)), after=last, limit=limit + 1)
            found += [each for each in page if having is None or each.name in having]
            if len(page) <= limit:
                break
            last = page[-1].name
            view.reader.check_time()
        items = [Agent(**_agent_fields(shared, each)) for each in found[:limit]]
        return Agents(items=items, next=cursors.encode("agents", items[-1].name) if len(found) > limit else None)

    return reply(await shared.readers.ask(find))


def _agents_having(view: View, patterns: list[StreamPattern]) -> set[str]:
    numbers = [number for each in patterns for number in view.stream_numbers(each)]
    return {each.agent for each in view.reader.stream_names(numbers).values()}


@router.get("/agents/{name}", response_model=AgentDetails, responses=responses(404))
async def agent(shared: Shared, name: AgentName) -> Response:
    """One agent, with all its starts (the newest 1,000, the last one last) and the streams of the newest one."""

    def find(view: View) -> AgentDetails:
        starts = view.reader.starts_of(name)
        if not starts:
            raise Problem(404, f"there is no agent {name!r}: /v1/agents lists them", "name")
        streams = [each for each in view.reader.streams(agent=name) if each.nonce == starts[-1].nonce]
        return AgentDetails(
            **_agent_fields(shared, starts[-1]),
            starts=[_start_row(each) for each in starts[-MOST_STARTS:]],
            streams=[_stream_row(each) for each in streams],
        )

    return reply(await shared.readers.ask(find))


@router.get("/streams", response_model=Streams, responses=responses(400))
async def streams(
    shared: Shared,
    agent: AgentFilter = None,
    epoch: EpochFilter = None,
    stream: StreamFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Streams, and how far each has promised to be through. `from` and `to` are about when its agent was last heard."""
    after = cursors.decode("streams", cursor, int)
    version = shared.version()

    def find(view: View) -> Streams:
        wanted = Span(*span(from_ms, to_ms))
        first = after[0] if after else 0
        if stream is None:
            found = view.reader.streams(agent=agent, epoch=epoch, seen=wanted, after=first, limit=limit + 1)
        else:
            meant = set(view.streams_meant(patterns(stream), agent) or ())
            of_name = {each.stream for each in patterns(stream) or ()}
            every = [each for name in of_name for each in view.reader.streams(name=name, epoch=epoch, seen=wanted)]
            found = sorted(each for each in every if each.number in meant and each.number > first)[: limit + 1]
        following = cursors.encode("streams", found[limit - 1].number) if len(found) > limit else None
        return Streams(items=[_stream_row(each) for each in found[:limit]], next=following)

    return reply(await shared.readers.ask(find), version)


@router.get("/plans", response_model=Plans, responses=responses(400))
async def plans(
    shared: Shared,
    agent: AgentFilter = None,
    epoch: EpochFilter = None,
    stream: StreamFilter = None,
    from_ms: From = None,
    to_ms: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Plans of all starts of agents, oldest first. `stream`: only those with a source, sink or send of such a stream;
    `from` and `to` are about when a plan was stored."""
    after = cursors.decode("plans", cursor, int)
    version = shared.version()

    def find(view: View) -> Plans:
        seen, meant = Span(*span(from_ms, to_ms)), patterns(stream)
        found: list[Plan] = []
        last = after[0] if after else 0
        while len(found) <= limit:
            page = view.reader.plans(agent=agent, epoch=epoch, seen=seen, after=last, limit=limit + 1)
            found += [each for each in page if meant is None or _has_stream(each, meant)]
            if len(page) <= limit:
                break
            last = page[-1].number
            view.reader.check_time()
        following = cursors.encode("plans", found[limit - 1].number) if len(found) > limit else None
        return Plans(items=[_plan_row(each) for each in found[:limit]], next=following)

    return reply(await shared.readers.ask(find), version)


def _has_stream(plan: Plan, meant: list[StreamPattern]) -> bool:
    """Whether a plan reads or delivers a stream that is meant; one that cannot be read has none."""
    try:
        nodes = PlanDocument.from_json(plan.plan).nodes
    except PlanError:
        return False
    names = [delivering_name(node) for node in nodes if node.operator in ("source", "sink", "send")]
    return any(each.matches(plan.agent, name, plan.epoch, plan.nonce) for each in meant for name in names)


@router.get(
    "/plans/{agent}/{epoch}",
    response_model=PlanRow,
    responses={**responses(404), 200: {"description": "The plan.", "content": _PICTURED}},
)
async def plan(
    shared: Shared,
    agent: AgentName,
    epoch: Annotated[int, Path(description="Which start of it.", ge=0, le=END_OF_TIME)],
    format: Annotated[Literal["json", "svg", "dot", "text"], Query(description="As data, or as a picture.")] = "json",
) -> Response:
    """One plan, as data or as a picture."""
    version = shared.version()
    view = shared.readers.quick()
    found = view.reader.plans(agent=agent, epoch=epoch, limit=1)
    if not found:
        raise Problem(404, f"agent {agent!r} has told no plan for its start {epoch}", "epoch")
    if format == "json":
        return reply(_plan_row(found[0]), version)
    try:
        document = PlanDocument.from_json(found[0].plan)
    except PlanError as error:
        raise Problem(404, f"this plan cannot be drawn: {error}", "format") from error
    picture = {"svg": to_svg, "dot": to_dot, "text": to_text}[format](document)
    return Response(picture, media_type=_PICTURES[format], headers={"etag": version} if version else None)


def _agent_fields(shared: Context, start: Start) -> dict[str, Any]:
    told = start.status or {}
    ahead_ms = None
    if start.clock_ms is not None and start.status_seen_ms is not None:
        ahead_ms = start.clock_ms - start.status_seen_ms
    names = ("spool_batches", "spool_bytes", "unacknowledged", "dropped", "replaced", "link", "operators")
    return {
        "name": start.name,
        "presence": AgentState(**shared.presence.state_of(start.name)._asdict()),
        "epoch": start.epoch,
        "state": start.state,
        "last_seen_ms": start.last_seen_ms,
        "clock_ahead_ms": ahead_ms,
        **{name: told.get(name) for name in names},
    }


def _start_row(start: Start) -> AgentStart:
    return AgentStart(
        epoch=start.epoch,
        nonce=f"{start.nonce:016x}",
        state=start.state,  # type: ignore[arg-type]
        last_seen_ms=start.last_seen_ms,
        batches=None if start.last_seq is None else start.last_seq + 1,
        end_ts=time_or_none(start.end_ts),
    )


def _stream_row(stream: Stream) -> StreamRow:
    return StreamRow(
        agent=stream.agent,
        epoch=stream.epoch,
        stream=stream.name,
        watermark=time_or_none(stream.watermark),
        has_ended=stream.watermark == END_OF_TIME,
        hold=time_or_none(stream.hold),
        last_seen_ms=stream.last_seen_ms,
    )


def _plan_row(plan: Plan) -> PlanRow:
    told: dict[str, Any] = {"agent": plan.agent, "epoch": plan.epoch, "seen_ms": plan.seen_ms}
    try:
        document = json.loads(PlanDocument.from_json(plan.plan).to_json())
    except PlanError as error:
        return PlanRow(**told, trouble=str(error))
    return PlanRow(**told, name=document["name"], provenance=document["provenance"], nodes=document["nodes"])

"""The live graph as server-sent events: everything that is added, once and in order, from wherever one has stopped.

The id of an event is a place in the change feed of one store. A consumer that comes back says the last one that it has
seen (Last-Event-ID), and goes on behind it; the first event names the place where a new consumer begins. One watcher
for all consumers looks whether something was written; each reads by itself, as fast as it can take it. If another store
is put in the place of this one, its history is another one: that is told, and places of the old one are gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from collector.api.checked_route import CheckedRoute
from collector.api.context import Context, Shared
from collector.api.parameters import AgentFilter, StreamFilter, patterns
from collector.api.problems import Problem, bad_field, responses
from collector.api.view import View, time_or_none
from collector.store import Change, ChangeKind, Cursor, CursorExpired, StoreError, StoreMissing
from protocol.chunks import SEQ_BITS
from protocol.graph import EdgeFlag, Reason, SinkFlag

router = APIRouter(route_class=CheckedRoute, tags=["graph"])
MOST_AT_ONCE = 500
QUIET_S = 15.0
RETRY_MS = 1_000
_ANEW = "begin anew with since=start"
_NAMES = {
    ChangeKind.SINK: "sink",
    ChangeKind.SOURCE: "source",
    ChangeKind.EDGE: "edge",
    ChangeKind.SINK_LABEL: "sink-label",
    ChangeKind.SOURCE_LABEL: "source-label",
    ChangeKind.LATE: "late",
}
KindName = Literal["sink", "source", "edge", "sink-label", "source-label", "late"]
_EVENTS = """id: 12-1-5f0c27ab
event: sink
data: {"id":"accidents-center/accidents@1:0","ts":420000,"stamp":421000}

id: 13-1-5f0c27ab
event: edge
data: {"origin":"accidents-roadside/reports@1:21","derived":"accidents-center/accidents@1:0","stamp":421000}

"""


@router.get(
    "/graph/stream",
    response_class=StreamingResponse,
    responses={
        **responses(400, 410),
        200: {
            "description": "Events: `place` first, then what is added to the graph.",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EVENTS}},
        },
    },
)
async def follow(
    shared: Shared,
    since: Annotated[
        str,
        Query(
            description="Where to begin: `start` of all that the feed has, `end` for what comes from now on, or the id"
            " of an event. Last-Event-ID counts more.",
            max_length=64,
            examples=["end"],
        ),
    ] = "end",
    kind: Annotated[list[KindName] | None, Query(description="Only events of this kind; may be repeated.")] = None,
    agent: AgentFilter = None,
    stream: StreamFilter = None,
    last_event_id: Annotated[str | None, Header(description="The id of the last event that was seen.")] = None,
) -> StreamingResponse:
    """Everything that is added to the graph, as server-sent events: results, readings, edges, and labels (a result is
    complete, a reading has expired), each once and in order. Times are stamps: how far the sinks had come.

    `agent` and `stream`: only events about such results or readings."""
    store, place = _place(shared, since, last_event_id)
    wanted = {each for each, name in _NAMES.items() if kind is None or name in kind}
    events = _events(shared, store, place, _Filter(wanted, agent, patterns(stream)))
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9a-f]{8})")


def _place(shared: Context, since: str, last_event_id: str | None) -> tuple[str, Cursor]:
    """Where to begin, and in which store. A Problem if that is no place, or if what follows it is gone."""
    reader = shared.readers.quick().reader
    text, field = (last_event_id, "Last-Event-ID") if last_event_id else (since, "since")
    if text in ("start", "end"):
        return reader.identity, reader.feed_start() if text == "start" else reader.feed_end()
    found = _ID.fullmatch(text)
    if found is None:
        raise bad_field(field, f"{text[:60]!r} is no id of an event: take start, end, or the id of one that was seen")
    place = Cursor(int(found[1]), int(found[2]))
    if found[3] != reader.identity:
        raise Problem(410, f"{text} is of another store than this one: {_ANEW}", field)
    try:
        next(iter(reader.changes(place, 1)), None)
    except CursorExpired as error:
        raise Problem(410, f"{error}: {_ANEW}", field) from error
    return reader.identity, place


class _Filter:
    """Which changes a consumer wants."""

    def __init__(self, kinds: set[ChangeKind], agent: str | None, patterns: Any) -> None:
        self._kinds = kinds
        self._agent = agent
        self._patterns = patterns

    def lets_pass(self, view: View, change: Change) -> bool:
        if change.kind not in self._kinds:
            return False
        if self._agent is None and self._patterns is None:
            return True
        ids = change.values[:2] if change.kind in (ChangeKind.EDGE, ChangeKind.LATE) else change.values[:1]
        return any(self._is_meant(view, each >> SEQ_BITS) for each in ids)

    def _is_meant(self, view: View, stream: int) -> bool:
        of = view.stream_of(stream)
        return self._agent in (None, of.agent) and (
            self._patterns is None
            or any(each.matches(of.agent, of.name, of.epoch, of.nonce) for each in self._patterns)
        )


async def _events(shared: Context, store: str, place: Cursor, wanted: _Filter) -> AsyncIterator[bytes]:
    """Events until the consumer goes, or the application stops."""
    yield f"retry: {RETRY_MS}\nid: {_id(place, store)}\nevent: place\ndata: {{}}\n\n".encode()
    told = place
    while not shared.watcher.has_stopped:
        seen = shared.watcher.version
        try:
            found, told, after = await shared.readers.ask(
                partial(_read, store=store, place=place, told=told, wanted=wanted)
            )
        except StoreMissing:
            found, after = b"", place
        except StoreError as error:
            yield f"event: trouble\ndata: {json.dumps(str(error))}\n\n".encode()
            return
        if found:
            yield found
        if after != place:
            place = after
            continue
        if told != place:
            # Only what nobody here wants has come: whoever comes back need not pass it again.
            yield f"id: {_id(place, store)}\nevent: place\ndata: {{}}\n\n".encode()
            told = place
        if not await shared.watcher.wait(seen, QUIET_S):
            yield b": nothing new\n\n"


def _read(view: View, store: str, place: Cursor, told: Cursor, wanted: _Filter) -> tuple[bytes, Cursor, Cursor]:
    """The next changes as events, and the places behind the last one that was told and the last one that was read."""
    if view.reader.identity != store:
        raise CursorExpired(f"another store was put in the place of this one: {_ANEW}")
    out: list[str] = []
    for change in view.reader.changes(place, MOST_AT_ONCE):
        place = change.cursor
        if wanted.lets_pass(view, change):
            data = json.dumps(_told(view, change), separators=(",", ":"))
            out.append(f"id: {_id(place, store)}\nevent: {_NAMES[change.kind]}\ndata: {data}\n\n")
            told = place
    return "".join(out).encode(), told, place


def _told(view: View, change: Change) -> dict[str, Any]:
    """A change in the words of the API."""
    values = change.values
    told: dict[str, Any]
    match change.kind:
        case ChangeKind.SINK | ChangeKind.SOURCE:
            told = {"id": view.name_of(values[0]), "ts": time_or_none(values[1])}
        case ChangeKind.EDGE:
            told = {"origin": view.name_of(values[1]), "derived": view.name_of(values[0])}
            if values[2] & EdgeFlag.TOO_DEEP:
                told["flags"] = ["too_deep"]
        case ChangeKind.SINK_LABEL:
            state = "incomplete" if values[1] & SinkFlag.INCOMPLETE else "complete"
            told = {"id": view.name_of(values[0]), "state": state}
        case ChangeKind.SOURCE_LABEL:
            told = {"id": view.name_of(values[0]), "state": "expired"}
        case _:
            told = {"origin": view.name_of(values[1]), "derived": view.name_of(values[0])}
            told |= {"reason": Reason(values[3]).name.lower()}
    return {**told, "stamp": time_or_none(change.stamp)}


def _id(place: Cursor, store: str) -> str:
    return f"{place.row}-{place.items}-{store}"

"""Backward provenance from other streaming systems, into the same log as that of our own agents."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from collector import ingest as incoming
from collector.api.checked_route import CheckedRoute
from collector.api.context import Context, Shared, reply
from collector.api.problems import Problem, responses
from collector.api.rows import Ingested

router = APIRouter(route_class=CheckedRoute, tags=["ingest"])
_EXAMPLE = {
    "agent": "flink-1",
    "run": "2026-11-17T08:00:00Z",
    "epoch": 1,
    "batch": 0,
    "plan": {"sources": ["reports"], "sinks": {"alerts": {"from": ["reports"], "window_ms": 60_000}}},
    "records": [
        {"source": {"stream": "reports", "seq": 0, "ts": 1_000, "payload": {"speed": 0}}},
        {
            "delivery": {
                "stream": "alerts",
                "seq": 0,
                "ts": 60_000,
                "payload": {"stopped": True},
                "origins": [{"stream": "reports", "seq": 0, "ts": 1_000}],
            }
        },
        {"progress": {"stream": "alerts", "watermark": 60_000}},
    ],
}
_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "object"}, "example": _EXAMPLE},
        "application/msgpack": {"schema": {"type": "string", "format": "binary"}},
    },
}


@router.post(
    "/ingest",
    response_model=Ingested,
    summary="Ingest a batch",
    responses=responses(409, 413, 415, 504),
    openapi_extra={"requestBody": _BODY},
)
async def take(request: Request, shared: Shared) -> Response:
    """One batch of what another streaming system knows: its plan, results with their origins, and its progress.
    Answered when it is on disk; a batch that is sent again is taken once."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    readers = {"application/json": incoming.read_json, "application/msgpack": incoming.read_msgpack}
    read = readers.get(kind)
    if read is None:
        raise Problem(415, f"content-type is {kind or 'missing'}, and {' or '.join(readers)} is needed", "content-type")
    if shared.link is None:
        raise Problem(503, "this API has no MQTT broker: start `threadline serve` with --mqtt")
    body = await _body(request)
    try:
        document = await asyncio.to_thread(read, body)
        _check_name(shared, document.agent)
        accepted = await incoming.ingest(shared.link, document)
    except incoming.BadDocument as error:
        raise Problem(422, error.reason, error.field or "body") from error
    except incoming.TooLarge as error:
        raise Problem(413, str(error), "records") from error
    except incoming.OutOfOrder as error:
        raise Problem(409, str(error), "batch") from error
    except (incoming.MqttAway, incoming.Busy) as error:
        raise Problem(503, f"{error}: send the same batch again", headers={"retry-after": "1"}) from error
    except incoming.NotAcknowledged as error:
        raise Problem(504, str(error)) from error
    return reply(Ingested(next_batch=accepted.next_batch, duplicate_agent=accepted.duplicate_agent))


def _check_name(shared: Context, agent: str) -> None:
    """A run closes whatever ran before under its name: a device would lose what it says from then on."""
    known = shared.presence.state_of(agent).state
    if known != "unknown":
        raise Problem(409, f"{agent} is a device, and {known}: a job needs a name of its own", "agent")


async def _body(request: Request) -> bytes:
    """The body, of which no more is read than may be."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > incoming.MOST_DOCUMENT_BYTES:
            raise Problem(
                413, f"a document has at most {incoming.MOST_DOCUMENT_BYTES} bytes: divide its records", "body"
            )
        parts.append(part)
    return b"".join(parts)

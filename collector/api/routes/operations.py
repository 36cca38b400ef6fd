"""For those who run it: is it alive, can it answer, what has it done."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import generate_latest

from collector.api.checked_route import CheckedRoute
from collector.api.context import Shared, reply
from collector.api.problems import responses
from collector.api.rows import Check, Health, Readiness
from collector.store import StoreError

router = APIRouter(route_class=CheckedRoute, tags=["operations"])

_BAD: dict[int | str, dict[str, Any]] = {422: responses()[422]}


@router.get("/", include_in_schema=False)
async def root() -> Response:
    """Where people begin: what there is, to try out."""
    return RedirectResponse("/docs")


@router.get("/healthz", response_model=Health, responses=_BAD)
async def healthz() -> Response:
    """Whether the process lives."""
    return reply(Health())


@router.get(
    "/readyz",
    response_model=Readiness,
    responses={**_BAD, 503: {"model": Readiness, "description": "It cannot answer everything."}},
)
async def readyz(shared: Shared) -> Response:
    """Whether it can answer: the store is there and, if it has one, the MQTT broker."""
    checks: list[Check] = []
    try:
        last = shared.readers.quick().reader.last_written_ms()
        told = "nothing was written yet" if last is None else f"last written at {last} ms"
        checks.append(Check(name="store", ready=True, detail=told))
    except StoreError as error:
        checks.append(Check(name="store", ready=False, detail=str(error)))
    if shared.link is not None:
        is_up = shared.link.is_up
        detail = "connected" if is_up else "no connection: states of agents are unknown, and nothing can be ingested"
        checks.append(Check(name="mqtt", ready=is_up, detail=detail))
    is_ready = all(check.ready for check in checks)
    response = reply(Readiness(ready=is_ready, checks=checks))
    response.status_code = 200 if is_ready else 503
    return response


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **_BAD,
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus."},
    },
)
async def metrics(shared: Shared) -> Response:
    """Figures of the API and of the store, for Prometheus."""
    return Response(generate_latest(shared.metrics.registry), media_type=CONTENT_TYPE_LATEST)

"""What all endpoints of one application share, and how they answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec
from anyio import to_thread
from fastapi import Depends, Request, Response
from pydantic import BaseModel

from collector.api.metrics import Metrics
from collector.api.models import Graph
from collector.api.readers import Readers, asked_by
from collector.api.view import Shown, View
from collector.api.watcher import Watcher
from collector.export import FORMATS, Format, export, export_rows
from collector.mqtt_link import MqttLink
from collector.presence import Presence
from collector.store import StoreError


@dataclass(slots=True)
class Context:
    """One application."""

    readers: Readers
    presence: Presence
    link: MqttLink | None
    """To the MQTT broker; None if there is none."""
    watcher: Watcher
    metrics: Metrics
    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    """Tells this process from those before it."""

    def version(self) -> str | None:
        """Changes whenever the store does; None if there is no store."""
        try:
            return self.version_of(self.readers.quick())
        except StoreError:
            return None

    def version_of(self, view: View) -> str:
        """The same, of the reader of the event loop."""
        return f"{self.boot}-{view.serial}-{view.version}"


def context_of(request: Request) -> Context:
    """The context of the application that a request has come to."""
    found: Context = request.app.state.context
    asked_by.set(request.receive)
    return found


async def _shared(request: Request) -> Context:
    return context_of(request)  # a dependency that does not say async is run in a thread


_NEXT, _TRUNCATED = "next-cursor", "truncated"
Shared = Annotated[Context, Depends(_shared)]


def reply(body: BaseModel | Listed, version: str | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON. It is not checked against its type once more: it was made of it."""
    told: dict[str, Any] = {**(headers or {}), **({"etag": version} if version else {})}
    return Response(body.model_dump_json(), media_type="application/json", headers=told)


def reply_shown(shown: Shown, version: str | None = None) -> Response:
    """An answer that has the shape of its model, without being made one."""
    try:
        body = msgspec.json.encode(shown)
    except UnicodeEncodeError:  # half of a character
        body = json.dumps(shown).encode()
    return Response(body, media_type="application/json", headers={"etag": version} if version else None)


async def reply_graph(shown: Shown, wanted: str, name: str, version: str | None = None) -> Response:
    """A graph in the format that was asked for: what is exported is what would be shown."""
    if wanted == "json":
        return reply_shown(shown, version)
    found = FORMATS[wanted]
    headers = _document_headers(found, name, shown["next"], version)
    if shown["truncated"]:
        headers[_TRUNCATED] = "true"
    body = await to_thread.run_sync(lambda: export(Graph.model_validate(shown), wanted))
    return Response(body, media_type=found.media_type, headers=headers)


class Listed(Protocol):
    """A page of rows."""

    items: list[Any]
    next: str | None

    def model_dump_json(self) -> str: ...


async def reply_rows(page: Listed, wanted: str, name: str, version: str | None = None) -> Response:
    """Rows in the format that was asked for."""
    if wanted == "json":
        return reply(page, version)
    found = FORMATS[wanted]
    headers = _document_headers(found, name, page.next, version)
    body = await to_thread.run_sync(lambda: export_rows([row.model_dump() for row in page.items], wanted))
    return Response(body, media_type=found.media_type, headers=headers)


def _document_headers(found: Format, name: str, cursor: str | None, version: str | None) -> dict[str, str]:
    """What is told beside a document: its name and, as it has no place for that, where the next page begins."""
    told = {"content-disposition": f'attachment; filename="{name}{found.suffix}"', _NEXT: cursor, "etag": version}
    return {header: value for header, value in told.items() if value is not None}


def documents(formats: Mapping[str, Format]) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of the formats that a route answers in besides JSON."""
    content = {
        each.media_type.partition(";")[0]: {"schema": {"type": "string", "description": each.description}}
        for each in formats.values()
        if each.media_type != "application/json"
    }
    told = {_NEXT: {"description": "`cursor` of the next page of such a document.", "schema": {"type": "string"}}}
    return {200: {"description": "What was asked for.", "content": content, "headers": told}}

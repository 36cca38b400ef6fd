"""The application: all endpoints, what they share, and how it begins and ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI

from collector.api import problems
from collector.api.context import Context
from collector.api.examples import add_examples
from collector.api.metrics import Metrics, Observed
from collector.api.problems import ProblemDetails
from collector.api.readers import LONGEST_S, Readers
from collector.api.routes import (
    captured,
    changes,
    fleet,
    impact,
    ingest,
    operations,
    paths,
    sinks,
    statistics,
    troubles,
    vertices,
)
from collector.api.scrub import Scrubber
from collector.api.watcher import Watcher
from collector.mqtt_link import MqttLink
from collector.presence import Presence

_LOG = logging.getLogger(__name__)
DESCRIPTION = """Which readings caused a result? Which results did a reading touch, and can it still touch more?

Ids are texts: a tuple is `AGENT/STREAM@EPOCH:NUMBER`, a task `task:AGENT@EPOCH:NUMBER`, a workflow
`workflow:AGENT@EPOCH:NUMBER`, data `data:[AGENT@EPOCH:]WORKFLOW/ID`. Times are milliseconds since 1970; where one is
asked for, ISO 8601 will do. Lists come in pages: `next` is the `cursor` of the next one. Every answer that is not a
success is a problem (RFC 9457) that names the field."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an application is made of."""

    store: Path
    mqtt: tuple[str, int] | None = None
    longest_s: float = LONGEST_S
    check_every_s: float | None = None
    """How often the whole store is looked through; never, if that is None."""


def create_app(settings: Settings) -> FastAPI:
    """An application. It begins and ends with its lifespan; `app.state.context.watcher.stop()` ends streams earlier."""
    readers = Readers(settings.store, settings.longest_s)
    link = MqttLink(*settings.mqtt) if settings.mqtt else None
    presence = Presence(link)
    context = Context(readers, presence, link, Watcher(readers), Metrics(readers, presence))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        context.watcher.start()
        running = [asyncio.create_task(link.run())] if link else []
        if settings.check_every_s is not None:
            running.append(asyncio.create_task(Scrubber(settings.store, readers, settings.check_every_s).run()))
        with closing(readers):
            try:
                yield
            finally:
                context.watcher.stop()
                for task in running:
                    task.cancel()
                for ended in await asyncio.gather(*running, return_exceptions=True):
                    if isinstance(ended, Exception):
                        _LOG.error("something had ended by itself", exc_info=ended)

    app = FastAPI(
        title="Threadline",
        version=version("threadline"),
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/openapi.json",
        redoc_url=None,
    )
    app.state.context = context
    problems.install(app)
    for each in (vertices, sinks, paths, impact, changes, captured, fleet, troubles, statistics, ingest):
        app.include_router(each.router, prefix="/v1")
    app.include_router(operations.router)
    app.add_middleware(Observed, metrics=context.metrics)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Have the description of the API tell of problems as they are, not as the framework would make them, and show
    examples."""
    made = app.openapi

    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            found = made()
            schemas = found["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            told = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(told.pop("$defs", {}))
            schemas["ProblemDetails"] = told
            add_examples(found)
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

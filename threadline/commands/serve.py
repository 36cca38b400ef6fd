"""`threadline serve`: the REST API over a store."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from threadline.commands.json_logs import JsonLogs, log_as_json
from threadline.terminal import address, fail


def serve(
    store: Annotated[
        str, typer.Option(metavar="STORE", help="sqlite:///FILE. It may come later.")
    ] = "sqlite:///graph.db",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to serve on (port 0: a free one).")
    ] = "127.0.0.1:8080",
    mqtt: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="The MQTT broker: who is online, and what others ingest. None: neither."
        ),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Let anybody ask. Needed to listen on more than loopback.")
    ] = False,
    longest: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long an answer may take before it is given up.", min=0.1, max=600),
    ] = 10.0,
    check_every: Annotated[
        float,
        typer.Option(
            metavar="HOURS",
            help="How often to look through the whole store, while others go first; 0: never.",
            min=0,
            max=24 * 366,
        ),
    ] = 24.0,
    as_json: JsonLogs = False,
) -> None:
    """Serve the REST API: which readings caused a result, which results a reading touched, and much more.

    /docs has all of it to try out, /openapi.json describes it, /healthz and /readyz say how it is, /metrics is for
    Prometheus.
    """
    import uvloop

    from collector.api.app import Settings
    from collector.api.server import CannotListen, ServerOptions, is_loopback
    from collector.api.server import serve as run
    from collector.store import StoreError, open_store

    if as_json:
        log_as_json()
    listen_at = address("--listen", listen)
    try:
        if not is_loopback(listen_at) and not open_:
            fail(
                f"--listen {listen} can be reached by other machines, and nobody is asked who they are: say --open if "
                "that is what you want"
            )
        path = open_store(store).path
    except (CannotListen, StoreError) as error:
        fail(str(error))
    link = address("--mqtt", mqtt, least_port=1) if mqtt else None
    options = ServerOptions(listen_at, Settings(path, link, longest, check_every * 3600 or None))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(options))
    except CannotListen as error:
        fail(str(error))

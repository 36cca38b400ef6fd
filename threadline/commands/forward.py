"""`threadline forward`: records out to another provenance system while they come in."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from threadline.commands.json_logs import JsonLogs, log_as_json
from threadline.terminal import address, fail


def forward(
    to: Annotated[str, typer.Option(help="In whose words: prov-json, dfanalyzer, or module:Class of your own.")],
    url: Annotated[str, typer.Option(help="Where the other system takes requests, such as http://127.0.0.1:22000.")],
    position: Annotated[Path, typer.Option(help="File that says how far it has come; it is made if need be.")],
    log: Annotated[Path, typer.Option(help="Folder of the log.")] = Path("log"),
    agent: Annotated[str | None, typer.Option(help="Only what this agent has sent.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop when all that is in the log now is forwarded.")] = False,
    give_up_after: Annotated[
        float | None,
        typer.Option(help="Seconds after which a request that is answered with an error is kept aside.", min=0),
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Serve Prometheus metrics on HOST:PORT.")] = None,
    as_json: JsonLogs = False,
) -> None:
    """Forward records to another provenance system while they come in, each at least once."""
    if as_json:
        log_as_json()
    try:
        from collector.forwarding import Forwarder, ForwardingError, ForwardOptions
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("httpx", "prov", "pyarrow", "numpy"):
            raise
        fail(f"{error.name} is not installed: install threadline[server]")
    if ":" in to and "" not in sys.path:
        sys.path.insert(0, "")  # a class of the user's own is most often here
    logging.getLogger("httpx").setLevel(logging.WARNING)  # or it would say a line per request
    options = ForwardOptions(
        log=log,
        to=to,
        url=url,
        position=position,
        agent=agent,
        once=once,
        give_up_after_s=give_up_after,
        metrics=address("--metrics", metrics) if metrics else None,
    )
    try:
        forwarder = Forwarder(options)
    except ForwardingError as error:
        fail(str(error))

    def stop(number: int, frame: FrameType | None) -> None:
        forwarder.stop()
        signal.signal(number, signal.SIG_DFL)  # whoever asks twice does not want to wait

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        forwarder.run()
    except ForwardingError as error:
        fail(str(error), 1)
    finally:
        forwarder.close()
        for number, handler in before.items():
            signal.signal(number, handler)

"""`--json` of commands that run until they are stopped: what they have to say is their log."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

JsonLogs = Annotated[bool, typer.Option("--json", help="Logs as JSON, like `threadline --log-format json`.")]


def log_as_json() -> None:
    """From now on a line of JSON per event, whatever was said in front of the command."""
    from threadline.logs import JsonLines

    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())

"""The commands that ask the API, for the `threadline` command to have."""

from __future__ import annotations

import typer

from threadline.commands import export
from threadline.commands.agents import agents
from threadline.commands.asking import Question
from threadline.commands.impact import impact
from threadline.commands.sinks import sinks
from threadline.commands.tail import tail
from threadline.commands.tasks import tasks
from threadline.commands.trace import trace


def register(app: typer.Typer) -> None:
    """Add them to an application."""
    for command in (sinks, trace, impact, tail, agents, tasks):
        app.command(cls=Question)(command)
    app.add_typer(export.app)

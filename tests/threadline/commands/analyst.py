"""The commands that ask the API, as an application of their own and as a process."""

from __future__ import annotations

import typer

from threadline.commands.questions import register

app = typer.Typer(name="threadline", no_args_is_help=True, pretty_exceptions_enable=False)
register(app)

if __name__ == "__main__":
    app(prog_name="threadline")

"""How the `threadline` command speaks to the person in front of it: one line on stderr, and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

import typer

from protocol.address import parse_address


def fail(text: str, code: int = 2) -> NoReturn:
    """End with a line that says what is wrong and what to do, though nobody may be there to read it."""
    with suppress(OSError):
        typer.echo(f"threadline: {text}", err=True)
    raise typer.Exit(code)


def print_line(line: str) -> None:
    """A line of what was asked for. That nobody wants more of it is no error, but that it cannot be written is."""
    try:
        typer.echo(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or else Python tries again at its end
        fail(f"the output cannot be written: {error.strerror}", 1)


def address(option: str, text: str, least_port: int = 0) -> tuple[str, int]:
    """What an option says of an address, or the end with a line about it."""
    try:
        return parse_address(text, least_port)
    except ValueError as error:
        fail(f"{option} {error}")

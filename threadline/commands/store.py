"""`threadline store`: look at a store as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from threadline.terminal import fail, print_line

store_app = typer.Typer(name="store", help="Look at the store of the graph.", no_args_is_help=True)


@store_app.callback()
def store() -> None:
    """Look at the store of the graph."""


@store_app.command("check")
def check_store(store: Annotated[str, typer.Argument(metavar="STORE", help="sqlite:///FILE")]) -> None:
    """Read the whole store: checksums, and that everything in it fits together. It may be written to meanwhile."""
    from collector.store import StoreError, open_store
    from collector.store.check import check

    try:
        path = open_store(store).path
    except StoreError as error:
        fail(str(error))
    findings = 0
    for finding in check(path):
        findings += 1
        print_line(finding.text)
    if not findings:
        print_line(f"{path} is sound")
    raise typer.Exit(1 if findings else 0)

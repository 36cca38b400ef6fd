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
    """Read the whole store: checksums, and that everything in it fits together. It may be written to meanwhile.

    Ends with 0 if it is sound, 1 if it is damaged, 2 if it cannot be looked at: there is no store, or none that can be
    read now.
    """
    from collector.store import StoreError, open_store
    from collector.store.check import check

    findings = 0
    try:
        path = open_store(store).path
        for finding in check(path):
            findings += 1
            print_line(finding.text)
    except StoreError as error:
        fail(str(error))
    if not findings:
        print_line(f"{path} is sound")
    raise typer.Exit(1 if findings else 0)

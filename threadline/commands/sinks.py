"""`threadline sinks`: the latest results, with which most questions begin."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

import typer

from threadline.commands.asking import (
    DEFAULT_API,
    Agent,
    Api,
    AsJson,
    Everything,
    From,
    Limit,
    Streams,
    To,
    Where,
    asking,
    gather,
    note,
)
from threadline.terminal import fail

State = Annotated[Literal["open", "complete", "incomplete"] | None, typer.Option(help="Only results in this state.")]
Oldest = Annotated[bool, typer.Option("--oldest", help="The oldest first, not the newest.")]


def sinks(
    agent: Agent = None,
    streams: Streams = None,
    from_: From = None,
    to: To = None,
    where: Where = None,
    state: State = None,
    oldest: Oldest = False,
    limit: Limit = 20,
    everything: Everything = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Show the latest results (alerts), with what they say. `threadline trace ID` tells what one came from."""
    asked = {
        "agent": agent, "stream": streams, "from": from_, "to": to, "where": where, "state": state,
        "order": "oldest" if oldest else "newest",
    }  # fmt: skip
    with asking(api) as client:
        pages = client.pages("sinks", asked, of="vertices", limit=None if everything else limit)
        found = gather(pages, "vertices", "results", as_json)
        if not found.number:
            fail("there are no such results", 1)
        if not as_json:
            print_results(found.items)
            if found.last["next"] is not None:
                note("there may be more: --limit N or --all shows them")


def print_results(vertices: list[dict[str, Any]], late: Collection[str] = ()) -> None:
    """Results as a table, with a mark at those that are late."""
    from threadline.printing import Column, Printer, state_part, time_text, value_text

    columns = [
        *(Column("ID"), Column("TIME", is_number=True), Column("STREAM"), Column("STATE")),
        *(Column("ORIGINS", is_number=True), Column("PAYLOAD", is_long=True)),
    ]
    Printer().table(
        columns,
        (
            (
                *((each["id"], "bold"), time_text(each["ts"]), each["stream"]),
                (f"{each['state']}, late", "yellow") if each["id"] in late else state_part(each["state"]),
                *(value_text(each["origins"]), value_text(each["payload"])),
            )
            for each in vertices
        ),
    )

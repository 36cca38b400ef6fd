"""`threadline impact`: a reading is wrong, or private: which results did it touch, and can it touch more?"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from threadline.commands.asking import (
    DEFAULT_API,
    Api,
    AsJson,
    Everything,
    From,
    Limit,
    To,
    asking,
    gather,
    note,
    stream_names,
)
from threadline.commands.sinks import print_results
from threadline.terminal import fail

Sources = Annotated[
    list[str] | None, typer.Argument(metavar="[SOURCE]...", help="Readings by their ids; - reads them from stdin.")
]
Stream = Annotated[
    str | None,
    typer.Option(help="Or all readings of AGENT/STREAM[@EPOCH], see --from and --to.", autocompletion=stream_names),
]


def impact(
    sources: Sources = None,
    stream: Stream = None,
    from_: From = None,
    to: To = None,
    limit: Limit = 100,
    everything: Everything = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Show which results readings have touched, how many of them are alive, and where they can still contribute."""
    readings = asked_readings(sources, stream, from_, to)
    with asking(api, ("source", "sources")) as client:
        pages = client.pages(
            "impact", {"payload": True}, of="vertices", posted=readings, limit=None if everything else limit
        )
        found = gather(pages, "vertices", "results", as_json)
        if not as_json:
            _print(found.items, found.last)
            if found.last["next"] is not None:
                note(f"these are {found.number:,} of {found.last['results']:,}: --limit N or --all shows more")
        if not found.number:
            raise typer.Exit(1)


def asked_readings(sources: list[str] | None, stream: str | None, from_: str | None, to: str | None) -> dict[str, Any]:
    """What the API is to be asked about, or the end with a line about it."""
    if bool(sources) == (stream is not None):
        fail("say which readings: either SOURCE..., or --stream AGENT/STREAM with --from and --to")
    if sources and (from_ is not None or to is not None):
        fail("--from and --to belong to --stream: readings that are named have times of their own")
    if sources == ["-"]:
        sources = sys.stdin.read().split()
        if not sources:
            fail("there are no readings on stdin")
    told = {"sources": sources or None, "stream": stream, "from": from_, "to": to}
    return {name: value for name, value in told.items() if value is not None}


def _print(results: list[dict[str, Any]], told: dict[str, Any]) -> None:
    from threadline.printing import Printer, counted, time_text

    printer = Printer()
    known, unknown = told["sources"], told["unknown_count"]
    if known:
        touched = counted(told["results"], "result")
        printer.line((f"{counted(known, 'reading')} touched {touched}.", "bold"))
    if unknown:
        few = ", ".join(told["unknown"][:5]) + (", ..." if unknown > 5 else "")
        printer.line((f"{counted(unknown, 'reading')} touched nothing so far: ", "bold"), few)
    if not known and not unknown:
        printer.line(("No such reading has touched anything so far.", "bold"))
    if results:
        print_results(results)
    if known:
        printer.line(_alive(told["alive"], told["expired"]))
    for each in told["still_reached"]:
        since = "" if each["from_ms"] is None else f" from {time_text(each['from_ms'])} on"
        printer.line(
            "Readings of ", (each["source"], "bold"), f"{since} can still contribute to ", (each["sink"], "bold")
        )
    if not (told["still_reached"] or told["alive"] or unknown):
        printer.line("They can contribute to nothing more.")


def _alive(alive: int, expired: int) -> str:
    is_alive, has_expired = "is" if alive == 1 else "are", "has" if expired == 1 else "have"
    return f"{alive:,} of the readings {is_alive} alive, {expired:,} {has_expired} expired."

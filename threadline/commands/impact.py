"""`threadline impact`: a reading is wrong, or private: which results did it touch, and can it touch more?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threadline.commands.asking import (
    DEFAULT_API,
    Api,
    AsJson,
    Everything,
    From,
    Gathered,
    Limit,
    To,
    asking,
    gather,
    note,
    stream_names,
)
from threadline.commands.sinks import print_results
from threadline.terminal import fail

if TYPE_CHECKING:
    from threadline.api_client import Answer

_MOST_READINGS = 10_000  # that the API takes at once

Sources = Annotated[
    list[str] | None, typer.Argument(metavar="SOURCE", help="Readings by their ids; - reads them from stdin.")
]
Stream = Annotated[
    str | None,
    typer.Option(
        metavar="STREAM",
        help="Or all readings of AGENT/STREAM[@EPOCH], see --from and --to.",
        autocompletion=stream_names,
    ),
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
    late: set[str] = set()

    def read(page: Answer) -> Answer:
        """The results alone: with the edges, which say what is late, come the readings."""
        late.update(edge["derived"] for edge in page.body["edges"] if "late" in edge["flags"])
        results = [vertex for vertex in page.body["vertices"] if vertex["kind"] == "sink"]
        return page._replace(body={**page.body, "vertices": results})

    with asking(api, ("source", "sources")) as client:
        asked = {"payload": True, "edges": not as_json}
        pages = client.pages(
            "impact", asked, of="vertices", posted=readings, limit=None if everything else limit, read=read
        )
        found = gather(pages, "vertices", "results", as_json)
        if not as_json:
            _print(found, late, len(readings.get("sources", [])))
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
        sources = _read_ids()
    sources = list(dict.fromkeys(sources or []))
    if len(sources) > _MOST_READINGS:
        fail(
            f"{len(sources):,} readings are more than can be asked about at once: ask about {_MOST_READINGS:,} at a "
            f"time (`split -l {_MOST_READINGS}` cuts a file), or about --stream with --from and --to"
        )
    told = {"sources": sources or None, "stream": stream, "from": from_, "to": to}
    return {name: value for name, value in told.items() if value is not None}


def _read_ids() -> list[str]:
    try:
        found = [] if sys.stdin is None else sys.stdin.buffer.read().decode().split()
    except UnicodeDecodeError:
        fail("the readings on stdin are no text in UTF-8")
    return found or fail("there are no readings on stdin")


def _print(found: Gathered, late: set[str], named: int) -> None:
    """What is known of so many readings that were named, or of a stream."""
    from threadline.printing import Printer, counted, time_text

    printer = Printer()
    told = found.last
    known, unknown = told["sources"], told["unknown_count"]
    touching = named - unknown if named else known  # those of which all is late are not known to the graph
    if touching:
        touched = counted(told["results"], "result")
        printer.line((f"{counted(touching, 'reading')} touched {touched}.", "bold"))
    if unknown:
        few = ", ".join(told["unknown"][:5]) + (", ..." if unknown > 5 else "")
        printer.line((f"{counted(unknown, 'reading')} touched nothing so far: ", "bold"), few)
    if not touching and not unknown:
        printer.line(("No such reading has touched anything so far.", "bold"))
    if found.items:
        print_results(found.items, late)
    if late:
        printer.line(("late: told after the readings had been let go of, so ORIGINS does not count them.", "yellow"))
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

"""`threadline tail`: what is added to the live graph, as it happens, a line each."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threadline.commands.asking import DEFAULT_API, Agent, Api, Streams, asking, note

if TYPE_CHECKING:
    from threadline.api_client import Event
    from threadline.printing import Part


class Kind(StrEnum):
    """What may be added."""

    SINK = "sink"
    SOURCE = "source"
    EDGE = "edge"
    SINK_LABEL = "sink-label"
    SOURCE_LABEL = "source-label"
    LATE = "late"


_STYLES: dict[str, str] = {
    Kind.SINK: "bold green",
    Kind.SOURCE: "cyan",
    Kind.EDGE: "dim",
    Kind.SINK_LABEL: "green",
    Kind.SOURCE_LABEL: "magenta",
    Kind.LATE: "yellow",
}
_WIDEST = max(len(kind) for kind in Kind)


def tail(
    since: Annotated[
        str, typer.Option(metavar="start|end|ID", help="From the start of all, from now on, or behind this event.")
    ] = "end",
    kind: Annotated[
        list[Kind] | None,
        typer.Option(metavar="KIND", help=f"Only events of this kind: {', '.join(Kind)}; may be repeated."),
    ] = None,
    agent: Agent = None,
    streams: Streams = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many events.", min=1)] = None,
    api: Api = DEFAULT_API,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per event: id, kind, data.")] = False,
) -> None:
    """Show everything that is added to the graph: results, readings, edges and labels, each once and in order.

    It goes on until Ctrl-C. If the API is away for a while, it goes on where it had stopped.
    """
    asked = {"since": since, "kind": kind, "agent": agent, "stream": streams}
    with asking(api) as client:
        if as_json:
            show = _print_json
        else:
            from threadline.printing import Printer

            printer = Printer()

            def show(event: Event) -> None:
                printer.line(*_told(event))

        events = client.follow(asked, lambda text: note(f"threadline: {text}"))
        for number, event in enumerate(events, 1):
            show(event)
            if number == count:
                events.close()
                return


def _print_json(event: Event) -> None:
    typer.echo(json.dumps(event._asdict(), ensure_ascii=False, separators=(",", ":")))  # which flushes


def _told(event: Event) -> list[Part]:
    from threadline.printing import state_part, time_text

    said: dict[str, Any] = event.data
    stamp = time_text(said.get("stamp"))
    line: list[Part] = [(f"{stamp:>10}  ", "dim"), (f"{event.kind:{_WIDEST}}  ", _STYLES.get(event.kind, ""))]
    if "origin" in said:
        line += [said["origin"], (" -> ", "dim"), said["derived"]]
        words = [*said.get("flags", []), *([said["reason"]] if "reason" in said else [])]
        line += [(f"  {word.replace('_', ' ')}", "yellow") for word in words]
    else:
        line += [said["id"], *((f"  at {time_text(said['ts'])}",) if "ts" in said else ())]
        line += ["  ", state_part(said["state"])] if "state" in said else []
    return line

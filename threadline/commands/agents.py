"""`threadline agents`: who is there, and how they are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threadline.commands.asking import (
    DEFAULT_API,
    Api,
    AsJson,
    Everything,
    From,
    Limit,
    Streams,
    To,
    agent_names,
    asking,
    gather,
    note,
)
from threadline.terminal import fail

if TYPE_CHECKING:
    from threadline.printing import Part

_WRONG_CLOCK_MS = 2_000


def agents(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One agent, with its starts and streams.", autocompletion=agent_names),
    ] = None,
    streams: Streams = None,
    from_: From = None,
    to: To = None,
    limit: Limit = 100,
    everything: Everything = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Show all agents: whether each is there, when it was last heard, how its clock and its spool are.

    --stream: only those that have such a stream; --from and --to are about when they were last heard.
    """
    if name is not None:
        _one(name, api, as_json)
        return
    with asking(api) as client:
        asked = {"stream": streams, "from": from_, "to": to}
        pages = client.pages("agents", asked, of="items", limit=None if everything else limit)
        found = gather(pages, "items", "agents", as_json)
        if not found.number:
            fail("there are no such agents", 1)
        if not as_json:
            _print_agents(found.items)
            if found.last["next"] is not None:
                note("there are more: --limit N or --all shows them")


def _one(name: str, api: str, as_json: bool) -> None:
    from threadline.api_client import path_of

    with asking(api) as client:
        answer = client.ask(path_of("agents", name), has="starts")
        if as_json:
            typer.echo(answer.text)
        else:
            _print_agents([answer.body])
            _print_details(answer.body)


def _print_agents(agents: list[dict[str, Any]]) -> None:
    from threadline.printing import Column, Printer, ago_text, state_part, value_text

    now_ms = time.time_ns() // 1_000_000
    columns = [
        *(Column("AGENT"), Column("PRESENCE"), Column("STATE"), Column("EPOCH", is_number=True)),
        *(Column("LAST SEEN", is_number=True), Column("CLOCK", is_number=True), Column("SPOOL", is_number=True)),
        *(Column("UNACKNOWLEDGED", is_number=True), Column("DROPPED", is_number=True)),
    ]
    Printer().table(
        columns,
        (
            (
                *((each["name"], "bold"), state_part(each["presence"]["state"]), state_part(each["state"])),
                *(value_text(each["epoch"]), ago_text(each["last_seen_ms"], now_ms)),
                *(_clock(each["clock_ahead_ms"]), _spool(each["spool_batches"], each["spool_bytes"])),
                *(_many(each["unacknowledged"], ""), _many(each["dropped"], "red")),
            )
            for each in agents
        ),
    )
    for reason in dict.fromkeys(each["presence"]["reason"] for each in agents if each["presence"]["reason"]):
        hint = ": start `threadline serve` with --mqtt" if "has no MQTT broker" in reason else ""
        note(f"presence unknown: {reason}{hint}")


def _print_details(agent: dict[str, Any]) -> None:
    from threadline.printing import Column, Printer, ago_text, state_part, time_text, value_text

    printer = Printer()
    now_ms = time.time_ns() // 1_000_000
    printer.line()
    printer.table(
        [
            Column("START", is_number=True),
            Column("STATE"),
            Column("LAST SEEN", is_number=True),
            Column("BATCHES", True),
        ],
        (
            (
                *(value_text(each["epoch"]) or f"~{each['nonce']}", state_part(each["state"])),
                *(ago_text(each["last_seen_ms"], now_ms), value_text(each["batches"])),
            )
            for each in agent["starts"]
        ),
    )
    if agent["streams"]:
        printer.line()
        printer.table(
            [Column("STREAM"), Column("THROUGH", is_number=True), Column("HOLDS", is_number=True)],
            (
                (
                    (each["stream"], "bold"),
                    ("ended", "dim") if each["has_ended"] else time_text(each["watermark"]),
                    time_text(each["hold"]),
                )
                for each in agent["streams"]
            ),
        )
    if agent["operators"]:
        printer.line()
        printer.table(
            [Column("OPERATOR"), *(Column(each, is_number=True) for each in ("IN", "OUT", "LATE", "SKIPPED"))],
            ((name, *map(value_text, counts)) for name, counts in agent["operators"].items()),
        )


def _clock(ahead_ms: int | None) -> Part:
    """How far a clock is ahead. What is behind may be the way, so only what is ahead is surely wrong."""
    from threadline.printing import duration_text

    if ahead_ms is None:
        return ""
    text = f"{'+' if ahead_ms > 0 else ''}{duration_text(ahead_ms)}"
    return (text, "yellow") if ahead_ms > _WRONG_CLOCK_MS else text


def _spool(batches: int | None, size_bytes: int | None) -> Part:
    if batches is None or size_bytes is None:
        return ""
    size, unit = (size_bytes / 1e6, "MB") if size_bytes >= 1e6 else (size_bytes / 1e3, "kB")
    return f"{batches:,} ({size:.3g} {unit})" if batches else ("empty", "dim")


def _many(number: int | None, style: str) -> Part:
    return "" if number is None else (f"{number:,}", style if number else "dim")

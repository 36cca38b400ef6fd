"""What all commands of the analyst share: their options, how they ask the API, and how they end.

0: it was found. 1: there is nothing, or the API says no. 2: bad usage, or no API. 130: Ctrl-C. That nobody reads what
is printed any more (`| head`) is no error.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from threadline.terminal import fail

if TYPE_CHECKING:
    from threadline.api_client import Answer, Client, Refused

DEFAULT_API = "http://127.0.0.1:8080"
ENVIRONMENT = "THREADLINE_API"
_PATIENCE_S = 5.0
_COMPLETION_CONNECT_S = 0.2
_COMPLETION_ANSWER_S = 0.3
_MOST_COMPLETIONS = 1_000
_USAGE = (400, 422)


# Completion: names from the API if it answers at once, else none. A shell waits for it, and shows what it prints.


def agent_names(context: typer.Context, incomplete: str) -> list[str]:
    """Agents whose names begin so."""
    return _names(context, incomplete, "agents", lambda row: [row["name"]])


def stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Streams whose names begin so, with or without their agents."""
    return _names(context, incomplete, "streams", lambda row: [f"{row['agent']}/{row['stream']}", row["stream"]])


def _names(
    context: typer.Context, incomplete: str, path: str, names_of: Callable[[dict[str, str]], list[str]]
) -> list[str]:
    from threadline.api_client import ApiError, Client

    url = context.params.get("api") or os.environ.get(ENVIRONMENT) or DEFAULT_API
    try:
        with Client(url, connect_s=_COMPLETION_CONNECT_S, answer_s=_COMPLETION_ANSWER_S) as client:
            answer = client.ask(path, {"limit": _MOST_COMPLETIONS}, has="items")
    except ApiError:
        return []
    found = {name for row in answer.body["items"] for name in names_of(row)}
    return sorted(name for name in found if name.startswith(incomplete) and name.isprintable())


Api = Annotated[str, typer.Option("--api", envvar=ENVIRONMENT, metavar="URL", help="Where the API is.")]
AsJson = Annotated[bool, typer.Option("--json", help="The API's own JSON; if there are several pages, a line each.")]
Agent = Annotated[
    str | None, typer.Option(metavar="AGENT", help="Only what is of this agent.", autocompletion=agent_names)
]
Streams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="STREAM",
        help="Only what is of this stream: STREAM, AGENT/STREAM or AGENT/STREAM@EPOCH; may be repeated.",
        autocompletion=stream_names,
    ),
]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Not before this time, in ms or ISO 8601.")]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Not after this time, in ms or ISO 8601.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION",
        help="Only what has such an attribute: PATH OP VALUE with = != < <= > >= or ~ (a regular expression), or PATH? "
        "for any; may be repeated, and then all must hold.",
    ),
]
Limit = Annotated[int, typer.Option(metavar="N", help="So many at the most.", min=1)]
Everything = Annotated[bool, typer.Option("--all", help="All of them, however many.")]


class Question(TyperCommand):
    """A command whose help shows what has to be given by its name alone, without braces and types of Python."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for each in self.get_params(ctx):
            if (record := each.get_help_record(ctx)) is not None:
                name, text = record
                is_argument = each.param_type_name == "argument"
                records[each.param_type_name].append((name.partition(" ")[0] if is_argument else name, text))
        for kind, rows in records.items():
            if rows:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)


@contextmanager
def asking(url: str, arguments: Collection[str] = ("id", "sources")) -> Iterator[Client]:
    """A client of the API. Whatever goes wrong meanwhile ends the command, with a line that says what to do.

    `arguments` are the fields of the API that are no options of the command.
    """
    from threadline.api_client import ApiError, Client, Refused

    _quieten()
    if sys.stdout is None:
        fail("the output cannot be written: stdout is closed", 1)
    try:
        with Client(url) as client:
            client.await_start(_PATIENCE_S)
            yield client
            sys.stdout.flush()
    except Refused as refused:
        fail(_said(refused, arguments), 2 if refused.status in _USAGE else 1)
    except ApiError as error:
        fail(str(error))
    except BrokenPipeError:
        _forget_output()
        raise typer.Exit from None
    except OSError as error:
        _forget_output()
        fail(f"the output cannot be written: {error.strerror}", 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def note(text: str) -> None:
    """Something beside what was asked for."""
    from threadline.printing import printable

    typer.echo(printable(text), err=True)


class Gathered(NamedTuple):
    """The items of all pages, how many they are, and what else the last page says. Once printed, they are not kept."""

    items: list[dict[str, Any]]
    number: int
    last: dict[str, Any]


def gather(pages: Iterable[Answer], of: str, what: str, as_json: bool) -> Gathered:
    """All pages of a list: printed as they come, or kept, with a progress bar meanwhile."""
    items: list[dict[str, Any]] = []
    number, last = 0, {}
    if as_json:
        for page in pages:
            typer.echo(page.text)
            number, last = number + len(page.body[of]), page.body
        return Gathered(items, number, last)
    from threadline.printing import counting

    with counting(what) as count:
        for page in pages:
            items += page.body[of]
            last = page.body
            count(len(page.body[of]), last.get(what))  # a few say how many there are in all
    return Gathered(items, len(items), last)


def _quieten() -> None:
    """The library says a line per request, which only those want who want to know more."""
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.INFO)


def _forget_output() -> None:
    """Or else Python tries again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_WORDS = (
    (re.compile(r"^Value error, "), ""),
    (re.compile(r"/v1/tasks\?workflow=(\S+)"), r"`threadline tasks --workflow \1`"),
    (re.compile(r"/v1/agents\b"), "`threadline agents`"),
    (re.compile(r"\bsince=start\b"), "--since start"),
    (re.compile(r"\bask what is forward\b"), "ask `threadline trace ID --forward`"),
    (re.compile(r"^there is no [^:]*/\S+@\d+:\d+$"), r"\g<0>: `threadline sinks` lists results"),
    (re.compile(r"^there is no task:\S+$"), r"\g<0>: `threadline tasks` lists them"),
)
"""What the API says in its own words, and what that is here."""


def _said(refused: Refused, arguments: Collection[str]) -> str:
    """What the API said, in the words of the command line."""
    if refused.status not in _USAGE or not refused.fields:
        return _in_words(refused.detail)
    parts = []
    for field, reason in refused.fields[:3]:
        name = field.partition(".")[0]
        option = "" if name in arguments else f"--{name.replace('_', '-')}: "
        parts.append(option + _in_words(reason))
    return "; ".join(dict.fromkeys(parts))


def _in_words(text: str) -> str:
    from threadline.printing import printable

    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return printable(text)

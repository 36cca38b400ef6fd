"""Parameters that many endpoints have, and what they may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from collector.api.problems import bad_field
from collector.filters import MOST_CONDITIONS, Condition, parse, parse_all
from collector.names import MOST_CHARACTERS, StreamPattern, TupleName, parse_name, parse_stream
from protocol.records import BEGINNING, END_OF_TIME

MOST_ITEMS = 1_000
MOST_NAME = MOST_CHARACTERS
"""Characters in an id."""
MOST_NAMED = 1_000
"""So many things may be named in one request."""
_WHOLE = re.compile(r"[+-]?[0-9]+")


def _time_ms(value: Any) -> Any:
    """A number of ms, or a time as ISO 8601 has it; one without a zone is UTC."""
    if isinstance(value, bool):
        raise ValueError("true and false are no times")
    if not isinstance(value, str):
        return value
    try:
        if _WHOLE.fullmatch(value):
            return int(value)  # which by itself would take 1_000, blanks, and the digits of any script
        found = datetime.fromisoformat(value)
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError("a time is a number of ms since 1970, or ISO 8601 such as 2026-11-17T08:00:00Z") from error


def _checked(meaning_of: Callable[[str], object]) -> AfterValidator:
    """Lets only texts pass that mean something."""

    def check(text: str) -> str:
        meaning_of(text)
        return text

    return AfterValidator(check)


def _reading(text: str) -> None:
    """ValueError unless it is the id of a tuple."""
    if not isinstance(parse_name(text), TupleName):
        raise ValueError(f"{text!r} is no tuple: of tasks and data, ask what is forward")


TimeMs = Annotated[
    int,
    BeforeValidator(_time_ms),
    Field(ge=BEGINNING, le=END_OF_TIME),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": BEGINNING, "maximum": END_OF_TIME},
                {"type": "string", "format": "date-time"},
            ]
        }
    ),
]
From = Annotated[TimeMs | None, Query(alias="from", description="Not before this time, in ms or ISO 8601.")]
To = Annotated[TimeMs | None, Query(alias="to", description="Not after this time, in ms or ISO 8601.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="So many at the most; `next` leads to the others.")]
Cursor = Annotated[str | None, Query(description="`next` of the page before.", max_length=4_096)]
AgentFilter = Annotated[str | None, Query(description="Only what is of this agent.", min_length=1, max_length=64)]
EpochFilter = Annotated[int | None, Query(description="Only what is of this start of an agent.", ge=0, le=END_OF_TIME)]
ReadingId = Annotated[str, Field(min_length=1, max_length=MOST_NAME), _checked(_reading)]
StreamText = Annotated[str, Field(min_length=1, max_length=MOST_NAME), _checked(parse_stream)]
StreamFilter = Annotated[
    list[StreamText] | None,
    Query(
        alias="stream",
        description="Only what is of this stream: STREAM, AGENT/STREAM or AGENT/STREAM@EPOCH; may be repeated.",
        max_length=50,
    ),
]
Where = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=2_000), _checked(parse)]] | None,
    Query(
        description="Only what has such an attribute: PATH OP VALUE with = != < <= > >= or ~ (a regular expression), or"
        " PATH? for any; may be repeated, and then all must hold.",
        max_length=MOST_CONDITIONS,
    ),
]
Payloads = Annotated[bool, Query(alias="payload", description="With what tuples said, or the attributes of data.")]
FormatName = Literal["json", "prov-json", "prov-n", "openlineage", "graphml", "csv", "parquet"]
ExportFormat = Annotated[FormatName, Query(description="json, or the same as a document for others to read.")]
TableFormat = Annotated[Literal["json", "csv", "parquet"], Query(description="json, or the same as a table.")]


class Page(BaseModel):
    """Parameters of a page of vertices. As one model they are checked together, which takes a third of the time."""

    model_config = ConfigDict(extra="forbid")

    payload: bool = Field(default=False, description="With what tuples said, or the attributes of data.")
    limit: int = Field(default=100, ge=1, le=MOST_ITEMS, description="So many at the most; `next` leads to the others.")
    cursor: str | None = Field(default=None, description="`next` of the page before.", max_length=4_096)
    format: FormatName = Field(default="json", description="json, or the same as a document for others to read.")


def patterns(streams: Iterable[str] | None) -> list[StreamPattern] | None:
    """What streams are meant by a filter."""
    return None if streams is None else [parse_stream(each) for each in streams]


def conditions(where: Iterable[str] | None) -> tuple[Condition, ...]:
    """What a filter demands."""
    return parse_all(where or ())


def check_span(from_ms: int | None, to_ms: int | None, names: tuple[str, str] = ("from", "to")) -> None:
    """A Problem if a span of time ends before it begins; `names` are those of the parameters."""
    if from_ms is not None and to_ms is not None and to_ms < from_ms:
        raise bad_field(names[1], f"{names[1]} is before {names[0]}")


def span(from_ms: int | None, to_ms: int | None, names: tuple[str, str] = ("from", "to")) -> tuple[int, int]:
    """From when to when, for those who know no None. A Problem if it ends before it begins."""
    check_span(from_ms, to_ms, names)
    return BEGINNING if from_ms is None else from_ms, END_OF_TIME if to_ms is None else to_ms

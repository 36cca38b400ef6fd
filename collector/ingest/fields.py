"""Parts of a document that nobody vouches for, checked one by one. Each check raises BadDocument with the field's name;
whoever looks at a part of something larger adds where that was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from collector.batch_rows import MOST_NAME_BYTES
from collector.ingest.errors import BadDocument
from protocol.plan.errors import shown
from protocol.records import BEGINNING, END_OF_TIME
from protocol.topics import AGENT_NAME

MOST_NAME_CHARS = 200
MOST_TIME = 2**62 - 1  # so that times can be added and subtracted
_AGENT = re.compile(AGENT_NAME)

Object = Mapping[str, Any]


def as_object(value: object, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Object:
    """An object with these keys and no other."""
    if not isinstance(value, dict):
        raise BadDocument("", f"an object is expected, not {shown(value)}")
    for key in required:
        if key not in value:
            raise BadDocument(key, "is missing")
    for key in value:
        if key not in required and key not in optional:
            known = ", ".join((*required, *optional))
            raise BadDocument(key if isinstance(key, str) else "", f"{shown(key)} is unknown here: there are {known}")
    return value


def list_of(part: Object, key: str, *, may_be_empty: bool = True) -> list[Any]:
    """A list."""
    value = part[key]
    if not isinstance(value, list):
        raise BadDocument(key, f"a list is expected, not {shown(value)}")
    if not value and not may_be_empty:
        raise BadDocument(key, "is empty")
    return value


def whole(part: Object, key: str, least: int, most: int) -> int:
    """A whole number between two others."""
    value = part[key]
    if type(value) is not int:
        raise BadDocument(key, f"a whole number is expected, not {shown(value)}")
    if not least <= value <= most:
        raise BadDocument(key, f"{shown(value)} is not between {least} and {most}")
    return value


def time_ms(part: Object, key: str) -> int:
    """A time in ms."""
    return whole(part, key, -MOST_TIME, MOST_TIME)


def promise_ms(part: Object, key: str) -> int:
    """A watermark or a hold: a time, or one of the ends of time as Java writes them; "end" for the later one."""
    value = part[key]
    if value == "end":
        return END_OF_TIME
    return value if type(value) is int and value in (BEGINNING, END_OF_TIME) else time_ms(part, key)


def flag(part: Object, key: str) -> bool:
    """True or false; false if it is not there."""
    value = part.get(key, False)
    if not isinstance(value, bool):
        raise BadDocument(key, f"true or false is expected, not {shown(value)}")
    return value


def text(part: Object, key: str) -> str:
    """A text that people can read, such as the name of a stream."""
    return check_name(part[key], key)


def check_name(value: object, field: str) -> str:
    """The same, wherever it stands."""
    if not isinstance(value, str):
        raise BadDocument(field, f"a text is expected, not {shown(value)}")
    if not value.isprintable() or not value:
        raise BadDocument(field, f"{shown(value)} is empty or has a character that cannot be printed")
    if len(value) > MOST_NAME_CHARS or len(value.encode()) > MOST_NAME_BYTES:
        raise BadDocument(field, f"more than {MOST_NAME_CHARS} characters or {MOST_NAME_BYTES} bytes")
    return value


def agent_name(value: object, field: str) -> str:
    """The name of an agent."""
    if not isinstance(value, str) or not _AGENT.fullmatch(value):
        raise BadDocument(field, f"{shown(value)} is no name of an agent: 1 to 23 of a-z, 0-9 and the hyphen")
    return value

"""Where a page ends, as an opaque text: only the list that has given it takes it back."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any
from zlib import crc32

from collector.api.problems import Problem

_MOST_CHARACTERS = 4_096


def encode(of: str, *values: Any) -> str:
    """A cursor of this list."""
    body = json.dumps([of, *values], separators=(",", ":")).encode()
    return urlsafe_b64encode(crc32(body).to_bytes(4, "big") + body).decode().rstrip("=")


def decode(of: str, text: str | None, *types: type) -> tuple[Any, ...] | None:
    """The values again, None if there is no cursor. A Problem if it is not one of this list."""
    if text is None:
        return None
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError("too long")
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        check, body = raw[:4], raw[4:]
        if crc32(body).to_bytes(4, "big") != check:
            raise ValueError("damaged")
        kind, *values = json.loads(body)
        if kind != of or (types and [type(each) for each in values] != list(types)):
            raise ValueError("of another list")
        for each in values:
            _check(each)
    except (ValueError, TypeError, RecursionError) as error:
        raise no_cursor(of) from error
    return tuple(values)


def _check(value: Any) -> None:
    """ValueError if it is nothing that a store could be asked for."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("too large a number")
    if isinstance(value, str):
        value.encode()  # half of a character (a lone surrogate) is none


def no_cursor(of: str) -> Problem:
    """What is wrong with a text that is no cursor of a list."""
    return Problem(400, f"this is no cursor of {of}: take `next` of the page before, with the same filters", "cursor")

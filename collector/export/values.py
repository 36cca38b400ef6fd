"""Values of vertices for documents: fields by name, free values as JSON text, times as dates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pydantic import BaseModel

from collector.api.models import Vertex
from collector.plain import as_json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALWAYS_ESCAPED = re.compile("[\ud800-\udfff\ufffe\uffff]")


class Field(NamedTuple):
    """A field of vertices: `is_free` if it holds whatever users put there, otherwise a number or a text."""

    name: str
    is_integer: bool
    is_free: bool


def fields_of(kind: type[BaseModel]) -> Iterator[Field]:
    """The fields of a kind of vertices in their order; those of a part, such as `since`, stand by themselves."""
    for name, info in kind.model_fields.items():
        parts = getattr(info.annotation, "__args__", ())
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)
        if inner is None:
            yield Field(name, info.annotation is int or int in parts, info.annotation is Any)
        else:
            yield from (field._replace(name=f"{name}_{field.name}") for field in fields_of(inner))


def values_of(vertex: Vertex) -> dict[str, Any]:
    """What a vertex says, by the names of its fields; what it does not say is left out."""
    found: dict[str, Any] = {}
    for name in type(vertex).model_fields:
        value = getattr(vertex, name)
        if isinstance(value, BaseModel):
            found.update((f"{name}_{part}", each) for part, each in value if each is not None)
        elif value is not None:
            found[name] = value
    return found


def json_text(value: Any) -> str:
    """A free value as JSON that every encoding and every XML document can hold."""
    return _ALWAYS_ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", as_json(value))


def plain(value: Any) -> Any:
    """A free value as its JSON says it: no number that is none, no key that is no text."""
    return json.loads(json_text(value))


def as_date(time_ms: int | None) -> datetime | None:
    """A time as a date, None if the calendar has none for it: clocks of devices may say anything."""
    try:
        return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None

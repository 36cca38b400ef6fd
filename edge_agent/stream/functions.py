"""The user's functions: their names in plans and errors, and fields named by strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from edge_agent.stream.errors import shown

MOST_CHARACTERS = 100


class Field:
    """Reads one field of a value: a key of a mapping, else an attribute."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Any) -> Any:
        return value[self.name] if isinstance(value, Mapping) else getattr(value, self.name)

    def __repr__(self) -> str:
        return f"field:{self.name}"


def reader(by: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    """A function as it is, a string as the field of that name."""
    return Field(by) if isinstance(by, str) else by


def check_key(key: Any) -> None:
    """Raise for a value that cannot be a key: one that has no hash, or is not equal to itself."""
    hash(key)
    if key != key:  # noqa: PLR0124
        raise ValueError(f"{key!r} is not equal to itself and cannot be a key")


def name_of(function: Any) -> str:
    """`module:qualname` of a function or class. Another object as it shows itself, if that is short and the same every
    time, else by its class."""
    if isinstance(function, str):  # the engine's own words for what it does itself
        return function
    if isinstance(function, partial):
        return f"partial({name_of(function.func)})"
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if qualname is None:
        text = shown(function)
        same_every_time = " at 0x" not in text
        short = len(text) <= MOST_CHARACTERS and text.isprintable()
        return text if short and same_every_time else name_of(type(function))
    return f"{module}:{qualname}" if module else str(qualname)

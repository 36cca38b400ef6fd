"""Values of agents as JSON that everybody can read and SQLite can look into."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any


def as_json(value: Any) -> str:
    """A value as JSON. What JSON does not know becomes a text: bytes in hex, times, numbers that are none."""
    return json.dumps(as_plain(value), ensure_ascii=False, separators=(",", ":"))


_IS_PLAIN = frozenset((str, int, bool, type(None)))
_IS_TEXT = frozenset((str,))


def as_plain(value: Any) -> Any:
    """The same as values that JSON has."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if (
        type(value) is dict
        and _IS_PLAIN.issuperset(map(type, value.values()))
        and _IS_TEXT.issuperset(map(type, value))
    ):
        return value  # as a rule
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): as_plain(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "tolist"):  # an array, which is also a tuple
        return as_plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [as_plain(part) for part in value]
    return str(value)

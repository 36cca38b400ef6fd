"""Which topic names and filters are legal, and which filter matches which name (MQTT's rules)."""

from __future__ import annotations

import re

MAX_TOPIC_BYTES = 1_024
MAX_TOPIC_LEVELS = 200

_PLANES = "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17))
_FORBIDDEN = re.compile(f"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{_PLANES}]")
"""Control characters and what Unicode has set aside: brokers close the connection on these."""


def is_topic_name(name: str) -> bool:
    """A name one can publish to: not empty, no wildcard, nothing a broker hangs up on, of bounded length and depth."""
    return _is_legal(name) and "+" not in name and "#" not in name


def is_topic_filter(text: str) -> bool:
    """A filter one can subscribe to: `+` fills a level, `#` only as the whole last level."""
    if not _is_legal(text):
        return False
    levels = text.split("/")
    return all(("+" not in level or level == "+") and "#" not in level for level in levels[:-1]) and (
        levels[-1] in ("+", "#") or is_topic_name(levels[-1]) or (not levels[-1] and len(levels) > 1)
    )


def is_topic_id(number: int) -> bool:
    """A number a topic can have: 0 and 65535 are reserved."""
    return 0 < number < 0xFFFF


def has_wildcard(text: str) -> bool:
    """Whether a legal filter stands for more than one name."""
    return "+" in text or "#" in text


def matches(topic_filter: str, name: str) -> bool:
    """MQTT's matching; a wildcard in the first level does not match names that begin with `$`."""
    if name.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    wanted, levels = topic_filter.split("/"), name.split("/")
    for i, level in enumerate(wanted):
        if level == "#":
            return True
        if i == len(levels) or level not in ("+", levels[i]):
            return False
    return len(wanted) == len(levels)


def _is_legal(text: str) -> bool:
    return (
        0 < len(text.encode()) <= MAX_TOPIC_BYTES
        and text.count("/") < MAX_TOPIC_LEVELS
        and _FORBIDDEN.search(text) is None
    )

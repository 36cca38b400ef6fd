"""Which topic names and filters are legal, and which filter matches which name (MQTT's rules)."""

from __future__ import annotations

MAX_TOPIC_BYTES = 1_024


def is_topic_name(name: str) -> bool:
    """A name one can publish to: not empty, no wildcard, no NUL, of bounded length."""
    return _is_bounded(name) and "+" not in name and "#" not in name


def is_topic_filter(text: str) -> bool:
    """A filter one can subscribe to: `+` fills a level, `#` only as the whole last level."""
    if not _is_bounded(text):
        return False
    levels = text.split("/")
    return all(("+" not in level or level == "+") and "#" not in level for level in levels[:-1]) and (
        levels[-1] in ("+", "#") or is_topic_name(levels[-1]) or (not levels[-1] and len(levels) > 1)
    )


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


def _is_bounded(text: str) -> bool:
    return 0 < len(text.encode()) <= MAX_TOPIC_BYTES and "\0" not in text

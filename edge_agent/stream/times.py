"""Durations in milliseconds, the only unit of time."""

from __future__ import annotations


def seconds(count: float) -> int:
    return _whole(count * 1000)


def minutes(count: float) -> int:
    return _whole(count * 60_000)


def hours(count: float) -> int:
    return _whole(count * 3_600_000)


def _whole(ms: float) -> int:
    if ms != int(ms):
        raise ValueError(f"{ms} is not a whole number of milliseconds")
    return int(ms)

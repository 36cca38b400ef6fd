"""Durations in milliseconds, the only unit of time."""

from __future__ import annotations


def seconds(count: float) -> int:
    return _whole(count * 1000)


def minutes(count: float) -> int:
    return _whole(count * 60_000)


def hours(count: float) -> int:
    return _whole(count * 3_600_000)


def _whole(ms: float) -> int:
    whole = round(ms)
    if abs(ms - whole) > 1e-6:  # less is what a float makes of a decimal: 1.1 h are 3960000.0000000005 ms
        raise ValueError(f"{ms} is not a whole number of milliseconds")
    return whole

"""Durations in milliseconds, the only unit of time."""

from __future__ import annotations


def seconds(count: int) -> int:
    return count * 1000


def minutes(count: int) -> int:
    return count * 60_000


def hours(count: int) -> int:
    return count * 3_600_000

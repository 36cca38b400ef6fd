"""Waiting for what must happen, in tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_S = 10.0
"""How long anything that has to happen may take; it is never waited for in full when things work."""

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = WAIT_S, every_s: float = 0.02) -> T:
    """The condition's first true value; TimeoutError naming `what` and the last value if there is none in time."""
    give_up = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {timeout_s:g} s: {what} (last: {value!r})")
        time.sleep(every_s)

"""Signals that end long work well: heard for as long as it lasts, and what they were before afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def heeded(hear: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have these signals heard meanwhile, but for those that are ignored: nohup ignores SIGHUP."""
    before = {each: signal.signal(each, hear) for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

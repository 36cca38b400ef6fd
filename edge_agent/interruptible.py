"""Waiting in the main thread, where the handler of a signal may raise at any moment.

`Condition.wait`, and so `Event.wait`, is without its lock for some instructions outside of any `try`. What a handler
raises just there would come out as "cannot release un-acquired lock".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """What a handler has raised while we waited comes out as it is."""
    try:
        yield
    except RuntimeError as error:
        raised = error.__context__
        if raised is None or isinstance(raised, Exception):
            raise
        raise raised from None

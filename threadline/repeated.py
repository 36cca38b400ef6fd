"""Something that is done again and again beside something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(action: Callable[[], object], every_s: float, name: str) -> Iterator[None]:
    """Meanwhile, do it every so many seconds, on a thread of that name; the last time is over when this ends."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(every_s):
            action()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

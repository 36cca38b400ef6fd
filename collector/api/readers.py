"""Readers of the store for many requests at a time.

What takes microseconds is read on the event loop, by a reader of its own: a thread would cost more than the answer.
What may take longer is read in threads, by readers that wait in a pool, and is given up after a time. A store that is
replaced, or that comes only later, is opened anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from collector.api.view import View
from collector.store import StoreMissing, StoreReader

Answer = TypeVar("Answer")
MOST_READERS = 8
LONGEST_S = 10.0


Identity = tuple[int, int]


class Readers:
    """All that read one store."""

    def __init__(self, path: Path, longest_s: float = LONGEST_S) -> None:
        self._path = path
        self._longest_s = longest_s
        self._limiter = CapacityLimiter(MOST_READERS)
        self._lock = Lock()
        self._free: list[tuple[Identity, View]] = []
        self._quick: tuple[Identity, View] | None = None

    def quick(self) -> View:
        """The one for the event loop, for what takes microseconds."""
        identity = self._identity()
        if self._quick is None or self._quick[0] != identity:
            if self._quick is not None:
                self._quick[1].reader.close()
            self._quick = None
            self._quick = identity, View(StoreReader(self._path))
        view = self._quick[1]
        view.refresh()
        return view

    async def ask(self, question: Callable[[View], Answer]) -> Answer:
        """An answer from a thread, all of it of one moment. TooSlow if it takes too long."""
        return await to_thread.run_sync(self._answer, question, limiter=self._limiter)

    def _answer(self, question: Callable[[View], Answer]) -> Answer:
        with self._taken() as view, view.reader.within(self._longest_s), view.reader.moment():
            view.refresh()
            return question(view)

    @contextmanager
    def _taken(self) -> Iterator[View]:
        identity = self._identity()
        with self._lock:
            old = [each for each in self._free if each[0] != identity]
            self._free = [each for each in self._free if each[0] == identity]
            view = self._free.pop()[1] if self._free else None
        for _, each in old:
            each.reader.close()
        view = view or View(StoreReader(self._path))
        try:
            yield view
        finally:
            with self._lock:
                self._free.append((identity, view))

    def _identity(self) -> Identity:
        """Which file it is at the moment."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise StoreMissing(f"{self._path} is not there yet") from error
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Let go of the store. Nobody may ask any more."""
        for _, view in [*self._free, *([self._quick] if self._quick else [])]:
            view.reader.close()
        self._free, self._quick = [], None

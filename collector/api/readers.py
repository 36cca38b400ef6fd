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
from time import monotonic
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from collector.api.view import View
from collector.store import StoreMissing, StoreReader, StoreUnavailable, TooSlow

Answer = TypeVar("Answer")
MOST_READERS = 8
MOST_WAITING = 200
_WAITED_S = 0.05  # a thread that is free does not take longer to begin
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
        self._taken_now: list[View] = []
        self._is_stopping = False
        self._asked = 0

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
        """An answer from a thread, all of it of one moment. TooSlow if it takes too long, with the time that it waits
        for others; StoreUnavailable if too many wait already."""
        if self._asked >= MOST_READERS + MOST_WAITING:
            raise StoreUnavailable(f"{MOST_WAITING} questions wait for an answer already")
        give_up_at = monotonic() + self._longest_s
        self._asked += 1
        try:
            return await to_thread.run_sync(self._answer, question, give_up_at, limiter=self._limiter)
        finally:
            self._asked -= 1

    def _answer(self, question: Callable[[View], Answer], give_up_at: float) -> Answer:
        left_s = give_up_at - monotonic()
        if left_s < -_WAITED_S:
            raise TooSlow("others were asked before, and took all the time")
        with self._taken() as view, view.reader.within(left_s), view.reader.moment():
            view.refresh()
            return question(view)

    def stop(self) -> None:
        """End all questions that are being answered: TooSlow."""
        self._is_stopping = True
        with self._lock:
            for view in self._taken_now:
                view.reader.give_up()

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
        with self._lock:
            self._taken_now.append(view)
        try:
            if self._is_stopping:
                raise TooSlow("the API is being stopped")
            yield view
        finally:
            with self._lock:
                self._taken_now.remove(view)
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

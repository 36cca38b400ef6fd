"""Readers of the store for many requests at a time.

What takes microseconds is read on the event loop, by a reader of its own: a thread would cost more than the answer.
What may take longer is read in threads, by readers that wait in a pool, and is given up after a time, or when the one
who asks has gone. A store that is replaced, or that comes only later, is opened anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os import stat_result
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.types import Receive

from collector.api.view import View
from collector.store import StoreMissing, StoreReader, StoreUnavailable, StoreUnusable, TooSlow

Answer = TypeVar("Answer")
MOST_READERS = 8
MOST_WAITING = 200
_WAITED_S = 0.05  # a thread that is free does not take longer to begin
LONGEST_S = 10.0


Identity = tuple[int, int]
asked_by: ContextVar[Receive | None] = ContextVar("asked_by", default=None)
"""What comes from the client whose request is being answered."""
_GONE = "whoever has asked has gone"


class _UnderWay:
    """A question that may be ended from outside, while somebody reads for it or before."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._view: View | None = None
        self._is_over = False

    @contextmanager
    def read_by(self, view: View) -> Iterator[None]:
        """TooSlow if nobody waits for the answer any more."""
        with self._lock:
            if self._is_over:
                raise TooSlow(_GONE)
            self._view = view
        try:
            yield
        finally:
            with self._lock:
                self._view = None  # others may read with it next

    def end(self) -> None:
        """Nobody waits for the answer any more."""
        with self._lock:
            self._is_over = True
            if self._view is not None:
                self._view.reader.give_up()


async def _gone(receive: Receive | None) -> None:
    """Return when a client has gone."""
    if receive is None:
        await asyncio.Event().wait()  # nobody can go
        return
    while (await receive())["type"] != "http.disconnect":
        pass


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
        self._refused: tuple[Identity, str] | None = None
        self._refusals = 0

    def refuse(self, identity: Identity, why: str) -> None:
        """Serve nothing from this file: answers could be wrong. Another one in its place will be served, and this one
        again when it is accepted. Nobody keeps it open until then: SQLite would mix up what it knows of it with a copy
        that is put back."""
        self._refused = identity, why
        self._refusals += 1
        self.close()

    def accept(self, identity: Identity) -> None:
        """This file is sound: serve it, if it was refused."""
        if self._refused is not None and self._refused[0] == identity:
            self._refused = None

    def quick(self) -> View:
        """The one for the event loop, for what takes microseconds."""
        identity = self._served()
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
        under_way = _UnderWay()
        self._asked += 1
        asking = asyncio.create_task(
            to_thread.run_sync(self._answer, question, give_up_at, under_way, limiter=self._limiter)
        )
        leaving = asyncio.create_task(_gone(asked_by.get()))
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise TooSlow(_GONE)
            return asking.result()
        finally:
            under_way.end()
            leaving.cancel()
            asking.cancel()  # if it still waits for its turn
            self._asked -= 1

    def _answer(self, question: Callable[[View], Answer], give_up_at: float, under_way: _UnderWay) -> Answer:
        left_s = give_up_at - monotonic()
        if left_s < -_WAITED_S:
            raise TooSlow("others were asked before, and took all the time")
        with (
            self._taken() as view,
            view.reader.within(left_s),
            under_way.read_by(view),
            view.reader.moment(),
        ):
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
        refusals = self._refusals
        identity = self._served()
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
                is_kept = refusals == self._refusals
                if is_kept:
                    self._free.append((identity, view))
            if not is_kept:
                view.reader.close()

    def _served(self) -> Identity:
        """Which file it is, unless it is refused."""
        identity = self.identity()
        if self._refused is not None and self._refused[0] == identity:
            raise StoreUnusable(
                f"{self._path} is damaged ({self._refused[1]}) and not served any more: `threadline store check` says "
                f"all; put back a copy, without {self._path.name}-wal and -shm, and it is served once found sound, or "
                "take a new --store and a new --checkpoint, which replays the log"
            )
        return identity

    def identity(self) -> Identity:
        """Which file it is at the moment."""
        found = self.stat()
        return found.st_dev, found.st_ino

    def stat(self) -> stat_result:
        """What the file looks like from outside."""
        try:
            return self._path.stat()
        except OSError as error:
            raise StoreMissing(f"{self._path} is not there yet") from error

    def close(self) -> None:
        """Let go of the store. Whoever asks from now on opens it anew."""
        with self._lock:
            free, self._free = self._free, []
        for _, view in [*free, *([self._quick] if self._quick else [])]:
            view.reader.close()
        self._quick = None

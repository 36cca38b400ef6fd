"""Looks whether something was written to the store, once for all that wait for it."""

from __future__ import annotations

import asyncio
import logging

from collector.api.readers import Readers
from collector.store import StoreError

_LOG = logging.getLogger(__name__)
LOOK_S = 0.1


class Watcher:
    """A number that grows whenever the store has changed. All of it belongs to one event loop."""

    def __init__(self, readers: Readers, look_s: float = LOOK_S) -> None:
        self._readers = readers
        self._look_s = look_s
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._known: object = None
        self.version = 0
        self.has_stopped = False

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            found: object = None
            try:
                view = self._readers.quick()
                found = view.serial, view.version
            except StoreError:
                pass  # those who ask are told
            except Exception:
                _LOG.exception("the store cannot be looked at")  # all would wait in vain if it gave up
            if found != self._known:
                self._known = found
                self._wake()

    def _wake(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int, seconds: float) -> bool:
        """Whether something comes that is newer than what was seen, in so many seconds."""
        if self.version != seen or self.has_stopped:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Nobody has to wait any longer."""
        self.has_stopped = True
        self._wake()
        if self._task is not None:
            self._task.cancel()

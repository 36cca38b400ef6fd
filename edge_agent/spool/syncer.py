"""Syncs files on a thread of its own: a slow disk takes its time, and whoever writes goes on writing meanwhile."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence

from edge_agent.background import Background


class Syncer:
    """One sync at a time. The thread starts with the first one."""

    def __init__(self) -> None:
        self._orders: deque[Sequence[int] | None] = deque()
        self._ordered = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self.busy = False
        """Something was ordered and is not done yet."""
        self.error: OSError | None = None
        """How the last sync failed; None if it did not."""

    def order(self, handles: Sequence[int]) -> None:
        """Sync the files behind these handles, which are closed afterwards. If there can be no thread, whoever writes
        has to wait for it."""
        self.busy = True
        self.error = None
        if self._thread is None:
            thread = Background(target=self._run, name="sync", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._sync(handles)
                return
            self._thread = thread
        self._orders.append(handles)
        self._ordered.release()

    def close(self) -> None:
        """Finish what was ordered, and end."""
        if self._thread is not None:
            self._orders.append(None)
            self._ordered.release()
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._ordered.acquire()
            handles = self._orders.popleft()
            if handles is None:
                return
            self._sync(handles)

    def _sync(self, handles: Sequence[int]) -> None:
        for handle in handles:
            try:
                try:
                    os.fdatasync(handle)
                finally:
                    os.close(handle)  # which may fail, too: some file systems tell only then what they could not write
            except OSError as error:
                self.error = error
        self.busy = False

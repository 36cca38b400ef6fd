"""One writer at a time: a lock beside the store that the kernel frees when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from collector.store.errors import StoreInUse, StoreUnavailable


class WriterLock:
    """Held from its making until `release`."""

    def __init__(self, store: Path) -> None:
        path = store.with_name(f"{store.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._handle, 1024, 0).decode(errors="replace").strip()
            os.close(self._handle)
            raise StoreInUse(f"{store} is being written by {holder or 'a process that has just begun'}") from None
        except OSError as error:
            os.close(self._handle)
            raise StoreUnavailable(f"{path} cannot be locked: {error.strerror}") from error

    def release(self) -> None:
        """Let a successor have the store."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)  # closing alone would leave it to children that are just being started
        os.close(self._handle)

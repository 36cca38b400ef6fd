"""A disk that keeps as little as it may: after a power cut there is what was synced, and nothing else.

The content of a file is safe when the file was synced, its name when its folder was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class PowerCut(BaseException):
    """The power is gone: nothing that is running goes on."""


class StrictDisk:
    """One folder without folders in it, seen through hooks in `os`. The folder itself is safe."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cut_before: Callable[[str], bool] = lambda name: False
        """Whether the power goes when the file or folder of this name is to be synced."""
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        folder.mkdir()
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def cut_after(self, syncs: int) -> None:
        """The power goes when there were so many syncs and one more is to be done."""
        left = iter(range(syncs))
        self.cut_before = lambda name: next(left, None) is None

    def kill(self) -> None:
        """What is open is closed, as when a process dies. Everything written is there."""
        for handle in self._open_handles():
            os.close(handle)

    def cut_power(self) -> None:
        """Only what was synced is there."""
        self.kill()
        self.cut_before = lambda name: False
        left = {name: self._contents.get(inode, b"") for name, inode in self._names.items()}
        for path in self.folder.iterdir():
            path.unlink()
        self._contents.clear()
        for name, content in left.items():
            path = self.folder / name
            path.write_bytes(content)
            self._contents[path.stat().st_ino] = content
        self._names = self._listing()

    def keep_names(self) -> None:
        """The system may write names whenever it likes."""
        self._names = self._listing()

    def _sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}")
        target = path.readlink()
        if self.cut_before(target.name):
            raise PowerCut
        if target == self.folder:
            self._names = self._listing()
        else:
            self._contents[os.fstat(fd).st_ino] = path.read_bytes()

    def _listing(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in self.folder.iterdir()}

    def _open_handles(self) -> Iterator[int]:
        for handle in list(Path("/proc/self/fd").iterdir()):
            try:
                target = handle.readlink()
            except OSError:
                continue  # it was open for the listing
            if target.is_relative_to(self.folder):
                yield int(handle.name)

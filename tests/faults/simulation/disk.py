"""Disks that fail: real files below one folder, seen through hooks in `os`.

Every machine of the simulation has a folder of its own. Its disk counts the operations on it, so that a process can die
in the middle of any of them, and remembers what was synced, so that a power cut can take the rest. What POSIX leaves
open is decided by dice: of what was written since a sync, any part may be there; names that were given or taken since
their folder was synced may have changed or not.

SQLite's files are left as they are: they are written past `os`, and with the settings that the product uses a commit of
theirs is synced.
"""

# What pathlib rests on is replaced here.
# ruff: noqa: PTH115, PTH116, PTH118, PTH119, PTH208

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

_SECTOR_BYTES = 512
_KEPT = ".kept"
_HOOKED = ("pwrite", "fsync", "fdatasync", "ftruncate", "truncate", "rename", "replace", "unlink")
_REAL: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _HOOKED}


class Killed(BaseException):
    """The process ends here, whatever it was doing."""


class Disk:
    """The files of one machine."""

    def __init__(self, folder: Path, dice: Random) -> None:
        self.folder = folder
        self.is_full = False
        self._dice = dice
        self._dies_after: int | None = None
        self._synced: dict[int, bytes] = {}
        """By inode: what it held when it was last synced."""
        self._names: dict[str, dict[str, int]] = {}
        """By folder: its names and their inodes when it was last synced."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _KEPT).mkdir(exist_ok=True)

    def die_after(self, operations: int | None) -> None:
        """Whoever does one more operation than these dies of it."""
        self._dies_after = operations

    # What the hooks report

    def begin(self) -> bool:
        """One more operation; tells whether it is the last one of whoever does it."""
        if self._dies_after is None:
            return False
        self._dies_after -= 1
        return self._dies_after < 0

    def torn(self, data: bytes) -> bytes:
        """What gets written of this when its writer dies."""
        return data[: self._dice.randrange(len(data) + 1)]

    def lacks_room(self, fd: int, end_bytes: int) -> bool:
        """Whether a write would need room that is not there."""
        return self.is_full and end_bytes > os.fstat(fd).st_size

    def synced(self, fd: int, path: str) -> None:
        """A file or a folder is safe as it is now."""
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            self._names[path] = _listing(path)
            return
        if self.is_full and found.st_size > len(self._synced.get(found.st_ino, b"")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._synced[found.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()  # it may be open for writing only

    def losing(self, path: str) -> None:
        """A name is about to be taken from a file, which may come back with a power cut."""
        try:
            inode = os.stat(path).st_ino
        except OSError:
            return
        kept = self.folder / _KEPT / str(inode)
        if inode in self._synced and not kept.exists():
            os.link(path, kept)

    # The end of the power

    def cut_power(self) -> None:
        """Of what was not synced, take whatever the dice say. Nobody may have a file open."""
        for folder, _, _ in os.walk(self.folder):
            if os.path.basename(folder) != _KEPT:
                self._cut(folder)
        for kept in (self.folder / _KEPT).iterdir():
            _REAL["unlink"](kept)
        self.settle()

    def settle(self) -> None:
        """All that is there now is safe."""
        self._synced.clear()
        for folder, _, files in os.walk(self.folder):
            if os.path.basename(folder) != _KEPT:
                self._names[folder] = _listing(folder)
                for name in files:
                    path = os.path.join(folder, name)
                    if not _is_of_sqlite(name):
                        self._synced[os.stat(path).st_ino] = Path(path).read_bytes()

    def _cut(self, folder: str) -> None:
        now = _listing(folder)
        names = now if self._dice.random() < 0.5 else self._names.get(folder, {})
        contents = {name: self._left_of(folder, name, inode, now) for name, inode in names.items()}
        for name in now:
            _REAL["unlink"](os.path.join(folder, name))
        for name, content in contents.items():
            if content is not None:
                Path(folder, name).write_bytes(content)

    def _left_of(self, folder: str, name: str, inode: int, now: dict[str, int]) -> bytes | None:
        place = next((Path(folder, each) for each, number in now.items() if number == inode), None)
        place = place or self.folder / _KEPT / str(inode)
        if not place.exists():  # it has moved to another folder
            return None
        return self._mixed(self._synced.get(inode, b""), place.read_bytes())

    def _mixed(self, old: bytes, new: bytes) -> bytes:
        """Some of what was written since the last sync is on the disk."""
        dice = self._dice
        if (
            new[: len(old)] == old
        ):  # it has only grown: the rest is there to some point, behind which are zeros or nothing
            end = dice.choice((len(old), len(new), dice.randint(len(old), len(new))))
            return new[:end] + (bytes(len(new) - end) if dice.random() < 0.3 else b"")
        longest = max(len(old), len(new))
        sectors = [
            dice.choice((old, new))[at : at + _SECTOR_BYTES].ljust(min(_SECTOR_BYTES, longest - at), b"\0")
            for at in range(0, longest, _SECTOR_BYTES)
        ]
        return b"".join(sectors)[: dice.choice((len(old), len(new)))]


class Disks:
    """The hooks, for as long as the block lasts, and the disks by the names of their machines."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._root = str(folder) + "/"
        self._folder = folder
        self._seed = seed
        self._disks: dict[str, Disk] = {}

    def of(self, machine: str) -> Disk:
        """The disk of a machine, which need not have been there."""
        found = self._disks.get(machine)
        if found is None:
            found = self._disks[machine] = Disk(self._folder / machine, Random(f"{self._seed}/{machine}"))
        return found

    def forget(self, machine: str) -> None:
        """The machine has another disk from now on."""
        del self._disks[machine]

    def __enter__(self) -> Disks:
        for name in _HOOKED:
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for name, real in _REAL.items():
            setattr(os, name, real)

    def _find(self, path: str) -> Disk | None:
        if not path.startswith(self._root):
            return None
        return self._disks.get(path[len(self._root) :].partition("/")[0])

    def _opened(self, fd: int) -> tuple[Disk | None, str]:
        path = os.readlink(f"/proc/self/fd/{fd}")
        return self._find(path), path

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        disk, _ = self._opened(fd)
        if disk is not None:
            if disk.begin():
                _REAL["pwrite"](fd, disk.torn(bytes(data)), offset)
                raise Killed
            if disk.lacks_room(fd, offset + len(data)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written: int = _REAL["pwrite"](fd, data, offset)
        return written

    def _fsync(self, fd: int) -> None:
        disk, path = self._opened(fd)
        if disk is not None:
            if disk.begin():
                raise Killed
            disk.synced(fd, path)

    _fdatasync = _fsync

    def _ftruncate(self, fd: int, length: int) -> None:
        disk, _ = self._opened(fd)
        if disk is not None and disk.begin():
            raise Killed
        _REAL["ftruncate"](fd, length)

    def _truncate(self, path: Any, length: int) -> None:
        disk = self._find(os.fspath(path))
        if disk is not None and disk.begin():
            raise Killed
        _REAL["truncate"](path, length)

    def _rename(self, old: Any, new: Any) -> None:
        disk = self._find(os.fspath(new))
        if disk is not None:
            if disk.begin():
                raise Killed
            disk.losing(os.fspath(new))
        _REAL["rename"](old, new)

    _replace = _rename

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        disk = self._find(os.fspath(path))
        if disk is not None:
            if disk.begin():
                raise Killed
            disk.losing(os.fspath(path))
        _REAL["unlink"](path, dir_fd=dir_fd)


def close_files(folder: Path) -> None:
    """Close what is open below a folder, as the kernel does when a process dies. SQLite's files are its own."""
    root = f"{folder}/"
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing itself
        if path.startswith(root) and not _is_of_sqlite(path):
            os.close(int(name))


def _listing(folder: str) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries if entry.is_file() and not _is_of_sqlite(entry.name)}


def _is_of_sqlite(name: str) -> bool:
    return name.endswith((".db", ".db-wal", ".db-shm", ".sqlite3", ".sqlite3-wal", ".sqlite3-shm"))

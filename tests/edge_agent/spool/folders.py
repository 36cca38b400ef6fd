"""Spools as a test sees them from outside: their files, and what a crash leaves of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from edge_agent.spool import Entry, Spool


def segments(folder: Path) -> list[Path]:
    """The segment files, oldest first."""
    return sorted(folder.glob("*.v1"))


def crashed(folder: Path) -> Path:
    """A copy of the folder as it is now: what a process that is killed at this moment leaves."""
    copy = folder.with_name(folder.name + "-")
    shutil.copytree(folder, copy)
    return copy


def contents(spool: Spool) -> list[tuple[int, int, bytes]]:
    """All unreleased entries, as plain tuples."""
    return [(entry.first, entry.last, entry.data) for entry in spool.entries()]


def read(spool: Spool, number: int) -> bytes | None:
    """The entry that stands for this number, None if there is none."""
    entry = next(spool.entries(number), None)
    return None if entry is None or entry.first > number else entry.data


def ones(*entries: bytes, start: int = 0) -> list[Entry]:
    """Entries that stand for one number each."""
    return [Entry(number, number, data) for number, data in enumerate(entries, start)]


def folder_bytes(folder: Path) -> int:
    """What all files take up."""
    return sum(path.stat().st_size for path in folder.iterdir())


def spoil(path: Path, offset: int, length: int = 1) -> None:
    """Turn bits of a file over, as a worn card does."""
    data = bytearray(path.read_bytes())
    for at in range(offset, offset + length):
        data[at] ^= 0x55
    path.write_bytes(data)

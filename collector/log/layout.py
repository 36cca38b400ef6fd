"""Where things are: `shard-05/000000000001.arrows`, beside it the shard's `lock` and `position`."""

from __future__ import annotations

import os
from pathlib import Path

_SHARD = "shard-"
_SEGMENT = ".arrows"
_DAMAGED = ".damaged"


def shard_folder(folder: Path, shard: int) -> Path:
    """The folder of one shard."""
    return folder / f"{_SHARD}{shard:02d}"


def shards(folder: Path) -> list[int]:
    """The shards that were ever written, rising."""
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(
        int(name[len(_SHARD) :]) for name in names if name.startswith(_SHARD) and name[len(_SHARD) :].isdecimal()
    )


def segment_path(shard: Path, number: int) -> Path:
    """The file of one segment."""
    return shard / f"{number:012d}{_SEGMENT}"


def segment_numbers(shard: Path) -> list[int]:
    """The segments that are there, rising."""
    names = [each.name for each in shard.iterdir()] if shard.is_dir() else []
    stems = [name[: -len(_SEGMENT)] for name in names if name.endswith(_SEGMENT)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def damaged_path(shard: Path, number: int) -> Path:
    """Where a segment is kept as it was found, should its repair have cost rows that readers may have seen."""
    return segment_path(shard, number).with_suffix(_SEGMENT + _DAMAGED)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: syncing a file does not."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def create_file(path: Path, content: bytes) -> None:
    """Put a whole file under its name, durably: after a crash it is there with all its bytes, or not at all."""
    unfinished = path.with_name(path.name + ".new")
    try:
        with unfinished.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        unfinished.replace(path)
        sync_folder(path.parent)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise

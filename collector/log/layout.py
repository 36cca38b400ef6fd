"""Where things are: `shard-05/000000000001.arrows`, beside it the shard's `lock` and `position`, of segments that are
full how long they are (`.end`), and of segments that were damaged what was found (`.arrows.damaged`) and what the log
tells of it (`.lost`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_SHARD = "shard-"
_SEGMENT = ".arrows"
_DAMAGED = ".damaged"
_LOST = ".lost"
_END = ".end"


def shard_folder(folder: Path, shard: int) -> Path:
    """The folder of one shard."""
    return folder / f"{_SHARD}{shard:02d}"


def shards(folder: Path) -> list[int]:
    """The shards that were ever written, rising."""
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(
        int(name[len(_SHARD) :]) for name in names if name.startswith(_SHARD) and name[len(_SHARD) :].isdecimal()
    )


def listed(shards: Iterable[int]) -> str:
    """Shards as people write them: `0-3,7`."""
    spans: list[list[int]] = []
    for shard in sorted(shards):
        if spans and shard == spans[-1][-1] + 1:
            spans[-1][1:] = [shard]
        else:
            spans.append([shard])
    return ",".join("-".join(map(str, span)) for span in spans)


def parse_shards(text: str, most: int) -> list[int]:
    """`0-15` or `1,4-6` as numbers. ValueError says what is wrong."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} is no list of shards such as 0-15 or 1,4-6")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= most:
            raise ValueError(f"shards are 0 to {most - 1}, not {part.strip()}")
        found.update(numbers)
    return sorted(found)


def segment_path(shard: Path, number: int) -> Path:
    """The file of one segment."""
    return shard / f"{number:012d}{_SEGMENT}"


def segment_numbers(shard: Path) -> list[int]:
    """The segments that are there, rising."""
    return _numbers(shard, _SEGMENT)


def _numbers(shard: Path, suffix: str) -> list[int]:
    names = [each.name for each in shard.iterdir()] if shard.is_dir() else []
    stems = [name[: -len(suffix)] for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def damaged_path(shard: Path, number: int) -> Path:
    """Where a segment is kept as it was found, should its repair have cost rows that readers may have seen: until an
    operator takes it away. It is empty if the segment was not there at all."""
    return segment_path(shard, number).with_suffix(_SEGMENT + _DAMAGED)


def lost_path(shard: Path, number: int) -> Path:
    """The mark of a segment of which rows were lost and that the log tells so; the file says what it tells."""
    return segment_path(shard, number).with_suffix(_LOST)


def end_path(shard: Path, number: int) -> Path:
    """How many rows a segment has that is followed by another."""
    return segment_path(shard, number).with_suffix(_END)


def end_numbers(shard: Path) -> list[int]:
    """The segments that are known to have been full and not removed, rising."""
    return _numbers(shard, _END)


def damaged_numbers(shard: Path) -> list[int]:
    """The segments that were set aside and that nobody has taken away yet, rising."""
    return _numbers(shard, _SEGMENT + _DAMAGED)


def lost_numbers(shard: Path) -> list[int]:
    """The segments of which the log tells that rows were lost, rising."""
    return _numbers(shard, _LOST)


def has_segments(folder: Path) -> bool:
    """Whether anything was ever logged here."""
    return any(segment_numbers(shard_folder(folder, shard)) for shard in shards(folder))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: syncing a file does not."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_open_as(path: Path, handle: int) -> bool:
    """Whether who opens the path finds the file that the handle writes to: it may have been deleted or moved."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except (FileNotFoundError, NotADirectoryError):
        return False


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

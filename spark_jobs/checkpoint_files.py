"""Whether Spark's files in a checkpoint are as they were written, and all there, before Spark begins.

Hadoop leaves a file of checksums beside every file that Spark writes (`.NAME.crc`: one for each 512 bytes), and Spark's
own readers go by it. But they read what they need when they need it, and tell of damage in pages of Java. Here all of
it is read at once, and what is wrong has the name of a file.

A file may be without its checksums: a crash came between the two. State that is newer than what is committed does not
count, nor what the newest snapshot does not name: Spark writes it once more, or was about to delete it. What has other
content than it should, with the checksums of that, cannot be told. That the last operator is gone with all its folders
is left to Spark, which knows how many there are.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

_HEAD = struct.Struct(">4si")
_MAGIC = b"crc\0"
_CHANGES = {".zip": ".changelog", ".snapshot": ".delta"}
"""What the files of changes are called that follow a snapshot: of RocksDB, and of Spark's own kind of state."""
_STATE = (*_CHANGES, *_CHANGES.values())
_PARTS = {"sstFiles": ("SSTs", "dfsSstFileName"), "logFiles": ("logs", "dfsLogFileName")}
"""What a snapshot says that it is made of: in which folder, and under which name."""


def faults(folder: Path, committed: int | None) -> Iterator[str]:
    """What is wrong with the files of a checkpoint, of which the last committed batch is known."""
    version = 0 if committed is None else committed + 1
    for path in [folder / "metadata", *_files(folder / "offsets"), *_files(folder / "commits")]:
        yield from _unsound(path)
    for path in [each for each in _files(folder / "state") if each.parent.name not in ("SSTs", "logs")]:
        if (_version(path) or 0) <= version:
            yield from _unsound(path)
    if committed is not None:
        if not (folder / "offsets" / str(committed)).exists():
            yield f"{folder / 'offsets' / str(committed)} is gone"
        yield from _missing_state(folder / "state", version)


def _missing_state(state: Path, version: int) -> Iterator[str]:
    """What is not there that Spark needs for a version of its state. Operators are numbered; each says of which stores
    its state consists, and in how many partitions."""
    numbers = [int(path.name) for path in state.glob("*") if path.name.isdecimal()]
    if not numbers:
        yield f"{state} is gone"
    for number in range(max(numbers, default=-1) + 1):
        operator = state / str(number)
        metadata = max(_files(operator / "_metadata"), key=_version_of_metadata, default=None)
        if metadata is None:
            yield f"{operator / '_metadata' if operator.exists() else operator} is gone"
        elif not list(_unsound(metadata)):
            try:
                stores = list(_stores(operator, metadata))
            except (ValueError, KeyError, TypeError):
                yield f"{metadata} is not as it was written"
            else:
                for store in stores:
                    yield from _missing_versions(store, version)


def _version_of_metadata(path: Path) -> int:
    return int(path.name) if path.name.isdecimal() else -1


def _stores(operator: Path, metadata: Path) -> Iterator[Path]:
    """The folders in which an operator keeps its state."""
    for told in json.loads(metadata.read_bytes().partition(b"\n")[2])["stateStoreInfo"]:
        for partition in range(told["numPartitions"]):
            folder = operator / str(partition)
            yield folder if told["storeName"] == "default" else folder / told["storeName"]


def _missing_versions(store: Path, version: int) -> Iterator[str]:
    """What is not there, or not sound, of the newest snapshot of a store, and of the changes since then."""
    names = {path.name for path in _files(store) if _version(path) is not None}
    if not names:
        yield f"{store} is gone"
        return
    snapshot, changes = next(kinds for kinds in _CHANGES.items() if any(name.endswith(kinds) for name in names))
    numbers = [_version(Path(name)) or 0 for name in names if name.endswith(snapshot)]
    start = max((each for each in numbers if each <= version), default=0)
    if start and snapshot == ".zip" and not list(_unsound(store / f"{start}.zip")):
        yield from _unsound_parts(store / f"{start}.zip")
    for number in range(start + 1, version + 1):
        if f"{number}{changes}" not in names:
            yield f"{store / f'{number}{changes}'} is gone"


def _files(folder: Path) -> list[Path]:
    """All files below a folder that are no checksums and not just being made, and those of which only the checksums are
    left."""
    found: set[Path] = set()
    for path in folder.rglob("*"):
        name = path.name
        if name.startswith(".") and name.endswith(".crc") and not name.endswith(".tmp.crc"):
            found.add(path.with_name(name[1 : -len(".crc")]))
        elif not name.startswith(".") and path.is_file():
            found.add(path)
    return sorted(found)


def _version(path: Path) -> int | None:
    """Of which version of the state a file is, if it is of one."""
    stem = path.name.partition(".")[0]
    return int(stem) if path.suffix in _STATE and stem.isdecimal() else None


def _unsound_parts(snapshot: Path) -> Iterator[str]:
    """What is wrong with the files that a snapshot names."""
    try:
        with zipfile.ZipFile(snapshot) as archive:
            told = json.loads(archive.read("metadata").partition(b"\n")[2])
        parts = [
            snapshot.parent / folder / each[name]
            for kind, (folder, name) in _PARTS.items()
            for each in told.get(kind) or ()
        ]
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        yield f"{snapshot} is not as it was written"
        return
    for path in parts:
        yield from _unsound(path)
        if not path.exists() and not path.with_name(f".{path.name}.crc").exists():
            yield f"{path} is gone"


def _unsound(path: Path) -> Iterator[str]:
    checks = path.with_name(f".{path.name}.crc")
    if not checks.exists():
        return
    try:
        content, expected = path.read_bytes(), checks.read_bytes()
    except FileNotFoundError:
        yield f"{path} is gone"
        return
    try:
        magic, size = _HEAD.unpack_from(expected)
        if magic != _MAGIC or size <= 0:
            raise ValueError
        found = b"".join(zlib.crc32(content[at : at + size]).to_bytes(4, "big") for at in range(0, len(content), size))
        if found != expected[_HEAD.size :]:
            raise ValueError
    except (struct.error, ValueError):
        yield f"{path} is not as it was written"

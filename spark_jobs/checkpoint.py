"""The folder of a checkpoint: Spark's files, and what it was made with.

State and offsets mean something only to a pipeline with the same buckets, stages and partitions, and to the same log.
So these are written down before Spark begins, and whoever comes with others is told so.

One job at a time: the folder is locked, and the lock is shared with Spark's JVM, so that it is free no sooner than the
last process that might still write to it has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.json_sum import json_sum
from spark_jobs.checkpoint_files import faults

_FORMAT = 3
_MANIFEST = "threadline.json"
_OF_SPARK = {"metadata", "offsets", "commits"}
_BEFORE_IT_BEGINS = {"lock", "scratch", "spark.log", "spark.log.before", f"{_MANIFEST}.new", "lost+found"}
_WAIT_S = 10.0  # for a JVM whose driver was killed
_WAY_OUT = "or take a new --checkpoint folder: it replays the log, and the store skips what it knows"
_OF_THE_GRAPH = ("algorithm", "levels")
_NEW_GRAPH = "or take a new --checkpoint folder and a new --store: the graph will be another"

Settings = Mapping[str, int | str]
Offset = dict[str, Any]


class CheckpointUnusable(RuntimeError):
    """The folder cannot be gone on with; the text says why, and the way out."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that is ours as long as the lock is held."""

    folder: Path
    lock: int
    start: Offset
    """Where in the log it began."""

    @property
    def scratch(self) -> Path:
        """For files that need not outlive Spark's process."""
        return self.folder / "scratch"

    @property
    def spark_log(self) -> Path:
        """What Spark and its workers say."""
        return self.folder / "spark.log"

    @property
    def query(self) -> str:
        """The id of the streaming query: Spark makes it when it begins, and it stays the same."""
        path = self.folder / "metadata"
        try:
            return str(json.loads(path.read_text())["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointUnusable(f"{path} cannot be read ({error}): put it back, {_WAY_OUT}") from error

    @property
    def committed(self) -> int | None:
        """The last batch that Spark will not run again, if there is any."""
        names = [path.name for path in self.folder.glob("commits/*")]
        return max((int(name) for name in names if name.isdigit()), default=None)

    def upto(self, batch: int) -> str:
        """Up to where the log is read for a batch: Spark writes it down before it runs it."""
        return (self.folder / "offsets" / str(batch)).read_text().splitlines()[-1]

    def since(self, batch: int) -> str:
        """From where on."""
        return self.upto(batch - 1) if batch else json.dumps(self.start)

    def check_files(self) -> None:
        """CheckpointUnusable if Spark's files are not as they were written, or not all there."""
        try:
            found = list(faults(self.folder, self.committed))
        except OSError as error:
            raise CheckpointUnusable(f"{self.folder} cannot be read: {error}") from error
        if found:
            more = f", and {len(found) - 1} more files are damaged or gone" if len(found) > 1 else ""
            raise CheckpointUnusable(f"{found[0]}{more}: put back a copy of the whole folder, {_WAY_OUT}")

    def belongs_to(self, last_batch: Callable[[str], int | None]) -> None:
        """CheckpointUnusable if the store, which tells its last batch of a query, does not have what Spark has
        committed: nobody would ever tell it again. Nor may it have more than the one that Spark runs next: it would
        skip what it has, though it may be told something else."""
        committed = self.committed
        if committed is None and not (self.folder / "metadata").exists():
            return
        stored = last_batch(self.query)
        if committed is not None and (stored is None or stored < committed):
            has = "no batch of it" if stored is None else f"only those up to batch {stored}"
            raise CheckpointUnusable(
                f"{self.folder} has come to batch {committed}, but the store has {has}: name the store that it was "
                f"made with, {_WAY_OUT}"
            )
        if stored is not None and stored > (-1 if committed is None else committed) + 1:
            has = "has committed nothing" if committed is None else f"has come to batch {committed} only"
            raise CheckpointUnusable(
                f"the store has batch {stored} of {self.folder}, which {has}: it is an older copy, or files of it are "
                f"gone; put the newest back, {_WAY_OUT}"
            )


@contextmanager
def opened(folder: Path, settings: Settings, start: Offset) -> Iterator[Checkpoint]:
    """The checkpoint in a folder, made if there is none: then it begins at `start`. CheckpointUnusable says why not.

    The names of the settings are those of the options by which one may have chosen others.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_others(folder)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except FileExistsError as error:
        raise CheckpointUnusable(f"{folder} is no folder: name another --checkpoint") from error
    except OSError as error:
        raise CheckpointUnusable(f"{folder}: {error.strerror}") from error
    try:
        _take(lock, folder)
        try:
            found = Checkpoint(folder, lock, _begun(folder, settings, start))
            shutil.rmtree(found.scratch, ignore_errors=True)
            found.scratch.mkdir()
            _remove_unfinished(folder)
        except OSError as error:
            raise CheckpointUnusable(f"{folder}: {error.strerror}") from error
        yield found
        shutil.rmtree(found.scratch, ignore_errors=True)
    finally:
        os.close(lock)


def made_with(folder: Path) -> Settings:
    """What a checkpoint was made with; nothing if there is none, or none that can be read."""
    try:
        return dict(_manifest(folder / _MANIFEST)["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _manifest(path: Path) -> dict[str, Any]:
    """What stands in it. Of another format, only that it is of another is believed."""
    found = json.loads(path.read_bytes())
    if found["format"] == _FORMAT and found.pop("check", None) != json_sum(found):
        raise ValueError("it is not as it was written")
    return dict(found)


def _refuse_others(folder: Path) -> None:
    """A folder that is used for something else stays as it is."""
    names = {path.name for path in folder.iterdir()}
    if _MANIFEST not in names and not names <= _BEFORE_IT_BEGINS and not names & _OF_SPARK:
        raise CheckpointUnusable(f"{folder} is not empty, and no checkpoint: name another --checkpoint folder")


def _take(lock: int, folder: Path) -> None:
    give_up = time.monotonic() + _WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > give_up:
                holder = os.pread(lock, 1024, 0).decode(errors="replace").strip()
                raise CheckpointUnusable(f"{folder} is in use by {holder or 'another process'}") from None
            time.sleep(0.1)
    os.ftruncate(lock, 0)
    with suppress(OSError):  # the disk is full: nobody will know who has it
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _remove_unfinished(folder: Path) -> None:
    """What a job was writing when it was killed, or its disk was full: it counts for nothing, but Spark does not begin
    if anything is there before the first micro-batch."""
    for name in ("offsets", "commits"):
        for path in [*folder.glob(f"{name}/.*.tmp"), *folder.glob(f"{name}/.*.tmp.crc")]:
            path.unlink()


def _begun(folder: Path, settings: Settings, start: Offset) -> Offset:
    """Where the checkpoint began. If it is new, that is now."""
    path = folder / _MANIFEST
    has_begun = any((folder / name).exists() for name in _OF_SPARK)
    if not path.exists():
        if has_begun:
            raise CheckpointUnusable(
                f"{folder} is a checkpoint of something else, or {_MANIFEST} in it is gone: put it back, {_WAY_OUT}"
            )
        return _begin(path, settings, start)
    try:
        manifest = _manifest(path)
        made_with, began = dict(manifest["settings"]), dict(manifest["start"])
        format_ = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointUnusable(f"{path} cannot be read ({error}): put it back, {_WAY_OUT}") from error
    if not has_begun:  # somebody came with other settings, and did not come so far as to begin
        return _begin(path, settings, start)
    if format_ != _FORMAT:
        raise CheckpointUnusable(f"{folder} is of format {format_}, this is for format {_FORMAT}: {_WAY_OUT[3:]}")
    for name, value in settings.items():
        if made_with.get(name) != value:
            raise CheckpointUnusable(
                f"{folder} was made with --{name} {made_with.get(name)}, not {value}: "
                f"say --{name} {made_with.get(name)}, {_NEW_GRAPH if name in _OF_THE_GRAPH else _WAY_OUT}"
            )
    return began


def _begin(path: Path, settings: Settings, start: Offset) -> Offset:
    manifest = {"format": _FORMAT, "settings": dict(settings), "start": start}
    write_durably(path, json.dumps({**manifest, "check": json_sum(manifest)}, indent=1) + "\n")
    return start


def write_checked(path: Path, value: Any) -> None:
    """Put a value into a file, durably, so that nobody takes another for it."""
    write_durably(path, json.dumps({"value": value, "check": json_sum(value)}))


def read_checked(path: Path) -> Any:
    """The value again. ValueError if the file is not as it was written, FileNotFoundError if it is not there."""
    try:
        found = json.loads(path.read_bytes())
        if found["check"] != json_sum(found["value"]):
            raise ValueError("wrong check")
        return found["value"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not as it was written ({error})") from error


def write_durably(path: Path, text: str) -> None:
    """Put a file under its name: after a crash it is there with all its bytes, or as it was."""
    unfinished = path.with_name(path.name + ".new")
    with unfinished.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

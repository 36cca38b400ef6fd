"""How far a forwarder has come: one small file, replaced as a whole, and owned by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any, NamedTuple

from collector.forwarding.errors import PositionInUse, PositionUnusable
from collector.log import Position
from collector.log.layout import create_file
from protocol.json_sum import json_sum

_FORMAT = "threadline-forward-2"


class Purpose(NamedTuple):
    """What a position is of: with anything else, it would pass over records that nobody has forwarded."""

    log: str
    to: str
    agent: str | None


class PositionFile:
    """Where each shard goes on, behind which row (by its check), and what the system has to remember."""

    def __init__(self, path: Path, purpose: Purpose) -> None:
        """Take the file, which need not be there yet."""
        self.positions: dict[int, Position] = {}
        self.checks: dict[int, int | None] = {}
        self.memory: Any = None
        self._path = path
        self._purpose = purpose
        self._lock = _locked(path)
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def save(self, memory: Any) -> None:
        """On disk when this returns: what is before the positions need never be sent again."""
        shards = {str(shard): [*place, self.checks.get(shard)] for shard, place in sorted(self.positions.items())}
        content = {"format": _FORMAT, **self._purpose._asdict(), "shards": shards, "memory": memory}
        try:
            create_file(self._path, json.dumps({**content, "check": json_sum(content)}, separators=(",", ":")).encode())
        except OSError as error:
            raise PositionUnusable(f"{self._path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Let a successor have it."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)

    def _load(self) -> None:
        try:
            content = json.loads(self._path.read_bytes())
            if content["format"] != _FORMAT:
                raise ValueError("written by another version")
            if "check" in content and content.pop("check") != json_sum(content):
                raise ValueError("it is not as it was written")
            if content.keys() != {"format", *Purpose._fields, "shards", "memory"}:  # older versions had no check
                raise ValueError(f"it holds {', '.join(content)}")
            purpose = Purpose(content["log"], content["to"], content["agent"])
            shards = {int(shard): place for shard, place in content["shards"].items()}
            positions = {shard: Position(int(segment), int(row)) for shard, (segment, row, _) in shards.items()}
            checks = {shard: None if check is None else int(check) for shard, (*_, check) in shards.items()}
            memory = content["memory"]
        except FileNotFoundError:
            return
        except OSError as error:
            raise PositionUnusable(f"{self._path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PositionUnusable(
                f"{self._path} is no position file ({error}): put it back from a copy, or give another --position "
                "to forward everything that the log has"
            ) from error
        for what, theirs, ours in zip(("log", "--to", "--agent"), purpose, self._purpose, strict=True):
            if theirs != ours:
                raise PositionUnusable(
                    f"{self._path} is of {what} {theirs or 'everybody'}, not of {ours or 'everybody'}: "
                    "give each its own --position"
                )
        self.positions, self.checks, self.memory = positions, checks, memory


def _locked(position: Path) -> int:
    """A lock beside the file, which is replaced too often to be locked itself. The kernel frees it with its holder."""
    path = position.with_name(f"{position.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PositionUnusable(f"{path} cannot be made: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(handle, 1024, 0).decode(errors="replace").strip()
        os.close(handle)
        raise PositionInUse(f"{position} is in use by {holder or 'a process that has just begun'}") from None
    except OSError as error:
        os.close(handle)
        raise PositionUnusable(f"{path} cannot be locked: {error.strerror}") from error
    return handle

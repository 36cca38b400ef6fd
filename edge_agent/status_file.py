"""How an agent is, for whoever looks at its folder: one small file that is always written over.

It has its room from the start, so a disk that is full does not keep it from saying so. Its check tells a reader who has
come in the middle of a write.
"""

from __future__ import annotations

import os
import struct
from time import sleep
from typing import Any
from zlib import crc32

from edge_agent.spool.files import write_at
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.values import decode

NAME = "status"
_HEAD = struct.Struct("<II")
_ROOM_BYTES = 8 << 10
_MOST_BYTES = 1 << 20
_TRIES = 5
_OFTEN_S = 2.0
_RARELY_S = 8.0


class StatusFile:
    """The file of an agent that runs."""

    def __init__(self, folder: str) -> None:
        self._fd = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._packer = Packer(most_bytes=_MOST_BYTES)
        try:
            size_bytes = os.fstat(self._fd).st_size
            if size_bytes < _ROOM_BYTES:
                write_at(self._fd, bytes(_ROOM_BYTES - size_bytes), size_bytes)
        except BaseException:  # whoever tries again opens it anew
            self.close()
            raise

    def write(self, status: dict[str, Any]) -> None:
        """Say how it is. OSError if the disk takes nothing at all."""
        body = self._packer.encode(status)
        write_at(self._fd, _HEAD.pack(len(body), crc32(body)) + body, 0)

    def close(self) -> None:
        os.close(self._fd)
        self._fd = -1


class WritingTimes:
    """When to say how it is. To wake up for it takes many times as long as to write it, so that is done only for news:
    when they are complete, or soon after they have begun. And now and then, for then it is known to live."""

    def __init__(self) -> None:
        self._last_at = 0.0
        self._last: object = None
        self._news_at: float | None = None

    def due(self, now: float, state: object, *, is_complete: bool) -> float:
        """When to write next, if the agent is like this now and nothing else happens."""
        if self._last is None:
            return now
        if state == self._last:
            self._news_at = None
            return self._last_at + _RARELY_S
        if self._news_at is None:
            self._news_at = now
        return (self._last_at if is_complete else max(self._last_at, self._news_at)) + _OFTEN_S

    def written(self, now: float, state: object) -> None:
        self._last_at, self._last, self._news_at = now, state, None


def read_status_file(folder: str) -> dict[str, Any]:
    """What an agent has last said of itself. OSError if there is no such file, ValueError if it cannot be read."""
    for _ in range(_TRIES):
        with open(os.path.join(folder, NAME), "rb") as file:
            data = file.read(_MOST_BYTES)
        size, check = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0"))
        body = data[_HEAD.size : _HEAD.size + size]
        if size and len(body) == size and crc32(body) == check:
            try:
                status = decode(body)
            except MalformedBatch:
                break
            if isinstance(status, dict):
                return status
        sleep(0.02)  # it is just being written
    raise ValueError("it does not hold what an agent writes")

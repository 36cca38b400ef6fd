"""What an agent must remember over a crash although the records that told it have left: how far everything had come.

There are three files, of which one is synced and one is the newest; what comes next is written to the third. So a crash
leaves the newest or the one before it, and a power cut the one that was synced, whatever becomes of the others.
"""

from __future__ import annotations

import errno
import os
import struct
from zlib import crc32

from edge_agent.spool.files import write_at
from protocol.records import Gap
from protocol.structs import Struct, as_dict, made
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.values import decode

_HEAD = struct.Struct("<QII")


class Progressed(Struct):
    """How far an epoch had come. `positions` is what was taken from other agents: "agent/stream" to (spool, next);
    `spool_next` is the number after the last entry that the spool was given."""

    epoch: int
    nonce: int
    next_seq: int = 0
    next_event: int = 0
    ended: bool = False
    next_seqs: dict[str, int] = made(factory=dict)
    progress: dict[str, list[int]] = made(factory=dict)
    positions: dict[str, list[int]] = made(factory=dict)
    spool_next: int = 0

    def pass_over(self, gap: Gap) -> None:
        """What is known to be lost has its numbers all the same."""
        if gap.nonce == self.nonce:
            if gap.events is not None:
                self.next_event = max(self.next_event, gap.events[1] + 1)
            for lost in gap.tuples:
                self.next_seqs[lost.name] = max(self.next_seqs.get(lost.name, 0), lost.last + 1)


class Memory:
    """Keeps one `Progressed` in a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._paths = [os.path.join(folder, f"memory-{which}") for which in range(3)]
        self._count = 0
        self._packer = Packer(most_bytes=1 << 24)
        self._newest = self._synced = 0
        self._data = b""
        """What the newest one holds."""
        self._is_doubtful = False
        """A sync of it has failed."""
        self.last: Progressed | None = None
        for which in range(3):
            self._load(which)
        self._fds = [_opened(path) for path in self._paths]

    def _load(self, which: int) -> None:
        try:
            with open(self._paths[which], "rb") as file:
                data = file.read()
            count, size, check = _HEAD.unpack_from(data)
            body = data[_HEAD.size : _HEAD.size + size]
            is_sound = check in (_check(count, body), crc32(body))  # older versions did not check the count
            if len(body) == size and is_sound and count > self._count:
                self.last = Progressed(**decode(body))
                self._count, self._newest, self._data = count, which, data[: _HEAD.size + size]
                self._synced = -1  # the process that wrote it may not have come to that
        except (OSError, struct.error, MalformedBatch, TypeError):
            pass  # never written, torn or rotten: the others count

    def keep(self, state: Progressed, *, durable: bool) -> None:
        """Write it down; `durable`: also safe from a power cut.

        If the disk does not take it, the next try is for the same file: the others are whole.
        """
        if self._synced < 0:
            self.sync()
        count = self._count + 1
        body = self._packer.encode(as_dict(state))
        which = next(each for each in range(3) if each not in (self._newest, self._synced))
        data = _HEAD.pack(count, len(body), _check(count, body)) + body
        write_at(self._fds[which], data, 0)
        self._count, self._newest, self._data, self._is_doubtful = count, which, data, False
        if durable:
            self.sync()

    def sync(self) -> None:
        """Make what was kept safe from a power cut. After a sync that failed it is written anew: the system may have
        dropped what it could not write, and the next sync would prove nothing."""
        if self._synced == self._newest:
            return
        if self._is_doubtful:
            write_at(self._fds[self._newest], self._data, 0)
        self._is_doubtful = True
        os.fsync(self._fds[self._newest])
        self._synced, self._is_doubtful = self._newest, False

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = [-1, -1, -1]


def _check(count: int, body: bytes) -> int:
    """Of both: with another count, the older of the two files would be taken for the newer."""
    return crc32(body, crc32(count.to_bytes(8, "little")))


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # what is in the spool can still be sent

"""Each start of an agent is an epoch: a counter for people, kept on disk, and a random nonce for machines.

The counter is on disk before the epoch begins, so that no crash makes two starts share it. Where the disk has lost it
or takes nothing, the agent starts all the same: the nonce tells the starts apart, and the cloud renumbers for display.
The disk has a random name beside the counter, with which the nonces of its starts begin: counters of different disks
say nothing about which start came first.
"""

from __future__ import annotations

import os
from zlib import crc32

from edge_agent.logger import Logger
from edge_agent.spool.files import sync_folder, write_at
from protocol.ids import DISK_BITS
from protocol.structs import Struct

_LOG = Logger(__name__)

_FILE = "epoch"
_MOST_BYTES = 40


class Epoch(Struct):
    """One start of an agent."""

    counter: int
    nonce: int
    """Unsigned, 64 bits."""


def begin_epoch(folder: str | os.PathLike[str]) -> Epoch:
    """The epoch after the last one that began in this folder."""
    folder = os.fspath(folder)
    disk, last = _last_of(os.path.join(folder, _FILE))
    try:
        os.makedirs(folder, exist_ok=True)
        _save(folder, disk, last + 1)
    except OSError as error:
        _LOG.warning("epoch %d: the counter cannot be kept and may repeat: %s", last + 1, error)
    return Epoch(last + 1, disk << 64 - DISK_BITS | _dice(64 - DISK_BITS))


def _last_of(path: str) -> tuple[int, int]:
    """The name of the disk, a new one if it has none, and the counter of its last epoch."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return _dice(DISK_BITS), 0
    except OSError as error:
        _LOG.warning("epoch file %s cannot be read, counting from 1: %s", path, error)
        return _dice(DISK_BITS), 0
    digits, _, rest = text[:_MOST_BYTES].partition(b" ")
    name, _, _ = rest.partition(b" ")
    try:
        counter = int(digits)
        if text == _checked(b"%d" % counter):  # as older versions wrote it
            return _dice(DISK_BITS), counter
        disk = int(name, 16)
        if text == _line(disk, counter):
            return disk, counter
    except ValueError:
        pass
    _LOG.warning("epoch file %s is damaged, counting from 1: %r", path, text[:40])
    return _dice(DISK_BITS), 0


def _line(disk: int, counter: int) -> bytes:
    return _checked(b"%d %x" % (counter, disk))


def _checked(said: bytes) -> bytes:
    return b"%s %08x\n" % (said, crc32(said))


def _dice(bits: int) -> int:
    return int.from_bytes(os.urandom(bits // 8), "little")


def _save(folder: str, disk: int, counter: int) -> None:
    draft = os.path.join(folder, f"{_FILE}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_at(fd, _line(disk, counter), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(draft, os.path.join(folder, _FILE))
    sync_folder(folder)

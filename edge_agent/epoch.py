"""Each start of an agent is an epoch: a counter for people, kept on disk, and a random nonce for machines.

The counter is on disk before the epoch begins, so that no crash makes two starts share it. Where the disk has lost it
or takes nothing, the agent starts all the same: the nonce tells the starts apart, and the cloud renumbers for display.
"""

from __future__ import annotations

import os
from zlib import crc32

from edge_agent.logger import Logger
from edge_agent.spool.files import sync_folder, write_at
from protocol.structs import Struct

_LOG = Logger(__name__)

_FILE = "epoch"
_MOST_DIGITS = 20


class Epoch(Struct):
    """One start of an agent."""

    counter: int
    nonce: int
    """Unsigned, 64 bits."""


def begin_epoch(folder: str | os.PathLike[str]) -> Epoch:
    """The epoch after the last one that began in this folder."""
    folder = os.fspath(folder)
    counter = _last_counter(os.path.join(folder, _FILE)) + 1
    try:
        os.makedirs(folder, exist_ok=True)
        _save(folder, counter)
    except OSError as error:
        _LOG.warning("epoch %d: the counter cannot be kept and may repeat: %s", counter, error)
    return Epoch(counter, int.from_bytes(os.urandom(8), "little"))


def _last_counter(path: str) -> int:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return 0
    except OSError as error:
        _LOG.warning("epoch file %s cannot be read, counting from 1: %s", path, error)
        return 0
    digits = text[:_MOST_DIGITS].partition(b" ")[0]
    if not digits.isdigit() or text != _line(int(digits)):
        _LOG.warning("epoch file %s is damaged, counting from 1: %r", path, text[:40])
        return 0
    return int(digits)


def _line(counter: int) -> bytes:
    digits = b"%d" % counter
    return b"%s %08x\n" % (digits, crc32(digits))


def _save(folder: str, counter: int) -> None:
    draft = os.path.join(folder, f"{_FILE}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_at(fd, _line(counter), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(draft, os.path.join(folder, _FILE))
    sync_folder(folder)

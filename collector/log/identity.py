"""Which log this is. Numbers of streams mean something within one log only: what is built from one must not go on with
another, though it may be in the same folder."""

from __future__ import annotations

import logging
import os
import re
import uuid
import zlib
from pathlib import Path

from collector.log.errors import LogDamaged, LogError
from collector.log.layout import create_file, has_segments, sync_folder

log = logging.getLogger(__name__)

_FILE = "id"
_CONTENT = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?: ([0-9a-f]{8}))?\n?")
"""The id and its check, which logs of older versions do not have."""


def give_id(folder: Path) -> None:
    """A log gets its id when it is first written, once and for all, whoever else writes. LogError if the one that it
    has cannot be read: nobody would know any more which log it is that goes on."""
    if (folder / _FILE).exists():
        log_id(folder)
        return
    new = str(uuid.uuid4())
    candidate = folder / f"{_FILE}.{new}"
    create_file(candidate, f"{new} {_check(new)}\n".encode())
    had_one = has_segments(folder)
    try:
        os.link(candidate, folder / _FILE)
        if had_one:
            log.error(
                "the log has segments but no id, and gets a new one: stores, checkpoints and positions that were made "
                "from it will be refused, unless the old one is put back file=%s",
                folder / _FILE,
            )
    except FileExistsError:
        pass
    finally:
        candidate.unlink()
    sync_folder(folder)


def log_id(folder: Path) -> str:
    """The id of the log in a folder; LogError if there is none, LogDamaged if it is not as it was given."""
    try:
        content = (folder / _FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise LogError(f"there is no log in {folder}: `threadline translate` makes it") from None
    except OSError as error:
        raise LogError(f"the log in {folder} cannot be read: {error.strerror}: {folder / _FILE}") from error
    found = _CONTENT.fullmatch(content.decode("latin-1"))
    if found is None or found[2] not in (None, _check(found[1])):
        raise LogDamaged(f"{folder / _FILE} is damaged: put it back; what was made from the log names the id")
    return found[1]


def _check(identity: str) -> str:
    return f"{zlib.crc32(identity.encode()):08x}"

"""Which log this is. Numbers of streams mean something within one log only: what is built from one must not go on with
another, though it may be in the same folder."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from collector.log.errors import LogError
from collector.log.layout import create_file, sync_folder

_FILE = "id"


def give_id(folder: Path) -> None:
    """A log gets its id when it is first written, once and for all, whoever else writes."""
    if (folder / _FILE).exists():
        return
    new = str(uuid.uuid4())
    candidate = folder / f"{_FILE}.{new}"
    create_file(candidate, f"{new}\n".encode())
    try:
        os.link(candidate, folder / _FILE)
    except FileExistsError:
        pass
    finally:
        candidate.unlink()
    sync_folder(folder)


def log_id(folder: Path) -> str:
    """The id of the log in a folder; LogError if there is none."""
    try:
        return (folder / _FILE).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        raise LogError(f"there is no log in {folder}: `threadline translate` makes it") from None
    except OSError as error:
        raise LogError(f"the log in {folder} cannot be read: {error.strerror}") from error

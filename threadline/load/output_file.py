"""A file that something is written to at the end of a long run: whether that can be is tried at its beginning."""

from __future__ import annotations

from pathlib import Path


class CannotWrite(RuntimeError):
    """The text says which file, and why."""


def try_output(file: Path) -> None:
    """CannotWrite if it cannot be written. What is there stays as it is, and nothing new is there afterwards."""
    try:
        is_new = not file.exists()
        if is_new or file.is_file() or file.is_dir():  # a pipe would take this for all that there is
            file.open("a").close()
        if is_new:
            file.resolve().unlink()  # a link to nothing stays one
    except (OSError, ValueError) as error:
        raise _cannot(file, error) from error


def write_output(file: Path, text: str) -> None:
    """All of it. CannotWrite if that is not possible any more."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _cannot(file, error) from error


def _cannot(file: Path, error: Exception) -> CannotWrite:
    return CannotWrite(f"{file} cannot be written: {getattr(error, 'strerror', None) or error}")

"""Errors: the API's own, and the user's as they are recorded."""

from __future__ import annotations

MOST_ERROR = 500  # characters


class CaptureError(Exception):
    """In strict mode: the capture API was used in a way that means nothing."""


def error_text(error: BaseException | str) -> str:
    """ "Type: text", as the last line of a traceback has it."""
    if isinstance(error, str):
        return error[:MOST_ERROR]
    name = type(error).__qualname__
    try:
        said = str(error)
    except Exception:  # an exception of the user's that cannot even say what it is
        said = ""
    return (f"{name}: {said}" if said else name)[:MOST_ERROR]

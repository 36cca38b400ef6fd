"""What can go wrong while a plan runs. A plan that cannot run at all is a `PlanError`."""

from __future__ import annotations

from typing import Any


class StreamError(Exception):
    """The user's code raised: says in which operator, in which function, on which tuple."""

    def __init__(self, operator: str, function: str, ts: int | None, payload: Any, error: BaseException) -> None:
        self.operator = operator
        self.function = function
        self.ts = ts
        self.payload = payload
        self.__cause__ = error  # also where `raise ... from` is compiled away
        on = "" if ts is None and payload is None else f" on {shown(payload)}"
        at = "" if ts is None else f" at ts {ts}"
        super().__init__(f"operator {operator!r}: {function} raised {described(error)}{on}{at}")


def described(error: BaseException) -> str:
    """An exception's kind and text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def shown(value: Any, most: int = 200) -> str:
    """A value for a message: short, and never itself a reason to fail."""
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"

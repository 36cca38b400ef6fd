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
        at = "" if ts is None else f" at ts {ts}"
        super().__init__(
            f"operator {operator!r}: {function} raised {type(error).__name__}: {error} on {shown(payload)}{at}"
        )


def shown(value: Any, limit: int = 200) -> str:
    """A value for an error message: short, and never itself a reason to fail."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__} without repr>"
    return text if len(text) <= limit else f"{text[:limit]}..."

"""What is wrong with a plan, and at which operator."""

from __future__ import annotations

import json


class PlanError(ValueError):
    """A plan that cannot be: what is wrong and, where there is one, at which operator."""

    def __init__(self, reason: str, operator: str | None = None) -> None:
        super().__init__(reason if operator is None else f"operator {shown(operator)}: {reason}")
        self.reason = reason
        self.operator = operator


def shown(value: object) -> str:
    """A value in an error message, short whatever it is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"{value[:60]!r}..."
    if isinstance(value, int):
        return repr(value) if abs(value) < 2**64 else "a huge number"
    if isinstance(value, float):
        return repr(value)
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def chain(names: list[str]) -> str:
    """A way through a graph in an error message: its ends, if it is long."""
    shown = names if len(names) <= 10 else [*names[:5], "...", *names[-4:]]
    return " -> ".join(shown)

"""A length of time as people write it: `90`, `90s`, `200ms`, `5m` or `1h`."""

from __future__ import annotations

import re

_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration_s(text: str) -> float:
    """In seconds. ValueError if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smh]?)", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is no time such as 200ms, 90s, 10m or 2h")
    return float(match[1]) * _UNITS_S[match[2]]

"""Times counted in slots that are 2 % wide: as small for a million of them as for ten, and any two can be added up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_SLOTS = 1 / math.log(1.02)
_LEAST = 1e-9


class Histogram:
    """How often which time was seen, in whatever unit."""

    __slots__ = ("_slots", "count", "most", "total")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.count = 0
        self.total = 0.0
        self.most = 0.0
        self._slots: Counter[int] = Counter()
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.most = max(self.most, value)
        self._slots[math.floor(math.log(max(value, _LEAST)) * _SLOTS)] += 1

    def merge(self, other: Histogram) -> None:
        """Take all that the other has."""
        self.count += other.count
        self.total += other.total
        self.most = max(self.most, other.most)
        self._slots.update(other._slots)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def at(self, share: float) -> float | None:
        """The value that such a share of all are not above, within 1 %; None if there are none."""
        left = math.ceil(self.count * share)
        for slot in sorted(self._slots):
            left -= self._slots[slot]
            if left <= 0:
                return min(math.exp((slot + 0.5) / _SLOTS), self.most)
        return None

    def figures(self) -> dict[str, float | None]:
        """What people want to know of it."""
        return {
            "count": self.count,
            "mean": self.mean,
            "p50": self.at(0.5),
            "p95": self.at(0.95),
            "p99": self.at(0.99),
            "max": self.most if self.count else None,
        }

    def to_json(self) -> dict[str, Any]:
        """For another process."""
        return {"total": self.total, "most": self.most, "slots": dict(self._slots)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Histogram:
        """What `to_json` made."""
        made = cls()
        made._slots.update({int(slot): times for slot, times in told["slots"].items()})
        made.count, made.total, made.most = made._slots.total(), told["total"], told["most"]
        return made

"""Medians of paired rounds and how sure they are, without assuming any distribution.

Variants that are compared run in the same round, so what disturbs the machine disturbs both, and a ratio is taken per
round. The interval of the median comes from order statistics: of n rounds, those below the true median are binomial.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Estimate(NamedTuple):
    """A median and the bounds that hold it with at least 95 % confidence."""

    median: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> Estimate:
    """The median of the rounds. With fewer than 6 the extremes are the bounds, and hold less than 95 %."""
    ordered = sorted(values)
    rank = _bound_rank(len(ordered))
    return Estimate(statistics.median(ordered), ordered[rank], ordered[-1 - rank])


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Round by round, the first over the second."""
    return estimate([a / b for a, b in zip(numerators, denominators, strict=True)])


def _bound_rank(rounds: int) -> int:
    """The largest rank from either end that leaves at most 2.5 % outside on that side."""
    outside, rank = 0.0, -1
    while rank + 1 <= (rounds - 1) // 2:
        outside += math.comb(rounds, rank + 1) / 2**rounds
        if outside > 0.025:
            break
        rank += 1
    return max(rank, 0)

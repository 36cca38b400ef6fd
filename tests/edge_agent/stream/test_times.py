"""Durations: whole milliseconds, whatever a float makes of a decimal."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from edge_agent.stream import hours, minutes, seconds

UNITS: dict[Callable[[float], int], int] = {seconds: 1_000, minutes: 60_000, hours: 3_600_000}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.__name__)
def test_every_decimal_that_is_whole_milliseconds_is_taken(unit: Callable[[float], int]) -> None:
    for thousandths in range(-20_000, 20_000):
        assert unit(thousandths / 1_000) == Fraction(thousandths, 1_000) * UNITS[unit]


@pytest.mark.parametrize("count", [0.0001, 1.0005, 1e-9 + 0.0005])
def test_fractions_of_a_millisecond_are_refused(count: float) -> None:
    with pytest.raises(ValueError, match="whole number of milliseconds"):
        seconds(count)

from __future__ import annotations

from protocol.dice import SystemDice


def test_numbers_are_at_least_0_and_less_than_1_and_differ() -> None:
    numbers = [SystemDice().random() for _ in range(1_000)]
    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) == 1_000
    assert 0.4 < sum(numbers) / 1_000 < 0.6

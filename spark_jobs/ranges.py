"""A set of numbers that lie side by side, by and large: it is as large as its holes are many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import Numbers


@dataclass(slots=True)
class Ranges:
    """From each of `firsts` to the one of `lasts` at the same place."""

    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.firsts, number) - 1
        return place >= 0 and number <= self.lasts[place]

    def contain(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Which of many are in it."""
        if not self.firsts:
            return np.zeros(len(numbers), bool)
        place = np.searchsorted(self.firsts, numbers, "right") - 1
        found: NDArray[np.bool_] = (place >= 0) & (numbers <= np.array(self.lasts)[place])
        return found

    def add(self, numbers: Iterable[int]) -> None:
        """More of them."""
        self.cover((each, each) for each in numbers)

    def cover(self, spans: Iterable[tuple[int, int]]) -> None:
        """All numbers from the first to the last of each."""
        every = sorted([*zip(self.firsts, self.lasts, strict=True), *spans])
        self.firsts, self.lasts = [], []
        for first, last in every:
            if self.lasts and first <= self.lasts[-1] + 1:
                self.lasts[-1] = max(last, self.lasts[-1])
            else:
                self.firsts.append(first)
                self.lasts.append(last)

    def remove(self, number: int) -> None:
        """Without one that is in it."""
        place = bisect_right(self.firsts, number) - 1
        first, last = self.firsts[place], self.lasts[place]
        left = [(low, high) for low, high in ((first, number - 1), (number + 1, last)) if low <= high]
        self.firsts[place : place + 1] = [low for low, _ in left]
        self.lasts[place : place + 1] = [high for _, high in left]

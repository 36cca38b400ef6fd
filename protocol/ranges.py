"""A set of numbers that lie side by side, by and large: it is as large as its holes are many."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
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
        for first, last in spans:
            low, high = bisect_left(self.lasts, first - 1), bisect_right(self.firsts, last + 1)
            if low < high:  # those overlap it, or touch it
                first, last = min(first, self.firsts[low]), max(last, self.lasts[high - 1])
            self.firsts[low:high], self.lasts[low:high] = [first], [last]

    def without(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """What of a span is not in it, as spans."""
        place = bisect_left(self.lasts, first)
        while place < len(self.firsts) and self.firsts[place] <= last:
            if first < self.firsts[place]:
                yield first, self.firsts[place] - 1
            first = self.lasts[place] + 1
            place += 1
        if first <= last:
            yield first, last

    def remove(self, number: int) -> None:
        """Without one that is in it."""
        place = bisect_right(self.firsts, number) - 1
        first, last = self.firsts[place], self.lasts[place]
        left = [(low, high) for low, high in ((first, number - 1), (number + 1, last)) if low <= high]
        self.firsts[place : place + 1] = [low for low, _ in left]
        self.lasts[place : place + 1] = [high for _, high in left]

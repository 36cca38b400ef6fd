from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.ranges import Ranges


@given(st.lists(st.tuples(st.lists(st.integers(0, 60), max_size=8), st.integers(0, 60))))
def test_it_is_a_set(steps: list[tuple[list[int], int]]) -> None:
    ranges, every = Ranges(), set[int]()
    for numbers, removed in steps:
        ranges.add(numbers)
        every.update(numbers)
        if removed in every:
            ranges.remove(removed)
            every.remove(removed)
        assert [each for each in range(-1, 62) if each in ranges] == sorted(every)
        assert np.flatnonzero(ranges.contain(np.arange(62))).tolist() == sorted(every)
        assert len(ranges.firsts) == sum(each - 1 not in every for each in every)
        for first, last in ((0, 60), (removed, removed + 5)):
            left = [each for low, high in ranges.without(first, last) for each in range(low, high + 1)]
            assert left == sorted(set(range(first, last + 1)) - every)

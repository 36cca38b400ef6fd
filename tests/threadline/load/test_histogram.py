"""Times in slots: what is read from them is what was put in, within a slot."""

from __future__ import annotations

import json
import math
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadline.load.histogram import Histogram

TIMES = st.lists(st.floats(min_value=1e-6, max_value=1e9), min_size=1, max_size=200)


def test_of_nothing_nothing_is_known() -> None:
    assert Histogram().figures() == {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None, "max": None}


@given(TIMES, st.floats(min_value=0.01, max_value=1.0))
def test_a_share_of_the_times_is_within_a_slot(times: list[float], share: float) -> None:
    ordered = sorted(times)
    wanted = ordered[math.ceil(len(ordered) * share) - 1]
    assert Histogram(times).at(share) == pytest.approx(wanted, rel=0.011)


@given(TIMES, TIMES)
def test_two_are_as_one_of_all_times(some: list[float], others: list[float]) -> None:
    both = Histogram(some)
    both.merge(Histogram(others))
    one = Histogram([*some, *others])
    assert both.to_json()["slots"] == one.to_json()["slots"]
    assert both.mean == pytest.approx(statistics.fmean([*some, *others]))
    assert both.most == max(*some, *others)


def test_it_survives_the_way_to_another_process() -> None:
    random = Random(7)
    made = Histogram(random.expovariate(0.01) for _ in range(1000))
    assert Histogram.from_json(json.loads(json.dumps(made.to_json()))).figures() == made.figures()

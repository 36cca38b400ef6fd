"""The retransmission clock: what it waits, and what it learns from the answers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqttsn import RetryPolicy, RoundTrip

POLICY = RetryPolicy(first_s=1.0, least_s=0.2, most_s=30.0, attempts=12)


class Steady(Random):
    """No jitter, or as much of it as there can be."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


def test_before_the_first_answer_it_waits_as_the_policy_says_and_longer_each_time_up_to_a_limit() -> None:
    waits = [RoundTrip(POLICY).wait_s(attempt, Steady(0.0)) for attempt in range(1, 17)]
    growing = [wait for wait in waits if wait < POLICY.most_s]
    assert waits[0] == POLICY.first_s
    assert len(growing) >= 4
    assert all(1.2 < later / earlier <= 2 for earlier, later in pairwise(growing))
    assert waits[len(growing) :] == [POLICY.most_s] * (len(waits) - len(growing))
    assert waits[-1] == POLICY.most_s


def test_towards_a_peer_that_was_heard_of_meanwhile_the_wait_grows_more_gently() -> None:
    trip = RoundTrip(POLICY)
    assert trip.wait_s(1, Steady(0.0), alive=True) == trip.wait_s(1, Steady(0.0))
    for attempt in range(2, 6):
        assert trip.wait_s(attempt - 1, Steady(0.0), alive=True) < trip.wait_s(attempt, Steady(0.0), alive=True)
        assert trip.wait_s(attempt, Steady(0.0), alive=True) < trip.wait_s(attempt, Steady(0.0))


def test_the_first_answer_sets_the_estimate() -> None:
    trip = RoundTrip(POLICY)
    trip.measured(0.4)
    assert trip.wait_s(1, Steady(0.0)) == pytest.approx(0.4 + 4 * 0.2)


def test_later_answers_move_the_estimate_as_rfc_6298_says() -> None:
    trip = RoundTrip(POLICY)
    trip.measured(0.4)
    trip.measured(0.8)
    deviation = 0.75 * 0.2 + 0.25 * abs(0.4 - 0.8)
    smoothed = 0.875 * 0.4 + 0.125 * 0.8
    assert trip.smoothed_s == pytest.approx(smoothed)
    assert trip.wait_s(1, Steady(0.0)) == pytest.approx(smoothed + 4 * deviation)


def test_a_fast_link_is_not_hammered() -> None:
    trip = RoundTrip(POLICY)
    for _ in range(50):
        trip.measured(0.001)
    assert trip.wait_s(1, Steady(0.0)) == POLICY.least_s
    assert trip.wait_s(3, Steady(0.0)) > POLICY.least_s


def test_a_slow_link_is_given_time() -> None:
    trip = RoundTrip(POLICY)
    for _ in range(50):
        trip.measured(5.0)
    assert 5.0 <= trip.wait_s(1, Steady(0.0)) < 5.1


def test_jitter_adds_at_most_a_quarter() -> None:
    assert RoundTrip(POLICY).wait_s(1, Steady(0.999999)) == pytest.approx(1.25)
    assert RoundTrip(POLICY).wait_s(100, Steady(0.999999)) == pytest.approx(37.5)


@given(
    st.lists(st.floats(0, 100), max_size=10),
    st.integers(1, 10_000),
    st.randoms(use_true_random=False),
)
def test_a_wait_stays_within_the_policy_whatever_was_measured(
    measured: list[float], attempt: int, random: Random
) -> None:
    trip = RoundTrip(POLICY)
    for seconds in measured:
        trip.measured(seconds)
    assert POLICY.least_s <= trip.wait_s(attempt, random) <= POLICY.most_s * 1.25


@given(st.lists(st.floats(0, 100), max_size=10), st.integers(1, 20))
def test_waiting_never_gets_shorter_from_one_attempt_to_the_next(measured: list[float], attempt: int) -> None:
    trip = RoundTrip(POLICY)
    for seconds in measured:
        trip.measured(seconds)
    assert trip.wait_s(attempt, Steady(0.0)) <= trip.wait_s(attempt + 1, Steady(0.0))

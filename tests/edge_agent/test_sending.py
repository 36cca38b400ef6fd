from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sending import NEVER, PATIENCE, Flight, Sending

NOW = 100.0


def flight(number: int, last: int | None = None) -> Flight:
    return Flight(number, number if last is None else last, 7, number, number + 1, b"data")


def sending(window: int = 4, count: int = 0) -> Sending:
    made = Sending(window, Random(1))
    for number in range(count):
        made.sent(flight(number), NOW)
    return made


def test_the_window_bounds_what_is_in_flight() -> None:
    made = sending(3)
    assert (made.room, made.next) == (3, None)
    made.sent(flight(5), NOW)
    made.sent(flight(6, 9), NOW)
    assert (made.room, made.next) == (1, 10)
    made.sent(flight(10), NOW)
    assert made.room == 0
    made.acknowledged([5, 6], NOW)
    assert (made.room, made.next) == (2, 11)


def test_nothing_is_due_before_the_transport_has_done_its_part() -> None:
    made = sending(count=2)
    assert (made.due(1e9), made.deadline()) == ([], NEVER)
    made.over(0, NOW)
    assert NOW + PATIENCE.least_s <= made.deadline() <= NOW + 2 * PATIENCE.first_s
    assert made.due(made.deadline()) == [made.flights[0]]


def test_the_wait_grows_from_one_sending_to_the_next() -> None:
    made = sending(count=1)
    waits = []
    for attempt in range(1, 20):
        made.over(0, NOW)
        waits.append(made.deadline() - NOW)
        made.sent(made.flights[0], NOW)
        assert made.resent == attempt
        assert made.deadline() == NEVER, "again the transport's turn"
    assert waits[5] > 2 * waits[0]
    assert max(waits) <= PATIENCE.most_s * 1.5


def test_the_wait_follows_the_round_trip() -> None:
    slow, fast = sending(100, 30), sending(100, 30)
    for number in range(20):
        for made, seconds in ((slow, 8.0), (fast, 0.01)):
            made.over(number, NOW)
            made.acknowledged([number], NOW + seconds)
    for made in (slow, fast):
        made.over(25, NOW)
    assert fast.deadline() - NOW < 1.6
    assert slow.deadline() - NOW > 6.0


def test_what_the_far_end_misses_is_due_soon() -> None:
    made = sending(count=3)
    made.missing(0, NOW)
    assert made.due(NOW) == [], "it is still with the transport"
    made.over(0, NOW)
    made.missing(0, NOW + 0.3)
    assert made.due(NOW + 0.3) == [], "the answer may be older than the sending"
    assert made.due(NOW + 0.6) == [made.flights[0]], "but it should have come by now"
    made.missing(77, NOW)


def test_what_the_far_end_misses_though_it_has_what_came_after_it_is_due_at_once() -> None:
    made = sending(count=3)
    for number in (1, 0, 2):
        made.over(number, NOW)
    for number in range(3):
        made.missing(number, NOW + 0.01, newest=made.flights[0].place)
    assert made.due(NOW + 0.01) == [made.flights[1]], "only this one left the transport before 0 did"


def test_a_far_end_that_is_slow_does_not_miss_anything_soon() -> None:
    made = sending(count=9)
    for number in range(8):
        made.over(number, NOW)
        made.acknowledged([number], NOW + 1.0)
    made.over(8, NOW)
    made.missing(8, NOW + 1.2)
    assert made.due(NOW + 1.2) == []


def test_news_of_an_unknown_entry_is_ignored() -> None:
    made = sending(count=1)
    made.over(5, NOW)
    made.acknowledged([5], NOW)
    assert list(made.flights) == [0]


def test_silence_lasts_from_the_first_sending_or_the_last_acknowledgement() -> None:
    made = sending(count=0)
    assert made.silent_since == NEVER
    made.sent(flight(0), NOW)
    made.sent(flight(1), NOW + 5)
    made.sent(made.flights[0], NOW + 9)
    assert made.silent_since == NOW, "to send again is no answer"
    made.acknowledged([0], NOW + 10)
    assert made.silent_since == NOW + 10
    made.acknowledged([1], NOW + 11)
    assert made.silent_since == NEVER, "there is nothing to answer"
    made.sent(flight(2), NOW + 100)
    assert made.silent_since == NOW + 100


def test_to_give_up_what_is_in_flight_is_no_answer() -> None:
    made = sending(count=0)
    made.sent(flight(0), NOW)
    made.flights.clear()
    assert made.silent_since == NOW
    made.sent(flight(1), NOW + 50)
    assert made.silent_since == NOW
    made.acknowledged([1], NOW + 60)
    assert made.silent_since == NEVER


def test_answers_without_an_entry_bring_forth_fewer_and_fewer_copies_of_it() -> None:
    """A far end that is far behind answers every copy that it comes to, and does not have the entry each time."""
    made = sending(count=1)
    copies, now = [NOW], NOW
    made.over(0, now)
    while now < NOW + 20:
        now += 0.1
        made.missing(0, now)
        for each in made.due(now):
            made.sent(each, now)
            made.over(0, now)
            copies.append(now)
    waits = [after - before for before, after in pairwise(copies)]
    assert waits[0] < 0.7, "one that is lost is soon sent again"
    assert all(after > 1.5 * before for before, after in pairwise(waits[:4]))
    assert len(copies) <= 7


@given(st.lists(st.tuples(st.sampled_from(["sent", "over", "acknowledged", "missing", "again"]), st.integers(0, 9))))
def test_whatever_happens_flights_stay_in_order_and_in_the_window(steps: list[tuple[str, int]]) -> None:
    made, now, next_number = Sending(4, Random(0)), NOW, 0
    for what, number in steps:
        now += 0.3
        if what == "sent" and made.room > 0:
            made.sent(flight(next_number), now)
            next_number += 1
        elif what == "over":
            made.over(number, now)
        elif what == "acknowledged":
            made.acknowledged([each for each in made.flights if each <= number], now)
        elif what == "missing":
            made.missing(number, now)
        elif what == "again":
            for each in made.due(now):
                made.sent(each, now)
        assert list(made.flights) == sorted(made.flights)
        assert len(made.flights) <= 4
        assert all(each.due >= now or each in made.due(now) for each in made.flights.values())

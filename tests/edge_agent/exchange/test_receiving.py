"""Receiving: what one agent sends, another takes once and in order, whatever the network does to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.exchange.receiving import MOST_EARLY, Receiving
from protocol.ids import StreamId
from protocol.wire.crossing import Crossing

STREAM = StreamId("car-7", 1, "sums", 77)
SPOOL = 4711


def crossing(seq: int, spool: int = SPOOL, lost: int = 0) -> Crossing:
    return Crossing(STREAM, spool, seq, [], seq, seq, False, lost)


def taken(receiving: Receiving, *arrivals: tuple[int, bool]) -> list[list[int]]:
    """What may be taken after each arrival of (number, whether it is the oldest that the sender has)."""
    return [[each.seq for each in receiving.arrived(crossing(seq), oldest)[0]] for seq, oldest in arrivals]


def test_what_comes_in_order_is_taken_at_once() -> None:
    receiving = Receiving({})
    assert receiving.next_of("car-7", "sums", SPOOL) is None
    assert taken(receiving, (0, True), (1, False), (2, False)) == [[0], [1], [2]]
    assert receiving.next_of("car-7", "sums", SPOOL) == 3


def test_what_comes_early_waits_for_what_is_missing() -> None:
    assert taken(Receiving({}), (0, True), (3, False), (2, False), (1, False)) == [[0], [], [], [1, 2, 3]]


def test_what_comes_twice_is_taken_once() -> None:
    receiving = Receiving({})
    assert taken(receiving, (0, True), (0, True), (1, True), (0, False), (1, False)) == [[0], [], [1], [], []]
    assert receiving.duplicates == 3


def test_a_stream_begins_with_the_oldest_that_the_sender_has() -> None:
    receiving = Receiving({})
    assert taken(receiving, (6, False), (5, True), (6, False)) == [[], [5], [6]]
    assert receiving.early_dropped == 1


def test_a_new_process_goes_on_where_the_last_one_was() -> None:
    receiving = Receiving({"car-7/sums": [SPOOL, 5]})
    assert receiving.next_of("car-7", "sums", SPOOL) == 5
    assert taken(receiving, (4, True), (5, False)) == [[], [5]]


def test_what_the_sender_does_not_have_any_more_is_missing() -> None:
    receiving = Receiving({"car-7/sums": [SPOOL, 5]})
    assert taken(receiving, (9, False)) == [[]]
    ready, missing = receiving.arrived(crossing(8, lost=30), True)
    assert [each.seq for each in ready] == [8, 9]
    assert missing == 3


def test_a_sender_whose_disk_was_deleted_counts_anew() -> None:
    receiving = Receiving({"car-7/sums": [SPOOL, 5]})
    assert receiving.arrived(crossing(1, spool=9), False) == ([], 0), "not before its oldest"
    ready, missing = receiving.arrived(crossing(0, spool=9), True)
    assert ([each.seq for each in ready], missing) == ([0], 0)
    assert [receiving.next_of("car-7", "sums", spool) for spool in (SPOOL, 9)] == [5, 1]


def test_what_is_left_of_an_old_count_on_the_way_does_not_stop_the_new_one() -> None:
    receiving = Receiving({"car-7/sums": [SPOOL, 5]})
    assert receiving.arrived(crossing(0, spool=9), True)[0]
    assert receiving.arrived(crossing(4), True) == ([], 0), "a copy"
    assert receiving.arrived(crossing(7), False) == ([], 0), "nobody knows what was before it"
    assert [each.seq for each in receiving.arrived(crossing(5), True)[0]] == [5], "it was sent, and comes after all"
    assert receiving.arrived(crossing(0, spool=9), True) == ([], 0), "a copy"
    assert [each.seq for each in receiving.arrived(crossing(1, spool=9), False)[0]] == [1]
    assert [receiving.next_of("car-7", "sums", spool) for spool in (SPOOL, 9)] == [6, 2]


def test_streams_do_not_disturb_one_another() -> None:
    receiving = Receiving({})
    other = Crossing(StreamId("car-8", 1, "sums", 78), SPOOL, 3, [], 0, 0, False)
    assert taken(receiving, (0, True)) == [[0]]
    assert receiving.arrived(other, True) == ([other], 0)
    assert taken(receiving, (1, False)) == [[1]]


def test_what_waits_is_bounded() -> None:
    receiving = Receiving({"car-7/sums": [SPOOL, 0]})
    for seq in range(1, 3 * MOST_EARLY):
        assert receiving.arrived(crossing(seq), False) == ([], 0)
    assert receiving.early_dropped == 2 * MOST_EARLY - 1
    ready, _ = receiving.arrived(crossing(0), True)
    assert [each.seq for each in ready] == list(range(MOST_EARLY + 1))


COUNT, WINDOW = 12, 4


@given(st.data())
def test_each_crossing_is_taken_once_and_in_order_whatever_happens_on_the_way(data: st.DataObject) -> None:
    """A sender with a window, a network that loses, doubles and reorders in both directions, and a receiver that is
    started again from what it had on disk."""
    receiving = Receiving({})
    took: list[int] = []
    on_the_way: list[tuple[int, bool]] = []
    released = 0  # the sender keeps what is not acknowledged

    def arrive(seq: int, oldest: bool) -> None:
        ready, missing = receiving.arrived(crossing(seq), oldest)
        assert missing == 0
        took.extend([each.seq for each in ready])

    steps = data.draw(st.lists(st.sampled_from(["send", "arrive", "lose", "answer", "restart"]), max_size=60))
    for step in steps:
        if step == "send" and released < COUNT:
            seq = data.draw(st.integers(released, min(released + WINDOW, COUNT) - 1))
            on_the_way.append((seq, seq == released))
        elif step in ("arrive", "lose") and on_the_way:
            place = data.draw(st.integers(0, len(on_the_way) - 1))
            copies = step == "arrive" and data.draw(st.booleans())
            seq, oldest = on_the_way[place] if copies else on_the_way.pop(place)
            if step == "arrive":
                arrive(seq, oldest)
        elif step == "answer" and took:
            released = data.draw(st.integers(released, took[-1] + 1))
        elif step == "restart" and took:
            receiving = Receiving({"car-7/sums": [SPOOL, took[-1] + 1]})
    while released < COUNT:  # in the end everything is sent again until it is answered
        for seq in range(released, min(released + WINDOW, COUNT)):
            arrive(seq, seq == released)
        released = took[-1] + 1
    for seq, oldest in on_the_way:
        arrive(seq, oldest)
    assert took == list(range(COUNT))

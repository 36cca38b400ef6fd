"""When an agent connects anew although the connection seems to be well."""

from __future__ import annotations

from itertools import pairwise

from edge_agent.renewal import FIRST_S, MOST_S, Renewal

NEVER = float("inf")


def times(renewal: Renewal, begin: float, end: float, silent_since: float, connected: bool = True) -> list[float]:
    """When it is due, second by second."""
    return [now for now in range(int(begin), int(end)) if renewal.is_due(now, silent_since, connected)]


def test_nobody_has_to_answer() -> None:
    assert times(Renewal(), 0, 5_000, NEVER) == []


def test_silence_is_borne_for_a_minute_and_then_longer_and_longer() -> None:
    renewal = Renewal()
    found = times(renewal, 1_000, 6_000, 1_000.0)
    assert found[0] == 1_000 + FIRST_S
    waits = [after - before for before, after in pairwise(found)]
    assert waits[:4] == [120, 240, 480, 600]
    assert max(waits) == MOST_S
    assert renewal.count == len(found)


def test_an_answer_makes_it_patient_again() -> None:
    renewal = Renewal()
    assert times(renewal, 0, 1_000, 0.0)
    assert times(renewal, 1_000, 1_100, 990.0) == [990 + FIRST_S]


def test_to_connect_anew_is_no_answer() -> None:
    renewal = Renewal()
    found: list[int] = []
    for now in range(3_000):
        if renewal.is_due(now, 0.0, connected=not found or now > found[-1] + 5):
            found.append(now)
    assert len(found) < 9


def test_time_without_a_connection_does_not_count() -> None:
    renewal = Renewal()
    assert times(renewal, 0, 1_000, 0.0, connected=False) == []
    assert times(renewal, 1_000, 1_100, 0.0) == [999 + FIRST_S]

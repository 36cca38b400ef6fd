"""When steps are due: as many in a time as were asked for, at moments that processes do not share."""

from __future__ import annotations

import pytest

from threadline.load.pace import Pace

LOOK_S = 0.001


def spoken(pace: Pace, from_s: float, to_s: float) -> list[float]:
    """The moments of the steps, if somebody looks all the time."""
    found = []
    for number in range(round((to_s - from_s) / LOOK_S)):
        now = from_s + number * LOOK_S
        if pace.wait_s(now) == 0:
            found.append(now)
    return found


@pytest.mark.parametrize(("per_s", "duration_s", "processes"), [(1, 5, 1), (1, 5, 2), (5, 1, 2), (40, 3, 4), (7, 3, 3)])
def test_all_processes_together_make_as_many_steps_as_were_asked_for(
    per_s: int, duration_s: int, processes: int
) -> None:
    """Also if it takes a moment until they hear of the end."""
    for late_s in (0.0, 0.3 / per_s):
        paces = [Pace((place + 0.5) / processes) for place in range(processes)]
        for pace in paces:
            pace.set_rate(per_s / processes, 0.0)
        made = [moment for pace in paces for moment in spoken(pace, 0.0, duration_s + late_s)]
        assert len(made) == per_s * duration_s
        assert len(set(made)) == len(made), "no two at the same moment"


def test_what_was_overdue_when_a_rate_ends_was_missed() -> None:
    """Whoever stood still until then has not even asked whether a step is due."""
    pace = Pace(0.5)
    pace.set_rate(100, 0.0)
    assert pace.wait_s(0.005) == 0
    pace.set_rate(0, 10.0)
    assert (pace.steps, pace.missed) == (1, 998)
    pace.set_rate(100, 20.0)
    pace.set_rate(0, 20.5)
    assert pace.missed == 998, "a moment is nothing to speak of"


def test_a_new_rate_goes_on_from_now() -> None:
    pace = Pace(0.5)
    pace.set_rate(1, 0.0)
    assert len(spoken(pace, 0.0, 4.0)) == 4
    pace.set_rate(0, 4.0)
    assert spoken(pace, 4.0, 9.0) == []
    pace.set_rate(10, 9.0)
    assert len(spoken(pace, 9.0, 10.0)) == 10
    assert pace.missed == 0


def test_what_somebody_was_too_slow_for_is_missed_and_not_made_up_for() -> None:
    pace = Pace(0.5)
    pace.set_rate(10, 0.0)
    assert pace.wait_s(5.05) == 0
    assert pace.missed == 50
    assert len(spoken(pace, 5.05, 6.0)) == pytest.approx(10, abs=1)
    assert pace.missed == 50


def test_who_is_a_little_late_makes_up_for_it() -> None:
    pace = Pace(0.5)
    pace.set_rate(10, 0.0)
    assert len(spoken(pace, 0.9, 2.0)) == 20
    assert pace.missed == 0

"""The lab's own traffic: it follows the clock, never repeats itself, and its accidents are those of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise, takewhile
from pathlib import Path

import pytest

from edge_agent import stream
from edge_agent.app_file import load
from edge_agent.queries import linear_road, linear_road_accidents
from edge_agent.queries.linear_road import Report
from edge_agent.stream import Loopback
from examples.lab.traffic import CARS, ROUNDS, SETTING, STANDING, live_reports, round_ms

APPS = Path(__file__).parent.parent.parent / "examples" / "lab"
REPLAY = 7
ROUND_MS = 100


class Clock:
    """A clock that goes on only when somebody sleeps."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = float(now_ms)

    def __call__(self) -> float:
        return self.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_ms += seconds * 1000


@pytest.fixture(autouse=True)
def rounds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, str(ROUND_MS))


def live(clock: Clock) -> Iterator[tuple[int, Report]]:
    return live_reports(clock, clock.sleep)


def first_ms(replay: int) -> int:
    return replay * ROUNDS * ROUND_MS


def test_a_report_comes_when_it_is_due_and_times_never_fall() -> None:
    clock = Clock(first_ms(REPLAY))
    items = []
    for ts, report in islice(live(clock), 2 * CARS * ROUNDS):  # into the next replay
        assert ts == pytest.approx(clock.now_ms, abs=1)
        items.append((ts, report))
    assert all(earlier <= later for (earlier, _), (later, _) in pairwise(items))
    assert items[-1][0] >= first_ms(REPLAY + 1)


def test_whoever_starts_in_the_middle_sees_what_the_others_see_from_then_on() -> None:
    begun_ms = first_ms(REPLAY) + 2_345
    until = first_ms(REPLAY + 1) + 500
    from_the_start = list(takewhile(lambda item: item[0] < until, live(Clock(first_ms(REPLAY)))))
    from_the_middle = list(takewhile(lambda item: item[0] < until, live(Clock(begun_ms))))
    assert from_the_middle == [item for item in from_the_start if item[0] >= begun_ms]
    assert len(from_the_middle) < len(from_the_start)


def test_who_comes_late_to_a_report_does_not_wait_for_it() -> None:
    clock = Clock(first_ms(REPLAY))
    reports = live(clock)
    next(reports)
    clock.now_ms += 10_000
    before = clock.now_ms
    list(islice(reports, CARS))
    assert clock.now_ms == before


def test_the_two_agents_find_the_accidents_of_the_benchmark() -> None:
    """The same query on one device at the benchmark's own pace is the oracle."""
    traffic = linear_road.reports(CARS, ROUNDS, REPLAY, STANDING)
    expected = stream.run(linear_road_accidents.build(), {"reports": list(traffic)})
    due = {(first_ms(REPLAY) + alert.ts * ROUND_MS // linear_road.ROUND_MS, alert.payload.position): alert
           for alert in expected.of("accidents")}  # fmt: skip
    assert len(due) > 5

    items = list(takewhile(lambda item: item[0] < first_ms(REPLAY + 1), live(Clock(first_ms(REPLAY)))))
    plans = {f"accidents-{name}": load(APPS / f"{name}.py").build() for name in ("roadside", "center")}
    results = Loopback(plans).run({"accidents-roadside": {"reports": items}})
    found = {(alert.ts, alert.payload.position): alert for alert in results["accidents-center"].of("accidents")}
    assert found.keys() == due.keys()
    assert {key: alert.payload.cars for key, alert in found.items()} == {
        key: alert.payload.cars for key, alert in due.items()
    }


def test_there_is_room_for_the_stops_of_any_day() -> None:
    """One replay after the other for ever: none may refuse to be made."""
    for replay in range(14_000_000, 14_000_500):
        assert linear_road.stops(CARS, ROUNDS, replay, STANDING)


@pytest.mark.parametrize("text", ["", "0", "soon", "-5", "60000", "1.5"])
def test_a_round_that_makes_no_sense_is_told(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, text)
    with pytest.raises(ValueError, match=f"{SETTING} is a number of milliseconds"):
        round_ms()


def test_a_round_takes_two_seconds_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING)
    assert round_ms() == 2_000

"""A run from its begin to its verdict, with a clock, devices and looks that are made up."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from collector.log import LogDamaged, SegmentRemoved
from tests.threadline.load.samples import sample
from threadline.load import patience, search, warm_up
from threadline.load import run as runs
from threadline.load.breakdown import Breakdown
from threadline.load.chain import SPARK, Chain, Stopped
from threadline.load.document import document
from threadline.load.fleet import DeviceEnd
from threadline.load.listener import Listener
from threadline.load.loss import Loss
from threadline.load.outcome import LoadOptions, Outcome
from threadline.load.profiles import Said, profile_named
from threadline.load.questions import Asked
from threadline.load.report import page
from threadline.load.run import CannotLoad, run
from threadline.load.summary import lines
from threadline.load.watch import Sample

ENDS = [DeviceEnd("load-0", 1, Said(results=30, origins=30, readings=30), 0)]
OPTIONS = LoadOptions(profile_named("light"), devices=1, rate=100.0, duration_s=5.0, processes=1, drain_s=10.0)


class World:
    """A clock that moves when somebody sleeps, and a look now and then: at first quiet, then as the test says."""

    def __init__(self, look: Callable[[float, float], Sample], every_s: float) -> None:
        self.now = 0.0
        self.rate = 0.0
        self.said = 0.0
        self.samples: list[Sample] = []
        self.fails_at = math.inf
        self.stops_at = math.inf
        self.stop = threading.Event()
        self.ends = ENDS
        self._look = look
        self._every_s = every_s

    def sleep(self, duration_s: float) -> None:
        self.now += duration_s
        self.said += self.rate * duration_s
        if self.now >= (len(self.samples) + 1) * self._every_s:
            self.samples.append(self._look(self.now, self.said))
        if self.now >= self.stops_at:
            self.stop.set()


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[float, float], Sample] = lambda at_s, said: sample(at_s, said=said),
    every_s: float = 1.0,
) -> World:
    """Everything of a run that is not its own."""
    world = World(look, every_s)

    class Fleet:
        pids: tuple[int, ...] = ()
        starts: tuple[tuple[str, int], ...] = ()

        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...
        def wait_ready(self, timeout_s: float, look: Callable[[], None]) -> bool:
            world.sleep(0.5)
            look()
            return True

        def stop(self, timeout_s: float, look: Callable[[], None]) -> list[DeviceEnd]:
            look()
            return world.ends

    class Watch:
        samples = world.samples

        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...
        def set_rate(self, per_s: float) -> None:
            world.rate = per_s

        @property
        def now_s(self) -> float:
            return world.now

        def check(self) -> None:
            if world.now >= world.fails_at:
                raise Breakdown.died("translator", -9, [])

    monkeypatch.setattr(runs, "Fleet", Fleet)
    monkeypatch.setattr(runs, "Watch", Watch)
    clock = SimpleNamespace(monotonic=lambda: world.now, sleep=world.sleep, time_ns=lambda: int(world.now * 1e9))
    for module in (runs, patience, warm_up):
        monkeypatch.setattr(module, "time", clock)
    return world


def went(tmp_path: Path, world: World | None = None, **changed: Any) -> Outcome:
    options = replace(OPTIONS, folder=tmp_path / "run", **{"chain": Chain("127.0.0.1:9"), **changed})
    return run(options, world.stop if world is not None else threading.Event(), Listener())


@pytest.mark.parametrize("attempt", ["pathlib.Path.iterdir", "tempfile.TemporaryFile"])
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: str) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(attempt, fails)
    with pytest.raises(CannotLoad, match=r"--folder .*/run cannot be used: Permission denied"):
        went(tmp_path)


# Before its time


@pytest.mark.parametrize("stops_at", [0.4, 0.8])
def test_what_ends_before_anybody_speaks_has_measured_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: float
) -> None:
    """While devices connect, or before the first look at them."""
    world = scripted(monkeypatch)
    world.stops_at = stops_at
    with pytest.raises(Stopped):
        went(tmp_path, world)
    assert world.said == 0
    assert world.now < 3


def test_what_ends_while_they_speak_is_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = scripted(monkeypatch)
    world.stops_at = 4.0
    outcome = went(tmp_path, world)
    assert outcome.was_stopped
    assert outcome.is_whole
    assert outcome.units == pytest.approx(100 * outcome.at_work_s)


def test_what_is_stopped_when_they_have_spoken_was_not_stopped_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until everything has arrived all the same."""
    world = scripted(monkeypatch)
    world.stops_at = 7.2
    outcome = went(tmp_path, world)
    assert world.stop.is_set()
    assert not outcome.was_stopped
    assert outcome.units == pytest.approx(100 * OPTIONS.duration_s, rel=0.05)


def test_a_component_of_a_running_chain_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = scripted(monkeypatch)
    monkeypatch.setattr("threadline.load.chain.is_alive", lambda pid: pid != 7 or world.now < 4)
    outcome = went(tmp_path, chain=Chain("127.0.0.1:9", processes={"gateway": 6, "translator": 7}))
    assert outcome.gone == {"translator": "translator (process 7) died at 4 s"}
    assert outcome.units == pytest.approx(100 * OPTIONS.duration_s, rel=0.05)
    assert not outcome.is_whole
    assert "DIED      translator (process 7) died at 4 s" in list(lines(outcome))
    assert "translator (process 7) died at 4 s" in page(outcome)
    assert document(outcome)["gone"] == ["translator (process 7) died at 4 s"]


def test_a_component_that_dies_loses_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = scripted(monkeypatch)
    world.fails_at = 5.0
    outcome = went(tmp_path, world)
    assert outcome.failure == "translator died at 5 s: killed by SIGKILL"
    assert not outcome.is_whole
    assert outcome.units > 100
    assert outcome.to_s == outcome.samples[-1].at_s, "until somebody looked for the last time"
    assert (outcome.ends, outcome.losses) == ([], [])


def test_what_dies_before_anybody_speaks_has_measured_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = scripted(monkeypatch)
    world.fails_at = 0.8
    outcome = went(tmp_path, world)
    assert outcome.failure is not None
    assert (outcome.at_work_s, outcome.units, outcome.measured) == (0, 0, [])


def test_a_chain_that_dies_is_not_connected_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise Breakdown.died("gateway", 1, [])

    scripted(monkeypatch)
    with pytest.raises(Breakdown, match="gateway died: exit code 1"):
        went(tmp_path, chain=Chain("127.0.0.1:9", check=check))


# Those who ask


class NoUsers:
    """They come some time after they were called, and get no answer."""

    def __init__(self, world: World) -> None:
        self.asked = Asked(2, errors=["nobody was answered"])
        self._world = world
        self._there_at = world.now + 7.0

    def __call__(self, *_: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def look(self, at_s: float) -> None: ...

    @property
    def have_begun(self) -> bool:
        return self._world.now >= self._there_at


def asked_by(users: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: float = math.inf) -> Outcome:
    world = scripted(monkeypatch)
    world.stops_at = stops_at
    monkeypatch.setattr(runs, "Users", NoUsers(world))
    monkeypatch.setattr(runs, "check_api", lambda _: None)
    return went(tmp_path, world, users=users, chain=Chain("127.0.0.1:9", api="http://127.0.0.1:9"))


def test_devices_speak_when_the_users_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = asked_by(2, tmp_path, monkeypatch)
    assert outcome.from_s >= 7
    assert outcome.units == pytest.approx(100 * OPTIONS.duration_s, rel=0.05)


def test_users_whom_nobody_answers_are_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not asked_by(2, tmp_path, monkeypatch).is_whole
    assert asked_by(0, tmp_path / "none", monkeypatch).is_whole
    assert asked_by(2, tmp_path / "stopped", monkeypatch, stops_at=9.0).is_whole, "there was little time to ask"


def test_a_run_that_ends_while_users_are_waited_for_has_measured_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        asked_by(2, tmp_path, monkeypatch, stops_at=4.0)


def test_an_api_that_does_not_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch)
    with pytest.raises(CannotLoad, match=r"--api: nobody answers at http://127\.0\.0\.1:1: Connection refused"):
        went(tmp_path, users=2, chain=Chain("127.0.0.1:9", api="http://127.0.0.1:1"))


# Before they speak


@pytest.mark.parametrize("seen", [0, 1])
def test_a_spark_that_does_not_get_going_is_measured_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    world = scripted(monkeypatch)
    arrivals = SimpleNamespace(seen=seen, since_ms=0, take_ms=lambda: None)
    monkeypatch.setattr(runs, "Arrivals", lambda *_: nullcontext(arrivals))
    monkeypatch.setattr(runs, "lost_before_graph", lambda ends, store: [])
    outcome = went(tmp_path, world, chain=Chain("127.0.0.1:9", store="sqlite:///none.db"))
    is_cold = seen == 0
    assert (outcome.from_s > 120) is is_cold
    assert document(outcome)["was_cold"] is is_cold
    assert any(line.startswith("COLD      Spark had not got going") for line in lines(outcome)) is is_cold
    assert ("Spark had not got going" in page(outcome)) is is_cold
    assert outcome.is_whole
    assert arrivals.since_ms == pytest.approx(1000 * outcome.from_s, abs=1), "what was whispered does not count as late"


# What has arrived


def test_a_store_alone_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last results are not there when the devices have ended."""
    missing = [Loss("load-0", "graph", "results", 30, found) for found in (10, 20)]
    answers = iter([[missing[0]], [missing[1]], []])
    world = scripted(monkeypatch)
    monkeypatch.setattr(runs, "lost_before_graph", lambda ends, store: next(answers))
    outcome = went(tmp_path, chain=Chain("127.0.0.1:9", store=f"sqlite:///{tmp_path / 'none.db'}"))
    assert outcome.checked == ("graph",)
    assert outcome.is_whole
    assert next(answers, None) is None
    assert world.samples[-1].at_s > outcome.to_s + outcome.drained_s, "the last look comes after all of it"


def test_what_stays_away_from_a_store_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Loss("load-0", "graph", "results", 30, 20)
    scripted(monkeypatch)
    monkeypatch.setattr(runs, "lost_before_graph", lambda ends, store: [loss])
    outcome = went(tmp_path, chain=Chain("127.0.0.1:9", store=f"sqlite:///{tmp_path / 'none.db'}"))
    assert outcome.losses == [loss]
    assert outcome.drained_s >= OPTIONS.drain_s


def test_who_lost_nothing_before_the_log_is_looked_for_in_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [DeviceEnd(name, 1, Said(results=30), 0) for name in ("load-0", "load-1")]
    asked: list[str] = []
    world = scripted(monkeypatch)
    world.ends = ends
    monkeypatch.setattr(runs, "held_by_log", lambda *_: {})
    monkeypatch.setattr(runs, "log_ends", lambda *_: {})
    monkeypatch.setattr(runs, "lost_before_log", lambda *_: [Loss("load-0", "log", "results", 30, 20)])

    def lost_before_graph(ends: list[DeviceEnd], store: str) -> list[Loss]:
        asked.extend(each.agent for each in ends)
        return []

    monkeypatch.setattr(runs, "lost_before_graph", lost_before_graph)
    went(tmp_path, world, chain=Chain("127.0.0.1:9", store="sqlite:///none.db", log=tmp_path))
    assert asked == ["load-1"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LogDamaged("segment 7 is missing"), "it cannot be read: segment 7 is missing"),
        (SegmentRemoved("segment 1 has been removed"), "let nobody remove segments (--remove-segments-after)"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
    ],
)
def test_a_log_that_cannot_be_read_loses_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    scripted(monkeypatch)
    monkeypatch.setattr(runs, "held_by_log", fails)
    outcome = went(tmp_path, chain=Chain("127.0.0.1:9", log=tmp_path))
    (loss,) = outcome.losses
    assert (loss.agent, loss.said, loss.found) == ("all devices", 60, 0)
    assert words in str(loss)
    assert outcome.units > 0


def test_a_log_that_cannot_be_read_at_the_beginning_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch)
    (tmp_path / "shard-00").mkdir()
    (tmp_path / "shard-00" / "position").write_bytes(b"what")
    with pytest.raises(CannotLoad, match=r"--log .* cannot be read: .*not a position"):
        went(tmp_path, chain=Chain("127.0.0.1:9", log=tmp_path))


# Step by step


def test_a_step_takes_longer_until_there_are_looks_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A component that is overloaded lets every look wait for it."""
    scripted(monkeypatch, lambda at_s, said: sample(at_s, said=min(said, 700)), every_s=5.0)
    outcome = went(tmp_path, find_max=True, step_s=8.0, rate=100.0)
    assert not outcome.steps[0].is_sustained
    assert all(step.to_s - step.from_s >= 20 for step in outcome.steps)


def untold(at_s: float, said: float) -> Sample:
    found = sample(at_s, said=said)
    del found.metrics[SPARK]
    found.late_ms = type(found.late_ms)()
    return found


def test_what_is_not_known_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, untold)
    outcome = went(tmp_path, find_max=True, step_s=8.0)
    (step,) = outcome.steps
    assert not step.is_known
    assert step.to_s - step.from_s >= 4 * 8.0, "somebody might have told it meanwhile"
    assert outcome.highest is None
    assert outcome.bottleneck is None


def test_up_to_the_log_nobody_has_to_tell_how_far_spark_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held_up(at_s: float, said: float) -> Sample:
        return replace(untold(at_s, said), dropped=int(max(0.0, said - 3_000)))

    scripted(monkeypatch, held_up)
    outcome = went(tmp_path, find_max=True, step_s=8.0, with_spark=False)
    assert outcome.steps[0].is_sustained
    assert outcome.highest is not None
    assert outcome.is_search_finished
    assert outcome.bottleneck is not None


@pytest.mark.parametrize("machine_cores", [1.0, 64.0])
def test_a_rate_that_fails_though_cores_are_idle_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine_cores: float
) -> None:
    """Spark is slow for a moment, and once: else all rates above would be out of the question."""
    monkeypatch.setattr(search, "cpu_count", lambda: 2)

    def unlucky(at_s: float, said: float) -> Sample:
        late_ms = 1_000 + 200 * min(at_s, 15.0)
        dropped = int(max(0.0, said - 20_000))
        return sample(at_s, said=said, late_ms=late_ms, dropped=dropped, machine_cores=machine_cores)

    scripted(monkeypatch, unlucky)
    first, *more = went(tmp_path, find_max=True, step_s=8.0, rate=100.0).steps
    assert not first.is_sustained
    assert (more[0].rate, more[0].is_sustained) == ((100.0, True) if machine_cores == 1.0 else (100.0 / 1.5, True))
    assert (max(step.rate for step in more) > 100.0) is (machine_cores == 1.0)


@pytest.mark.parametrize(("stops_at", "most_steps"), [(20.0, 20), (math.inf, 2)])
def test_a_search_that_is_cut_short_has_found_no_highest_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: float, most_steps: int
) -> None:
    """Nothing has failed yet, so nobody knows how much more there is."""
    world = scripted(monkeypatch)
    world.stops_at = stops_at
    monkeypatch.setattr(search, "_MOST_STEPS", most_steps)
    outcome = went(tmp_path, world, find_max=True, step_s=8.0)
    assert outcome.highest is not None
    assert not outcome.is_search_finished


def test_the_next_step_waits_for_a_spark_that_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads 1,000 rows every ten seconds, and nothing becomes visible in between."""
    read: dict[str, float] = {"rows": 0.0}

    def behind(at_s: float, said: float) -> Sample:
        if int(at_s) % 10 == 0:
            read["rows"] = min(said, read["rows"] + 1_000)
        return sample(at_s, said=said, rows=said, rows_read=read["rows"], late_ms=1_000)

    world = scripted(monkeypatch, behind)
    backlogs: list[float] = []

    class Steps(Listener):
        def phase(self, text: str) -> None:
            if text == "" and world.samples:
                backlogs.append(world.samples[-1].log_backlog or 0.0)

    options = replace(OPTIONS, folder=tmp_path / "run", chain=Chain("127.0.0.1:9"), rate=300.0, find_max=True)
    outcome = run(replace(options, drain_s=60.0), threading.Event(), Steps())
    assert not outcome.steps[0].is_sustained
    assert len(backlogs) == len(outcome.steps) > 1
    assert backlogs[1] == 0

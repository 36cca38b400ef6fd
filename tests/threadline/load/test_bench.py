"""What `bench/load.py` makes of its runs: a part that could not be measured meets no goal, and neither does one that
lost something, grew or was too slow. And how benchmarks begin and end: not at all without a place for their figures,
and never without cleaning up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from bench import _load_chain
from bench import load as bench
from bench._capture_contenders import PROVLIGHT, THREADLINE, Contender
from bench._goals import Report, end_well
from bench._load_chain import Growth, growths
from bench._load_devices import Captured
from tests.threadline.load.samples import sample
from threadline.load.chain import SPARK, TRANSLATOR, Chain
from threadline.load.fleet import DeviceEnd
from threadline.load.loss import Loss
from threadline.load.outcome import LoadOptions, Outcome
from threadline.load.profiles import Said, profile_named
from threadline.load.steps import judge
from threadline.load.watch import DEVICES, SELF

CHAIN = Chain("127.0.0.1:9")
MB = 10**6


def test_without_a_sustained_rate_there_is_none_to_stay_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """At no rate at all nothing grows and nothing is lost, which would say nothing."""
    monkeypatch.setattr(bench, "load", lambda *_, **__: pytest.fail("it was run nevertheless"))
    report = Report("load", quick=True, json_file=None)
    bench.steady(report, CHAIN, 0.0)
    assert [goal.name.partition(" (")[0] for goal in report.goals] == [
        "share of that rate that was said",
        "most growth of a component's memory",
        "records lost",
    ]
    assert all(goal.line().endswith("missed") for goal in report.goals)


def test_devices_that_say_too_little_do_not_stay_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(chain: Chain, profile: str, devices: int, rate: float, **_: float) -> Outcome:
        options = LoadOptions(profile_named(profile), devices, rate, 20.0, 1)
        return Outcome(options, from_s=0.0, to_s=20.0, samples=[sample(at_s, said=3 * at_s) for at_s in range(1, 21)])

    monkeypatch.setattr(bench, "load", idle)
    report = Report("load", quick=True, json_file=None)
    bench.steady(report, CHAIN, 100.0)
    assert report.goals[0].line().endswith("measured 0.04286 wanted >= 0.95 missed")


def test_who_said_nothing_or_was_not_looked_for_has_not_lost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    options = LoadOptions(profile_named("light"), 100, 20.0, 8.0, 1)
    samples = [sample(at_s) for at_s in range(1, 10)]
    whole = Outcome(options, to_s=8.0, samples=samples, checked=("log", "graph"), connected=100)
    for outcome, verdict in (
        (whole, "met"),
        (replace(whole, to_s=0.0), "missed"),
        (replace(whole, samples=[replace(each, said=0) for each in samples]), "missed"),
        (replace(whole, checked=()), "missed"),
    ):
        monkeypatch.setattr(bench, "load", lambda *_, outcome=outcome, **__: outcome)
        report = Report("load", quick=True, json_file=None)
        bench.light(report, CHAIN)
        assert report.goals[-1].name == "records lost (100 light devices)"
        assert report.goals[-1].line().endswith(verdict)


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (DeviceEnd("load-99", 1, Said(readings=2), left=0), "measured 100 wanted == 100 met"),
        (DeviceEnd("load-99", 1, Said(), left=0), "measured 99 wanted == 100 missed"),
        (DeviceEnd("load-99", 1, Said(readings=2), left=1), "measured 99 wanted == 100 missed"),
        (DeviceEnd("load-99", 1, Said(readings=2), left=0, unwritten=1), "measured 99 wanted == 100 missed"),
        (DeviceEnd("load-99", 1, Said(readings=2), left=0, dropped=1), "measured 99 wanted == 100 missed"),
    ],
)
def test_what_stays_with_a_device_is_not_published(
    monkeypatch: pytest.MonkeyPatch, end: DeviceEnd, verdict: str
) -> None:
    options = LoadOptions(profile_named("light"), 100, 20.0, 8.0, 1)
    others = [DeviceEnd(f"load-{number}", 1, Said(readings=2), left=0) for number in range(99)]
    monkeypatch.setattr(bench, "load", lambda *_, **__: Outcome(options, ends=[*others, end]))
    report = Report("load", quick=True, json_file=None)
    bench.light(report, CHAIN)
    assert report.goals[1].name == "light devices that have published all that they said"
    assert report.goals[1].line().endswith(verdict)


def test_the_highest_rate_is_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was asked for, of which 95 % are enough to sustain it."""
    step = judge([sample(at_s, said=9_600 * at_s) for at_s in range(1, 21)], 10_000, 0.0, 20.0, with_spark=True)
    assert step is not None and step.is_sustained
    options = LoadOptions(profile_named("query"), 16, 10_000, 20.0, 1, find_max=True)
    monkeypatch.setattr(bench, "load", lambda *_, **__: Outcome(options, highest=step))
    report = Report("load", quick=True, json_file=None)
    assert bench.sustained(report, CHAIN) == pytest.approx(9_600)
    assert report.goals[0].line().endswith("measured 9600 wanted >= 10000 missed")


LOST = [
    ([], [], "measured 0 wanted == 0 met"),
    ([Loss("load-1", "graph", "results", said=10, found=9)], [], "measured 1 wanted == 0 missed"),
    ([], [DeviceEnd("load-1", 1, Said(results=10), left=1)], "measured 1 wanted == 0 missed"),
    (
        [Loss("load-1", "log", "results", said=10, found=8), Loss("load-2", "log", "results", said=10, found=12)],
        [DeviceEnd("load-1", 1, Said(results=10), left=1)],
        "measured 5 wanted == 0 missed",
    ),
]


@pytest.mark.parametrize(("losses", "ends", "verdict"), LOST)
def test_the_highest_rate_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, losses: list[Loss], ends: list[DeviceEnd], verdict: str
) -> None:
    """Neither a record, nor a batch that never left its device; what is there twice makes up for nothing."""
    samples = [sample(at_s, said=12_000 * at_s) for at_s in range(1, 21)]
    step = judge(samples, 12_000, 0.0, 20.0, with_spark=True)
    options = LoadOptions(profile_named("query"), 16, 12_000, 20.0, 1, find_max=True)
    outcome = Outcome(options, to_s=20.0, samples=samples, highest=step, checked=("log",), losses=losses, ends=ends)
    monkeypatch.setattr(bench, "load", lambda *_, **__: outcome)
    report = Report("load", quick=True, json_file=None)
    bench.sustained(report, CHAIN)
    highest, lost = report.goals
    assert highest.line().endswith("measured 12000 wanted >= 10000 met")
    assert lost.name == "records lost while it was looked for"
    assert lost.line().endswith(verdict)


def stayed(late_bytes: int, losses: list[Loss], ends: list[DeviceEnd]) -> Outcome:
    """At 70 % of 100 origins per second, while one of the components had 100 MB at first."""
    samples = [
        sample(
            at_s,
            said=70 * at_s,
            memory_bytes={DEVICES: 50 * MB, SPARK: 100 * MB if at_s <= 10 else late_bytes, TRANSLATOR: 50 * MB},
        )
        for at_s in range(1, 21)
    ]
    options = LoadOptions(profile_named("query"), 16, 70.0, 20.0, 1)
    return Outcome(options, to_s=20.0, samples=samples, checked=("log",), losses=losses, ends=ends)


@pytest.mark.parametrize(("losses", "ends", "verdict"), LOST)
def test_a_long_time_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, losses: list[Loss], ends: list[DeviceEnd], verdict: str
) -> None:
    monkeypatch.setattr(bench, "load", lambda *_, **__: stayed(100 * MB, losses, ends))
    report = Report("load", quick=True, json_file=None)
    bench.steady(report, CHAIN, 100.0)
    said, grown, lost = report.goals
    assert said.met and grown.met
    assert lost.name.startswith("records lost (")
    assert lost.line().endswith(verdict)


@pytest.mark.parametrize(
    ("late_bytes", "verdict"),
    [
        (107 * MB, "measured 1x wanted <= 1.1x met"),
        (109 * MB, "measured 1.09x wanted <= 1.1x met"),
        (120 * MB, "measured 1.2x wanted <= 1.1x missed"),
    ],
)
def test_in_a_long_time_no_component_grows(monkeypatch: pytest.MonkeyPatch, late_bytes: int, verdict: str) -> None:
    """The others do not make up for one that does."""
    monkeypatch.setattr(bench, "load", lambda *_, **__: stayed(late_bytes, [], []))
    report = Report("load", quick=True, json_file=None)
    bench.steady(report, CHAIN, 100.0)
    said, grown, lost = report.goals
    assert said.met and lost.met
    assert grown.name.startswith("most growth of a component's memory (")
    assert grown.line().endswith(verdict)


@pytest.mark.parametrize(("delivered", "verdict"), [(1.0, "met"), (0.9999, "missed")])
def test_a_capture_that_drops_events_meets_no_goal_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivered: float, verdict: str
) -> None:
    """Whatever the others drop, which are not ours."""

    def captured(contender: Contender, devices: int, *_: object) -> Captured:
        is_ours = contender.name == "threadline"
        return Captured(contender.name, devices, 20, 1.0, 1.0, 1.0, (delivered if devices == 64 else 1.0) * is_ours)

    monkeypatch.setattr(bench, "SnServer", nullcontext)
    monkeypatch.setattr(bench, "capture", captured)
    monkeypatch.setattr(bench, "why_not", lambda _: None)
    report = Report("load", quick=True, json_file=None)
    bench.table_ix(report, tmp_path)
    (goal,) = [each for each in report.goals if each.name.startswith("share of events delivered")]
    assert goal.line().endswith(verdict)


@pytest.mark.parametrize(
    ("ours_us", "provlight_us", "over", "under"),
    [
        ((10.0, 15.0), 300.0, "measured 1.5x wanted <= 1.5x met", "measured 20x wanted >= 20x met"),
        ((10.0, 16.0), 480.0, "measured 1.6x wanted <= 1.5x missed", "measured 30x wanted >= 20x met"),
        ((10.0, 10.0), 100.0, "measured 1x wanted <= 1.5x met", "measured 10x wanted >= 20x missed"),
        ((10.0, 10.0), None, "measured 1x wanted <= 1.5x met", "measured nanx wanted >= 20x missed"),
    ],
)
def test_capture_is_compared_with_few_devices_and_with_provlight(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ours_us: tuple[float, float],
    provlight_us: float | None,
    over: str,
    under: str,
) -> None:
    """By the mean, with ours of 64 devices; whoever is not installed was not slower."""

    def captured(contender: Contender, devices: int, *_: object) -> Captured:
        mean_us = {(THREADLINE, 8): ours_us[0], (THREADLINE, 64): ours_us[1], (PROVLIGHT, 64): provlight_us or 0.0}
        return Captured(contender.name, devices, 20, mean_us[contender, devices], 1.0, 1.0, 1.0)

    def why_not(contender: Contender) -> str | None:
        return "mqttsn is not installed" if contender is PROVLIGHT and provlight_us is None else None

    monkeypatch.setattr(bench, "SnServer", nullcontext)
    monkeypatch.setattr(bench, "capture", captured)
    monkeypatch.setattr(bench, "why_not", why_not)
    report = Report("load", quick=True, json_file=None)
    bench.table_ix(report, tmp_path)
    _, over_goal, under_goal = report.goals
    assert over_goal.line().endswith(over)
    assert under_goal.line().endswith(under)


@pytest.mark.parametrize(("late_mb", "ratio"), [(90.0, 1.0), (107.0, 1.0), (108.5, 1.085), (120.0, 1.2)])
def test_less_than_8_mb_is_no_growth(late_mb: float, ratio: float) -> None:
    assert Growth(SPARK, 100.0 * MB, late_mb * MB).ratio == pytest.approx(ratio)


def test_memory_is_compared_by_the_quarters() -> None:
    samples = [sample(at_s, memory_bytes={SPARK: 100 + at_s}) for at_s in range(1, 21)]
    (grown,) = growths(samples)
    assert (grown.component, grown.early_bytes, grown.late_bytes) == (SPARK, 108, 118)
    assert growths(samples[:3]) == []


def test_the_process_that_measures_is_no_component_that_grows() -> None:
    samples = [sample(at_s, memory_bytes={SELF: at_s * MB, SPARK: MB}) for at_s in range(1, 21)]
    assert [each.component for each in growths(samples)] == [SPARK]


def broken(options: LoadOptions, *_: object) -> Outcome:
    return Outcome(options, failure="translator died at 11 s: killed by SIGKILL")


def test_a_run_that_broke_down_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked for no losses, so it would seem to have none."""
    monkeypatch.setattr(_load_chain, "run", broken)
    with pytest.raises(SystemExit, match="query: the run broke down"):
        _load_chain.load(CHAIN, "query", 1, 1.0)


def test_a_part_that_breaks_down_takes_nothing_from_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report("load", quick=True, json_file=tmp_path / "load.json")
    monkeypatch.setattr(bench, "parse_arguments", lambda *_: report)
    monkeypatch.setattr(bench, "table_ix", lambda *_: report.goal("share of events delivered", 1, "==", 1))
    monkeypatch.setattr(bench, "started", lambda *_, **__: nullcontext(CHAIN))
    monkeypatch.setattr(bench, "sustained", lambda *_: 0.0)
    monkeypatch.setattr(_load_chain, "run", broken)
    with pytest.raises(SystemExit, match="light: the run broke down"):
        bench.main()
    goals = [line for line in capsys.readouterr().out.splitlines() if line.startswith("goal ")]
    assert goals[0] == "goal share of events delivered measured 1 wanted == 1 met"
    assert goals[-1] == "goal all parts brought to their end (not so: light) measured nan wanted == 1 missed"
    assert len(goals) == len(json.loads((tmp_path / "load.json").read_text())["goals"]) == 1 + 3 + 1


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as found:
        Report("load", quick=True, json_file=tmp_path / "none" / "x.json")
    assert found.value.code == 2
    assert capsys.readouterr().err == (
        f"bench/load.py: --json {tmp_path}/none/x.json cannot be written: No such file or directory\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_benchmark_with_everything_cleaned_up(tmp_path: Path, number: int) -> None:
    code = (
        "import tempfile, time; from bench._goals import parse_arguments; parse_arguments('some', '')\n"
        f"with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}): print('there', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert list(tmp_path.iterdir()) != []
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_is_ignored_does_not_end_a_benchmark() -> None:
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        end_well()
        assert {signal.getsignal(each) for each in before} == {signal.SIG_IGN}
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

"""Runs of the fault laboratory with new seeds, for as long as asked, and a report of them.

    python -m tests.faults.chaos --duration 10m              # make chaos DURATION=10m
    python -m tests.faults.chaos --seed 123                  # that run again

The report, report.md and report.json in a folder of its own in build/chaos, is written anew after every run; what a bad
run has left behind is kept beside it. SIGTERM and Ctrl-C end the run that is under way, and the report is written all
the same.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from types import FrameType

from tests.faults.chain.run import Outcome, run
from tests.faults.report import Report
from tests.faults.simulation.runs import run_seed

LAYERS = ("chain", "simulation", "both")
_SIMULATED_S = 20.0
"""For so long, seeds are simulated between two runs of the chain."""
_JAVA_ENDS_S = 20.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Interrupted(BaseException):
    """It was told to stop."""


def parse_duration_s(text: str) -> float:
    """`90s`, `10m` or `2h` in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 10m or 2h")
    return float(match[1]) * _UNITS_S[match[2]]


def play_chain(seed: int, kept: Path) -> Outcome:
    """One run of the whole chain; its folder stays if it is bad."""
    folder = Path(tempfile.mkdtemp(prefix=f"threadline-chaos-{seed}-"))
    say(f"chain, seed {seed}, in {folder}")
    try:
        (folder / "tmp").mkdir()
        os.environ["TMPDIR"] = str(folder / "tmp")  # what is killed leaves its temporary files behind
        outcome = run(seed, folder, lambda line: say(f"  {line}"))
        say(outcome.line())
        for finding in outcome.findings:
            say(f"  {finding}")
        if not outcome.is_good:
            passing = shutil.ignore_patterns("scratch", "tmp")
            with suppress(shutil.Error):  # some process may just be ending
                shutil.copytree(folder, kept / f"seed-{seed}", dirs_exist_ok=True, ignore=passing)
    finally:
        del os.environ["TMPDIR"]
        _remove(folder)
    return outcome


def _remove(folder: Path) -> None:
    """Java notices some moments later that it was killed, and writes until then."""
    patience_s = time.monotonic() + _JAVA_ENDS_S
    while folder.exists() and time.monotonic() < patience_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)


def play_simulation(seeds: Iterable[int], report: Report) -> None:
    """Simulated runs; each stands for itself."""
    for seed in seeds:
        try:
            summary = run_seed(seed)
        except Exception as error:
            told = "".join(traceback.format_exception_only(error))
            say(f"simulation, seed {seed}: BAD\n{told}")
            report.add_simulated(seed, told)
        else:
            report.add_simulated(seed, None, summary.happened)


def seeds_until(time_s: float) -> Iterator[int]:
    while time.monotonic() < time_s:
        yield SystemRandom().randrange(1_000_000_000)


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every run was good, 1 if not, 130 or 143 if it was told to stop."""
    parser = argparse.ArgumentParser(prog="tests.faults.chaos", description="Runs of the fault laboratory.")
    parser.add_argument("--duration", type=parse_duration_s, default=600.0, help="how long: 90s, 10m (the default), 2h")
    parser.add_argument("--seed", type=int, action="append", help="only this run; may be repeated")
    parser.add_argument("--layer", choices=LAYERS, default="both")
    own = Path("build/chaos", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    parser.add_argument("--report", type=Path, default=own, help="folder of the report (a new one in build/chaos)")
    options = parser.parse_args(arguments)
    try:
        options.report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--report {options.report}: {error.strerror}")
    layer = "chain" if options.seed and options.layer == "both" else options.layer
    report = Report(options.report)
    code = 0

    def interrupt(number: int, _: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        _play(layer, options.seed, time.monotonic() + options.duration, report)
    except Interrupted as stop:
        say("told to stop: the run under way does not count")
        code = 128 + int(stop.args[0])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    report.write()
    say(f"{report.summary()}\nreport: {options.report / 'report.md'}")
    return code or int(not report.is_good)


def _play(layer: str, seeds: Sequence[int] | None, until_s: float, report: Report) -> None:
    if layer == "simulation":
        play_simulation(seeds or seeds_until(until_s), report)
        return
    for seed in seeds or seeds_until(until_s):
        report.add(play_chain(seed, report.folder))
        report.write()
        if layer == "both":
            play_simulation(seeds_until(min(until_s, time.monotonic() + _SIMULATED_S)), report)


if __name__ == "__main__":
    sys.exit(main())

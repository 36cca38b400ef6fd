"""Runs of the fault laboratory with new seeds, for as long as asked, and a report of them.

    python -m tests.faults.chaos --duration 10m              # make chaos DURATION=10m
    python -m tests.faults.chaos --seed 123                  # that run again

The report, report.md and report.json in a folder of its own in build/chaos, is written anew after every run of the
chain, and every few seconds while seeds are simulated; what a bad run of the chain has left behind is kept beside it.
SIGTERM, SIGHUP and Ctrl-C end the run that is under way, and the report is written all the same. If the command is
killed, a guard ends what a run of the chain has started, and removes its folder; that of a simulated run is removed by
the next one that is started.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from types import FrameType
from typing import Self

import psutil

from tests.faults.chain.run import Outcome, run
from tests.faults.report import FILES, Report
from tests.faults.simulation.runs import remove_left_behind, run_seed
from threadline import durations
from threadline.heeded import heeded
from threadline.load.output_file import CannotWrite, try_output

LAYERS = ("chain", "simulation", "both")
_SIMULATED_S = 20.0
"""For so long, seeds are simulated between two runs of the chain."""
_JAVA_ENDS_S = 20.0
_KILLED_S = 10.0
_ROOT = Path(__file__).parents[2]
_WRITE_S = 5.0


class Interrupted(BaseException):
    """It was told to stop."""


def parse_duration_s(text: str) -> float:
    """`90s`, `10m`, `2h` or plain seconds, in seconds."""
    try:
        found = durations.parse_duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no time at all")
    return found


class Guard:
    """A process that outlives this one, however it ends, and then ends what a run has started."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.faults.chaos import guard; guard()"],
            stdin=subprocess.PIPE, text=True, start_new_session=True, cwd=_ROOT,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def watch(self, folder: Path | None) -> None:
        """A run is under way in this folder; None: it has ended, and has cleared it up."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(folder or "", file=self._process.stdin, flush=True)


def guard() -> None:
    """What the guard does."""
    folder = ""
    for line in sys.stdin:
        folder = line.strip()
    if folder:
        clear(Path(folder))


def clear(folder: Path) -> None:
    """End all processes of a run, and remove what it had on disk. They know each other by their TMPDIR, also those that
    others of them have started. One that hangs in the kernel is left alone, and named."""
    give_up = time.monotonic() + _KILLED_S
    while left := _processes_of(folder):
        if time.monotonic() > give_up:
            break
        for each in left:
            with suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(left, timeout=1)
    for disk in psutil.disk_partitions(all=True):
        if disk.mountpoint.startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", disk.mountpoint], check=False)
    _remove(folder)
    if left:  # told at last: nobody may be there to hear it
        say(f"cannot be killed: {', '.join(map(str, left))}")


def _processes_of(folder: Path) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get("TMPDIR") == str(folder / "tmp") and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def play_chain(seed: int, kept: Path, guard: Guard) -> Outcome:
    """One run of the whole chain; its folder stays if it is bad."""
    folder = Path(tempfile.mkdtemp(prefix=f"threadline-chaos-{seed}-")).resolve()  # as the kernel names its mounts
    say(f"chain, seed {seed}, in {folder}")
    guard.watch(folder)
    former = os.environ.get("TMPDIR")
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
        if former is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = former
        clear(folder)  # Spark's Java may not have noticed that its driver was killed
        guard.watch(None)
    return outcome


def _remove(folder: Path) -> None:
    """What was killed may write for some moments more."""
    patience_s = time.monotonic() + _JAVA_ENDS_S
    while folder.exists() and time.monotonic() < patience_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)


def play_simulation(seeds: Iterable[int], report: Report) -> None:
    """Simulated runs; each stands for itself."""
    remove_left_behind()
    write_at = time.monotonic() + _WRITE_S
    for seed in seeds:
        try:
            summary = run_seed(seed)
        except Exception as error:
            told = "".join(traceback.format_exception_only(error))
            say(f"simulation, seed {seed}: BAD\n{told}")
            report.add_simulated(seed, told)
        else:
            report.add_simulated(seed, None, summary.happened)
        if time.monotonic() >= write_at:
            report.write()
            write_at = time.monotonic() + _WRITE_S


def seeds_until(time_s: float) -> Iterator[int]:
    while time.monotonic() < time_s:
        yield SystemRandom().randrange(1_000_000_000)


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every run was good, 1 if not, 129, 130 or 143 if it was told to stop."""
    parser = argparse.ArgumentParser(prog="tests.faults.chaos", description="Runs of the fault laboratory.")
    parser.add_argument(
        "--duration", type=parse_duration_s, default=600.0, help="how long: 90s, 10m (the default), 2h, or seconds"
    )
    parser.add_argument("--seed", type=int, action="append", help="only this run; may be repeated")
    parser.add_argument("--layer", choices=LAYERS, default="both")
    own = Path("build/chaos", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    parser.add_argument("--report", type=Path, default=own, help="folder of the report (a new one in build/chaos)")
    options = parser.parse_args(arguments)
    try:
        options.report.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            try_output(options.report / name)
    except OSError as error:
        parser.error(f"--report {options.report}: {error.strerror}")
    except CannotWrite as error:
        parser.error(f"--report {error}")
    layer = "chain" if options.seed and options.layer == "both" else options.layer
    report = Report(options.report)
    came: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:  # more would disturb the cleaning
            raise Interrupted

    try:
        with heeded(interrupt):
            try:
                _play(layer, options.seed, time.monotonic() + options.duration, report)
            except Interrupted:
                say("told to stop: the run under way does not count")
    finally:
        report.write()
    say(f"{report.summary()}\nreport: {options.report / 'report.md'}")
    return 128 + came[0] if came else int(not report.is_good)


def _play(layer: str, seeds: Sequence[int] | None, until_s: float, report: Report) -> None:
    if layer == "simulation":
        play_simulation(seeds or seeds_until(until_s), report)
        return
    with Guard() as guard:
        for seed in seeds or seeds_until(until_s):
            report.add(play_chain(seed, report.folder, guard))
            report.write()
            if layer == "both":
                play_simulation(seeds_until(min(until_s, time.monotonic() + _SIMULATED_S)), report)


if __name__ == "__main__":
    sys.exit(main())

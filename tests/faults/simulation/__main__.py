"""Runs of the simulation by their seeds: `python -m tests.faults.simulation --seeds 0-9999`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import NamedTuple

from tests.faults.simulation.runs import Summary, remove_left_behind, run_seed, shrunk
from tests.faults.simulation.schedule import plan_run
from threadline.heeded import SIGNALS, heeded

_TELL_S = 10.0
_LOOK_S = 0.5


class Outcome(NamedTuple):
    """How a run went: its summary, or what was wrong."""

    seed: int
    summary: Summary | None
    error: str = ""


def try_seed(seed: int) -> Outcome:
    """Run it, whatever happens."""
    try:
        return Outcome(seed, run_seed(seed))
    except Exception:
        return Outcome(seed, None, traceback.format_exc())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.simulation", description=(__doc__ or "").strip())
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="one run")
    which.add_argument(
        "--seeds", type=parse_seeds, default="0-99", metavar="FIRST-LAST", help="many runs (default: %(default)s)"
    )
    parser.add_argument("--shrink", action="store_true", help="with --seed: find the fewest steps that still fail")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="so many at a time (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error("--jobs: at least 1")
    remove_left_behind()
    if arguments.seed is not None:
        with heeded(end):
            return shrink(arguments.seed) if arguments.shrink else show(arguments.seed)
    if arguments.shrink:
        parser.error("--shrink is for one run: give it a --seed")
    return run_many(arguments.seeds, arguments.jobs)


def parse_seeds(text: str) -> range:
    """`10-19`, or a single one."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 0-99")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def end(number: int, _: FrameType | None) -> None:
    """A signal ends a single run, which cleans up behind it."""
    raise SystemExit(128 + number)


def show(seed: int) -> int:
    """One run."""
    outcome = try_seed(seed)
    print(outcome.error if outcome.summary is None else outcome.summary.line())
    return int(outcome.summary is None)


def shrink(seed: int) -> int:
    """The fewest steps."""
    try:
        steps, error = shrunk(seed, *plan_run(seed))
    except ValueError as passed:
        print(passed)
        return 0
    print(f"seed {seed}: {len(steps)} steps are enough:")
    for step in steps:
        print(f"  {tuple(step)},")
    traceback.print_exception(error)
    return 1


def work(parent: int) -> None:
    """In a process that runs seeds: what ends the command is not for it, but it ends with the command."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


@contextmanager
def heard() -> Iterator[list[int]]:
    """The signals that came. They interrupt nothing: the pool could not be stopped well then."""
    came: list[int] = []

    def hear(number: int, _: FrameType | None) -> None:
        came.append(number)

    with heeded(hear):
        yield came


def run_many(seeds: range, jobs: int) -> int:
    """All of them, with progress on stderr; failures are told at once. Ctrl-C, SIGTERM and SIGHUP end it with what was
    found so far, when the runs under way have ended; so does the end of a process that runs them."""
    begun = time.monotonic()
    tell_at = begun + _TELL_S
    happened: Counter[str] = Counter()
    failed, done, left, is_broken = 0, 0, iter(seeds), False
    under_way: dict[Future[Outcome], int] = {}
    with heard() as came, ProcessPoolExecutor(jobs, initializer=work, initargs=(os.getpid(),)) as pool:
        while not is_broken:
            try:
                for seed in () if came else islice(left, jobs + 1 - len(under_way)):  # one waits for whoever is ready
                    under_way[pool.submit(try_seed, seed)] = seed
            except BrokenProcessPool:
                is_broken = True
            if not under_way:
                break
            ended, _ = wait(under_way, _LOOK_S, FIRST_COMPLETED)
            for each in ended:
                try:
                    outcome = each.result()
                except BrokenProcessPool:
                    is_broken = True
                    continue
                del under_way[each]
                done += 1
                if outcome.summary is None:
                    failed += 1
                    print(f"seed {outcome.seed} failed:\n{outcome.error}", flush=True)
                else:
                    happened += outcome.summary.happened
            if (now := time.monotonic()) >= tell_at:
                tell_at = now + _TELL_S
                rate = 60 * done / (now - begun)
                told = f"{done} of {len(seeds)} runs, {failed} failed, {rate:.0f} a minute"
                print(told, file=sys.stderr, flush=True)
    for name, count in sorted(happened.items()):
        print(f"{count:10d}  {name}")
    if is_broken:
        print(f"a process was killed, maybe for want of memory, while it ran one of the seeds {_listed(under_way)}")
    print(f"{done - failed} passed, {failed} failed")
    return 128 + came[0] if came else int(failed > 0 or is_broken)


def _listed(under_way: Mapping[Future[Outcome], int]) -> str:
    return ", ".join(map(str, sorted(under_way.values())))


if __name__ == "__main__":
    sys.exit(main())

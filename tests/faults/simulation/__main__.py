"""Runs of the simulation by their seeds: `python -m tests.faults.simulation --seeds 0-9999`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.faults.simulation.runs import Summary, run_seed, shrunk
from tests.faults.simulation.schedule import plan_run


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
    parser.add_argument("--seed", type=int, help="one run")
    parser.add_argument("--shrink", action="store_true", help="with --seed: find the fewest steps that still fail")
    parser.add_argument("--seeds", default="0-99", metavar="FIRST-LAST", help="many runs (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="so many at a time (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return shrink(arguments.seed) if arguments.shrink else show(arguments.seed)
    first, _, last = arguments.seeds.partition("-")
    return run_many(range(int(first), int(last or first) + 1), arguments.jobs)


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


def run_many(seeds: range, jobs: int) -> int:
    """All of them, with progress on stderr; failures are told at once."""
    begun, failed, done = time.monotonic(), 0, 0
    happened: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) as pool:
        for outcome in pool.map(try_seed, seeds, chunksize=4):
            done += 1
            if outcome.summary is None:
                failed += 1
                print(f"seed {outcome.seed} failed:\n{outcome.error}", flush=True)
            else:
                happened += outcome.summary.happened
            if done % 50 == 0:
                rate = 60 * done / (time.monotonic() - begun)
                print(f"{done} of {len(seeds)} runs, {failed} failed, {rate:.0f} a minute", file=sys.stderr, flush=True)
    for name, count in sorted(happened.items()):
        print(f"{count:10d}  {name}")
    print(f"{done - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

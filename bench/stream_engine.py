"""What the stream engine costs per tuple, with and without provenance, plain and compiled, next to streamz and bytewax.

Q1 to Q4 are the queries of the GeneaLog paper's evaluation: Linear Road stopped cars and accidents, Smart Grid
blackouts and anomalies. Modes: none, segments (the default), genealog (the paper's meta-attributes), annotation (the
paper's baseline after Ariadne: id sets on every tuple and a store of all source tuples; plain build only, since it is a
lineage that the benchmark brings along).

CPU time of the process that runs the query, all of them on one processor. All variants take turns within each of the
rounds, in every other round backwards, and ratios are taken per round: medians, and the bounds that hold the median
with 95 % confidence. What is compared most closely, modes none and segments in both builds, runs side by side: each in
a process of its own, a few lists at a time by turns, since a shared machine is faster and slower for tens of
milliseconds on end, and then again with their processes exchanged. Everything else runs alone. The input is a list made
beforehand; the sink unfolds every result into its Delivery, and records go to a counter. Python's collector is on and
relaxed, as threadline-agent runs it (`collect_seldom`), for the peers as well; the column "700" is the overhead of the
plain build with the thresholds that Python starts with. What has no goal, that column and the denser data, is left out
by --quick. Peak memory is what the kernel says of a fresh process per query and mode that reads the input from a
generator.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bench._goals import Report, parse_arguments
from bench._statistics import Estimate, estimate, ratios
from bench._stream_worker import MODES, QUERIES, ROOT, Answer, Worker, WorkerFailed
from edge_agent.queries.smart_grid import HOURS

ROUNDS = 21
OVERLAPS = (4, 30, 120)
GROUPS = ("count", "sum_mean", "min_max", "distinct", "first_last", "top3")
EVALUATED = ("Q1", "Q2", "Q3", "Q4")
PROVENANCE_SIZES = (4, 8, 24, 192, 1_024, 8_192)
# The share of standing cars that makes provenance (every result with its sources) 0.2 % of the data. In the paper it
# was 0.003 % to 0.5 %, and for Linear Road two orders of magnitude less than for Smart Grid.
STANDING = 0.001


class Sizes(NamedTuple):
    """How much input there is."""

    data: dict[str, dict[str, Any]]
    peers: dict[str, int]
    singly: int  # fed one by one; so many that getting started counts for little
    window_tuples: int
    traversed_tuples: int
    queries: tuple[str, ...]
    python_thresholds: bool
    rounds: int = ROUNDS

    def of(self, query: str) -> str:
        """What a goal's name says of how it was measured."""
        size = self.data[QUERIES[query].data]
        tuples = size["cars"] * size["rounds"] if "cars" in size else size["meters"] * HOURS * size["days"]
        return f"{tuples // 1_000}k_tuples_{self.rounds}_rounds_collector_relaxed"


QUICK = Sizes(
    data={
        "sparse": {"cars": 800, "rounds": 80, "standing": STANDING},
        "meters": {"meters": 800, "days": 4},
    },
    peers={"streamz": 10_000, "bytewax": 60_000},
    singly=10_000,
    window_tuples=2_000,
    traversed_tuples=2_048,
    queries=EVALUATED,
    python_thresholds=False,
)
FULL = Sizes(
    data={
        "sparse": {"cars": 1_000, "rounds": 250, "standing": STANDING},
        "dense": {"cars": 1_000, "rounds": 250},
        "meters": {"meters": 1_000, "days": 10},
    },
    peers={"streamz": 100_000, "bytewax": 250_000},
    singly=20_000,
    window_tuples=30_000,
    traversed_tuples=65_536,
    queries=tuple(QUERIES),
    python_thresholds=True,
)


class Variant(NamedTuple):
    """One thing to run in every round: who is asked, for what."""

    worker: str
    what: str
    arguments: tuple[tuple[str, Any], ...]
    alone: bool = True


Times = dict[Variant, list[float]]
BUILDS = ("pure", "compiled")
SIDE_BY_SIDE = ("none", "segments")
LISTS_PER_STEP = 8


def query(build: str, name: str, mode: str, relaxed: bool = True, alone: bool = False) -> Variant:
    return Variant(build, "query", (("query", name), ("mode", mode), ("relaxed", relaxed)), alone)


def peer(name: str, tuples: int) -> Variant:
    return Variant("peers", "peer", (("name", name), ("tuples", tuples), ("singly", False)))


def singly(name: str, tuples: int) -> Variant:
    if name in BUILDS:
        return Variant(name, "singly", (("tuples", tuples),))
    return Variant("peers", "peer", (("name", name), ("tuples", tuples), ("singly", True)))


def installed(sizes: Sizes) -> list[str]:
    """The peers that are there: bytewax has no wheels for some machines."""
    return [name for name in sizes.peers if find_spec(name)]


def window(build: str, group: str, overlap: int, tuples: int) -> Variant:
    return Variant(build, "window", (("group", group), ("overlap", overlap), ("tuples", tuples)))


def traversal(build: str, mode: str, size: int, tuples: int) -> Variant:
    roots = max(1, tuples // size)
    return Variant(build, "traversal", (("mode", mode), ("size", size), ("roots", roots)))


def main() -> None:
    report = parse_arguments("stream_engine", __doc__.splitlines()[0])
    sizes = QUICK if report.quick else FULL
    problem = build_compiled()
    if problem:
        print(f"no compiled build, its goals are missed: {problem}")
    builds = ["pure"] if problem else ["pure", "compiled"]
    peaks = measure_peaks(builds, sizes)
    times, shares = measure_rounds(builds, sizes)
    for name, share in shares.items():
        print(f"{name}: {share:.2%} of the source tuples contribute to a result")
        report.figures.append({"query": name, "contributing_share": share})
    tell_queries(report, builds, times, peaks)
    tell_peers(report, builds, sizes, times)
    tell_windows(report, builds, sizes, times)
    tell_traversal(report, builds, sizes, times)
    set_goals(report, sizes, times, peaks)
    report.finish()


def build_compiled() -> str | None:
    """Make build/fast if it is not up to date; the reason if that is impossible."""
    command = [sys.executable, str(ROOT / "scripts" / "fast.py"), "--no-tests"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip() if done.returncode else None


# --- measuring ----------------------------------------------------------------------------


Workers = dict[str, list[Worker]]


def measure_rounds(builds: list[str], sizes: Sizes) -> tuple[Times, dict[str, float]]:
    """CPU seconds per tuple (per result for traversals) of every variant in every round. And for every query the share
    of source tuples that contribute to a result, which is what provenance has to tell."""
    times: Times = defaultdict(list)
    told: dict[Variant, float] = {}
    with ExitStack() as stack:
        workers: Workers = {name: [stack.enter_context(Worker(name)) for _ in SIDE_BY_SIDE] for name in builds}
        workers["peers"] = [stack.enter_context(Worker("peers"))]
        for each in (worker for some in workers.values() for worker in some):
            made = each.ask("prepare", **sizes.data)
        print(f"{made['sparse']} reports, {made['meters']} readings, {sizes.rounds} rounds", flush=True)
        for name in builds:
            file = Path(workers[name][0].ask("engine")["file"])
            if (file.suffix == ".so") != (name == "compiled"):
                raise WorkerFailed(f"the {name} worker runs {file}")
        order = list(groups(builds, sizes))
        for number in range(-1, sizes.rounds):
            spent: dict[Variant, float] = {}
            for group in order if number % 2 == 0 else reversed(order):
                for variant, answers in run_group(workers, group).items():
                    spent[variant] = fmean(answer["cpu_s"] / answer["units"] for answer in answers)
                    told[variant] = answers[0].get("records", 0) / answers[0]["units"]
            if number >= 0:  # the round before is for the caches
                for variant, seconds in spent.items():
                    times[variant].append(seconds)
    shares = {name: told[query("pure", name, "segments")] - told[query("pure", name, "none")] for name in sizes.queries}
    return times, shares


def run_group(workers: Workers, group: list[Variant]) -> dict[Variant, list[Answer]]:
    """A variant by itself; several side by side, once in each other's processes: where a process's data happen to lie
    in memory makes it faster or slower than its twin, and more so than what is compared."""
    if group[0].alone:
        (variant,) = group
        return {variant: [workers[variant.worker][0].ask(variant.what, **dict(variant.arguments))]}
    runs = [side_by_side(workers, group, shift) for shift in range(len(SIDE_BY_SIDE))]
    return {variant: [run[variant] for run in runs] for variant in group}


def side_by_side(workers: Workers, group: list[Variant], shift: int) -> dict[Variant, Answer]:
    """Each in a process of its own, a few lists at a time by turns."""
    places: Counter[str] = Counter()
    running: dict[Variant, Worker] = {}
    answers: dict[Variant, Answer] = {}
    for variant in group:
        twins = workers[variant.worker]
        running[variant] = twins[(places[variant.worker] + shift) % len(twins)]
        places[variant.worker] += 1
        running[variant].ask("begin", **dict(variant.arguments))
        answers[variant] = {"cpu_s": 0.0}
    turn = group
    while running:
        for variant in turn:
            answer = running[variant].ask("step", lists=LISTS_PER_STEP)
            answers[variant] = answer | {"cpu_s": answers[variant]["cpu_s"] + answer["cpu_s"]}
            if not answer["running"]:
                del running[variant]
        turn = [variant for variant in reversed(turn) if variant in running]
    return answers


def groups(builds: list[str], sizes: Sizes) -> Iterator[list[Variant]]:
    """In an order that puts next to each other what is compared."""
    for name in sizes.queries:
        yield [query(build, name, mode) for build in builds for mode in SIDE_BY_SIDE]
        if name not in EVALUATED:
            continue
        if name == "Q1":
            yield from [[peer(each, sizes.peers[each])] for each in installed(sizes)]
            yield from [[singly(each, sizes.singly)] for each in [*builds, *installed(sizes)]]
        for build in builds:
            yield [query(build, name, "none", alone=True)]
            yield [query(build, name, "genealog", alone=True)]
        yield [query("pure", name, "annotation", alone=True)]
        if sizes.python_thresholds:
            yield [query("pure", name, mode, relaxed=False) for mode in SIDE_BY_SIDE]
    for build in builds:
        for group in GROUPS:
            for overlap in OVERLAPS:
                yield [window(build, group, overlap, sizes.window_tuples)]
        for mode in ("segments", "genealog"):
            for size in PROVENANCE_SIZES:
                yield [traversal(build, mode, size, sizes.traversed_tuples)]


Peaks = dict[tuple[str, str, str], float]


def measure_peaks(builds: list[str], sizes: Sizes) -> Peaks:
    """Peak resident MB by (build, query, mode), each in a process of its own."""
    peaks: Peaks = {}
    for build in builds:
        for name in EVALUATED:
            for mode in ("input", *MODES):
                if mode != "annotation" or build == "pure":
                    with Worker(build) as worker:
                        answer = worker.ask("peak", query=name, mode=mode, size=sizes.data[QUERIES[name].data])
                    peaks[build, name, mode] = answer["peak_kb"] / 1024
    return peaks


# --- telling ------------------------------------------------------------------------------


def tell_queries(report: Report, builds: list[str], times: Times, peaks: Peaks) -> None:
    print(f"\n{'':8} {'build':8} {'mode':10} {'k tuples/s':>10} {'overhead':>9} {'95 % bounds':>16} "
          f"{'700':>8} {'peak MB':>8} {'of none':>7} {'above input':>11}")  # fmt: skip
    for name in QUERIES:
        for build in builds:
            for mode in MODES:
                if any(query(build, name, mode, alone=alone) in times for alone in (False, True)):
                    tell_query(report, build, name, mode, times, peaks)


def tell_query(report: Report, build: str, name: str, mode: str, times: Times, peaks: Peaks) -> None:
    rate = 1 / estimate(times[query(build, name, mode, alone=mode not in SIDE_BY_SIDE)]).median
    over = overhead(times, build, name, mode)
    figure = {"query": name, "build": build, "mode": mode, "tuples_per_s": rate, "overhead_percent": over._asdict()}
    row = (f"{name:8} {build:8} {mode:10} {rate / 1e3:>10.0f} {over.median:>8.1f}% "
           f"{over.low:>7.1f} .. {over.high:>4.1f}%")  # fmt: skip
    usual = overhead(times, build, name, mode, relaxed=False)
    if math.isnan(usual.median):
        row += f"{'-':>9}"
    else:
        row += f" {usual.median:>7.1f}%"
        figure["overhead_python_thresholds_percent"] = usual._asdict()
    if (build, name, mode) in peaks:
        peak, bare, above_nothing = [peaks[build, name, each] for each in (mode, "none", "input")]
        row += f" {peak:>8.1f} {peak / bare:>6.2f}x {peak - above_nothing:>8.1f} MB"
        figure |= {"peak_mb": peak, "peak_above_input_mb": peak - above_nothing}
    print(row)
    report.figures.append(figure)


def tell_peers(report: Report, builds: list[str], sizes: Sizes, times: Times) -> None:
    for name in installed(sizes):
        rate = 1 / estimate(times[peer(name, sizes.peers[name])]).median
        print(f"{'Q1':8} {name:8} {'none':10} {rate / 1e3:>10.0f}")
        report.figures.append({"query": "Q1", "build": name, "mode": "none", "tuples_per_s": rate})
    alone = {name: 1 / estimate(times[singly(name, sizes.singly)]).median for name in [*builds, *installed(sizes)]}
    rates = ", ".join(f"{name} {rate / 1e3:.1f}" for name, rate in alone.items())
    print(f"Q1 none, fed one by one: {rates} k tuples/s")
    report.figures.append({"query": "Q1", "mode": "none", "one_by_one_tuples_per_s": alone})


def tell_windows(report: Report, builds: list[str], sizes: Sizes, times: Times) -> None:
    print("\nus per tuple in windows of size/advance" + "".join(f"{overlap:>9}" for overlap in OVERLAPS))
    for build in builds:
        for group in GROUPS:
            spent = [times[window(build, group, overlap, sizes.window_tuples)] for overlap in OVERLAPS]
            costs = [estimate(each).median * 1e6 for each in spent]
            print(f"{build:8} {group:30}" + "".join(f"{cost:>9.2f}" for cost in costs))
            report.figures.append({"build": build, "aggregators": group, "overlaps": OVERLAPS, "us_per_tuple": costs})


def tell_traversal(report: Report, builds: list[str], sizes: Sizes, times: Times) -> None:
    print(f"\nus to unfold one result of so many source tuples\n{'':19}"
          + "".join(f"{size:>9}" for size in PROVENANCE_SIZES))  # fmt: skip
    for build in builds:
        for mode in ("segments", "genealog"):
            spent = [times[traversal(build, mode, size, sizes.traversed_tuples)] for size in PROVENANCE_SIZES]
            costs = [estimate(each).median * 1e6 for each in spent]
            print(f"{build:8} {mode:10}" + "".join(f"{cost:>9.1f}" for cost in costs))
            report.figures.append({
                "build": build, "mode": mode, "provenance_sizes": PROVENANCE_SIZES, "us_per_result": costs
            })  # fmt: skip
    print()


def overhead(times: Times, build: str, name: str, mode: str, relaxed: bool = True) -> Estimate:
    """In percent of mode none, in the same build and measured in the same way."""
    alone = mode not in SIDE_BY_SIDE
    with_it, without = query(build, name, mode, relaxed, alone), query(build, name, "none", relaxed, alone)
    if with_it not in times or without not in times:
        return Estimate(math.nan, math.nan, math.nan)
    return Estimate(*[(ratio - 1) * 100 for ratio in ratios(times[with_it], times[without])])


def worst_growth(times: Times, build: str, group: str, tuples: int) -> float:
    """The cost of a tuple at the dearest overlap, in terms of the cost at the smallest."""
    spent = [times.get(window(build, group, overlap, tuples)) for overlap in OVERLAPS]
    grown = [ratios(each, spent[0]).median for each in spent[1:] if each is not None and spent[0] is not None]
    return max(grown, default=math.nan)


def set_goals(report: Report, sizes: Sizes, times: Times, peaks: Peaks) -> None:
    """A build that could not be made has no figures: its goals are missed."""
    for build in BUILDS:
        for name in EVALUATED:
            over = overhead(times, build, name, "segments")
            label = f"{name.lower()}_segments_overhead"
            report.goal(f"{label}_{build}_median_{sizes.of(name)}", over.median, "<=", 5, "%")
            report.goal(f"{label}_{build}_upper_95_bound_{sizes.of(name)}", over.high, "<=", 7, "%")
        for name in EVALUATED:
            peak = peaks.get((build, name, "segments"), math.nan) / peaks.get((build, name, "none"), math.nan)
            report.goal(f"{name.lower()}_segments_peak_rss_over_none_{build}", peak, "<=", 1.15, "x")
    # Each as it takes a list of items if nothing else is said: ours cuts it up, the others go item by item. Then the
    # others given lists as long as ours.
    ours = times[query("pure", "Q1", "none", alone=True)]
    for name, factor in (("streamz", 8), ("bytewax", 20)):
        for fed, variant in (("as_is", singly(name, sizes.singly)), ("lists_like_ours", peer(name, sizes.peers[name]))):
            theirs = times.get(variant)
            faster = ratios(theirs, ours).median if theirs else math.nan
            report.goal(f"q1_none_pure_over_{name}_fed_{fed}_{sizes.of('Q1')}", faster, ">=", factor, "x")
    for name in EVALUATED:
        slow, fast = times[query("pure", name, "segments")], times.get(query("compiled", name, "segments"))
        gain = ratios(slow, fast).median if fast else math.nan
        report.goal(f"{name.lower()}_segments_compiled_over_pure_{sizes.of(name)}", gain, ">=", 2, "x")
    for build in BUILDS:
        for group in GROUPS:
            grown = worst_growth(times, build, group, sizes.window_tuples)
            report.goal(f"cost_per_tuple_{group}_{build}_size_over_advance_4_to_120", grown, "<=", 1.2, "x")


if __name__ == "__main__":
    main()

"""What the live graph costs: edges per second, CPU, latency and state of the Spark job on two cores.

A log is written as translators write it, 100,000 edges at a time, and the job follows it: once into nothing, once into
SQLite. Beside it, in the same session and on the same logs: the same graph from Spark's own operators (ank-n), and a
query that only reads the log and counts. Times are from the append to the log until everything is stored; CPU is that
of all processes. Generating the log is not measured.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict

from bench._goals import Report, parse_arguments
from bench._graph_log import Shape
from bench._spark_queries import Bench, Contender, Cost, bench, by_default, chunked, counting, native

BATCH = 100_000
MAIN = Shape()
RATE = 2_000


def main() -> None:
    report = parse_arguments("spark_graph", __doc__.splitlines()[0])
    with bench() as at:
        for shape in [MAIN] if report.quick else _shapes(agents=2):
            _compare(report, at, shape, warm=shape != MAIN)
        _latency(report, at)
        _growth(report, at)
    if not report.quick:
        with bench(driver_memory="4g") as at:  # what ank-n keeps of a chain of three does not fit into less
            for place, shape in enumerate(_shapes(agents=3)):
                _compare(report, at, shape, warm=place > 0)
    report.finish()


def _shapes(agents: int) -> list[Shape]:
    """The main one first."""
    shapes = [Shape(size, overlap, agents) for size in (50, 10, 192) for overlap in (0.25, 0.0, 0.75)]
    return sorted(shapes, key=lambda shape: shape != MAIN)


def _compare(report: Report, at: Bench, shape: Shape, warm: bool) -> None:
    """All contenders in turn. Once Java has compiled what one shape needs, others need less time to get going."""
    found: dict[str, Cost] = {}
    contenders: dict[str, tuple[Contender, bool]] = {
        "into nothing": (chunked, False),
        "into SQLite": (chunked, True),
        "two levels, into SQLite": (by_default, True),
        "ank-n into nothing": (native, False),
        "count only": (counting, False),
    }
    if shape.agents == 3:
        del contenders["two levels, into SQLite"]
    for name, (make, to_store) in contenders.items():
        if make is native:  # which takes long enough
            warm_up, batches = (1, 2)
        elif report.quick:
            warm_up, batches = (5, 4)
        else:
            warm_up, batches = (3, 4) if warm else (8, 8)
        with at.query(make, shape, to_store=to_store) as query:
            for _ in range(warm_up):  # it takes Java so long to compile what it runs
                query.feed(BATCH)
            costs = [query.feed(BATCH) for _ in range(batches)]
            kept = query.job.progress
        cost = found[name] = _median(costs)
        state = {"state_bytes": kept.figures.state_bytes, "state_memory_bytes": kept.state_memory_bytes}
        report.figures.append({"shape": asdict(shape), "query": name, **asdict(cost), **state})
        print(
            f"{shape}: {name}: {cost.edges_per_s:,.0f} edges/s, {cost.wall_s * 1000:.0f} ms per batch, "
            f"CPU {cost.cpu_ms_per_100k:.0f} ms per 100k edges, "
            f"state {kept.figures.state_bytes / 1e6:.1f} MB, its stores' memory {kept.state_memory_bytes / 1e6:.0f} MB",
            flush=True,
        )
    if shape == MAIN:
        nothing, sqlite, others = found["into nothing"], found["into SQLite"], found["ank-n into nothing"]
        report.goal("edges per second into nothing", nothing.edges_per_s, ">=", 100_000)
        report.goal("edges per second into SQLite", sqlite.edges_per_s, ">=", 70_000)
        report.goal("edges per second over those of ank-n", nothing.edges_per_s / others.edges_per_s, ">=", 1.3, "x")


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        costs[0].edges,
        statistics.median(each.wall_s for each in costs),
        statistics.median(each.cpu_s for each in costs),
    )


def _latency(report: Report, at: Bench) -> None:
    seconds = 12 if report.quick else 60
    with at.query(by_default, MAIN, to_store=True, trigger_s=1.0) as query:
        query.feed(RATE)
        query.feed(RATE)
        latencies = query.feed_steadily(RATE, seconds)
    p50, p95 = (statistics.quantiles(latencies, n=100)[place] for place in (49, 94))
    print(f"{RATE} edges/s for {seconds} s: from append to store p50 {p50:.2f} s, p95 {p95:.2f} s", flush=True)
    report.figures.append({"rate": RATE, "p50_s": p50, "p95_s": p95})
    report.goal(f"p95 latency at {RATE} edges/s", p95, "<=", 2.0, " s")


def _growth(report: Report, at: Bench) -> None:
    """The same increment again and again: does an edge cost more when millions are there?"""
    first, last = (100_000, 1_000_000) if report.quick else (1_000_000, 10_000_000)
    around = max(first // BATCH, 3)
    with at.query(by_default, MAIN, to_store=True) as query:
        for _ in range(5):
            query.feed(BATCH)
        costs = [query.feed(BATCH) for _ in range(last // BATCH)]
    early, late = _median(costs[:around]), _median(costs[-around:])
    ratio = late.cpu_s / early.cpu_s
    print(
        f"100k edges cost {early.cpu_ms_per_100k:.0f} ms CPU up to {first:,} edges, {late.cpu_ms_per_100k:.0f} ms "
        f"up to {last:,}; batches {early.wall_s * 1000:.0f} and {late.wall_s * 1000:.0f} ms"
    )
    report.figures.append({"growth": [asdict(each) for each in costs]})
    report.goal(f"CPU per edge at {last:,} edges over that at {first:,}", ratio, "<=", 1.25)


if __name__ == "__main__":
    main()

"""What capturing a workflow costs on the device: Threadline next to ProvLight, Flowcept and OpenTelemetry.

The workload is that of the ProvLight paper (bench/_capture_workload.py has it and both kinds of data), with tasks that
take no time and tasks of 0.05 s. Every run is a fresh process, and every figure is per event, begin or end of a task.
The workflow has 200 events, so whatever is done once at the end of a process weighs as much as all of them; workflows
that are ten times as long ("x 10") show how it is without that.

- caller: wall time of begin() or end() on the calling thread, p50 and p99; next to it the p50 with the making of the
  objects that they are called with. p50 is the median over the rounds, p99 that of all calls of all rounds.
- CPU: of the whole process, all threads, from before the first task until everything is sent and acknowledged, less
  what the tasks take to sleep, and above what the same workload takes without capture.
- IP bytes and packets towards the server (bench/_capture_traffic.py says how they are counted).
- added RSS: the peak, above that of the same workload without capture in an otherwise bare interpreter.
- import CPU: a fresh interpreter, what an application has to import.
- delivery: the share of the events that reaches a subscriber at the MQTT broker, without loss and when a link loses 5 %
  of the datagrams in each direction. Only for those that use UDP: TCP sends again by itself.

All contenders take turns within a round, in every other round backwards, and ratios are taken per round. Timed runs
with tasks of 0 s go straight to the servers, one at a time; what they send is counted before, in a round of its own.
Processes with tasks of 0.05 s sleep nearly all the time, so all contenders run at once, through the counters.

ProvLight is made again after its paper (bench/_capture_provlight.py), ungrouped and with ended tasks in groups of 50.
Flowcept writes a file when its buffer is closed, or sends to Redis where there is one. Threadline spools to disk; it is
done when the translator behind the same gateway and broker has acknowledged its batches, which are in the log then.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench._capture_contenders import (
    CONTENDERS,
    FLOWCEPT,
    FLOWCEPT_REDIS,
    NOTHING,
    PROVLIGHT,
    THREADLINE,
    Contender,
    Measured,
    Servers,
    Worker,
    import_cpu_ms,
    why_not,
)
from bench._capture_servers import EVENTS_IN
from bench._capture_traffic import Traffic
from bench._capture_workload import Workload
from bench._goals import Report, end_well
from bench._statistics import ratios
from threadline.lossy_link import LossyLink

DATA = (("paper", 10), ("paper", 100), ("real", 10), ("real", 100))
TASK_S = 0.05
INSTANT = tuple(Workload(kind, attributes, 0.0) for kind, attributes in DATA)
SLOW = tuple(Workload(kind, attributes, TASK_S) for kind, attributes in DATA)
LONG = tuple(Workload(kind, 10, 0.0, times=10) for kind in ("paper", "real"))
LOSS = 0.05
LEAST_CPU_US = 1.0


class Sizes(NamedTuple):
    """How often everything is measured."""

    instant_rounds: int
    slow_rounds: int
    imports: int
    lossy_rounds: int


QUICK = Sizes(instant_rounds=3, slow_rounds=1, imports=5, lossy_rounds=1)
FULL = Sizes(instant_rounds=11, slow_rounds=3, imports=15, lossy_rounds=3)

Runs = dict[tuple[Contender, Workload], list[Measured]]
Counts = dict[tuple[Contender, Workload], Traffic]
Delivered = dict[tuple[Contender, Workload, float], list[float]]
ImportTimes = dict[Contender, list[float]]


class Figures(NamedTuple):
    """All that was measured."""

    runs: Runs
    counts: Counts
    imports: ImportTimes
    delivered: Delivered


def main() -> None:
    report, only = parse_arguments()
    sizes = QUICK if report.quick else FULL
    contenders = [each for each in CONTENDERS if not only or each.name in only]
    for contender in list(contenders):
        reason = why_not(contender)
        if reason:
            print(f"{contender.name} is not measured: {reason}")
            contenders.remove(contender)
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder), contenders) as servers:
        figures = measure(sizes, contenders, servers, Path(folder))
    tell_runs(report, figures, contenders)
    tell_imports(report, figures, contenders)
    tell_delivery(report, figures)
    set_goals(report, figures, skip_unmeasured=bool(only))
    report.finish()


def parse_arguments() -> tuple[Report, list[str]]:
    """The flags of every benchmark, and the contenders if not all of them are wanted. From here on signals end it with
    everything cleaned up."""
    parser = argparse.ArgumentParser(prog="bench/capture.py", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and goals to FILE")
    names = [each.name for each in CONTENDERS]
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="NAME", help=f"of {', '.join(names)}")
    arguments = parser.parse_args()
    end_well()
    return Report("capture", arguments.quick, arguments.json), arguments.only


# --- measuring ----------------------------------------------------------------------------


def measure(sizes: Sizes, contenders: list[Contender], servers: Servers, folder: Path) -> Figures:
    """Everything, cheapest first."""
    figures = Figures(defaultdict(list), {}, defaultdict(list), defaultdict(list))
    for number in range(-1, sizes.imports):
        for contender in contenders:
            cpu_ms = import_cpu_ms(contender)
            if number >= 0:  # the one before writes the byte code
                figures.imports[contender].append(cpu_ms)
    everyone = [NOTHING, *contenders]
    for workload in INSTANT:
        for contender, measured in run_at_once(workload, contenders, servers, folder).items():
            if measured.traffic is not None:
                figures.counts[contender, workload] = measured.traffic
            if contender.sends_to == "gateway":
                share = delivered_share(contender, measured.client, workload, servers)
                figures.delivered[contender, workload, 0.0].append(share)
    for number in range(sizes.instant_rounds):
        for workload in (*INSTANT, *LONG) if number == 0 else INSTANT:
            for contender in everyone if number % 2 == 0 else reversed(everyone):
                with Worker(contender, workload, servers.url(contender), folder) as worker:
                    worker.go()
                    figures.runs[contender, workload].append(worker.result())
    for _ in range(sizes.slow_rounds):
        for workload in SLOW:
            for contender, measured in run_at_once(workload, everyone, servers, folder).items():
                figures.runs[contender, workload].append(measured)
                if measured.traffic is not None:
                    figures.counts[contender, workload] = measured.traffic
    for seed in range(sizes.lossy_rounds):
        for workload in INSTANT:
            for contender, share in deliver_at_once(workload, contenders, servers, folder, seed).items():
                figures.delivered[contender, workload, LOSS].append(share)
    return figures


def run_at_once(
    workload: Workload, contenders: list[Contender], servers: Servers, folder: Path
) -> dict[Contender, Measured]:
    """All contenders side by side, each through a counter of its own."""
    measured: dict[Contender, Measured] = {}
    with ExitStack() as stack:
        workers: dict[Contender, tuple[Worker, Traffic | None]] = {}
        for contender in contenders:
            url, traffic = stack.enter_context(servers.counting(contender))
            workers[contender] = stack.enter_context(Worker(contender, workload, url, folder)), traffic
        for worker, _ in workers.values():
            worker.go()
            time.sleep(workload.task_s / len(workers))  # so that they do not all wake at the same moment
        for contender, (worker, traffic) in workers.items():
            measured[contender] = worker.result(traffic)
    return measured


def deliver_at_once(
    workload: Workload, contenders: list[Contender], servers: Servers, folder: Path, seed: int
) -> dict[Contender, float]:
    """The share of events that arrives although links lose datagrams, from when the contenders are connected."""
    over_udp = [each for each in contenders if each.sends_to == "gateway"]
    if not over_udp:
        return {}
    with ExitStack() as stack:
        workers: dict[Contender, Worker] = {}
        for contender in over_udp:
            link = stack.enter_context(LossyLink(servers.gateway.address, seed=seed))
            workers[contender] = stack.enter_context(Worker(contender, workload, link.url, folder))
            link.set(loss=LOSS)
        for worker in workers.values():
            worker.go()
        for worker in workers.values():
            worker.result()
    return {
        contender: delivered_share(contender, worker.client, workload, servers) for contender, worker in workers.items()
    }


def delivered_share(contender: Contender, client: str, workload: Workload, servers: Servers) -> float:
    """Of the task events of a run, those that have arrived; each counts once."""
    events_in = EVENTS_IN[contender.module]
    servers.gateway.arrivals.wait_until_quiet()
    payloads = servers.gateway.arrivals.of(client)
    return len({event for payload in payloads for event in events_in(payload, client)}) / workload.events


# --- telling ------------------------------------------------------------------------------


def p50(runs: list[Measured]) -> list[float]:
    """Of each round."""
    return [statistics.median(run.call_us) for run in runs]


def p99(runs: list[Measured]) -> float:
    """Of all rounds together."""
    calls = sorted(call for run in runs for call in run.call_us)
    return calls[int(len(calls) * 0.99)]


def added_cpu_us(runs: Runs, contender: Contender, workload: Workload) -> list[float]:
    """Of each round, above what the workload takes by itself."""
    alone_us = statistics.median(run.cpu_us for run in runs[NOTHING, workload])
    return [run.cpu_us - alone_us for run in runs[contender, workload]]


def added_rss_mb(runs: Runs, contender: Contender, workload: Workload) -> float:
    alone_mb = statistics.median(run.peak_rss_mb for run in runs[NOTHING, workload])
    return statistics.median(run.peak_rss_mb for run in runs[contender, workload]) - alone_mb


def tell_runs(report: Report, figures: Figures, contenders: list[Contender]) -> None:
    """A line for each contender and workload."""
    runs = figures.runs
    for workload in (*INSTANT, *LONG, *SLOW):
        print(f"{workload.name:<22} {'p50 us':>8} {'objects':>8} {'p99 us':>8} {'mean us':>8} {'CPU us':>8} "
              f"{'IP bytes':>9} {'packets':>8} {'RSS MB':>7}")  # fmt: skip
        for contender in contenders:
            of_this = runs[contender, workload]
            traffic = figures.counts.get((contender, workload))
            figure = {
                "workload": workload.name, "contender": contender.name, "rounds": len(of_this),
                "caller_p50_us": statistics.median(p50(of_this)),
                "caller_with_objects_p50_us": statistics.median(statistics.median(run.event_us) for run in of_this),
                "caller_p99_us": p99(of_this),
                "caller_mean_us": statistics.median(statistics.fmean(run.call_us) for run in of_this),
                "added_cpu_us": statistics.median(added_cpu_us(runs, contender, workload)),
                "ip_bytes": traffic.ip_bytes / workload.events if traffic else None,
                "packets": traffic.packets / workload.events if traffic else None,
                "added_rss_mb": added_rss_mb(runs, contender, workload),
            }  # fmt: skip
            report.figures.append(figure)
            network = f"{figure['ip_bytes']:>9.1f} {figure['packets']:>8.3f}" if traffic else f"{'none':>9} {'':>8}"
            print(f"  {contender.name:<20} {figure['caller_p50_us']:>8.2f} "
                  f"{figure['caller_with_objects_p50_us']:>8.2f} {figure['caller_p99_us']:>8.1f} "
                  f"{figure['caller_mean_us']:>8.2f} {figure['added_cpu_us']:>8.1f} "
                  f"{network} {figure['added_rss_mb']:>7.1f}")  # fmt: skip


def tell_imports(report: Report, figures: Figures, contenders: list[Contender]) -> None:
    for contender in contenders:
        cpu_ms = statistics.median(figures.imports[contender])
        print(f"import {contender.name:<15} {cpu_ms:>7.1f} ms CPU")
        report.figures.append({"contender": contender.name, "import_cpu_ms": cpu_ms})


def tell_delivery(report: Report, figures: Figures) -> None:
    for (contender, workload, loss), shares in figures.delivered.items():
        print(f"delivery at {loss:.0%} loss, {workload.data_name:<10} {contender.name:<13} "
              f"{', '.join(f'{share:.1%}' for share in shares)}")  # fmt: skip
        report.figures.append(
            {"contender": contender.name, "data": workload.data_name, "loss": loss, "delivered": shares}
        )


# --- goals --------------------------------------------------------------------------------


def set_goals(report: Report, figures: Figures, skip_unmeasured: bool) -> None:
    """What was not measured is missed, unless it was not wanted."""

    def goal(name: str, measured: float, op: str, wanted: float, unit: str = "") -> None:
        if not (skip_unmeasured and math.isnan(measured)):
            report.goal(name, measured, op, wanted, unit)

    for workload in (*INSTANT, *SLOW):
        goal(f"caller p50 vs ProvLight ({workload.name})", p50_under(figures, PROVLIGHT, workload), ">=", 40, "x")
        flowcepts = [p50_under(figures, each, workload) for each in (FLOWCEPT, FLOWCEPT_REDIS)]
        fastest = min((each for each in flowcepts if not math.isnan(each)), default=math.nan)
        goal(f"caller p50 vs Flowcept ({workload.name})", fastest, ">=", 3, "x")
        goal(f"CPU vs ProvLight ({workload.name})", cpu_under(figures, PROVLIGHT, workload), ">=", 10, "x")
    for kind, attributes, most_bytes in (("paper", 10, 25), ("paper", 100, 25), ("real", 10, 95)):
        for task_s in (0.0, TASK_S):
            workload = Workload(kind, attributes, task_s)
            traffic = figures.counts.get((THREADLINE, workload))
            ip_bytes = traffic.ip_bytes / workload.events if traffic else math.nan
            goal(f"IP bytes per event ({workload.name})", ip_bytes, "<=", most_bytes, "B")
    for instant, slow in zip(INSTANT, SLOW, strict=True):
        goal(f"added RSS ({instant.data_name})", most_added_rss_mb(figures, THREADLINE, (instant, slow)), "<=", 6, "MB")
    goal("import CPU over ProvLight", imports_over(figures, PROVLIGHT), "<=", 2.5, "x")
    for workload in INSTANT:
        for loss in (0.0, LOSS):
            percent = 100 * min(figures.delivered.get((THREADLINE, workload, loss), [math.nan]))
            goal(f"delivery at {loss:.0%} loss ({workload.data_name})", percent, "==", 100, "%")


def p50_under(figures: Figures, peer: Contender, workload: Workload) -> float:
    """How many times Threadline's p50 goes into the peer's."""
    ours, theirs = figures.runs.get((THREADLINE, workload)), figures.runs.get((peer, workload))
    return ratios(p50(theirs), p50(ours)).median if ours and theirs else math.nan


def cpu_under(figures: Figures, peer: Contender, workload: Workload) -> float:
    """The same of CPU. Both are above the bare workload; too little to measure would divide by nothing."""
    ours, theirs = (figures.runs.get((each, workload)) for each in (THREADLINE, peer))
    if not ours or not theirs:
        return math.nan
    ours_us, theirs_us = (added_cpu_us(figures.runs, each, workload) for each in (THREADLINE, peer))
    return ratios(theirs_us, [max(us, LEAST_CPU_US) for us in ours_us]).median


def most_added_rss_mb(figures: Figures, contender: Contender, workloads: tuple[Workload, ...]) -> float:
    if any((contender, workload) not in figures.runs for workload in workloads):
        return math.nan
    return max(added_rss_mb(figures.runs, contender, workload) for workload in workloads)


def imports_over(figures: Figures, peer: Contender) -> float:
    ours, theirs = figures.imports.get(THREADLINE), figures.imports.get(peer)
    return ratios(ours, theirs).median if ours and theirs else math.nan


if __name__ == "__main__":
    main()

"""Many devices at once: what capture costs them, how much the whole chain takes, and whether it stays as it is.

Four parts. ProvLight's table IX: 8, 16, 32 and 64 devices run tasks of 0.5 s with 100 attributes each, every device a
process; the ProvLight re-creation does the same with 64, and so do one that only keeps a copy of the attributes and one
that does nothing, which tell what a call costs by itself that finds the caches cold. The highest rate of delivery
origins (results of 50 readings, a quarter of them shared) that the chain of broker, gateway, translator, Spark and API
sustains while its devices run on the same cores, found in steps, with what stood in the way of more. A long time at
70 % of it: memory and losses. Many light devices, which say one small reading every 5 s each.

Memory is flat if no component has more than 1.1 times as much in the last quarter of the run as in the second, by the
medians of what is its own (no pages of files); less than 8 MB more is no growth.

Under --quick everything is shorter, table IX is 8 and 64 devices and ProvLight, and the search begins at a rate from
which it should take two steps.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench._capture_contenders import COPY, NOTHING, PROVLIGHT, THREADLINE, why_not
from bench._capture_servers import SnServer
from bench._goals import Report, parse_arguments
from bench._load_chain import LIGHT_EVERY_S, QUERY_DEVICES, growths, load
from bench._load_devices import Captured, capture
from threadline.load.chain import Chain, started
from threadline.load.figures import at_work, components, rates
from threadline.load.outcome import Outcome
from threadline.load.steps import LEAST_ACHIEVED

DEVICES = (8, 16, 32, 64)
MOST_OVER_8 = 1.5
LEAST_UNDER_PROVLIGHT = 20.0
LEAST_ORIGINS = 10_000.0
SHARE = 0.7
MOST_GROWTH = 1.1


def main() -> None:
    report = parse_arguments("load", __doc__.splitlines()[0])
    part = "table IX"
    try:
        with tempfile.TemporaryDirectory(prefix="threadline-bench-") as name:
            table_ix(report, Path(name))
        part = "sustained"
        with (
            tempfile.TemporaryDirectory(prefix="threadline-bench-") as name,
            started(Path(name), embedded=False, with_spark=True) as chain,
        ):
            highest = sustained(report, chain)
            part = "steady"
            steady(report, chain, highest)
            part = "light"
            light(report, chain)
    except BaseException:
        report.goal(f"all parts brought to their end (not so: {part})", math.nan, "==", 1)
        raise
    finally:
        report.finish()


def table_ix(report: Report, folder: Path) -> None:
    """The caller's time with more and more devices."""
    counts, tasks = ((DEVICES[0], DEVICES[-1]), 10) if report.quick else (DEVICES, 100)
    found: list[Captured] = []
    with SnServer(folder) as server:
        others = (PROVLIGHT,) if report.quick else (PROVLIGHT, COPY, NOTHING)
        runs = [(THREADLINE, count) for count in counts] + [(contender, DEVICES[-1]) for contender in others]
        for contender, count in runs:
            if (missing := why_not(contender)) is not None:
                print(f"{contender.name}: {missing}")
                continue
            found.append(capture(contender, count, tasks, server, folder))
            print(found[-1].line(), flush=True)
    report.figures += [{"part": "table IX", **asdict(each)} for each in found]
    mean_us = {(each.contender, each.devices): each.mean_us for each in found}
    ours_us = mean_us[THREADLINE.name, DEVICES[-1]]
    size = f"{tasks} tasks of 0.5 s each"
    delivered = min(each.delivered for each in found if each.contender == THREADLINE.name)
    report.goal(f"share of events delivered, least of our own runs ({size})", delivered, "==", 1)
    over = ours_us / mean_us[THREADLINE.name, DEVICES[0]]
    report.goal(f"mean caller time at 64 devices over that at 8 ({size})", over, "<=", MOST_OVER_8, "x")
    under = mean_us.get((PROVLIGHT.name, DEVICES[-1]), math.nan) / ours_us
    report.goal(
        f"ProvLight's mean caller time over ours at 64 devices ({size})", under, ">=", LEAST_UNDER_PROVLIGHT, "x"
    )


def sustained(report: Report, chain: Chain) -> float:
    """The highest rate, as it was said and not as it was asked for, and what stood in the way."""
    first, step_s, close = (36_000.0, 8.0, 1.6) if report.quick else (8_000.0, 40.0, 1.1)
    print(f"highest sustained rate of {QUERY_DEVICES} devices, steps of {step_s:g} s", flush=True)
    outcome = load(chain, "query", QUERY_DEVICES, first, step_s=step_s, close=close)
    report.figures.append({"part": "sustained", **_figures(outcome)})
    highest = outcome.highest.achieved if outcome.highest is not None else 0.0
    if outcome.bottleneck is not None:
        print(f"first bottleneck: {outcome.bottleneck.component}: {outcome.bottleneck.why}")
    size = f"steps of {step_s:g} s, {close:g} times apart at most"
    report.goal(f"highest sustained delivery origins per second, end to end ({size})", highest, ">=", LEAST_ORIGINS)
    report.goal("records lost while it was looked for", _lost(outcome), "==", 0)
    return highest


def steady(report: Report, chain: Chain, highest: float) -> None:
    """A long time at a rate that should be no trouble."""
    duration_s = 9.0 if report.quick else 1800.0
    size = f"{duration_s / 60:g} min at 70 % of the highest"
    said_goal = f"share of that rate that was said ({size})"
    grown_goal, lost_goal = f"most growth of a component's memory ({size})", f"records lost ({size})"
    if not highest:
        print(f"{size}: no rate was sustained, so there is none to stay at")
        report.goal(said_goal, math.nan, ">=", LEAST_ACHIEVED)
        report.goal(grown_goal, math.nan, "<=", MOST_GROWTH, "x")
        report.goal(lost_goal, math.nan, "==", 0)
        return
    print(f"{size}: {SHARE * highest:,.0f} origins/s", flush=True)
    outcome = load(chain, "query", QUERY_DEVICES, SHARE * highest, duration_s=duration_s)
    grown = growths(at_work(outcome))
    for each in grown:
        print(
            f"  memory of {each.component:<10} {each.early_bytes / 1e6:8.1f} MB, then {each.late_bytes / 1e6:8.1f} MB"
        )
    report.figures.append({"part": "steady", **_figures(outcome), "growth": [asdict(each) for each in grown]})
    said = outcome.units / (SHARE * highest * outcome.at_work_s) if outcome.at_work_s else 0.0
    report.goal(said_goal, said, ">=", LEAST_ACHIEVED)
    worst = max((each.ratio for each in grown), default=math.nan)
    report.goal(grown_goal, worst, "<=", MOST_GROWTH, "x")
    report.goal(lost_goal, _lost(outcome), "==", 0)


def light(report: Report, chain: Chain) -> None:
    """Very many devices that say little."""
    devices, duration_s = (100, 8.0) if report.quick else (1_000, 120.0)
    print(f"{devices} light devices", flush=True)
    outcome = load(chain, "light", devices, devices / LIGHT_EVERY_S, duration_s=duration_s)
    report.figures.append({"part": "light", **_figures(outcome)})
    published = sum(end.said.readings > 0 and not (end.left or end.unwritten or end.dropped) for end in outcome.ends)
    report.goal("light devices connected", outcome.connected, "==", devices)
    report.goal("light devices that have published all that they said", published, "==", devices)
    report.goal(f"records lost ({devices} light devices)", _lost(outcome), "==", 0)


def _lost(outcome: Outcome) -> float:
    """Records, and batches that never left their device. If nothing was said or nobody has looked, it is not known."""
    if not outcome.units or not outcome.checked:
        return math.nan
    return sum(abs(loss.said - loss.found) for loss in outcome.losses) + outcome.left


def _figures(outcome: Outcome) -> dict[str, object]:
    return {
        "devices": outcome.options.devices,
        "rate": outcome.options.rate,
        "units": outcome.units,
        "caller_us": outcome.caller_us.figures(),
        "to_graph_ms": outcome.late_ms.figures(),
        "rates_per_s": rates(outcome),
        "components": components(outcome),
        "steps": [asdict(step) for step in outcome.steps],
        "bottleneck": asdict(outcome.bottleneck) if outcome.bottleneck else None,
        "losses": [str(loss) for loss in outcome.losses],
    }


if __name__ == "__main__":
    main()

"""What rate is sustained: how a step is judged, which one comes next, and what stood in the way.

A rate is sustained if nothing piles up while it lasts: the devices say all that they should, the batches that they keep
and the rows that Spark has not read do not grow by more than a small share of what flows, and results become visible no
later at the end than at the beginning. The first third of a step is left out: it belongs to the change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from threadline.load.chain import SPARK, TRANSLATOR
from threadline.load.histogram import Histogram
from threadline.load.watch import DEVICES, SELF, Sample

FACTOR = 1.5
CLOSE = 1.1
"""Two rates that are no further apart need no step between them."""
LEAST_ACHIEVED = 0.95
MOST_KEPT = 0.05
MOST_UNREAD = 0.1  # Spark reads in large pieces, so this is known less well
MOST_LATER = 0.05
LEAST_BEHIND_S = 1.0  # Spark stores once in a second or two: what is less may be chance
_FULL = 0.93
_SETTLE = 1 / 3
_LEAST_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class Step:
    """A rate that was tried, and how it went."""

    rate: float
    from_s: float
    to_s: float
    achieved: float
    """Units per second."""
    kept: float
    """Of the batches that flowed, the share that more and more of them stayed with the devices."""
    unread: float
    """Of the rows that flowed, the share that Spark fell behind."""
    later: float
    """Seconds that results became later in each second."""
    late_p50_ms: float | None
    late_p99_ms: float | None
    cores: dict[str, float]
    machine_cores: float
    core_us_per_unit: dict[str, float]
    reasons: tuple[str, ...] = field(default=())

    @property
    def is_sustained(self) -> bool:
        return not self.reasons


def judge(samples: Sequence[Sample], rate: float, from_s: float, to_s: float) -> Step:
    """What the samples between two moments say of a rate."""
    begin_s = from_s + (to_s - from_s) * _SETTLE
    some = [each for each in samples if begin_s < each.at_s <= to_s]
    if len(some) < _LEAST_SAMPLES:
        raise ValueError(f"{len(some)} looks are too few to judge a rate by")
    late = Histogram()
    for each in some:
        late.merge(each.late_ms)
    achieved = _slope([(each.at_s, each.said) for each in some])
    kept = _share(some, [each.unacknowledged for each in some], "batches")
    unread = _share(some, [each.log_backlog for each in some], "rows")
    later = _slope([(each.at_s, at) for each in some if (at := each.late_ms.at(0.5)) is not None]) / 1000
    cores = {name: statistics.fmean(each.cores.get(name, 0.0) for each in some) for name in some[-1].cores}
    length_s = some[-1].at_s - some[0].at_s
    reasons = []
    if achieved < LEAST_ACHIEVED * rate:
        reasons.append(f"the devices said {achieved:,.0f} of {rate:,.0f} per second")
    if kept > MOST_KEPT:
        reasons.append(f"{kept:.0%} of the batches stayed with the devices")
    if unread > MOST_UNREAD and unread * length_s > LEAST_BEHIND_S:
        reasons.append(f"Spark did not read {unread:.0%} of the rows")
    if later > MOST_LATER and later * length_s > LEAST_BEHIND_S:
        reasons.append(f"results became {later:.2f} s later every second")
    return Step(
        rate=rate,
        from_s=from_s,
        to_s=to_s,
        achieved=achieved,
        kept=kept,
        unread=unread,
        later=later,
        late_p50_ms=late.at(0.5),
        late_p99_ms=late.at(0.99),
        cores=cores,
        machine_cores=statistics.fmean(each.machine_cores for each in some),
        core_us_per_unit={name: 1e6 * each / achieved for name, each in cores.items()} if achieved > 0 else {},
        reasons=tuple(reasons),
    )


def _share(samples: Sequence[Sample], backlog: Sequence[float | None], counter: str) -> float:
    """How fast a backlog grows, as a share of what the translator takes; 0 if nobody tells."""
    flows = [(each.at_s, flow) for each in samples if (flow := each.counted(TRANSLATOR, counter)) is not None]
    grows = [(each.at_s, value) for each, value in zip(samples, backlog, strict=True) if value is not None]
    flow_per_s = _slope(flows)
    return _slope(grows) / flow_per_s if flow_per_s > 0 else 0.0


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line that fits best."""
    if len(points) < 2:
        return 0.0
    times, values = zip(*points, strict=True)
    return float(statistics.linear_regression(times, values).slope)


class Stepper:
    """Which rate to try: higher and higher until one fails, then closer and closer to the highest that holds."""

    def __init__(self, first: float, close: float = CLOSE) -> None:
        self._close = close
        self.highest: float | None = None
        """The highest rate that was sustained."""
        self.lowest_failed: float | None = None
        self._next = first

    @property
    def rate(self) -> float | None:
        """The next one, None if it is known well enough."""
        if (
            self.highest is not None
            and self.lowest_failed is not None
            and self.lowest_failed <= self.highest * self._close
        ):
            return None
        return self._next

    def went(self, rate: float, is_sustained: bool) -> None:
        """How it went. One that fails below one that held is believed: so much was luck."""
        if is_sustained:
            self.highest = max(rate, self.highest or 0.0)
        else:
            self.lowest_failed = min(rate, self.lowest_failed or math.inf)
            if self.highest is not None and self.highest >= self.lowest_failed:
                self.highest = None
        if self.lowest_failed is None:
            self._next = rate * FACTOR
        elif self.highest is None:
            self._next = self.lowest_failed / FACTOR
        else:
            self._next = math.sqrt(self.highest * self.lowest_failed)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What stood in the way of more."""

    component: str
    why: str


def bottleneck(step: Step, cores: int) -> Bottleneck:
    """What a step that was not sustained shows: where it piles up, and who is busiest there."""
    chain = {name: used for name, used in step.cores.items() if name != SELF}
    if step.kept > MOST_KEPT or step.achieved < LEAST_ACHIEVED * step.rate:
        before_log = {name: used for name, used in chain.items() if name not in (SPARK, "api")}
        component = max(before_log, key=before_log.__getitem__, default=DEVICES)
    else:
        component = SPARK
    why = "; ".join(step.reasons)
    if step.machine_cores > _FULL * cores:
        most = max(chain, key=chain.__getitem__, default=component)
        why += f"; all {cores} cores are busy, with {most} more than with any other ({chain.get(most, 0.0):.2f} cores)"
    return Bottleneck(component, f"{why}; {component} uses {step.cores.get(component, 0.0):.2f} cores")

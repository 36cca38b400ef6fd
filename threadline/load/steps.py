"""What rate is sustained: how a step is judged, which one comes next, and what stood in the way.

A rate is sustained if nothing piles up while it lasts and nothing is given up: the devices say all that they should,
the batches that they keep and the rows that Spark has not read do not grow by more than a small share of what flows,
and results become visible no later at the end than at the beginning. The first third of a step is left out: it belongs
to the change. If nobody tells how far Spark is behind, it is not known.

What the devices said is judged process by process, by the times at which they told it: a report that is read late would
look as if nothing had been said meanwhile.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from threadline.load.chain import API, SPARK, TRANSLATOR
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
_LEAST_LOOKS = 4
_UNSEEN = "gateway, broker or translator"  # of a chain that was not started here


@dataclass(frozen=True, slots=True)
class Step:
    """A rate that was tried, and how it went."""

    rate: float
    from_s: float
    to_s: float
    achieved: float
    """Units per second."""
    is_short: bool
    """The devices said too little."""
    kept: float
    """Of the batches that the devices made, the share that more and more of them stayed with them."""
    dropped: int
    """Records that the devices gave up."""
    unread: float | None
    """Of the rows that flowed, the share that Spark fell behind; None if nobody tells."""
    later: float | None
    """Seconds that results became later in each second; None if too few became visible."""
    late_p50_ms: float | None
    late_p99_ms: float | None
    cores: dict[str, float]
    machine_cores: float
    core_us_per_unit: dict[str, float]
    untold: bool = False
    """Nobody tells how far Spark is behind, though there is one."""
    reasons: tuple[str, ...] = ()
    """Why it is not sustained."""

    @property
    def is_known(self) -> bool:
        return bool(self.reasons) or not self.untold

    @property
    def is_sustained(self) -> bool:
        return self.is_known and not self.reasons

    def fills(self, cores: int) -> bool:
        """Whether all cores were busy."""
        return self.machine_cores > _FULL * cores

    @property
    def verdict(self) -> str:
        if not self.is_known:
            return "not known: nobody tells how far Spark is behind"
        return f"not sustained: {'; '.join(self.reasons)}" if self.reasons else "sustained"


def judge(
    samples: Sequence[Sample], rate: float, from_s: float, to_s: float, *, with_spark: bool, per_step: int = 1
) -> Step | None:
    """What the samples between two moments say of a rate; None if they are too few to say anything. The devices say
    `per_step` units at a time."""
    during = [each for each in samples if from_s < each.at_s <= to_s]
    settled_s = from_s + (to_s - from_s) * _SETTLE
    some = [each for each in during if each.at_s > settled_s]
    if len(some) < _LEAST_LOOKS:
        return None
    late = Histogram()
    for each in some:
        late.merge(each.late_ms)
    achieved = _achieved(some, settled_s)
    made = _slope([(each.at_s, each.acknowledged + each.unacknowledged) for each in some])
    kept = _share(_slope([(each.at_s, each.unacknowledged) for each in some]), made)
    before = [each.dropped for each in samples if each.at_s <= from_s]
    dropped = during[-1].dropped - (before[-1] if before else 0)
    written = _trend(some, lambda each: each.counted(TRANSLATOR, "rows"))
    behind = _trend(some, lambda each: each.log_backlog)
    unread = None if written is None or behind is None else _share(behind, written)
    late_ms = _trend(some, lambda each: each.late_ms.at(0.5))
    later = None if late_ms is None else late_ms / 1000
    cores = {name: statistics.fmean(each.cores.get(name, 0.0) for each in some) for name in some[-1].cores}
    length_s = some[-1].at_s - some[0].at_s
    chance = per_step * len(some[-1].told)  # whether the last step of a process is counted
    is_short = achieved < LEAST_ACHIEVED * rate and (rate - achieved) * length_s > chance
    reasons = []
    if is_short:
        reasons.append(f"the devices said {achieved:,.0f} of {rate:,.0f} per second")
    if kept > MOST_KEPT:
        reasons.append(f"{kept:.0%} of the batches stayed with the devices")
    if dropped:
        reasons.append(f"the devices gave up {dropped:,} records")
    if unread is not None and unread > MOST_UNREAD and unread * length_s > LEAST_BEHIND_S:
        reasons.append(f"Spark did not read {unread:.0%} of the rows")
    if later is not None and later > MOST_LATER and later * length_s > LEAST_BEHIND_S:
        reasons.append(f"results became {later:.2f} s later every second")
    return Step(
        rate=rate,
        from_s=from_s,
        to_s=to_s,
        achieved=achieved,
        is_short=is_short,
        kept=kept,
        dropped=dropped,
        unread=unread,
        later=later,
        late_p50_ms=late.at(0.5),
        late_p99_ms=late.at(0.99),
        cores=cores,
        machine_cores=statistics.fmean(each.machine_cores for each in some),
        core_us_per_unit={name: 1e6 * each / achieved for name, each in cores.items()} if achieved > 0 else {},
        untold=with_spark and unread is None and later is None,
        reasons=tuple(reasons),
    )


def _achieved(samples: Sequence[Sample], from_s: float) -> float:
    """What all processes together said in a second, each by its own reports. One that told nothing said nothing."""
    found = 0.0
    for reports in zip(*(each.told for each in samples), strict=True):
        points = sorted({(at_s, said) for at_s, said in reports if at_s > from_s})
        found += _slope(points) if len(points) > 1 else 0.0
    return found


def _share(grows: float, flows: float) -> float:
    """How much of what flows piles up: all of it if a backlog grows though nothing flows."""
    if flows > 0:
        return grows / flows
    return 1.0 if grows > 0 else 0.0


def _trend(samples: Sequence[Sample], value_of: Callable[[Sample], float | None]) -> float | None:
    """How fast something grows; None if too few looks tell it."""
    points = [(each.at_s, value) for each in samples if (value := value_of(each)) is not None]
    return _slope(points) if len(points) >= _LEAST_LOOKS else None


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line that fits best."""
    times, values = zip(*points, strict=True)
    return float(statistics.linear_regression(times, values).slope)


class Stepper:
    """Which rate to try: higher and higher until one fails, then closer and closer to the highest that holds."""

    def __init__(self, first: float, close: float = CLOSE) -> None:
        self._close = close
        self.highest: float | None = None
        """The highest rate that was sustained."""
        self.lowest_failed: float | None = None
        self._doubted: set[float] = set()
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

    def went(self, rate: float, is_sustained: bool, *, is_plausible: bool = True) -> None:
        """How it went. One that fails below one that held is believed: so much was luck. But one whose failure is not
        plausible, as cores were idle, is tried once more: the search does not come back to it."""
        if not is_plausible and rate not in self._doubted:
            self._doubted.add(rate)
            return
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
    """What a step that was not sustained shows. If all cores are busy, everything piles up for want of them, and who
    uses most stands in the way of more. Else it is where it piles up, and who is busiest there; the devices stand in
    the way only if they said too little."""
    chain = {name: used for name, used in step.cores.items() if name != SELF}
    why = "; ".join(step.reasons)
    if chain and step.fills(cores):
        by_use = sorted(chain, key=chain.__getitem__, reverse=True)
        used = ", ".join(f"{name} {chain[name]:.2f}" for name in by_use)
        return Bottleneck(by_use[0], f"all {cores} cores are busy: {used}; {why}")
    if step.kept > MOST_KEPT or step.dropped or step.is_short:
        others = (SPARK, API) if step.is_short else (SPARK, API, DEVICES)
        before_log = {name: used for name, used in chain.items() if name not in others}
        component = max(before_log, key=before_log.__getitem__, default=_UNSEEN)
    else:
        component = SPARK
    if component in step.cores:
        why += f"; {component} uses {step.cores[component]:.2f} cores"
    return Bottleneck(component, why)

"""Before anything is measured: the first micro-batches of Spark take many times as long as the others."""

from __future__ import annotations

import time

from threadline.load.chain import SPARK, Stopped
from threadline.load.latency import Arrivals
from threadline.load.listener import Listener
from threadline.load.outcome import Outcome
from threadline.load.patience import LOOK_S, Patience
from threadline.load.watch import Watch

_MOST_S = 120.0
_BATCHES = 5
_STEPS = 8
_SHARE = 0.1


def warm_up(outcome: Outcome, watch: Watch, arrivals: Arrivals | None, patience: Patience, listener: Listener) -> None:
    """Look for the first time, as how it is before the devices speak is what all else is compared with, and have Spark
    get going. Stopped if that is all that there is time for."""
    while not watch.samples and patience.sleep(LOOK_S):
        pass
    if arrivals is not None:
        if not _has_batches(watch):  # or else somebody has warmed it up
            listener.phase("warming up")
            _whisper(outcome, watch, arrivals, patience)
        arrivals.take_ms()
        arrivals.since_ms = time.time_ns() // 1_000_000
    if patience.is_over:
        raise Stopped


def _whisper(outcome: Outcome, watch: Watch, arrivals: Arrivals, patience: Patience) -> None:
    """Until Spark has got going, and has worked through all of it. If that takes too long, it is measured as it is, and
    told so."""
    before_s = watch.now_s
    rate = outcome.options.rate
    watch.set_rate(min(rate, max(_SHARE * rate, _STEPS * outcome.options.profile.per_step)))
    give_up = time.monotonic() + _MOST_S
    while not _is_warm(watch, arrivals) and time.monotonic() < give_up and patience.sleep(1.0):
        pass
    outcome.was_cold = not _is_warm(watch, arrivals)
    watch.set_rate(0.0)
    patience.settle(before_s)


def _is_warm(watch: Watch, arrivals: Arrivals) -> bool:
    tells = bool(watch.samples) and watch.samples[-1].counted(SPARK, "batches") is not None
    return arrivals.seen > 0 and (not tells or _has_batches(watch))


def _has_batches(watch: Watch) -> bool:
    batches = watch.samples[-1].counted(SPARK, "batches") if watch.samples else None
    return batches is not None and batches >= _BATCHES

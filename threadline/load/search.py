"""The search for the highest rate that is sustained: one step after the other, on a chain that is quiet in between."""

from __future__ import annotations

from os import cpu_count

from threadline.load.chain import SPARK
from threadline.load.listener import Listener
from threadline.load.outcome import LoadOptions, Outcome
from threadline.load.patience import Patience
from threadline.load.steps import Step, Stepper, bottleneck, judge
from threadline.load.watch import EVERY_S, Watch

_MOST_STEPS = 20
_BREATH_S = 2.0
_STEP_BATCHES = 6
_MOST_STEP = 4  # times as long as asked for


def find_max(outcome: Outcome, watch: Watch, patience: Patience, listener: Listener) -> None:
    """Try rates until it is known, or cannot be, and note all of them: a search that breaks down has tried some."""
    stepper = Stepper(outcome.options.rate, outcome.options.close)
    cores = cpu_count() or 1
    while (rate := stepper.rate) is not None and len(outcome.steps) < _MOST_STEPS:
        listener.phase("")
        step = _try(rate, outcome.options, watch, patience)
        if step is None:
            break
        outcome.steps.append(step)
        listener.step(step)
        if not step.is_known:  # and another rate would not be, either
            break
        stepper.went(rate, step.is_sustained, is_plausible=step.is_sustained or step.fills(cores))
        if not step.is_sustained and stepper.rate is not None:
            watch.set_rate(0.0)
            listener.phase("waiting for what has piled up")
            patience.sleep(_BREATH_S)
            patience.settle(outcome.from_s)
    sustained = [step for step in outcome.steps if step.rate == stepper.highest and step.is_sustained]
    failed = [step for step in outcome.steps if step.rate == stepper.lowest_failed and not step.is_sustained]
    outcome.highest = sustained[-1] if sustained else None
    outcome.is_search_finished = stepper.rate is None
    outcome.was_stopped = patience.is_over and not outcome.is_search_finished
    outcome.bottleneck = bottleneck(failed[-1], cores) if failed else None


def _try(rate: float, options: LoadOptions, watch: Watch, patience: Patience) -> Step | None:
    """For as long as was asked for, and longer until there are looks enough, and Spark has stored often enough, to see
    a trend. None if nobody wants to wait for that."""
    from_s = watch.now_s
    watch.set_rate(rate)
    duration_s = options.step_s
    while patience.sleep(duration_s):
        step = judge(
            *(watch.samples, rate, from_s, watch.now_s),
            with_spark=options.with_spark,
            per_step=options.profile.per_step,
        )
        took_s = watch.now_s - from_s
        if step is not None:
            batch_s = watch.samples[-1].counted(SPARK, "batch_seconds") or 0.0
            is_clear = step.is_known and took_s > _STEP_BATCHES * batch_s
            if is_clear or took_s >= _MOST_STEP * options.step_s:
                return step
        duration_s = EVERY_S
    return None

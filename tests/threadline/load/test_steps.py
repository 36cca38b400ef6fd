"""What rate is sustained, which is tried next, and what stands in the way, on samples that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.threadline.load.samples import sample
from threadline.load.chain import BROKER, GATEWAY, SPARK, TRANSLATOR
from threadline.load.steps import CLOSE, Step, Stepper, bottleneck, judge
from threadline.load.watch import DEVICES, SELF, Sample

SECONDS = range(1, 31)


def judged(samples: list[Sample], rate: float = 100.0) -> Step:
    return judge(samples, rate, 0.0, 30.0)


def grown(per_s: dict[str, Any], at_s: float) -> dict[str, Any]:
    return {name: value * at_s for name, value in per_s.items()}


def test_a_rate_at_which_nothing_piles_up_is_sustained() -> None:
    step = judged([sample(at_s) for at_s in SECONDS])
    assert step.is_sustained
    assert step.achieved == pytest.approx(100)
    assert step.core_us_per_unit[TRANSLATOR] == pytest.approx(3_000)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"said": 80}, "the devices said 80 of 100 per second"),
        ({"unacknowledged": 1}, "10% of the batches stayed with the devices"),
        ({"rows_read": 15}, "Spark did not read 25% of the rows"),
        ({"late_ms": 100}, "results became 0.10 s later every second"),
    ],
)
def test_whatever_piles_up_is_told(changed: dict[str, Any], words: str) -> None:
    assert judged([sample(at_s, **grown(changed, at_s)) for at_s in SECONDS]).reasons == (words,)


def test_the_first_third_belongs_to_the_change() -> None:
    step = judged([sample(at_s, unacknowledged=min(at_s, 10) * 20, late_ms=min(at_s, 10) * 500) for at_s in SECONDS])
    assert step.is_sustained


def test_a_component_that_tells_nothing_is_not_to_blame() -> None:
    samples = [sample(at_s) for at_s in SECONDS]
    for each in samples:
        each.metrics.clear()
    assert judged(samples).is_sustained


def test_few_looks_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="too few"):
        judged([sample(at_s) for at_s in (28.0, 29.0, 30.0)])


@pytest.mark.parametrize("capacity", [7.0, 99.0, 100.0, 1_234.0, 50_000.0])
def test_steps_come_close_to_the_capacity_from_below(capacity: float) -> None:
    stepper, tried = Stepper(100.0), 0
    while (rate := stepper.rate) is not None:
        stepper.went(rate, rate <= capacity)
        tried += 1
    assert stepper.highest is not None
    assert stepper.lowest_failed is not None
    assert stepper.highest <= capacity < stepper.lowest_failed <= stepper.highest * CLOSE
    assert tried < 25


def test_a_rate_that_fails_below_one_that_held_is_believed() -> None:
    stepper = Stepper(100.0)
    stepper.went(100.0, True)
    stepper.went(150.0, False)
    stepper.went(90.0, False)
    assert stepper.highest is None
    assert stepper.rate == pytest.approx(60.0)


def failed(machine_cores: float = 1.0, **changed: float) -> Step:
    cores = {DEVICES: 0.3, BROKER: 0.1, GATEWAY: 0.5, TRANSLATOR: 0.9, SPARK: 1.0, "api": 0.95, SELF: 2.0}
    return judged(
        [
            sample(
                at_s,
                **grown(changed, at_s),
                cores=cores,
                machine_cores=machine_cores,
            )
            for at_s in SECONDS
        ]
    )


def test_what_stays_with_the_devices_is_held_up_by_the_busiest_before_the_log() -> None:
    found = bottleneck(failed(unacknowledged=2), 2)
    assert found.component == TRANSLATOR
    assert "20% of the batches" in found.why
    assert "0.90 cores" in found.why


def test_what_stays_in_the_log_is_held_up_by_spark() -> None:
    assert bottleneck(failed(late_ms=500), 2).component == SPARK


def test_a_machine_that_is_full_is_told_with_whoever_fills_it() -> None:
    assert "all 2 cores are busy, with spark" in bottleneck(failed(1.95, late_ms=500), 2).why
    assert "cores are busy" not in bottleneck(failed(1.5, late_ms=500), 2).why

"""What rate is sustained, which is tried next, and what stands in the way, on samples that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.threadline.load.samples import sample
from threadline.load.chain import BROKER, GATEWAY, SPARK, TRANSLATOR
from threadline.load.histogram import Histogram
from threadline.load.steps import CLOSE, Step, Stepper, bottleneck, judge
from threadline.load.watch import DEVICES, SELF, Sample

SECONDS = range(1, 31)


def judged(samples: list[Sample], rate: float = 100.0, *, with_spark: bool = True, per_step: int = 1) -> Step:
    step = judge(samples, rate, 0.0, 30.0, with_spark=with_spark, per_step=per_step)
    assert step is not None
    return step


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
        ({"acknowledged": 0, "unacknowledged": 50}, "100% of the batches stayed with the devices"),
        ({"dropped": 8}, "the devices gave up 240 records"),
        ({"rows_read": 15}, "Spark did not read 25% of the rows"),
        ({"late_ms": 100}, "results became 0.10 s later every second"),
    ],
)
def test_whatever_piles_up_is_told(changed: dict[str, Any], words: str) -> None:
    assert judged([sample(at_s, **grown(changed, at_s)) for at_s in SECONDS]).reasons == (words,)


def told(at_s: float, late_s: float, *, per_s: int = 50) -> Sample:
    """Two processes; a report of the second one is read late."""
    own = ((at_s - 0.3, int(per_s * (at_s - 0.3))), (at_s - late_s, int(per_s * (at_s - late_s))))
    return sample(at_s, said=sum(said for _, said in own), told=own)


def test_a_report_that_is_read_late_is_no_shortage() -> None:
    """The first of its time, and the last ones, have not come yet: a line through what was known at each look would be
    less steep."""
    samples = [told(at_s, 0.6 if at_s < 28 else 0.6 + at_s - 27) for at_s in SECONDS]
    step = judged(samples)
    assert step.is_sustained
    assert step.achieved == pytest.approx(100, rel=0.01)
    short = judge(samples[-9:], 100.0, 21.0, 30.0, with_spark=True)
    assert short is not None
    assert short.achieved == pytest.approx(100, rel=0.02)


def test_a_process_that_tells_nothing_has_said_nothing() -> None:
    step = judged([sample(at_s, told=((at_s, 50 * at_s), (5.0, 250))) for at_s in SECONDS])
    assert step.reasons == ("the devices said 50 of 100 per second",)


def test_one_step_more_or_less_is_no_shortage() -> None:
    """50 origins every four seconds: when the first and the last of them come is a matter of luck."""
    samples = [sample(at_s, told=((at_s, 50 * ((at_s + 1) // 4)),)) for at_s in SECONDS]
    step = judge(samples[-9:], 12.5, 21.0, 30.0, with_spark=True, per_step=50)
    assert step is not None
    assert step.achieved < 0.95 * 12.5
    assert step.is_sustained
    assert not judged([sample(at_s, told=((at_s, 5 * at_s),)) for at_s in SECONDS], 12.5, per_step=50).is_sustained


def test_the_first_third_belongs_to_the_change() -> None:
    step = judged([sample(at_s, unacknowledged=min(at_s, 10) * 20, late_ms=min(at_s, 10) * 500) for at_s in SECONDS])
    assert step.is_sustained


def test_a_translator_that_stands_still_is_not_sustained() -> None:
    """Its own counters would say that nothing piles up, as nothing flows."""
    step = judged([sample(at_s, rows=7, acknowledged=3, unacknowledged=50 * at_s) for at_s in SECONDS])
    assert step.reasons == ("100% of the batches stayed with the devices",)


def test_what_full_spools_give_up_is_not_sustained() -> None:
    """The devices say all that they should, and what they keep grows no more."""
    step = judged([sample(at_s, unacknowledged=400, dropped=50 * at_s) for at_s in SECONDS])
    assert step.kept == 0
    assert step.reasons == ("the devices gave up 1,500 records",)
    assert bottleneck(step, 2).component == TRANSLATOR


def test_what_was_given_up_before_the_first_look_counts_and_before_the_step_does_not() -> None:
    samples = [sample(at_s, dropped=7 if at_s < 10 else 5_007) for at_s in SECONDS]
    for from_s, words in ((9.0, ("the devices gave up 5,000 records",)), (10.0, ())):
        step = judge(samples, 100.0, from_s, 30.0, with_spark=True)
        assert step is not None and step.reasons == words


def test_a_backlog_that_grows_though_nothing_flows_is_told() -> None:
    step = judged([sample(at_s, rows=500, rows_read=500 - at_s) for at_s in SECONDS])
    assert step.reasons == ("Spark did not read 100% of the rows",)


def untold(late_ms: float | None = None) -> list[Sample]:
    """Nobody tells any metrics; results are late if there is a store to see them in."""
    samples = [sample(at_s) for at_s in SECONDS]
    for each in samples:
        each.metrics.clear()
        each.late_ms = Histogram([] if late_ms is None else [late_ms * each.at_s])
    return samples


def test_what_nobody_tells_is_not_known() -> None:
    step = judged(untold())
    assert not step.is_sustained
    assert not step.is_known
    assert step.verdict == "not known: nobody tells how far Spark is behind"


def test_results_that_become_visible_tell_it_as_well() -> None:
    assert judged(untold(late_ms=1)).verdict == "sustained"
    assert judged(untold(late_ms=100)).verdict == "not sustained: results became 0.10 s later every second"


def test_up_to_the_log_the_devices_know() -> None:
    assert judged(untold(), with_spark=False).verdict == "sustained"
    samples = untold()
    for each in samples:
        each.dropped = int(each.at_s)
    assert judged(samples).is_known, "one reason is enough"


def test_few_looks_are_no_verdict() -> None:
    samples = [sample(at_s) for at_s in (27.0, 28.0, 29.0, 30.0)]
    assert judge(samples[1:], 100.0, 0.0, 30.0, with_spark=True) is None
    assert judge(samples, 100.0, 0.0, 30.0, with_spark=True) is not None


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


def failed(machine_cores: float = 1.0, devices: float = 0.3, **changed: float) -> Step:
    cores = {DEVICES: devices, BROKER: 0.1, GATEWAY: 0.5, TRANSLATOR: 0.9, SPARK: 1.0, "api": 0.95, SELF: 2.0}
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


def test_on_a_machine_that_is_full_it_is_whoever_uses_most_wherever_it_piles_up() -> None:
    found = bottleneck(failed(1.95, devices=1.5, late_ms=500), 2)
    assert found.component == DEVICES
    assert found.why.startswith("all 2 cores are busy: devices 1.50, ")
    assert found.why.endswith("later every second")
    assert "cores are busy" not in bottleneck(failed(1.5, late_ms=500), 2).why


def test_the_devices_are_in_the_way_only_if_they_said_too_little() -> None:
    assert bottleneck(failed(devices=1.5, unacknowledged=2), 2).component == TRANSLATOR
    assert bottleneck(failed(devices=1.5, unacknowledged=2, said=50), 2).component == DEVICES


def test_of_components_that_nobody_sees_none_is_named() -> None:
    samples = [sample(at_s, unacknowledged=2 * at_s, cores={DEVICES: 0.5, SELF: 0.1}) for at_s in SECONDS]
    found = bottleneck(judged(samples), 2)
    assert found.component == "gateway, broker or translator"
    assert found.why == "20% of the batches stayed with the devices"

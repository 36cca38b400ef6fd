"""Outcomes of runs that nobody has made, for tests of what is told of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.threadline.load.samples import sample
from threadline.load.fleet import DeviceEnd
from threadline.load.outcome import LoadOptions, Outcome
from threadline.load.profiles import Said, profile_named
from threadline.load.questions import Asked, Question
from threadline.load.steps import bottleneck, judge


def outcome() -> Outcome:
    samples = [sample(at_s, unacknowledged=3 * at_s, missed=70 * at_s) for at_s in range(1, 31)]
    step = judge(samples, 100.0, 0.0, 30.0, with_spark=True)
    assert step is not None
    return Outcome(
        LoadOptions(profile_named("light"), devices=2, rate=100.0, duration_s=30.0, processes=1),
        connected=2,
        from_s=10.0,
        to_s=25.0,
        samples=samples,
        steps=[step],
        bottleneck=bottleneck(step, 2),
        ends=[DeviceEnd("load-0", 1, Said(readings=3_000, results=3_000, origins=3_000), 0)],
        checked=("log", "graph"),
        asked=Asked(3, [Question("sinks", 90, 1, 4.5, 6.0, 40.0, 70.0, 90.0)]),
    )


def asked_for_at(rate: float, **changed: Any) -> Outcome:
    made = outcome()
    made.options = replace(made.options, rate=rate, **changed)
    return made


def workflow() -> Outcome:
    made = asked_for_at(100.0, profile=profile_named("workflow"))
    for each in made.samples:
        each.seen = int(70 * each.at_s)
        each.metrics["translator"] |= {"origins": 0, "records": 200 * each.at_s}
    return made

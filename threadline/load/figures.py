"""Figures of a run, made of its looks: how much flowed where, what each component cost, and whether enough was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadline.load.flows import BATCHES, PUBLISHES, logged, stored
from threadline.load.outcome import Outcome
from threadline.load.watch import Sample

_LEAST_LOOKS = 4  # for a rate: a component may have written nothing between two of them
_LEAST_SAID = 0.95


def at_work(outcome: Outcome) -> list[Sample]:
    """The looks while the devices spoke."""
    return [each for each in outcome.samples if outcome.from_s < each.at_s <= outcome.to_s]


def rates(outcome: Outcome) -> dict[str, float]:
    """Of the components, while the devices spoke, from the moment on when something came to them; without those that
    were not seen often enough."""
    found: dict[str, float] = {}
    samples, profile = at_work(outcome), outcome.options.profile
    for flow in (PUBLISHES, BATCHES, logged(profile), stored(profile)):
        told = [(each.at_s, value) for each in samples if (value := flow.count(each)) is not None]
        still = [place for place, (_, value) in enumerate(told) if value == told[0][1]]
        told = told[max(still, default=0) :]
        if len(told) >= _LEAST_LOOKS:
            (first_s, first), (last_s, last) = told[0], told[-1]
            found[f"{flow.component} {flow.what}"] = (last - first) / (last_s - first_s)
    return found


def components(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """What each has cost: cores while the devices spoke, CPU until all had arrived, the most memory."""
    spoke, units = at_work(outcome), outcome.units
    found: dict[str, dict[str, Any]] = {}
    for name in outcome.samples[-1].cores if outcome.samples else ():
        cpu_s = _cpu_s(outcome.measured, outcome.from_s, name)
        found[name] = {
            "cores": sum(each.cores[name] for each in spoke) / len(spoke) if spoke else 0.0,
            "cpu_s": cpu_s,
            "core_us_per_unit": 1e6 * cpu_s / units if units else None,
            "memory_bytes": max(each.component_bytes[name] for each in outcome.samples),
            "rss_bytes": max(each.rss_bytes[name] for each in outcome.samples),
        }
    return found


def _cpu_s(samples: Sequence[Sample], from_s: float, name: str) -> float:
    found, last_s = 0.0, from_s
    for each in samples:
        found += each.cores[name] * (each.at_s - last_s)
        last_s = each.at_s
    return found


def is_short(outcome: Outcome) -> bool:
    """Whether the devices said less than they should; one step of each process may be a matter of luck."""
    options = outcome.options
    if options.find_max or outcome.failure is not None:
        return False
    wanted = options.rate * outcome.at_work_s
    return outcome.units < min(_LEAST_SAID * wanted, wanted - options.profile.per_step * options.processes)


def has_too_little_to_say(outcome: Outcome) -> bool:
    """Whether nothing was said because nobody's turn had come."""
    return bool(outcome.at_work_s) and not outcome.units and outcome.failure is None and not is_short(outcome)

"""What came of a run, as JSON for programs."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from os import cpu_count
from typing import Any

from threadline.load.figures import components, rates
from threadline.load.outcome import Outcome
from threadline.load.watch import Sample


def document(outcome: Outcome) -> dict[str, Any]:
    """All of it, for programs."""
    options = outcome.options
    return {
        "profile": options.profile.name,
        "unit": options.profile.unit,
        "devices": options.devices,
        "processes": options.processes,
        "rate": options.rate,
        "duration_s": None if options.find_max else options.duration_s,
        "step_s": options.step_s if options.find_max else None,
        "begun": outcome.begun.isoformat(),
        "version": version("threadline"),
        "machine": {"cores": cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "connected": outcome.connected,
        "connect_s": outcome.connect_s,
        "at_work_s": outcome.at_work_s,
        "drained_s": outcome.drained_s,
        "was_stopped": outcome.was_stopped,
        "was_cold": outcome.was_cold,
        "failure": outcome.failure,
        "gone": list(outcome.gone.values()),
        "said_with_warm_up": asdict(outcome.said_in_all),
        "units": outcome.units,
        "missed": outcome.missed,
        "caller_us": outcome.caller_us.figures(),
        "to_graph_ms": outcome.late_ms.figures(),
        "rates_per_s": rates(outcome),
        "components": components(outcome),
        "steps": [{**asdict(step), "is_sustained": step.is_sustained} for step in outcome.steps],
        "highest": outcome.highest.achieved if outcome.highest else None,
        "highest_asked_for": outcome.highest.rate if outcome.highest else None,
        "search_finished": outcome.is_search_finished if options.find_max else None,
        "bottleneck": asdict(outcome.bottleneck) if outcome.bottleneck else None,
        "asked": asdict(outcome.asked) if outcome.asked else None,
        "checked": list(outcome.checked),
        "left": outcome.left,
        "unwritten": outcome.unwritten,
        "dropped": outcome.dropped,
        "losses": [{**asdict(each), "may_arrive": each.may_arrive} for each in outcome.losses],
        "samples": [_sample(each) for each in outcome.samples],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "at_s": sample.at_s,
        "rate": sample.rate,
        "said": sample.said,
        "told": sample.told,
        "connected": sample.connected,
        "acknowledged": sample.acknowledged,
        "unacknowledged": sample.unacknowledged,
        "dropped": sample.dropped,
        "memory_bytes": sample.memory_bytes,
        "resent": sample.resent,
        "missed": sample.missed,
        "seen": sample.seen,
        "metrics": sample.metrics,
        "cores": sample.cores,
        "component_bytes": sample.component_bytes,
        "rss_bytes": sample.rss_bytes,
        "machine_cores": sample.machine_cores,
        "caller_us": sample.caller_us.figures(),
        "late_ms": sample.late_ms.figures(),
    }

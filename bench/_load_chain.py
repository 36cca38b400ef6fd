"""The whole chain under load, as `threadline load` runs it: one chain for all runs, one fleet after the other."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from threadline.load.chain import Chain
from threadline.load.fleet import usual_processes
from threadline.load.listener import Listener
from threadline.load.outcome import LoadOptions, Outcome
from threadline.load.profiles import profile_named
from threadline.load.run import run
from threadline.load.steps import Step
from threadline.load.summary import lines, step_line
from threadline.load.watch import SELF, Sample

QUERY_DEVICES = 16
LIGHT_EVERY_S = 5.0
STILL_BYTES = 8 << 20
"""What a component may take more without that it counts as growth."""


class _Told(Listener):
    def step(self, step: Step) -> None:
        print(f"  {step_line(step)}", flush=True)


def load(
    chain: Chain,
    profile: str,
    devices: int,
    rate: float,
    *,
    duration_s: float = 0.0,
    step_s: float | None = None,
    close: float = 1.1,
) -> Outcome:
    """One run against a chain. With `step_s` it looks for the highest rate, beginning with this one."""
    options = LoadOptions(
        profile=profile_named(profile),
        devices=devices,
        rate=rate,
        duration_s=duration_s,
        processes=usual_processes(devices),
        find_max=step_s is not None,
        step_s=step_s or 0.0,
        close=close,
        chain=chain,
        connect_s=60.0 + devices / 10,
        drain_s=120.0,
    )
    outcome = run(options, threading.Event(), _Told())
    for line in lines(outcome):
        if not line.startswith("step "):
            print(f"  {line}", flush=True)
    if outcome.failure is not None:
        raise SystemExit(f"{profile}: the run broke down, and its figures mean nothing")
    return outcome


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory of a component in the second and in the last quarter of a run."""

    component: str
    early_bytes: float
    late_bytes: float

    @property
    def ratio(self) -> float:
        """1 if it takes hardly more: some bytes come and go."""
        grown = self.late_bytes - self.early_bytes
        return 1.0 if grown < STILL_BYTES else self.late_bytes / self.early_bytes


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Of every component, by the medians of the quarters; the first is left out, as everything gets going there. The
    process that measures keeps all that it has measured, so it does not count. Nothing if there are too few looks."""
    quarter = len(samples) // 4
    if not quarter:
        return []
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    return [
        Growth(
            name,
            statistics.median(each.component_bytes[name] for each in early),
            statistics.median(each.component_bytes[name] for each in late),
        )
        for name in samples[-1].component_bytes
        if name != SELF
    ]

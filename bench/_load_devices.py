"""ProvLight's table IX: so many devices capture at the same time, each a process of its own.

A device is a machine of its own, and ProvLight has one connection for a whole process. So a device is a process, for
both contenders alike: the one that `bench/capture.py` measures in. All connect first. Then they begin one after the
other, spread over the time of one task: devices know nothing of each other, and if all woke at the same moment, what is
measured would be two cores and not capture. They end with everything acknowledged.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench._capture_contenders import Contender, Worker
from bench._capture_servers import EVENTS_IN, SnServer
from bench._capture_workload import TASKS, Attributes, Workload
from protocol.address import format_address

ATTRIBUTES = 100
TASK_S = 0.5


class Tasks(Workload):
    """The paper's workload with fewer tasks, if so asked."""

    @property
    def events(self) -> int:
        return 2 * self.times

    def data(self) -> list[tuple[Attributes, Attributes]]:
        """`times` is the number of tasks here."""
        return Workload(self.kind, self.attributes, self.task_s).data()[: self.times]


@dataclass(frozen=True, slots=True)
class Captured:
    """What capturing took the callers of all devices together."""

    contender: str
    devices: int
    events: int
    mean_us: float
    p50_us: float
    p99_us: float
    delivered: float
    """The share of events that came to the broker."""

    def line(self) -> str:
        return (
            f"{self.contender:<11} {self.devices:>3} devices: mean {self.mean_us:8.1f} us, p50 {self.p50_us:8.1f} us, "
            f"p99 {self.p99_us:9.1f} us for each of {self.events} events, {self.delivered:.1%} delivered"
        )


def capture(contender: Contender, devices: int, tasks: int, server: SnServer, folder: Path) -> Captured:
    """So many devices run so many tasks each."""
    workload = Tasks("paper", ATTRIBUTES, TASK_S, min(tasks, TASKS))
    with ExitStack() as stack:
        workers: list[Worker] = []
        for _ in range(devices):  # they start side by side, and whoever is there is ended though others fail
            workers.append(Worker(contender, workload, format_address(*server.address), folder))
            stack.push(workers[-1])
        for worker in workers:
            worker.wait_until_ready()
        begun = time.monotonic()
        for place, worker in enumerate(workers):
            time.sleep(max(0.0, begun + place * TASK_S / devices - time.monotonic()))
            worker.go()
        measured = [worker.result() for worker in workers]
    server.arrivals.wait_until_quiet()
    calls_us = sorted(call for each in measured for call in each.call_us)
    events_in = EVENTS_IN.get(contender.module, _no_events)
    arrived = sum(
        len({event for payload in server.arrivals.of(each.client) for event in events_in(payload, each.client)})
        for each in measured
    )
    return Captured(
        contender=contender.name,
        devices=devices,
        events=len(calls_us),
        mean_us=statistics.fmean(calls_us),
        p50_us=statistics.median(calls_us),
        p99_us=calls_us[int(len(calls_us) * 0.99)],
        delivered=arrived / len(calls_us),
    )


def _no_events(payload: bytes, client: str) -> Iterator[str]:
    """Of who sends nothing."""
    yield from ()

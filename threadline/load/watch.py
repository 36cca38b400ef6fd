"""Looks at everything once a second: what the devices said, how far it has come, and what all of it costs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

from threadline.load.breakdown import Breakdown
from threadline.load.chain import SPARK, TRANSLATOR, Chain
from threadline.load.fleet import Fleet
from threadline.load.histogram import Histogram
from threadline.load.latency import Arrivals
from threadline.load.resources import Resources, machine_cpu_s
from threadline.load.scrape import scrape

EVERY_S = 1.0
DEVICES, SELF = "devices", "load"
"""The processes of the devices, and the one that looks at all of them."""


@dataclass(slots=True)
class Sample:
    """One look. Metrics are as the components tell them; CPU is in cores and times are those of the last second."""

    at_s: float
    rate: float
    """Units per second that the devices were told to say."""
    said: int
    """In units of the profile."""
    told: tuple[tuple[float, int], ...]
    """When each process with devices told that last, and how much it had said by then. It may be some time ago."""
    connected: int
    acknowledged: int
    """Batches of which the devices were told that they are in the log."""
    unacknowledged: int
    """Batches that the devices keep until they are in the log."""
    dropped: int
    """Records that the devices gave up, as they had no room for them."""
    memory_bytes: int
    """Of records that are in no batch yet, in all devices."""
    resent: int
    missed: int
    """Units that the processes of the devices were too slow for."""
    seen: int | None
    """Results or tasks that are visible in the store; None if there is none to look into."""
    metrics: dict[str, dict[str, float]]
    cores: dict[str, float]
    component_bytes: dict[str, int]
    rss_bytes: dict[str, int]
    machine_cores: float
    caller_us: Histogram = field(default_factory=Histogram)
    late_ms: Histogram = field(default_factory=Histogram)

    def counted(self, component: str, name: str) -> float | None:
        """A figure of a component; None if it did not tell."""
        return self.metrics.get(component, {}).get(name)

    @property
    def log_backlog(self) -> float | None:
        """Rows of the log that Spark has not worked through; as they count from different beginnings, only its changes
        mean something."""
        written, read = self.counted(TRANSLATOR, "rows"), self.counted(SPARK, "rows")
        return None if written is None or read is None else written - read


class Watch:
    """Samples of one run, taken in a thread of its own."""

    def __init__(self, chain: Chain, fleet: Fleet, arrivals: Arrivals | None) -> None:
        self.samples: list[Sample] = []
        self.on_sample: Callable[[Sample], None] = lambda _: None
        self.failure: Breakdown | None = None
        """Why there are no more samples: it ends the run, with those that there are."""
        self._chain = chain
        self._fleet = fleet
        self._arrivals = arrivals
        self._rate = 0.0
        components = {name: [pid] for name, pid in chain.processes.items()}
        self._resources = Resources({**components, DEVICES: fleet.pids, SELF: [os.getpid()]}, alone=(SELF,))
        self._begun = self._last = time.monotonic()
        self._cpu_s: dict[str, float] = {}
        self._machine_s = machine_cpu_s()
        self._done = threading.Event()
        self._pool = ThreadPoolExecutor(3)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._pool.shutdown()

    def set_rate(self, per_s: float) -> None:
        """Have the devices say so much from now on."""
        self._rate = per_s
        self._fleet.set_rate(per_s)

    def check(self) -> None:
        """Breakdown if there are no more samples."""
        if self.failure is not None:
            raise self.failure

    @property
    def now_s(self) -> float:
        """On the clock of the samples."""
        return time.monotonic() - self._begun

    def _run(self) -> None:
        due = self._begun
        while True:
            due += EVERY_S
            if self._done.wait(max(0.0, due - time.monotonic())):
                return
            try:
                self._check()
                self.samples.append(self._sample())
                self.on_sample(self.samples[-1])
            except Breakdown as error:
                self.failure = error
                return
            except Exception as error:
                self.failure = Breakdown.failed("the look at all of it", error)
                return

    def _check(self) -> None:
        """Breakdown if somebody is gone without whom the run cannot go on."""
        self._chain.check()
        self._fleet.check()
        if self._arrivals is not None and self._arrivals.failure is not None:
            raise self._arrivals.failure

    def _sample(self) -> Sample:
        metrics = self._metrics()
        usage = self._resources.look()
        now, machine_s, state = time.monotonic(), machine_cpu_s(), self._fleet.state()
        unit = self._fleet.profile.unit
        elapsed_s = now - self._last
        cores = {name: (each.cpu_s - self._cpu_s.get(name, 0.0)) / elapsed_s for name, each in usage.items()}
        machine_cores = (machine_s - self._machine_s) / elapsed_s
        self._cpu_s = {name: each.cpu_s for name, each in usage.items()}
        self._last, self._machine_s = now, machine_s
        return Sample(
            at_s=now - self._begun,
            rate=self._rate,
            said=getattr(state.said, unit),
            told=tuple((at - self._begun, getattr(said, unit)) for at, said in state.told),
            connected=state.connected,
            acknowledged=state.sums["acknowledged"],
            unacknowledged=state.sums["unacknowledged"],
            dropped=state.sums["dropped"],
            memory_bytes=state.sums["memory_bytes"],
            resent=state.sums["resent"],
            missed=state.missed,
            seen=self._arrivals.seen if self._arrivals else None,
            metrics=metrics,
            cores=cores,
            component_bytes={name: each.memory_bytes for name, each in usage.items()},
            rss_bytes={name: each.rss_bytes for name, each in usage.items()},
            machine_cores=machine_cores,
            caller_us=self._fleet.caller_us(),
            late_ms=self._arrivals.take_ms() if self._arrivals else Histogram(),
        )

    def _metrics(self) -> dict[str, dict[str, float]]:
        places = self._chain.metrics
        return dict(zip(places, self._pool.map(scrape, places.keys(), places.values()), strict=True))

"""What the devices are let loose on: the whole chain, started here as processes, or one that runs already.

Either way it is known by where its gateway, log, store and API are, which processes its components are, and where they
tell their metrics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL

from protocol.address import format_address
from threadline.lab import (
    ApiService,
    GatewayService,
    Service,
    ServiceFailed,
    SparkService,
    TranslatorService,
    free_port,
    mqtt_broker,
)
from threadline.load.breakdown import Breakdown
from threadline.load.resources import is_alive

GATEWAY, BROKER, TRANSLATOR, SPARK, API = "gateway", "broker", "translator", "spark", "api"
_LOOK_S = 0.02


class Stopped(RuntimeError):
    """Nobody wants to wait for the start any longer."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Where everything is; what is None or not there cannot be looked at."""

    gateway: str
    log: Path | None = None
    store: str | None = None
    api: str | None = None
    processes: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None
    """Breakdown if something of it has ended."""

    def gone(self) -> dict[str, int]:
        """Components whose processes are not there any more."""
        return {name: pid for name, pid in self.processes.items() if not is_alive(pid)}

    @property
    def tells_how_far(self) -> bool:
        """Whether it can be seen how far Spark is: by its results, or by what it and the translator count."""
        return self.store is not None or {TRANSLATOR, SPARK} <= self.metrics.keys()


@contextmanager
def started(
    folder: Path, *, embedded: bool, with_spark: bool, is_stopping: Callable[[], bool] = lambda: False
) -> Iterator[Chain]:
    """The whole chain in a folder, on free ports, until the end of the block. Nothing may have started a thread yet.
    Stopped if it is told to stop before all of it runs."""
    broker = mqtt_broker(folder, embedded)
    gateway = GatewayService(folder, broker)
    addresses = {name: f"127.0.0.1:{free_port()}" for name in (TRANSLATOR, SPARK)}
    translator = TranslatorService(folder, broker, "--metrics", addresses[TRANSLATOR])
    spark = SparkService(folder, translator.log_folder, "--metrics", addresses[SPARK])
    api = ApiService(folder, broker, spark.store)
    services: dict[str, Service] = {BROKER: broker, GATEWAY: gateway, TRANSLATOR: translator}
    if with_spark:
        services |= {SPARK: spark, API: api}
    with ExitStack() as stack:
        for name, service in services.items():
            stack.callback(_end, service)
            _start(name, service, is_stopping)

        def check() -> None:
            for name, service in services.items():
                code = service.process.poll() if service.process is not None else None
                if code is not None:
                    raise Breakdown.died(name, code, service.output().splitlines())

        metrics = {GATEWAY: f"127.0.0.1:{gateway.metrics_port}", TRANSLATOR: addresses[TRANSLATOR]}
        if with_spark:
            metrics[SPARK] = addresses[SPARK]
        yield Chain(
            gateway=format_address(*gateway.address),
            log=translator.log_folder,
            store=spark.store if with_spark else None,
            api=api.url if with_spark else None,
            processes={name: service.pid for name, service in services.items()},
            metrics=metrics,
            check=check,
        )


def _start(name: str, service: Service, is_stopping: Callable[[], bool]) -> None:
    """Until it is ready, or nobody wants to wait for that: Spark takes its time."""
    process = service.launch(apart=True)
    give_up = time.monotonic() + service.start_s
    while not service.is_ready():
        if is_stopping():
            raise Stopped
        if (code := process.poll()) is not None:
            raise Breakdown.died(name, code, service.output().splitlines())
        if time.monotonic() > give_up:
            raise Breakdown(name, f"is not ready after {service.start_s:.0f} s", log=service.output().splitlines())
        time.sleep(_LOOK_S)


def _end(service: Service) -> None:
    try:
        service.stop()
    except ServiceFailed:
        pass  # it was killed, then
    except KeyboardInterrupt:  # nobody wants to wait for it; Spark's Java would go on writing to its folder
        with suppress(ProcessLookupError):
            os.killpg(service.pid, SIGKILL)
        service.kill()
        raise

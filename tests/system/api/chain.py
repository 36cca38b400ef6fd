"""The whole chain as processes: devices, gateway, broker, translator, Spark, and the API that is asked.

accidents-roadside, -center   the accident query on two devices; they have ended
stops-live                    looks for stopped cars, and has not come to the end of its readings
pi-1                          a program that captures a training, of which one task fails
pi-2                          one that was killed, and was started again; now its device sleeps
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from edge_agent import stream
from edge_agent.queries import linear_road, linear_road_stopped
from protocol.address import format_address
from protocol.records import Delivery
from tests.support.peers import Device
from tests.support.waiting import wait_until
from threadline.lab import AgentService, ApiService, GatewayService, Mosquitto, SparkService, TranslatorService

Json = dict[str, Any]
ROADSIDE, CENTER, LIVE = "accidents-roadside", "accidents-center", "stops-live"
LATE_MS = 500
"""The time of a reading that comes after later ones."""
LONGEST_S = 90.0
_QUERIES = Path(stream.__file__).parent.parent / "queries"
_LIVE = """
import time
from pathlib import Path

from edge_agent.queries.linear_road import reports, stopped_cars
from edge_agent.stream import Plan


def until_told():
    for ts, report in reports():
        if ts > {pause_ms}:
            break
        yield ts, report
    yield {late_ms}, report
    while not Path({go!r}).exists():
        time.sleep(0.05)


def build(provenance="segments"):
    plan = Plan("stops-live", provenance=provenance)
    stopped_cars(plan.source("reports", until_told, live=True)).sink("stopped")
    return plan
"""
_TRAINING = """
from edge_agent.capture import Data, Task, Workflow, close

workflow = Workflow("training", {"model": "m/1", "rate": 0.1})
workflow.begin()
raw = Data("raw", workflow.id, {"rows": 500})
task = Task("load", workflow, "load").begin([raw])
task.end([Data("clean/1", workflow.id, {"rows": 480}, derivations=["raw"])])
before = "load"
model = "clean/1"
for epoch in range(3):
    task = Task(f"epoch-{epoch}", workflow, "train", dependencies=[before])
    task.begin([Data(model, workflow.id, {"rate": 0.1, "batch": 16})])
    made = Data(f"model-{epoch}", workflow.id, {"epoch": epoch, "loss": 0.8 / (epoch + 1)}, derivations=[model])
    task.end([made])
    before, model = f"epoch-{epoch}", f"model-{epoch}"
task = Task("check", workflow, "check", dependencies=[before]).begin([Data(model, workflow.id)])
task.end(error=ValueError("accuracy is 0.41"))
workflow.end(error="a check has failed")
close(60)
"""
_KILLED = """
import os
import signal

from edge_agent.capture import Task, Workflow, flush

workflow = Workflow("night")
Task("measure", workflow, "measure").begin()
flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
_AGAIN = """
from edge_agent.capture import Task, Workflow, close

with Workflow("night"), Task("measure", transformation="measure"):
    pass
close(60)
"""


class Chain:
    """All of it, with everything in the graph that was said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mosquitto = Mosquitto(folder)
        self.gateway = GatewayService(folder, self.mosquitto)
        self.translator = TranslatorService(folder, self.mosquitto)
        self.spark = SparkService(folder, self.translator.log_folder)
        self.api = ApiService(folder, self.mosquitto, self.spark.store)
        self.client = httpx.Client(base_url=self.api.url, timeout=30.0)
        self._stack = ExitStack()
        self._go = folder / "go-on"
        long_stop = max(linear_road.stops(), key=lambda stop: stop.reports)
        self.pause_ms = long_stop.first_ms + 6 * linear_road.ROUND_MS
        """Up to this time, stops-live has seen the traffic."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.client.close)
            stack.enter_context(self.mosquitto)
            stack.enter_context(self.translator)
            self.spark.launch()  # it takes its time
            stack.callback(self.spark.kill)
            stack.enter_context(self.gateway)
            stack.enter_context(self.api)
            live = stack.enter_context(self._live())
            programs = [
                *(self._agent(name) for name in (CENTER, ROADSIDE)),
                self._program("pi-1", _TRAINING),
                self._program("pi-2", _KILLED),
            ]
            for process in programs:
                stack.callback(process.kill)
            assert [process.wait(LONGEST_S) for process in programs] == [0, 0, 0, -9]
            assert self._program("pi-2", _AGAIN).wait(LONGEST_S) == 0
            sleeper = stack.enter_context(Device(self.gateway.address, "pi-2"))
            sleeper.connect(clean=False)
            sleeper.sleep(600)
            self._wait(live)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @contextmanager
    def _live(self) -> Iterator[AgentService]:
        app = self.folder / "stops_live.py"
        app.write_text(_LIVE.format(pause_ms=self.pause_ms, late_ms=LATE_MS, go=str(self._go)))
        with AgentService(self.folder, LIVE, app, self.gateway.address, "--drain", "5") as agent:
            yield agent
            self._go.touch()

    def _agent(self, name: str) -> subprocess.Popen[bytes]:
        app = _QUERIES / "split" / f"{name.replace('-', '_')}.py"
        return AgentService(self.folder, name, app, self.gateway.address, "--drain", "60").launch()

    def _program(self, name: str, text: str) -> subprocess.Popen[bytes]:
        own = {
            "THREADLINE_GATEWAY": format_address(*self.gateway.address),
            "THREADLINE_AGENT": name,
            "THREADLINE_SPOOL": str(self.folder / f"{name}-spool"),
        }
        return subprocess.Popen([sys.executable, "-c", text], env={**os.environ, **own})

    def _wait(self, live: AgentService) -> None:
        """Until everything that was said is in the store."""
        due = len(self.due())

        def has_all() -> bool:
            if self.spark.process is not None and self.spark.process.poll() is not None:
                raise RuntimeError(f"spark has ended:\n{self.spark.tail()}")
            if live.process is not None and live.process.poll() is not None:
                raise RuntimeError(f"{LIVE} has ended:\n{live.tail()}")
            if self.client.get("/readyz").status_code != 200:
                return False
            alerts = self.get("/v1/sinks", stream=f"{CENTER}/accidents", state="complete", limit=1_000)["vertices"]
            stopped = self.get("/v1/sinks", stream=f"{LIVE}/stopped", state="complete", limit=1_000)["vertices"]
            ended = self.get("/v1/tasks", status="finished")["items"]
            (promise,) = self.get("/v1/streams", stream=f"{LIVE}/stopped")["items"] or [{"watermark": None}]
            troubles = [self.get(f"/v1/{name}")["items"] for name in ("gaps", "late/tuples")]
            return (
                (len(alerts), len(stopped), len(ended)) == (22, due, 5)
                and promise["watermark"] == self.pause_ms
                and all(troubles)
            )

        wait_until(has_all, "everything is in the graph", LONGEST_S, every_s=0.2)

    def due(self) -> list[Delivery]:
        """The stopped cars that stops-live has seen so far, as one finds them on one device."""
        seen = [(ts, report) for ts, report in linear_road.reports() if ts <= self.pause_ms]
        told = stream.run(linear_road_stopped.build(), {"reports": seen})
        return [result for result in told.of("stopped") if result.ts <= self.pause_ms]

    # Asking

    def get(self, path: str, expected: int = 200, **parameters: Any) -> Json:
        """An answer, which has to have this status."""
        response = self.client.get(path, params={name.rstrip("_"): value for name, value in parameters.items()})
        assert response.status_code == expected, response.text
        if expected >= 400:
            assert response.headers["content-type"] == "application/problem+json"
        found: Json = response.json()
        return found

    def every(self, path: str, of: str, **parameters: Any) -> list[Any]:
        """What all pages have of something."""
        found: list[Any] = []
        page: Json = {"next": None}
        while not found or page["next"] is not None:
            more = {} if page["next"] is None else {"cursor": page["next"]}
            page = self.get(path, **parameters, **more)
            found += page[of]
        return found

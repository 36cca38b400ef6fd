"""Who takes part, where each of them sends to, and the handle on the process that one is measured in."""

from __future__ import annotations

import itertools
import marshal
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

from bench._capture_servers import Redis, SnServer, SpanSink, running
from bench._capture_traffic import TcpCounter, Traffic, UdpCounter
from bench._capture_workload import TRANSFORMATIONS, Workload
from protocol.address import format_address

ROOT = Path(__file__).resolve().parent.parent
SETTLE_S = 0.3
"""Between the workflow's begin and the first task: what starts in the background is over then, for everyone."""
_LIMIT_S = 180.0
# Everything that is installed has been compiled once; the repository's own modules have to be given the same chance.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT)
_numbers = itertools.count()


class WorkerFailed(Exception):
    """The process of a contender ended without figures; the text ends with what it had to say."""


@dataclass(frozen=True, slots=True)
class Contender:
    """`module` is what the worker runs, `package` what has to be installed, `imports` what an application writes."""

    name: str
    module: str
    package: str
    imports: str
    sends_to: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)


_FLOWCEPT = "import os; os.environ['FLOWCEPT_USE_DEFAULT'] = 'true'; from flowcept import Flowcept, FlowceptTask"
_OPENTELEMETRY = (
    "from opentelemetry.sdk.trace import TracerProvider; "
    "from opentelemetry.sdk.trace.export import BatchSpanProcessor; "
    "from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter"
)
_PROVLIGHT = "import zlib; import mqttsn.client"
# The agent is loaded by the first workflow; no capture works without it, so it counts as one of the imports.
_THREADLINE = "from edge_agent.capture import Data, Task, Workflow; import edge_agent.agent"

NOTHING = Contender("nothing", "nothing", "bench", "", "nowhere")
COPY = Contender("copy", "copy", "bench", "", "nowhere")
THREADLINE = Contender("threadline", "threadline", "edge_agent.capture", _THREADLINE, "gateway")
PROVLIGHT = Contender("provlight", "provlight", "mqttsn", _PROVLIGHT, "gateway")
PROVLIGHT_50 = Contender("provlight-50", "provlight", "mqttsn", _PROVLIGHT, "gateway", {"group": 50})
FLOWCEPT = Contender("flowcept", "flowcept", "flowcept", _FLOWCEPT, "nowhere")
FLOWCEPT_REDIS = Contender("flowcept-redis", "flowcept", "flowcept", _FLOWCEPT, "redis")
OPENTELEMETRY = Contender("opentelemetry", "opentelemetry", "opentelemetry", _OPENTELEMETRY, "spans")
CONTENDERS = (THREADLINE, PROVLIGHT, PROVLIGHT_50, FLOWCEPT, FLOWCEPT_REDIS, OPENTELEMETRY)


def why_not(contender: Contender) -> str | None:
    """What is missing for it to be measured here."""
    if find_spec(contender.package) is None:
        return f"{contender.package} is not installed"
    if contender.sends_to == "redis" and Redis.path() is None:
        return "there is no redis-server on this machine"
    return None


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `call_us` are the calls of begin and end; `event_us` also make the objects that they are called with."""

    client: str
    call_us: list[float]
    event_us: list[float]
    cpu_us: float  # per event, all threads
    peak_rss_mb: float
    traffic: Traffic | None = None


class Server(Protocol):
    """Something that listens."""

    @property
    def address(self) -> tuple[str, int]: ...


class Servers:
    """Everything that the contenders send to, in `folder`, for as long as the benchmark runs."""

    def __init__(self, folder: Path, contenders: list[Contender]) -> None:
        self._folder = folder
        self._wanted = {contender.sends_to for contender in contenders}
        self._stack = ExitStack()
        self._servers: dict[str, Server] = {}

    def __enter__(self) -> Self:
        """Those that are processes come first: the others have threads."""
        with self._stack:
            if "redis" in self._wanted:
                self._servers["redis"] = redis = Redis(self._folder)
                self._stack.enter_context(running(redis))
            if "gateway" in self._wanted:
                self.gateway = self._stack.enter_context(SnServer(self._folder))
                self._servers["gateway"] = self.gateway
            if "spans" in self._wanted:
                self._servers["spans"] = self._stack.enter_context(SpanSink())
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, contender: Contender) -> str:
        """Where it sends to; nothing for who writes a file."""
        server = self._servers.get(contender.sends_to)
        return format_address(*server.address) if server else ""

    @contextmanager
    def counting(self, contender: Contender) -> Iterator[tuple[str, Traffic | None]]:
        """The address of a counter in front of that, and its count, which is complete behind the with."""
        server = self._servers.get(contender.sends_to)
        if server is None:
            yield "", None
            return
        kind = UdpCounter if contender.sends_to == "gateway" else TcpCounter
        with kind(server.address) as counter:
            yield counter.url, counter.traffic


class Worker:
    """A fresh interpreter with one contender and one workload, in a new folder of its own."""

    def __init__(
        self, contender: Contender, workload: Workload, server: str, folder: Path, settle_s: float = SETTLE_S
    ) -> None:
        self.client = f"{contender.name}-{next(_numbers)}"
        self._contender = contender
        self._events = workload.events
        self._folder = folder / self.client
        self._folder.mkdir()
        self._errors = self._folder / "stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from bench._capture_worker import main; main()"], cwd=self._folder,
                env=ENVIRONMENT, bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._limit = threading.Timer(_LIMIT_S, self._process.kill)
        self._limit.daemon = True  # nobody has to wait for it if something else ends the benchmark
        self._limit.start()
        settings = {
            "module": f"bench._capture_{contender.module}",
            "options": {"server": server, **self._options()},
            "workload": {
                "data": workload.data(),
                "transformations": TRANSFORMATIONS,
                "task_s": workload.task_s,
                "settle_s": settle_s,
            },
        }
        self._tell(marshal.dumps(settings))

    def _options(self) -> dict[str, Any]:
        if self._contender.module == "threadline":
            return {"agent": self.client, "spool": str(self._folder / "spool")}
        if self._contender.module == "provlight":
            return {"client": self.client, **self._contender.options}
        return self._contender.options

    def __enter__(self) -> Self:
        self.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._close()

    def wait_until_ready(self) -> None:
        """It is connected then."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self._close()
            raise self._failed()

    def go(self) -> None:
        self._tell(b"\n")

    def result(self, traffic: Traffic | None = None) -> Measured:
        """Wait until the workload is over and everything is sent."""
        assert self._process.stdout is not None
        answer = self._process.stdout.read()
        if self._process.wait() or not answer:
            raise self._failed()
        told = marshal.loads(answer)
        return Measured(
            client=self.client,
            call_us=[ns / 1e3 for ns in told["call_ns"]],
            event_us=[ns / 1e3 for ns in told["event_ns"]],
            cpu_us=told["cpu_s"] * 1e6 / self._events,
            peak_rss_mb=told["peak_rss_bytes"] / 1e6,
            traffic=traffic,
        )

    def _tell(self, message: bytes) -> None:
        """A worker that is gone is noticed when it is asked."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(message)
        except BrokenPipeError:
            pass

    def _close(self) -> None:
        self._process.wait()
        self._limit.cancel()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _failed(self) -> WorkerFailed:
        said = "\n".join(self._errors.read_text(errors="replace").splitlines()[-15:])
        return WorkerFailed(f"{self.client} ended with {self._process.wait()}:\n{said}")


def import_cpu_ms(contender: Contender) -> float:
    """CPU time that a fresh interpreter takes for the imports of an application."""
    code = f"import time; at = time.process_time(); {contender.imports}\nprint(time.process_time() - at)"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout) * 1e3

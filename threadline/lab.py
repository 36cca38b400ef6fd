"""Services as processes on this machine, on free ports: for the lab, the demo, the benchmarks and the system tests."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from signal import SIGKILL, SIGTERM
from types import TracebackType
from typing import Protocol, Self

import broker
from protocol.address import format_address

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PORTS = range(20_000, 32_000)
_RANDOM = SystemRandom()
_GIVEN: deque[int] = deque(maxlen=100)


class ServiceFailed(RuntimeError):
    """A service did not start or stop as it should; the text ends with the last lines of its log."""


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port nobody uses at the moment, and that this process gave to nobody lately, who may have yet to use it.

    It is below the range from which the kernel serves those who ask for any port: a service that is killed and started
    again would otherwise find its port in the hands of some client.
    """
    for _ in range(1000):
        port = _PORTS[_RANDOM.randrange(len(_PORTS))]
        if port in _GIVEN:
            continue
        with socket.socket(socket.AF_INET, kind) as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            _GIVEN.append(port)
            return port
    raise ServiceFailed(f"no free port between {_PORTS[0]} and {_PORTS[-1]}")


def find_mosquitto() -> str | None:
    """Mosquitto's path; Debian puts it where a user's PATH may not look."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def _end_with_parent() -> None:
    """In a new process: SIGTERM when the thread that has made it is gone, however it went."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0)


class Service(ABC):
    """A process with a log file, started and stopped as often as one likes."""

    start_s = 20.0
    stop_s = 15.0

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What to run."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it serves."""

    def launch(self, apart: bool = False) -> subprocess.Popen[bytes]:
        """Start the process and wait for nothing. Apart: a Ctrl-C is not for it, and it ends with its caller, which may
        have one thread only."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=apart, preexec_fn=_end_with_parent if apart else None,  # noqa: PLW1509
            )  # fmt: skip
        return self.process

    def start(self, apart: bool = False) -> Self:
        """Start the process and wait until it is ready."""
        process = self.launch(apart)
        give_up = time.monotonic() + self.start_s
        while not self.is_ready():
            if process.poll() is not None:
                raise ServiceFailed(f"{self.name} ended with {process.returncode}:\n{self.tail()}")
            if time.monotonic() > give_up:
                self.kill()
                raise ServiceFailed(f"{self.name} is not ready after {self.start_s:.0f} s:\n{self.tail()}")
            time.sleep(0.02)
        return self

    def output(self) -> str:
        """What the process has logged since it was last started."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.output().splitlines()[-15:])

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    def stop(self) -> int:
        """SIGTERM, wait, and return the exit code."""
        return self._end(SIGTERM)

    def kill(self) -> int:
        """SIGKILL: no goodbye."""
        return self._end(SIGKILL)

    def _end(self, signal: int) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal)
        try:
            return self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ServiceFailed(f"{self.name} did not stop within {self.stop_s:.0f} s:\n{self.tail()}") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()


class BrokerAddress(Protocol):
    """What the gateway has to know of its broker, be it a service or something in front of one."""

    version: str

    @property
    def address(self) -> str: ...
    def is_ready(self) -> bool: ...


class _BrokerService(Service):
    version = "5"

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.folder = folder
        self.port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        with socket.socket() as sock:
            sock.settimeout(1)
            return sock.connect_ex(("127.0.0.1", self.port)) == 0


class Mosquitto(_BrokerService):
    """The real broker, with the settings we ship, its data in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__("mosquitto", folder)
        shipped = (Path(broker.__file__).parent / "mosquitto.conf").read_text()
        data = folder / "mosquitto-data"
        data.mkdir(parents=True, exist_ok=True)
        own = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", f"persistence_location {data}/"]
        if os.geteuid() == 0:
            own.append("user root")
        self._config = folder / "mosquitto.conf"
        self._config.write_text(shipped + "\n" + "\n".join(own) + "\n")

    def command(self) -> Sequence[str]:
        path = find_mosquitto()
        if path is None:
            raise ServiceFailed("mosquitto is not installed: `make setup` installs it through apt")
        return [path, "-c", str(self._config)]


class EmbeddedBroker(_BrokerService):
    """amqtt, a broker in Python: for machines without Mosquitto. It keeps nothing when it stops."""

    version = "3.1.1"

    def __init__(self, folder: Path) -> None:
        super().__init__("amqtt", folder)

    def command(self) -> Sequence[str]:
        config = self.folder / "amqtt.yaml"
        config.write_text(
            f"listeners:\n  default:\n    type: tcp\n    bind: {self.address}\n"
            "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
        )
        return [sys.executable, "-m", "amqtt.scripts.broker_script", "-c", str(config)]


def mqtt_broker(folder: Path, embedded: bool = False) -> Mosquitto | EmbeddedBroker:
    """Mosquitto where it is installed, the embedded broker elsewhere or when asked for."""
    return EmbeddedBroker(folder) if embedded or not find_mosquitto() else Mosquitto(folder)


class TranslatorService(Service):
    """`threadline translate` into a log in `folder`."""

    def __init__(self, folder: Path, broker: BrokerAddress, *options: str, name: str = "translator") -> None:
        super().__init__(name, folder)
        self.log_folder = folder / "log"
        self._broker = broker
        self._options = options

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "threadline", "translate"),
            *("--mqtt", self._broker.address, "--log", str(self.log_folder), *self._options),
        ]

    def is_ready(self) -> bool:
        """It has its shards and listens, if there is a broker to listen to."""
        output = self.output()
        return "translator has its shards" in output and ("translator ready" in output or not self._broker.is_ready())


class SparkService(Service):
    """`threadline spark` from a log into a store in `folder`."""

    start_s = 90.0  # Spark takes its time, and longer if others have something to do as well
    stop_s = 30.0

    def __init__(self, folder: Path, log_folder: Path, *options: str, name: str = "spark") -> None:
        super().__init__(name, folder)
        self.store_path = folder / "graph.db"
        self.checkpoint = folder / f"{name}-checkpoint"
        self._log_folder = log_folder
        self._options = options

    @property
    def store(self) -> str:
        return f"sqlite:///{self.store_path}"

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "threadline", "spark", "--log", str(self._log_folder), "--store", self.store),
            *("--checkpoint", str(self.checkpoint), *self._options),
        ]

    def is_ready(self) -> bool:
        """The query runs. If there is much in the log, it is not through with it yet."""
        return "spark ready" in self.output()


class GatewayService(Service):
    """`threadline gateway` on a fixed free port, so that it can come back where its clients look for it."""

    def __init__(
        self,
        folder: Path,
        broker: BrokerAddress,
        *options: str,
        name: str = "gateway",
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        super().__init__(name, folder)
        self.host = listen[0]
        self.port = listen[1] or free_port(socket.SOCK_DGRAM)
        self.metrics_port = free_port()
        self._broker = broker
        self._state = folder / f"{name}-state"
        self._options = options

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "threadline", "gateway"),
            *("--listen", format_address(*self.address)),
            *("--mqtt", self._broker.address, "--mqtt-version", self._broker.version),
            *("--state", str(self._state), "--metrics", f"127.0.0.1:{self.metrics_port}"),
            *self._options,
        ]

    def is_ready(self) -> bool:
        """Listening, and connected to the broker if that is there."""
        output = self.output()
        return "gateway ready" in output and ("mqtt connected" in output or not self._broker.is_ready())


class ApiService(Service):
    """`threadline serve` of a store, which need not be there yet."""

    def __init__(
        self,
        folder: Path,
        broker: BrokerAddress | None,
        store: str,
        *options: str,
        name: str = "api",
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        super().__init__(name, folder)
        self.host = listen[0]
        self.port = listen[1] or free_port()
        self._broker = broker
        self._store = store
        self._options = options

    @property
    def url(self) -> str:
        return f"http://{format_address(self.host, self.port)}"

    def command(self) -> Sequence[str]:
        mqtt = () if self._broker is None else ("--mqtt", self._broker.address)
        return [
            *(sys.executable, "-m", "threadline", "serve", "--store", self._store, *mqtt),
            *("--listen", format_address(self.host, self.port), *self._options),
        ]

    def is_ready(self) -> bool:
        """It answers. What it answers depends on the store."""
        return "api ready" in self.output()


class AgentService(Service):
    """`threadline-agent run` of an app file, with a spool in `folder` that outlives its processes."""

    stop_s = 20.0  # it waits some time for acknowledgements first

    def __init__(
        self, folder: Path, agent: str, app: Path, gateway: tuple[str, int], *options: str, name: str = ""
    ) -> None:
        super().__init__(name or agent, folder)
        self.agent = agent
        self.spool = folder / f"{agent}-spool"
        self._app = app
        self._gateway = gateway
        self._options = options

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "edge_agent.cli", "run", str(self._app), "--name", self.agent),
            *("--gateway", format_address(*self._gateway), "--spool", str(self.spool), *self._options),
        ]

    def is_ready(self) -> bool:
        """It has begun. It need not reach its gateway for that."""
        return f"agent {self.agent} epoch" in self.output()

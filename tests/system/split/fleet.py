"""Agents and the cloud as processes on this machine; agents may be killed, cut off and started again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edge_agent.agent_status import read_status
from edge_agent.config import Settings
from threadline.lab import GatewayService, Mosquitto, Service, TranslatorService
from threadline.lossy_link import LossyLink


class AgentProcess(Service):
    """`threadline-agent run` of an app file. Its spool outlives its processes."""

    def __init__(
        self, folder: Path, name: str, app: Path, gateway: str, *, drain_s: float = 60.0, **settings: Any
    ) -> None:
        super().__init__(name, folder)
        self.spool = folder / f"{name}-spool"
        self._app = app
        self._drain_s = drain_s
        self._config = folder / f"{name}.toml"
        given = {"name": name, "gateway": gateway, "spool": str(self.spool), **settings}
        self._config.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in given.items()))

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "edge_agent.cli", "run", str(self._app)),
            *("--config", str(self._config), "--drain", str(self._drain_s)),
        ]

    def is_ready(self) -> bool:
        return f"agent {self.name} epoch" in self.output() and (self.spool / "status").exists()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def status(self) -> dict[str, Any]:
        """What it has last said of itself, two seconds ago at most."""
        return read_status(Settings(spool=str(self.spool)))

    @property
    def has_taken(self) -> int:
        """Messages of other agents that it has taken over."""
        return sum(self.status["receives"].values())

    @property
    def not_taken(self) -> int:
        """Messages of its own that other agents have not taken over yet."""
        return sum(send["not_taken"] for send in self.status["sends"].values())

    def ends_acknowledged(self, timeout_s: float) -> None:
        """Wait for its end, which must be a good one."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        assert code == 0 and "all acknowledged" in self.output(), f"{self.name} ended with {code}:\n{self.tail()}"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


class Cloud:
    """Mosquitto, a gateway and a translator; and links to the gateway, and agents, as the test needs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mosquitto = Mosquitto(folder)
        self.gateway = GatewayService(folder, self.mosquitto)
        self.translator = TranslatorService(folder, self.mosquitto)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in (self.mosquitto, self.gateway, self.translator):
                stack.enter_context(each)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def link(self, seed: int, **faults: Any) -> LossyLink:
        """A way to the gateway that is as bad as it is told to be."""
        return self._stack.enter_context(LossyLink(self.gateway.address, seed=seed, **faults))

    def agent(self, name: str, app: Path, link: LossyLink | None = None, **options: Any) -> AgentProcess:
        """An agent that is not started yet. It does not outlive the cloud."""
        gateway = f"127.0.0.1:{self.gateway.port}" if link is None else link.url
        gateway = ",".join([gateway] * 4)  # who has several gateways tries again sooner after an outage
        made = AgentProcess(self.folder, name, app, gateway, **options)
        self._stack.callback(Service.kill, made)
        return made

    def log(self) -> Path:
        """The folder of the log, when everything is in it."""
        self.translator.stop()
        return self.translator.log_folder

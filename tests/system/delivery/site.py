"""A device and a cloud as processes on this machine, each of which may be killed and comes back where it was."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

from edge_agent.config import Settings
from protocol.address import format_address
from tests.support import journaled_app
from tests.support.journaled_app import Life, read_journal
from tests.support.waiting import wait_until
from threadline.lab import GatewayService, Mosquitto, Service, TranslatorService

# A kill -9 takes nothing away that was written, synced or not: without syncs, the tests measure the agent and not how
# busy the disk is.
_DEFAULTS: dict[str, Any] = {"flush_s": 0.2, "batch_age_s": 0.3, "fsync": "never"}


class App(Service):
    """A program with its agent. Its journal and its spool outlive its processes; no other test knows its name."""

    def __init__(
        self,
        folder: Path,
        gateway: str,
        *,
        rate: float = 200.0,
        pad: int = 0,
        count: int | None = None,
        close_s: float = 30.0,
        **settings: Any,
    ) -> None:
        agent = settings.setdefault("name", f"pi-{token_hex(4)}")
        number = len(list(folder.glob("*.journal")))
        super().__init__(f"app-{number}", folder)
        self.rate, self.pad, self.count, self.close_s = rate, pad, count, close_s
        self.journal = folder / f"{agent}-{number}.journal"
        self.journal.touch()
        self.spool = Path(settings.setdefault("spool", str(folder / f"spool-{number}")))
        self.settings = Settings(**_DEFAULTS | {"gateway": gateway} | settings)
        self.killed_at_ns: dict[int, int] = {}
        self._config = folder / f"app-{number}.toml"
        given = _DEFAULTS | {"gateway": gateway} | settings
        self._config.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in given.items()))
        self._lives = 0

    def command(self) -> Sequence[str]:
        self._lives = len(self.lives())
        command = [sys.executable, journaled_app.__file__, str(self._config), str(self.journal)]
        command += ["--rate", str(self.rate), "--pad", str(self.pad), "--close", str(self.close_s)]
        return command if self.count is None else [*command, "--count", str(self.count)]

    def is_ready(self) -> bool:
        return len(self.lives()) > self._lives

    def lives(self) -> list[Life]:
        return read_journal(self.journal)

    def kill(self) -> int:
        self.killed_at_ns[len(self.lives()) - 1] = time.monotonic_ns()
        return super().kill()

    def wait(self, timeout_s: float) -> None:
        """Until it has captured all that it should, has left cleanly, and everything was acknowledged."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        assert code == 0, f"the program ended with {code}:\n{self.tail()}"
        left = self.lives()[-1].left
        assert left == 0, f"{left} batches are left:\n{self.tail()}"

    def finish(self, timeout_s: float = 40.0) -> None:
        """Ask it to end, and wait."""
        assert self.process is not None
        self.process.terminate()
        self.wait(timeout_s)

    def captured(self, count: int, timeout_s: float = 20.0) -> None:
        """Wait until this run has captured so many events more."""
        goal = self.lives()[-1].returned + count
        wait_until(lambda: self.lives()[-1].returned >= goal, f"{count} more events", timeout_s, every_s=0.05)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().kill()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, (int, float)) else f'"{value}"'


class Cloud:
    """Mosquitto, a gateway and a translator; the log may lie somewhere else."""

    def __init__(self, folder: Path, log_parent: Path | None = None) -> None:
        self.mosquitto = Mosquitto(folder)
        self.gateway = GatewayService(folder, self.mosquitto)
        self.translator = TranslatorService(log_parent or folder, self.mosquitto)
        self.translator.log = folder / "translator.log"
        self._stack = ExitStack()

    @property
    def gateway_url(self) -> str:
        return format_address(*self.gateway.address)

    @property
    def log_folder(self) -> Path:
        return self.translator.log_folder

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for service in (self.mosquitto, self.gateway, self.translator):
                stack.enter_context(service)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

"""All devices: the worker processes they live in, as the process of the command sees them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from threadline.load.histogram import Histogram
from threadline.load.profiles import Profile, Said
from threadline.load.worker import total

_LOOK_S = 0.1
_END_S = 10.0  # beyond what the agents have for their goodbye
_END_OF_EACH_S = 0.2


class FleetFailed(RuntimeError):
    """A process with devices ended or does not answer; the text ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class DeviceEnd:
    """What a device has said in its life, and what of it is still in its spool."""

    agent: str
    nonce: int
    said: Said
    left: int
    unwritten: int
    dropped: int


@dataclass(slots=True)
class FleetState:
    """All devices at one moment."""

    said: Said = field(default_factory=Said)
    connected: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    """Units that the processes of the devices were too slow for."""


class Fleet:
    """So many devices, in so many processes, with spools in `folder`."""

    def __init__(
        self, profile: Profile, devices: int, processes: int, folder: Path, settings: dict[str, Any], prefix: str
    ) -> None:
        self.profile = profile
        self.devices = devices
        folder.mkdir(parents=True, exist_ok=True)
        names = [(number, f"{prefix}-{number}") for number in range(devices)]
        self._workers: list[_Worker] = []
        self._order = {"profile": profile.name, "folder": str(folder), "settings": settings}
        self._parts = [names[place::processes] for place in range(processes)]
        self._folder = folder

    def __enter__(self) -> Self:
        for place, names in enumerate(self._parts):
            self._workers.append(_Worker({**self._order, "devices": names}, self._folder / f"devices-{place}.log"))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    @property
    def starts(self) -> list[tuple[str, int]]:
        """Agents and nonces of all devices that were started."""
        return [start for worker in self._workers for start in worker.starts]

    def wait_ready(self, give_up: float, is_stopping: threading.Event) -> bool:
        """Until all devices are connected; False if they are not in time, or if nobody wants to wait any longer."""
        while not is_stopping.is_set() and time.monotonic() < give_up:
            self.check()
            if self.state().connected == self.devices:
                return True
            time.sleep(_LOOK_S)
        return False

    def set_rate(self, per_s: float) -> None:
        """From now on, in units of the profile and for all devices together."""
        for worker, names in zip(self._workers, self._parts, strict=True):
            worker.tell({"rate": per_s / self.profile.per_step * len(names) / self.devices})

    def check(self) -> None:
        """FleetFailed if a process has ended too early."""
        for worker in self._workers:
            worker.check()

    def state(self) -> FleetState:
        """As it was told last."""
        found = FleetState()
        told = [worker.now for worker in self._workers if worker.now]
        found.said = total(Said(**each["said"]) for each in told)
        for each in told:
            found.connected += each["states"].get("connected", 0)
            found.sums.update(each["sums"])
            found.missed += each["missed"]
        return found

    def caller_us(self) -> Histogram:
        """Times of the callers since this was last asked."""
        found = Histogram()
        for worker in self._workers:
            found.merge(worker.take_caller_us())
        return found

    def stop(self, timeout_s: float) -> list[DeviceEnd]:
        """Let all devices say their last, and tell what they have said."""
        for worker in self._workers:
            worker.tell({"stop": timeout_s})
        # An agent may need as long to write as to send, and very many have little of the processor each.
        give_up = time.monotonic() + 2 * timeout_s + _END_S + _END_OF_EACH_S * self.devices
        ends = [end for worker in self._workers for end in worker.ended(give_up)]
        return [DeviceEnd(**{**each, "said": Said(**each["said"])}) for each in ends]


class _Worker:
    """One process."""

    def __init__(self, order: dict[str, Any], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "threadline.load.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,  # a Ctrl-C is not for it
            )  # fmt: skip
        self.now: dict[str, Any] = {}
        self._caller_us = Histogram()
        self.starts: list[tuple[str, int]] = []
        self._ended: list[dict[str, Any]] | None = None
        self._lock = threading.Lock()
        self.tell(order)
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def tell(self, wish: dict[str, Any]) -> None:
        """One that is gone is noticed when it is looked at."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(wish) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def check(self) -> None:
        if self._ended is None and self.process.poll() is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-15:]
            raise FleetFailed("\n".join([f"a process with devices ended with {self.process.returncode}:", *lines]))

    def take_caller_us(self) -> Histogram:
        with self._lock:
            found, self._caller_us = self._caller_us, Histogram()
        return found

    def ended(self, give_up: float) -> Sequence[dict[str, Any]]:
        """Wait for its end."""
        while self._ended is None:
            self.check()
            if time.monotonic() > give_up:
                raise FleetFailed("a process with devices does not stop")
            time.sleep(_LOOK_S / 4)
        self.process.wait(_END_S)
        return self._ended

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def _read(self, out: IO[str]) -> None:
        for line in out:
            news = json.loads(line)
            if "now" in news:
                with self._lock:
                    self._caller_us.merge(Histogram.from_json(news["now"]["caller_us"]))
                self.now = news["now"]
            elif "ready" in news:
                self.starts = [(agent, nonce) for agent, nonce in news["ready"]]
            elif "ended" in news:
                self._ended = news["ended"]

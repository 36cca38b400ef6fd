"""All devices: the worker processes they live in, as the process of the command sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from threadline.load.breakdown import Breakdown
from threadline.load.histogram import Histogram
from threadline.load.profiles import Profile, Said, total

_LOOK_S = 0.1
_END_S = 10.0  # beyond what the agents have for their goodbye
_END_OF_EACH_S = 0.2
_DEVICES_OF_A_PROCESS = 100  # each has threads, and whoever waits for Python's lock wakes up again and again
_NOBODY_S = 10.0
_WHO = "a process with devices"


def usual_processes(devices: int) -> int:
    """One per core, and more if they would have too many devices each."""
    return min(devices, max(os.cpu_count() or 1, -(-devices // _DEVICES_OF_A_PROCESS)))


@dataclass(frozen=True, slots=True)
class DeviceEnd:
    """What a device has said in its life, what of it is still in its spool, and what of it is gone."""

    agent: str
    nonce: int
    said: Said
    left: int
    """Batches."""
    unwritten: int = 0
    """Records that were only in its memory when it ended."""
    dropped: int = 0
    """Records that it gave up, as it had no room for them."""


@dataclass(slots=True)
class FleetState:
    """All devices at one moment."""

    said: Said = field(default_factory=Said)
    told: list[tuple[float, Said]] = field(default_factory=list)
    """What each process had said, and when: on the clock of `time.monotonic`, which is the same for all processes."""
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
        self._order: dict[str, Any] = {"profile": profile.name, "folder": str(folder), "settings": settings}
        self._parts = [names[place::processes] for place in range(processes)]
        self._folder = folder

    def __enter__(self) -> Self:
        for place, names in enumerate(self._parts):
            order = {**self._order, "devices": names, "phase": (place + 0.5) / len(self._parts)}
            self._workers.append(_Worker(order, self._folder / f"devices-{place}.log"))
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

    def wait_ready(self, timeout_s: float, look: Callable[[], None]) -> bool:
        """Until all devices are connected; False if they are not in time. Breakdown if not even one of them finds
        anybody to connect to. Whoever does not want to wait any longer raises something in `look`."""
        begun = time.monotonic()
        all_started: float | None = None
        while (now := time.monotonic()) < begun + timeout_s:
            look()
            self.check()
            if (connected := self.state().connected) == self.devices:
                return True
            if all_started is None and all(worker.now for worker in self._workers):
                all_started = now
            if not connected and all_started is not None and now > all_started + _NOBODY_S:
                break
            time.sleep(_LOOK_S)
        if not self.state().connected:
            took_s = time.monotonic() - begun
            none = f"none of {self.devices} devices was connected within {took_s:.0f} s"
            if took_s < _NOBODY_S:
                none += "; on a slow machine or way they need a longer --connect"
            raise Breakdown("nobody", f"answers at {self._order['settings']['gateway']}", none)
        return False

    def set_rate(self, per_s: float) -> None:
        """From now on, in units of the profile and for all devices together."""
        for worker, names in zip(self._workers, self._parts, strict=True):
            worker.tell({"rate": per_s / self.profile.per_step * len(names) / self.devices})

    def check(self) -> None:
        """Breakdown if a process has ended too early."""
        for worker in self._workers:
            worker.check()

    def state(self) -> FleetState:
        """As it was told last."""
        found = FleetState()
        told = [worker.now for worker in self._workers if worker.now]
        found.told = [(each["at"], Said(**each["said"])) for each in told]
        found.said = total(said for _, said in found.told)
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

    def stop(self, timeout_s: float, look: Callable[[], None] = lambda: None) -> list[DeviceEnd]:
        """Let all devices say their last, and tell what they have said. Whoever does not want to wait any longer raises
        something in `look`."""
        for worker in self._workers:
            worker.tell({"stop": timeout_s})
        # An agent may need as long to write as to send, and very many have little of the processor each.
        give_up = time.monotonic() + 2 * timeout_s + _END_S + _END_OF_EACH_S * self.devices
        ends = [end for worker in self._workers for end in worker.ended(give_up, look)]
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
        if self._ended is not None or self.process.poll() is None:
            return
        self._reader.join()  # its last words may still be on their way
        if self._ended is None:
            raise Breakdown.died(_WHO, self.process.returncode, self._log.read_text(errors="replace").splitlines())

    def take_caller_us(self) -> Histogram:
        with self._lock:
            found, self._caller_us = self._caller_us, Histogram()
        return found

    def ended(self, give_up: float, look: Callable[[], None]) -> Sequence[dict[str, Any]]:
        """Wait for its end."""
        while self._ended is None:
            look()
            self.check()
            if time.monotonic() > give_up:
                raise Breakdown(_WHO, "does not stop")
            time.sleep(_LOOK_S / 4)
        with suppress(subprocess.TimeoutExpired):  # it has said all that it had to say
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
            if not line.endswith("\n"):
                return  # it was killed while it told this
            news = json.loads(line)
            if "now" in news:
                with self._lock:
                    self._caller_us.merge(Histogram.from_json(news["now"]["caller_us"]))
                self.now = news["now"]
            elif "ready" in news:
                self.starts = [(agent, nonce) for agent, nonce in news["ready"]]
            elif "ended" in news:
                self._ended = news["ended"]

"""A process with many devices: it starts their agents, has them speak in turn, and says every second how they are.

    stdin   a line of JSON that says what to run, then one per wish: {"rate": 500}, {"stop": 30}
    stdout  {"ready": ...}, then {"now": ...} every second, and {"ended": [...]} with all that each device has said

Devices are equal, so one after the other speaks, at equal distances in time: device k of n never at the same moment as
another, which is how it is with devices that know nothing of each other. What a process says of itself carries the time
of the moment that it is about, as it may be read late. Without anybody at the other end of stdin the process stops by
itself.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from edge_agent.agent import Agent
from edge_agent.config import Settings
from threadline.load.histogram import Histogram
from threadline.load.pace import Pace
from threadline.load.profiles import Device, profile_named, total

_REPORT_S = 1.0
_LOOK_S = 0.2
_STARTING = 16


@dataclass(slots=True)
class Member:
    """A device and its agent."""

    agent: Agent
    device: Device


class Crew:
    """The devices of this process."""

    def __init__(self, order: dict[str, Any], out: TextIO) -> None:
        self._out = out
        self._telling = threading.Lock()
        self._profile = profile_named(order["profile"])
        self._folder = Path(order["folder"])
        self._settings: dict[str, Any] = order["settings"]
        self._caller_us = Histogram()
        self._pace = Pace(order["phase"])
        self._lock = threading.Lock()  # of the pace and of the times
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._stop_s = 0.0
        names: list[tuple[int, str]] = [tuple(each) for each in order["devices"]]
        with ThreadPoolExecutor(_STARTING) as pool:
            self._members = list(pool.map(self._member, names))

    def _member(self, named: tuple[int, str]) -> Member:
        number, name = named
        agent = Agent(Settings(name=name, spool=str(self._folder / name), **self._settings), self._profile.plan)
        return Member(agent.start(), self._profile.device(agent, number))

    def run(self) -> None:
        """Until it is told to stop."""
        self._tell({"ready": [[each.agent.name, each.agent.epoch.nonce] for each in self._members]})
        for task in (self._obey, self._report):
            threading.Thread(target=task, daemon=True).start()
        while not self._stopping.is_set():
            self._speak()
        for each in self._members:
            each.device.finish()
        self._tell_now()
        with ThreadPoolExecutor(len(self._members)) as pool:  # nearly all of it is waiting
            self._tell({"ended": list(pool.map(self._ended, self._members))})

    # The pace

    def _speak(self) -> None:
        """Whoever has its turn, when it has it."""
        with self._lock:
            place = self._pace.steps
            wait_s = self._pace.wait_s(time.monotonic())
        if wait_s:
            self._changed.wait(min(wait_s, _LOOK_S))
            self._changed.clear()
            return
        took_ns = self._members[place % len(self._members)].device.say()
        with self._lock:
            for ns in took_ns:
                self._caller_us.add(ns / 1000)

    def _set_rate(self, steps_per_s: float) -> None:
        with self._lock:
            self._pace.set_rate(steps_per_s, time.monotonic())
        self._changed.set()

    def _obey(self) -> None:
        for line in sys.stdin:
            wish = json.loads(line)
            if "rate" in wish:
                self._set_rate(wish["rate"])
            if "stop" in wish:
                self._stop_s = wish["stop"]
                break
        self._stopping.set()
        self._changed.set()
        for each in self._members:
            each.agent.let_go()  # whoever waits for room would not come to its end

    # How it is

    def _report(self) -> None:
        while not self._stopping.wait(_REPORT_S):
            self._tell_now()

    def _now(self) -> dict[str, Any]:
        states: Counter[str] = Counter()
        sums: Counter[str] = Counter()
        for each in self._members:
            status = each.agent.status()
            states[status["link"]["state"]] += 1
            sums["unacknowledged"] += status["unacknowledged"]
            sums["memory_bytes"] += status["memory_bytes"]
            sums["acknowledged"] += status["acknowledged"]
            sums["dropped"] += status["dropped"]
            sums["resent"] += status["link"]["resent"]
        with self._lock:
            caller_us, self._caller_us = self._caller_us, Histogram()
            missed = self._pace.missed
        return {
            "at": time.monotonic(),
            "said": asdict(total(each.device.said for each in self._members)),
            "states": dict(states),
            "sums": dict(sums),
            "caller_us": caller_us.to_json(),
            "missed": missed * self._profile.per_step,
        }

    def _ended(self, member: Member) -> dict[str, Any]:
        agent = member.agent
        left = agent.close(self._stop_s)
        return {
            "agent": agent.name,
            "nonce": agent.epoch.nonce,
            "said": asdict(member.device.said),
            "left": left,
            "unwritten": agent.unwritten,
            "dropped": agent.status()["dropped"],
        }

    def _tell(self, news: dict[str, Any]) -> None:
        with self._telling:
            self._write(news)

    def _tell_now(self) -> None:
        with self._telling:  # also while it looks: nobody may tell something older afterwards
            self._write({"now": self._now()})

    def _write(self, news: dict[str, Any]) -> None:
        self._out.write(json.dumps(news) + "\n")
        self._out.flush()


def main() -> None:
    """Read what to run, and run it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # some ten files for each agent
    order = json.loads(sys.stdin.readline())
    sys.setswitchinterval(profile_named(order["profile"]).switch_s)
    Crew(order, sys.stdout).run()


if __name__ == "__main__":
    main()

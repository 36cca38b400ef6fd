"""A program that captures numbered events, and writes a journal of its own: what it was about to say, and that it had
said it. Each line is one unbuffered write, so after a kill -9 the test knows what was captured and when.

    epoch COUNTER NONCE                 the agent has started
    will NUMBER KIND VALUE NS           about to capture an event, at this monotonic time
    did NUMBER NS                       the call has returned
    resent BATCHES PACKETS              so much was sent more than once, by the agent and by its transport
    end LEFT                            the agent is closed; so many batches are left in its spool

Tests import it for `read_journal` and `told`; as a script it needs nothing but what a device has.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from edge_agent.agent import Agent
from edge_agent.capture import Data, Task, Workflow, use
from edge_agent.config import load_settings
from protocol.events import DataItem, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded

WORKFLOW = "watch"
_TELL_EVERY_NS = 200_000_000


@dataclass(slots=True)
class Captured:
    """One event as the program knows it. `after_ns` is None if the program died before the call returned."""

    number: int
    kind: str
    value: int
    before_ns: int
    after_ns: int | None = None


@dataclass(slots=True)
class Life:
    """One run of the program. `left` is None if it had no end."""

    counter: int
    nonce: int
    captured: list[Captured] = field(default_factory=list)
    resent_batches: int = 0
    resent_packets: int = 0
    left: int | None = None

    @property
    def returned(self) -> int:
        """How many calls have returned: the first so many events."""
        return sum(each.after_ns is not None for each in self.captured)


def read_journal(path: Path) -> list[Life]:
    """All runs so far. The last line may be in the making."""
    lives: list[Life] = []
    text = path.read_text() if path.exists() else ""
    for line in text.split("\n")[:-1]:
        word, *values = line.split(" ")
        if word == "epoch":
            lives.append(Life(int(values[0]), int(values[1], 16)))
        elif word == "will":
            number, kind, value, ns = values
            lives[-1].captured.append(Captured(int(number), kind, int(value), int(ns)))
        elif word == "did":
            lives[-1].captured[int(values[0])].after_ns = int(values[1])
        elif word == "resent":
            lives[-1].resent_batches, lives[-1].resent_packets = map(int, values)
        elif word == "end":
            lives[-1].left = int(values[0])
    return lives


def content(value: int, pad_bytes: int) -> dict[str, Any]:
    """What an event of this value says."""
    return {"reading": value, "pad": Random(value).randbytes(pad_bytes).hex()}


def told(captured: Captured, ts: int, pad_bytes: int) -> Any:
    """The event that must be in the log for a captured one. Keys count up: the workflow's, then those of the tasks."""
    number, kind = captured.number, captured.kind
    task, key = (number - 1) // 2, 1 + (number - 1) // 2
    said = content(captured.value, pad_bytes)
    if kind == "W":
        return WorkflowBegun(number, ts, 0, WORKFLOW, said)
    if kind == "X":
        return WorkflowEnded(number, ts, 0, "finished")
    if kind == "B":
        return TaskBegun(number, ts, key, 0, f"task-{task}", "read", (), (DataItem(f"in-{task}", WORKFLOW, (), said),))
    item = DataItem(f"out-{task}", WORKFLOW, (f"in-{task}",), said)
    return TaskEnded(number, ts, key, "finished", "", (item,))


class _Program:
    """Captures at a steady rate until it has enough or is told to stop."""

    def __init__(self, agent: Agent, journal: Path, pad_bytes: int) -> None:
        self._agent = agent
        self._pad_bytes = pad_bytes
        self._random = Random()
        self._number = 0
        self._told_at_ns = 0
        self._fd = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.stopping = False
        self.write(f"epoch {agent.epoch.counter} {agent.epoch.nonce:x}")

    def write(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())

    def stop(self, _: int, __: FrameType | None) -> None:
        self.stopping = True

    def run(self, rate: float, count: int) -> None:
        workflow = Workflow(WORKFLOW)
        value = self._will("W")
        workflow.attributes = content(value, self._pad_bytes)
        workflow.begin()
        self._did()
        began = time.monotonic()
        while not self.stopping and self._number < count:
            number = (self._number - 1) // 2
            task = Task(f"task-{number}", workflow, "read")
            data = Data(f"in-{number}", WORKFLOW, content(self._will("B"), self._pad_bytes))
            task.begin([data])
            self._did()
            result = Data(f"out-{number}", WORKFLOW, content(self._will("E"), self._pad_bytes), [data])
            task.end([result])
            self._did()
            while (ahead_s := self._number / rate - (time.monotonic() - began)) > 0 and not self.stopping:
                time.sleep(min(ahead_s, 0.05))
        self._will("X")
        workflow.end()
        self._did()

    def _will(self, kind: str) -> int:
        value = self._random.getrandbits(31)
        self.write(f"will {self._number} {kind} {value} {time.monotonic_ns()}")
        return value

    def _did(self) -> None:
        now_ns = time.monotonic_ns()
        self.write(f"did {self._number} {now_ns}")
        self._number += 1
        if now_ns - self._told_at_ns > _TELL_EVERY_NS:
            self._told_at_ns = now_ns
            self.tell_resent()

    def tell_resent(self) -> None:
        status = self._agent.status()
        self.write(f"resent {status['resent_batches']} {status['link']['resent']}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--pad", type=int, default=0)
    parser.add_argument("--close", type=float, default=30.0)
    options = parser.parse_args()
    agent = Agent(load_settings(options.config)).start()
    use(agent, strict=True)
    program = _Program(agent, options.journal, options.pad)
    signal.signal(signal.SIGTERM, program.stop)
    program.run(options.rate, options.count)
    left = agent.close(options.close)
    program.tell_resent()
    program.write(f"end {left}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A stream of numbers from one agent to another. The plan of the second keeps no state: its crashes cost no tuple.

The source goes on where its last process stopped, like a sensor for which time goes on; it notes every number first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from edge_agent.stream import Plan

SENDER, RECEIVER, SINK = "numbers-source", "numbers-center", "squares"


def numbers(journal: Path, count: int, per_s: float, noise_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbers up to `count` that the journal does not have yet. Noise cannot be compressed."""
    noted = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(len(read_journal(journal)), count):
        if per_s:
            time.sleep(1 / per_s)
        os.write(noted, b"%d %d\n" % (number, time.monotonic_ns()))
        yield number, {"number": number, "noise": Random(number).randbytes(noise_bytes)}


def read_journal(journal: Path) -> dict[int, float]:
    """When each number was taken from the source, in seconds of the machine's clock."""
    lines = [line.split() for line in journal.read_bytes().splitlines()] if journal.exists() else []
    return {int(number): int(at_ns) / 1e9 for number, at_ns in lines}


def measured(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "bytes": len(value["noise"])}


def is_wanted(value: dict[str, Any]) -> bool:
    return bool(value["number"] % 3)


def squared(value: dict[str, Any]) -> dict[str, Any]:
    return {"number": value["number"], "square": value["number"] ** 2}


def sending(journal: str, count: int, per_s: float, noise_bytes: int) -> Plan:
    plan = Plan(SENDER)
    source = plan.source("counter", lambda: numbers(Path(journal), count, per_s, noise_bytes))
    source.map(measured).send("numbers", to=[RECEIVER])
    return plan


def receiving() -> Plan:
    plan = Plan(RECEIVER)
    plan.receive("numbers", SENDER).filter(is_wanted).map(squared).sink(SINK)
    return plan


def expected(numbers: range) -> list[tuple[int, dict[str, Any]]]:
    """What reaches the sink of these numbers."""
    return [(number, squared({"number": number})) for number in numbers if is_wanted({"number": number})]


def sender_app(folder: Path, count: int, *, per_s: float = 0.0, noise_bytes: int = 0) -> Path:
    path = folder / "sender_app.py"
    path.write_text(
        "from tests.system.split.numbers import sending\n\n"
        f"def build():\n    return sending({str(folder / 'journal')!r}, {count}, {per_s}, {noise_bytes})\n"
    )
    return path


def receiver_app(folder: Path) -> Path:
    path = folder / "receiver_app.py"
    path.write_text("from tests.system.split.numbers import receiving\n\ndef build():\n    return receiving()\n")
    return path

"""People who ask the API while the devices are at work: Locust, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT
from typing import Any

_STOP_S = 15.0
MISSING = "locust is not installed, and asks the API for --users: install threadline[bench], or leave it out"


@dataclass(slots=True)
class Question:
    """One kind of question, and how it was answered."""

    name: str
    requests: int
    failures: int
    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    most_ms: float


@dataclass(slots=True)
class Asked:
    """All questions, and what went wrong."""

    users: int
    questions: list[Question] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def failures(self) -> int:
        return sum(each.failures for each in self.questions)


@dataclass(slots=True)
class Asking:
    """Those who ask; `result` is there when they have ended."""

    result: Asked | None = None


def is_installed() -> bool:
    return find_spec("locust") is not None


@contextmanager
def asking(api: str | None, users: int, folder: Path) -> Iterator[Asking]:
    """So many users ask an API until the end of the block."""
    found = Asking()
    if not users or api is None:
        yield found
        return
    told = folder / "asked.json"
    log = folder / "locust.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "locust", "--locustfile", str(Path(__file__).with_name("locustfile.py"))),
                *("--headless", "--users", str(users), "--spawn-rate", str(users), "--host", api),
                *("--json-file", str(told.with_suffix("")), "--only-summary", "--stop-timeout", "2"),
                *("--exit-code-on-error", "0"),
            ],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        yield found
    finally:
        process.send_signal(SIGINT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    found.result = _read(users, told, log)


def _read(users: int, told: Path, log: Path) -> Asked:
    if not told.exists():
        lines = log.read_text(errors="replace").splitlines()[-5:]
        return Asked(users, errors=["locust has told nothing:", *lines])
    return Asked(users, [_question(each) for each in json.loads(told.read_text())])


def _question(told: dict[str, Any]) -> Question:
    times = {float(ms): count for ms, count in told["response_times"].items()}
    elapsed_s = max(told["last_request_timestamp"] - told["start_time"], 1e-3)
    return Question(
        name=told["name"],
        requests=told["num_requests"],
        failures=told["num_failures"],
        per_s=told["num_requests"] / elapsed_s,
        p50_ms=_at(times, 0.5),
        p95_ms=_at(times, 0.95),
        p99_ms=_at(times, 0.99),
        most_ms=told["max_response_time"] or 0.0,
    )


def _at(times: dict[float, int], share: float) -> float:
    left = sum(times.values()) * share
    for ms in sorted(times):
        left -= times[ms]
        if left <= 0:
            return ms
    return 0.0

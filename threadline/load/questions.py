"""People who ask the API while the devices are at work: Locust, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from signal import SIGTERM
from typing import Self
from urllib.error import HTTPError, URLError
from urllib.request import getproxies, urlopen

from threadline.load.breakdown import Breakdown

_ANSWER_S = 5.0
_STOP_S = 15.0
_HEALTH_BYTES = 10_000
MISSING = "locust is not installed, and asks the API for --users: install threadline[bench], or leave it out"


class NoApi(RuntimeError):
    """Nobody answers there, or somebody else."""


@dataclass(slots=True)
class Question:
    """One kind of question, and how it was answered."""

    name: str
    requests: int
    failures: int
    per_s: float
    """In the time in which users were there."""
    p50_ms: float
    p95_ms: float
    p99_ms: float
    most_ms: float


@dataclass(slots=True)
class Asked:
    """All questions, and what went wrong. They are told when the users have ended."""

    users: int
    questions: list[Question] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def was_answered(self) -> bool:
        """Whether anybody has got an answer at all."""
        return any(each.requests > each.failures for each in self.questions)


def is_installed() -> bool:
    return find_spec("locust") is not None


def check_api(api: str) -> None:
    """NoApi if there is none to ask."""
    api = api.rstrip("/")
    try:
        with urlopen(f"{api}/healthz", timeout=_ANSWER_S) as answer:
            told = answer.read(_HEALTH_BYTES)
    except HTTPError as error:
        raise NoApi(f"{api}/healthz answers {error.code}: that is no API of ours") from error
    except (OSError, HTTPException, ValueError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise NoApi(f"nobody answers at {api}: {getattr(why, 'strerror', None) or why}") from error
    if not _is_health(told):
        raise NoApi(f"{api}/healthz answers {told[:40]!r}: that is no API of ours")


def _is_health(told: bytes) -> bool:
    try:
        found = json.loads(told)
    except ValueError:
        return False
    return isinstance(found, dict) and "status" in found


class Users:
    """So many, in a process of their own."""

    def __init__(self, api: str, users: int, folder: Path) -> None:
        self.asked = Asked(users)
        self._death = ""
        self._told = folder / "asked.json"
        self._log = folder / "locust.log"
        no_proxy = ",".join(filter(None, [getproxies().get("no", ""), "localhost,127.0.0.1,::1"]))
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "locust", "--locustfile", str(Path(__file__).with_name("locustfile.py"))),
                    *("--headless", "--users", str(users), "--spawn-rate", str(users), "--host", api.rstrip("/")),
                    *("--only-summary", "--stop-timeout", "2", "--exit-code-on-error", "0"),
                ],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
                env={
                    **os.environ,
                    "NO_PROXY": no_proxy,
                    "no_proxy": no_proxy,
                    "THREADLINE_ASKED": str(self._told),
                    "THREADLINE_PARENT": str(os.getpid()),
                },
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop them, and read what they tell."""
        self.look()
        stopped = time.time()
        self._process.send_signal(SIGTERM)  # SIGINT is ignored by whatever a script has started in the background
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._read(stopped)

    @property
    def have_begun(self) -> bool:
        """Or never will."""
        return self._told.exists() or self._process.poll() is not None

    def look(self, at_s: float | None = None) -> None:
        """Whether they are still there; the run need not end if they are not."""
        if not self._death and (code := self._process.poll()) is not None:
            self._death = Breakdown.died("locust", code, self._log.read_text(errors="replace").splitlines()).told(at_s)

    def _read(self, stopped: float) -> None:
        asked = self.asked
        if self._death:
            asked.errors = self._death.splitlines()
            return
        if not self._told.exists():
            lines = self._log.read_text(errors="replace").splitlines()[-5:]
            asked.errors = ["locust has told nothing:", *lines]
            return
        told = json.loads(self._told.read_text())
        at_work_s = max(stopped - told["begun"], 1e-3)
        asked.questions = [Question(**each, per_s=each["requests"] / at_work_s) for each in told["questions"]]
        asked.errors = told["errors"] if asked.was_answered else [*told["errors"], "nobody was answered"]

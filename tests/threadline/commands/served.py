"""A store with something of everything that people ask about, an API that serves it, and commands that ask.

car, hub, center    readings that reach results by several ways, still at work
kiosk, depot        a result whose origin is lost for ever
till, office        a result that came when its readings were let go of: office took no notice of totals at first
prankster           texts that want to be more than texts: markup, codes of terminals, characters of addresses
pi-1                a captured training, with hyperparameters, and a long chain of tasks
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from typer.testing import CliRunner, Result

from collector.store import StoreWriter
from protocol.events import UNKNOWN, Dependency, Event
from protocol.graph import GraphBatch
from protocol.records import Delivery, Status
from protocol.row import Row
from tests.collector.agents import FakeAgent
from tests.collector.forwarding.captured import row_of
from tests.collector.store.captures import begun, data, ended, workflow_begun, workflow_ended
from tests.collector.store.rows import record_row, register_row
from tests.spark_jobs.rows import document, receive, send, sink, source, window
from tests.support.pipeline import Pipeline
from tests.system.graph.city import City
from threadline.cli import app
from threadline.lab import Service, free_port

ROUNDS = 16
"""Enough for some readings to expire."""
SALES = 3
"""Readings that come late."""
WIDE = 30
"""Origins of one result."""
STEPS = 14
"""Of the chain of tasks."""
CLOCK_MS = 1_794_900_000_000
CLOCK = "2026-11-17T07:20:00.000Z"
NASTY = "[red]x[/red]\x1b[31m\x9b31m\nnext\u202e:smile:"
ODD = "al erts?#%2F"
"""A stream."""
PI = FakeAgent("pi-1", nonce=2**64 - 1, epoch=1)
_KIOSK = document(source("entries"), window("w", "entries", 1_000), send("visits", "w", "depot"))
_DEPOT = document(receive("in", "kiosk", "visits"), window("w", "in", 1_000), sink("visited", "w"))
_TILL = document(source("sales"), window("w", "sales", 1_000), send("totals", "w", "office"))
_UNAWARE = document(source("notes"), window("w", "notes", 1_000), sink("noted", "w"))
_OFFICE = document(receive("in", "till", "totals"), window("w", "in", 1_000), sink("sold", "w"))
_PRANKSTER = document(source("pranks"), window("w", "pranks", 1_000), sink(ODD, "w"))
_COMBINATIONS = ((0.1, 16), (0.1, 32), (0.2, 16))


class Api(Service):
    """`threadline serve` of a store, always on the same port."""

    def __init__(self, folder: Path, store: Path) -> None:
        super().__init__("api", folder)
        self.port = free_port()
        self._store = store

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "threadline", "serve", "--store", f"sqlite:///{self._store}"),
            *("--listen", f"127.0.0.1:{self.port}"),
        ]

    def is_ready(self) -> bool:
        return "api ready" in self.output()

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        """A command that asks this API, in this process."""
        return CliRunner().invoke(app, arguments, input=stdin, env={"THREADLINE_API": self.url})

    @contextmanager
    def started(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
        """The same as a process; if it has not ended by itself, it is ended."""
        command = [sys.executable, "-m", "threadline", *arguments, "--api", self.url]
        with subprocess.Popen(command, **options) as process:
            try:
                yield process
            finally:
                process.kill()


def refused(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("threadline: "), result.output
    for word in words:
        assert word in result.stderr, result.output


def on_terminal(api: Api, *arguments: str, columns: int = 80, **environment: str) -> str:
    """What a command writes on a terminal of this width."""
    ours, its = pty.openpty()
    usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    subprocess.run(["stty", "cols", str(columns), "rows", "24"], stdin=its, check=True)
    with api.started(
        *arguments, stdin=its, stdout=its, stderr=subprocess.DEVNULL,
        env={**usual, "TERM": "xterm-256color", **environment},
    ):  # fmt: skip
        os.close(its)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # nobody has the other end any more
                break
            if not part:
                break
            written += part
    os.close(ours)
    return written.decode()


def pipes(process: subprocess.Popen[Any]) -> tuple[IO[Any], IO[Any]]:
    """What a process writes on stdout and stderr."""
    assert process.stdout is not None and process.stderr is not None
    return process.stdout, process.stderr


def fill(path: Path) -> None:
    """Write the store."""
    with StoreWriter(path) as writer:
        for batch in batches():
            writer.write(batch)


def batches() -> Iterator[GraphBatch]:
    """What the pipeline makes of it, one micro-batch after the other."""
    pipeline = Pipeline()
    city = City(seed=1)
    rounds = city.rounds(lambda: False)
    yield from pipeline.run_all(islice(rounds, ROUNDS - 1))
    kiosk, depot = city.joined_by("kiosk", _KIOSK), city.joined_by("depot", _DEPOT)
    office, till = city.joined_by("office", _UNAWARE), city.joined_by("till", _TILL)
    prankster = city.joined_by("prankster", _PRANKSTER)
    total = till.deliver("totals", 1_000, *(till.source("sales", 100 * number) for number in range(SALES)))
    till.progress("totals", 2_000)
    for speaker in (kiosk, depot, office, till):
        speaker.leave()
    visit = kiosk.deliver("visits", 1_000, kiosk.source("entries", 0))
    kiosk.lose()
    depot.deliver("visited", 1_500, visit)
    depot.leave()
    pranks = [prankster.source("pranks", CLOCK_MS - number) for number in range(WIDE)]
    prankster.says(Delivery(prankster.start.stream(ODD), 0, CLOCK_MS, {"text": NASTY, "cars": 2}, tuple(pranks)))
    prankster.leave()
    yield pipeline.run(next(rounds))
    office.restart(_OFFICE)
    office.deliver("sold", 2_000, total)
    office.leave()
    last = pipeline.run(next(rounds))
    yield replace(last, rows=[*last.rows, *_captured_rows()])


def _captured_rows() -> list[Row]:
    return [
        register_row(1_000, "captured", of=PI, stream_of=PI),
        record_row(*(row_of(each) for each in (*_training(), *_chain())), seq=1, of=PI),
        record_row(Status(CLOCK_MS, 3, 4_200, 7, 2, 0, {"rtt_ms": 1.5}, {"w": (4, 3, 2, 1)}), seq=2, of=PI),
    ]


def _training() -> list[Event]:
    """Two epochs of each combination of hyperparameters; the very last one fails."""
    told: list[Event] = [workflow_begun(0, "training", CLOCK_MS, {"model": "m"})]
    key = 0
    for rate, batch in _COMBINATIONS:
        for epoch in (1, 2):
            key += 1
            used = data(f"in-{key}", {"rate": rate, "batch": batch}, workflow="training")
            figures = {"epoch": epoch, "loss": rate / epoch, "accuracy": key / 10}
            made = data(f"out-{key}", figures, f"in-{key}", workflow="training")
            told.append(begun(key, f"epoch-{key}", used, ts=CLOCK_MS + 1_000 * key))
            told.append(ended(key, made, ts=CLOCK_MS + 1_010 * key))
    told.append(begun(key + 1, "test", ts=CLOCK_MS, transformation="test", after=[Dependency("\x1bghost", UNKNOWN)]))
    told.append(ended(key + 1, ts=CLOCK_MS + 5, error="[bold]it\nbroke"))
    return [*told, workflow_ended(0, CLOCK_MS + 10_000, "it broke")]


def _chain() -> list[Event]:
    """Tasks of which each uses what the one before has made."""
    told: list[Event] = [workflow_begun(50, "chain", 0)]
    for key in range(51, 51 + STEPS):
        used, made = (data(f"state-{each}", workflow="chain") for each in (key - 1, key))
        after = [Dependency(f"step-{key - 1}", key - 1)] if key > 51 else []
        told.append(begun(key, f"step-{key}", used, workflow=50, ts=key, transformation="step", after=after))
        told.append(ended(key, made, ts=key + 1))
    return told

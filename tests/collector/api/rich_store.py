"""A store that holds something of everything that the API shows, filled by the operators of the pipeline.

city      car, hub and center, still at work: readings, results, tuples that agents sent to each other
depot     a result that is incomplete, as kiosk has lost what it sent, and an edge that came too late
pi-1, -2  captured runs: one finished, one failed, one still running; a status, tuples that came too late, gaps, and
          a row that nobody can read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from collector.store import StoreWriter
from protocol.events import UNKNOWN, Dependency, Event
from protocol.graph import GraphBatch
from protocol.records import BEGINNING, Gap, Late, Lost, Status
from protocol.row import Row
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.collector.forwarding.captured import row_of
from tests.collector.store.captures import begun, data, ended, workflow_begun, workflow_ended
from tests.collector.store.rows import record_row, register_row, row
from tests.spark_jobs.rows import document, receive, send, sink, source, window
from tests.support.pipeline import Pipeline
from tests.system.graph.city import City

ROUNDS = 6
PI = FakeAgent("pi-1", nonce=2**64 - 1, epoch=1)
OTHER_PI = FakeAgent("pi-2", nonce=7, epoch=1)
_KIOSK = document(source("entries"), window("w", "entries", 1_000), send("visits", "w", "depot"))
_DEPOT = document(
    source("checks"),
    receive("in", "kiosk", "visits"),
    window("w", "in", 1_000),
    window("v", "checks", 1_000),
    sink("visited", "w"),
    sink("checked", "v"),
)


class Known(NamedTuple):
    """Ids of what is in the store."""

    reading: str = "car/readings@1:0"
    sent: str = "car/minutes@1:0"
    result: str = "center/alerts@1:1"
    incomplete: str = "depot/visited@1:0"
    late_result: str = "depot/checked@1:1"
    late_reading: str = "depot/checks@1:0"
    lost: str = "kiosk/visits@1:0"
    task: str = "task:pi-1@1:2"
    data: str = "data:pi-1@1:training/out-2"
    workflow: str = "workflow:pi-1@1:0"
    other_workflow: str = "workflow:pi-2@1:0"


KNOWN = Known()


def fill(writer: StoreWriter) -> None:
    """Write all of it."""
    pipeline = Pipeline()
    for made in _graph(pipeline):
        writer.write(made)


def _graph(pipeline: Pipeline) -> list[GraphBatch]:
    city = City(seed=1)
    rounds = city.rounds(lambda: False)
    made = pipeline.run_all(islice(rounds, ROUNDS))
    kiosk, depot = city.joined_by("kiosk", _KIOSK), city.joined_by("depot", _DEPOT)
    for speaker in (kiosk, depot):
        speaker.leave()
    visit = kiosk.deliver("visits", 1_000, kiosk.source("entries", 0))
    kiosk.lose()
    check = depot.source("checks", 0)
    depot.deliver("visited", 1_500, visit)
    depot.deliver("checked", 500, check)
    depot.progress("visited", 2_000)
    depot.progress("checked", 2_000)
    depot.leave()
    made.append(pipeline.run(next(rounds)))
    depot.deliver("checked", 2_500, check)
    depot.leave()
    kiosk.restart(_KIOSK, crashed=True)
    kiosk.leave()
    made.append(pipeline.run(next(rounds)))
    made[-1] = replace(made[-1], rows=[*made[-1].rows, *_captured_rows()])
    return made


def _captured_rows() -> list[Row]:
    return [
        register_row(1_000, "captured", of=PI, stream_of=PI),
        register_row(1_001, "captured", of=OTHER_PI, stream_of=OTHER_PI),
        record_row(*_rows(training(0.1)), seq=1, of=PI),
        record_row(*_rows([*training(0.2), *_more(0.2)]), seq=1, of=OTHER_PI),
        record_row(Status(5_000, 1, 2, 3, 4, 5, {"rtt_ms": 1.5}, {"w": (4, 3, 2, 1)}), seq=2, of=PI),
        record_row(
            Late(PI.stream("late"), 5, {"value": 1}, 10),
            Late(PI.stream("late"), 6, {"value": 2}, BEGINNING),
            seq=3,
            of=PI,
        ),
        record_row(Gap("full", PI.epoch, PI.nonce, (4, 6), (Lost("late", 3, 9),)), seq=4, of=PI),
        row(Kind.PLAN, b"\xff", 5, PI),
    ]


def _rows(events: Sequence[Event]) -> list[tuple[object, ...]]:
    return [row_of(each) for each in events]


def training(rate: float) -> list[Event]:
    """A run of a training of three steps; the last one fails."""
    told: list[Event] = [workflow_begun(0, "training", 1_000, {"model": "m", "rate": rate})]
    for key in (1, 2, 3):
        before = [Dependency(f"step-{key - 1}", key - 1 if key > 1 else UNKNOWN)]
        used = data(f"out-{key - 1}", {"rate": rate, "batch": 16}, workflow="training")
        told.append(begun(key, f"step-{key}", used, ts=1_000 * key, after=before))
        result = data(f"out-{key}", {"loss": rate / key}, f"out-{key - 1}", workflow="training")
        error = "it broke" if key == 3 else ""
        told.append(ended(key, *([] if error else [result]), ts=1_000 * key + 100, error=error))
    return [*told, workflow_ended(0, 4_000, "it broke")]


def _more(rate: float) -> list[Event]:
    """A run that has not ended."""
    return [
        workflow_begun(9, "testing", 5_000),
        begun(10, "test-1", workflow=9, ts=5_000 + int(rate), transformation="test"),
    ]

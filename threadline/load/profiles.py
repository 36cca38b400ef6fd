"""What devices say: a profile makes a device of an agent, and the device says one thing at a time.

    query     results of 50 readings each, 12 of which it shares with the result before; every reading with its payload
    workflow  the tasks of the ProvLight paper, through the capture API: 100 attributes go in, 100 come out
    light     one small reading, which is a result by itself

Each is a stream of a declared plan or a captured workflow, so the cloud does with it what it does with any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from time import perf_counter_ns, time_ns
from typing import Protocol

from edge_agent.agent import Agent
from edge_agent.capture import Data, Task, Workflow
from protocol.ids import StreamId
from protocol.plan import JSON, Node, PlanDocument
from protocol.records import END_OF_TIME, Delivery, Progress, SourcePayload

ORIGINS = 50
SHARED = 12
ATTRIBUTES = 100
READINGS, RESULTS = "readings", "results"
_WINDOW_MS = 10_000
_TRANSFORMATIONS, _TASKS_OF_ONE = 5, 20
# Of many devices in a process, hundreds of threads may wait for Python's lock at the same time. All that they do is
# short, so none has to be asked for it, and to ask 200 times a second each takes more of a busy core than all the rest.
_RARELY_S = 0.2


@dataclass(slots=True)
class Said:
    """How much a device has said."""

    results: int = 0
    origins: int = 0
    readings: int = 0
    tasks: int = 0
    events: int = 0
    """Captured ones: begins and ends of workflows and tasks."""


def total(said: Iterable[Said]) -> Said:
    """What several have said."""
    found = Said()
    for each in said:
        found.results += each.results
        found.origins += each.origins
        found.readings += each.readings
        found.tasks += each.tasks
        found.events += each.events
    return found


class Device(Protocol):
    """Says one thing at a time, and tells how long the caller had to wait for each call: in ns."""

    said: Said

    def say(self) -> list[int]: ...
    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of device. A rate is of all devices together, in its unit; `per_step` units are said at a time."""

    name: str
    unit: str
    call: str
    """What one call of the caller is."""
    per_step: int
    usual_rate: float
    """Of one device."""
    plan: PlanDocument | None
    device: Callable[[Agent, int], Device]
    switch_s: float = 0.005
    """After so long a thread asks whoever has Python's lock for it. It wakes up for that, and again after as long."""

    @property
    def one(self) -> str:
        """Of its unit."""
        return self.unit.removesuffix("s")


def _plan(name: str) -> PlanDocument:
    window: JSON = {"kind": "time", "size_ms": _WINDOW_MS, "advance_ms": _WINDOW_MS, "offset_ms": 0}
    source: dict[str, JSON] = {"ids": "uid", "watermarks": "ordered", "disorder_ms": 0}
    return PlanDocument(
        name,
        "segments",
        (
            Node(READINGS, "source", parameters=source),
            Node("window", "aggregate", (READINGS,), {"window": window, "aggregators": ["threadline.load:mean"]}),
            Node(RESULTS, "sink", ("window",)),
        ),
    )


class StreamDevice:
    """Results of a query. All readings of a result were made within the last moment, so that they fit into a window
    whatever the rate is."""

    def __init__(self, agent: Agent, number: int, origins: int, shared: int) -> None:
        self.said = Said()
        self._agent = agent
        self._random = Random(number)
        self._origins = origins
        self._shared = shared
        epoch = agent.epoch
        self._readings = StreamId(agent.name, epoch.counter, READINGS, epoch.nonce)
        self._results = StreamId(agent.name, epoch.counter, RESULTS, epoch.nonce)
        self._recent: tuple[SourcePayload, ...] = ()

    def say(self) -> list[int]:
        """One result, and the readings that it is the first to name."""
        said, randrange = self.said, self._random.randrange
        fresh = self._origins - (self._shared if self._recent else 0)
        now_ms = time_ns() // 1_000_000
        readings = tuple(
            SourcePayload(
                self._readings,
                said.readings + place,
                now_ms - fresh + place,
                {"sensor": randrange(40), "value": randrange(10_000) / 100},
            )
            for place in range(fresh)
        )
        origins = (*self._recent[-self._shared :], *readings) if self._shared else readings
        mean = sum(each.payload["value"] for each in origins) / len(origins)
        delivery = Delivery(self._results, said.results, now_ms, {"mean": mean, "readings": len(origins)}, origins)
        emit = self._agent.emit
        begun = perf_counter_ns()
        for reading in readings:
            emit(reading)
        emit(delivery)
        emit(Progress(self._results, now_ms, END_OF_TIME))
        took = perf_counter_ns() - begun
        self._recent = readings
        said.readings += fresh
        said.results += 1
        said.origins += len(origins)
        return [took]

    def finish(self) -> None:
        """There is nothing left open."""


class WorkflowDevice:
    """ProvLight's Listing 1: five chained transformations of twenty tasks, then the next workflow."""

    def __init__(self, agent: Agent, number: int) -> None:
        self.said = Said()
        self._agent = agent
        self._runs = 0
        self._workflow: Workflow | None = None
        self._task: Task | None = None
        self._tasks = 0
        self._previous: list[str] = []

    def say(self) -> list[int]:
        """The task that runs ends, and the next one begins."""
        took = [] if self._task is None else [self._end(self._task)]
        if self._workflow is None:
            self._runs += 1
            self._workflow = Workflow(self._runs, recorder=self._agent).begin()
            self.said.events += 1
        took.append(self._begin(self._workflow))
        return took

    def finish(self) -> None:
        """Whatever runs has ended."""
        if self._task is not None:
            self._end(self._task)
            self._task = None
        self._end_workflow()

    def _begin(self, workflow: Workflow) -> int:
        transformation = self._tasks // _TASKS_OF_ONE
        name = f"{transformation}-{self._tasks}"
        task = Task(name, workflow, transformation, dependencies=self._previous)
        used = [Data(f"in_{self._tasks}", workflow.id, {"in": [1] * ATTRIBUTES})]
        begun = perf_counter_ns()
        task.begin(used)
        took = perf_counter_ns() - begun
        self._task, self._previous = task, [name]
        self._tasks += 1
        self.said.tasks += 1
        self.said.events += 1
        return took

    def _end(self, task: Task) -> int:
        made = [Data(f"out_{self._tasks - 1}", task.workflow.id, {"out": [2] * ATTRIBUTES})]
        begun = perf_counter_ns()
        task.end(made)
        took = perf_counter_ns() - begun
        self.said.events += 1
        if self._tasks == _TRANSFORMATIONS * _TASKS_OF_ONE:
            self._end_workflow()
        return took

    def _end_workflow(self) -> None:
        if self._workflow is not None:
            self._workflow.end()
            self.said.events += 1
            self._workflow, self._tasks, self._previous = None, 0, []


def _query(agent: Agent, number: int) -> Device:
    return StreamDevice(agent, number, ORIGINS, SHARED)


def _light(agent: Agent, number: int) -> Device:
    return StreamDevice(agent, number, 1, 0)


PROFILES: dict[str, Profile] = {
    each.name: each
    for each in (
        Profile("query", "origins", "a result with its readings", ORIGINS, 250.0, _plan("load-query"), _query),
        Profile("workflow", "tasks", "a begin or an end of a task", 1, 2.0, None, WorkflowDevice),
        Profile("light", "readings", "a reading", 1, 0.2, _plan("load-light"), _light, _RARELY_S),
    )
}


def profile_named(name: str) -> Profile:
    """ValueError if there is none of that name."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"there is no profile {name!r}, only {', '.join(PROFILES)}") from None

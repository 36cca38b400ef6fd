"""Logs of captured events and of tuples, written as translators write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from collector.quarantine import Quarantine
from collector.shard_log import ShardLog
from protocol.events import (
    STATUSES,
    UNKNOWN,
    DataItem,
    Dependency,
    Event,
    TaskBegun,
    TaskEnded,
    WorkflowBegun,
    WorkflowEnded,
)
from protocol.records import Declared, Delivery, End, Origin, OriginKind, SourcePayload
from protocol.topics import shard_of
from protocol.wire.sections import EventKind, Kind
from tests.collector.agents import PACKER, FakeAgent, QuickRegistry


def row_of(event: Event) -> tuple[Any, ...]:
    """An event as the capture API hands it over."""
    match event:
        case WorkflowBegun():
            return (Kind.EVENT, EventKind.WORKFLOW_BEGUN, event.ts, event.key, event.id, *PACKER.pack(event.attributes))
        case WorkflowEnded():
            status = STATUSES.index(event.status)
            return (Kind.EVENT, EventKind.WORKFLOW_ENDED, event.ts, event.key, status, event.error)
        case TaskBegun():
            head = (Kind.EVENT, EventKind.TASK_BEGUN, event.ts, event.key, event.workflow, event.id)
            dependencies = tuple((each.id, each.key) for each in event.dependencies)
            return (*head, event.transformation, dependencies, [_item(each) for each in event.used])
        case TaskEnded():
            status = STATUSES.index(event.status)
            head = (Kind.EVENT, EventKind.TASK_ENDED, event.ts, event.key, status, event.error)
            return (*head, [_item(each) for each in event.generated])


def _item(item: DataItem) -> tuple[Any, ...]:
    return (item.id, item.workflow_id, item.derivations, *PACKER.pack(item.attributes))


class WrittenLog:
    """A log in a folder: each agent's batches go to its shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._registry = QuickRegistry(folder / "registry.db")
        self._shards: dict[int, ShardLog] = {}
        self._next: dict[tuple[str, int], tuple[int, int]] = {}

    def say(self, agent: FakeAgent, *records: Any) -> None:
        """One batch, committed."""
        number = shard_of(agent.name)
        if number not in self._shards:
            self._shards[number] = ShardLog(self.folder, number, self._registry, Quarantine(self.folder / "quarantine"))
        rows = [row_of(each) if isinstance(each, Event) else each for each in records]
        seq, first_event = self._next.get((agent.name, agent.nonce), (0, 0))
        events = sum(isinstance(row, tuple) and row[0] is Kind.EVENT for row in rows)
        self._next[agent.name, agent.nonce] = seq + 1, first_event + events
        self._shards[number].take(agent.name, agent.framed(seq, *rows, first_event=first_event))
        self._shards[number].commit()

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()
        self._registry.close()

    def __enter__(self) -> WrittenLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def data(name: str, attributes: Any = None, *sources: str, workflow: str = "training") -> DataItem:
    return DataItem(name, workflow, sources, attributes)


def workflow_of(tasks: int, name: str = "training", at: int = 1_700_000_000_000) -> list[Event]:
    """A chain of tasks, each of which uses what the one before has generated."""
    events: list[Event] = [WorkflowBegun(0, at, 0, name, {"rate": 0.1})]
    for key in range(tasks):
        before = (Dependency(f"t{key - 1}", key - 1),) if key else (Dependency("nobody's", UNKNOWN),)
        used = (data(f"d{key}", {"size": key}, workflow=name),)
        made = (data(f"d{key + 1}", {"loss": 1 / (key + 1), "note": "it's"}, f"d{key}", workflow=name),)
        events.append(TaskBegun(0, at + key, key, 0, f"t{key}", "train", before, used))
        events.append(TaskEnded(0, at + key + 1, key, "finished", "", made))
    events.append(WorkflowEnded(0, at + tasks, 0, "finished"))
    return events


def in_batches(events: Sequence[Event], most: int) -> Iterable[Sequence[Event]]:
    return (events[at : at + most] for at in range(0, len(events), most))


def tuples_of(agent: FakeAgent, count: int) -> list[Any]:
    """A plan that is not read, readings, a result of each two of them, and the end."""
    readings, results = agent.stream("readings"), agent.stream("the results")
    records: list[Any] = [Declared("{}")]
    for seq in range(count):
        records.append(SourcePayload(readings, seq, 1_000 * seq, {"celsius": 20.5 + seq, "raw": b"\x01"}))
    for seq in range(count // 2):
        origins = tuple(Origin(OriginKind.SOURCE, readings, 2 * seq + at, 1_000 * (2 * seq + at)) for at in (0, 1))
        records.append(Delivery(results, seq, 1_000 * seq, seq, origins))
    return [*records, End(1_000 * count)]

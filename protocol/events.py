"""What a program says about its workflows, tasks and data, with the meaning of W3C PROV-DM.

Ids are the user's and may repeat. What happened is told apart by keys: the n-th workflow or task of an epoch has key n.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from protocol.structs import Struct

UNKNOWN = -1  # the key of a task that was named by an id that nothing had before
Status = Literal["finished", "failed"]
STATUSES: tuple[Status, ...] = ("finished", "failed")


class DataItem(Struct):
    """Data as a task used or generated it (an Entity)."""

    id: str
    workflow_id: str
    derivations: tuple[str, ...]
    attributes: Any


class Dependency(Struct):
    """A task that another one waits for: by the id that the user gave, and by key if it is known."""

    id: str
    key: int


class WorkflowBegun(Struct):
    """A workflow has begun (an Agent)."""

    number: int
    ts: int
    key: int
    id: str
    attributes: Any = None


class WorkflowEnded(Struct):
    """A workflow has ended."""

    number: int
    ts: int
    key: int
    status: Status
    error: str = ""


class TaskBegun(Struct):
    """A task is running (an Activity)."""

    number: int
    ts: int
    key: int
    workflow: int
    id: str
    transformation: str
    dependencies: tuple[Dependency, ...]
    used: tuple[DataItem, ...]


class TaskEnded(Struct):
    """A task has ended, well or with an error."""

    number: int
    ts: int
    key: int
    status: Status
    error: str
    generated: tuple[DataItem, ...]


Event = WorkflowBegun | WorkflowEnded | TaskBegun | TaskEnded


class Relation(Struct):
    """A PROV-DM relation; its ends are `workflow:KEY`, `task:KEY` (`task:?ID` if unknown) or `data:ID`."""

    name: str
    subject: str
    object: str


def relations(event: Event) -> Iterator[Relation]:
    """The PROV-DM relations that an event states."""
    if isinstance(event, TaskBegun):
        task = f"task:{event.key}"
        yield Relation("wasAssociatedWith", task, f"workflow:{event.workflow}")
        for each in event.dependencies:
            other = f"task:{each.key}" if each.key != UNKNOWN else f"task:?{each.id}"
            yield Relation("wasInformedBy", task, other)
        for item in event.used:
            yield Relation("used", task, f"data:{item.id}")
            yield from _of_data(item)
    elif isinstance(event, TaskEnded):
        for item in event.generated:
            yield Relation("wasGeneratedBy", f"data:{item.id}", f"task:{event.key}")
            yield from _of_data(item)


def _of_data(item: DataItem) -> Iterator[Relation]:
    yield Relation("wasAttributedTo", f"data:{item.id}", f"workflow:?{item.workflow_id}")
    for source in item.derivations:
        yield Relation("wasDerivedFrom", f"data:{item.id}", f"data:{source}")

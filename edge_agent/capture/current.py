"""Which workflow and task the running code belongs to: a `with` block or a decorated function changes it.

It follows `await` and the tasks of asyncio. A new thread starts with none, unless it is run in a copied context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from edge_agent.capture.tasks import Task
    from edge_agent.capture.workflow import Workflow


class Place(NamedTuple):
    """Where the code is, and where it was before."""

    workflow: Workflow
    task: Task | None
    outer: Place | None


current: ContextVar[Place | None] = ContextVar("current", default=None)


def enter(workflow: Workflow, task: Task | None) -> None:
    """From here on the code belongs to these."""
    current.set(Place(workflow, task, current.get()))


def leave(workflow: Workflow, task: Task | None) -> None:
    """Back to where the code was before it entered these."""
    place = current.get()
    if place is not None and place.workflow is workflow and place.task is task:
        current.set(place.outer)

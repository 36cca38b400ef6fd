"""A task: the Activity of PROV-DM, which uses data, generates data and waits for other tasks."""

from __future__ import annotations

from time import time_ns
from types import TracebackType
from typing import Any, NoReturn

from edge_agent.capture.current import current, enter, leave
from edge_agent.capture.data import DataGiven, Item, fitted, packed_items
from edge_agent.capture.errors import error_text
from edge_agent.capture.given import LINK_BYTES, SURELY_FIT, fitting, several, text_of
from edge_agent.capture.misuse import misuse
from edge_agent.capture.recorder import NOWHERE
from edge_agent.capture.run import Run
from edge_agent.capture.workflow import Workflow
from protocol.events import UNKNOWN
from protocol.wire.sections import EventKind, Kind

_EVENT = Kind.EVENT
_BEGUN, _ENDED = int(EventKind.TASK_BEGUN), int(EventKind.TASK_ENDED)
_ROW_BYTES = 64


class Task:
    """Begin it with the data it uses, end it with the data it generated; or use it in a `with` block.

    Ids may repeat: each Task is a task of its own. `dependencies` are tasks or ids, one or several (wasInformedBy); an
    id means the latest task of that id in the workflow. Not given, they are the task that the code is in, if any, as
    the workflow is the one that the code is in.
    """

    # Deleting an attribute succeeds once, whatever other threads do: so a task begins once and ends once.
    __slots__ = (
        *("_dependencies", "_generated", "_id", "_key", "_may_begin", "_may_end", "_run", "_size", "_transformation"),
        *("id", "transformation", "workflow"),
    )

    def __init__(
        self, id: Any, workflow: Workflow | None = None, transformation: Any = "", dependencies: Any = None
    ) -> None:
        self.id = id
        self.transformation = transformation
        self._id = text = text_of(id)
        self._transformation = step = text_of(transformation)
        if type(workflow) is not Workflow:
            workflow = _workflow_for(workflow, text)
        self.workflow = workflow
        self._run = run = workflow._run or workflow.run()
        self._key = key = run.new_key()
        self._size = _ROW_BYTES + len(text) + len(step)
        if dependencies is None:
            place = current.get()
            dependencies = None if place is None else place.task
        self._dependencies: tuple[tuple[str, int], ...] = ()
        if dependencies is not None:
            self._dependencies = _resolved(dependencies, run)
            for name, _ in self._dependencies:
                self._size += len(name) + LINK_BYTES
        self._generated: list[Item] | None = None
        self._may_begin = True
        run.name(text, key)

    def begin(self, used: DataGiven = None) -> Task:
        """Record that it runs, and the data that it uses, with attributes as they are now."""
        try:
            workflow, run = self.workflow, self._run
            if run is not workflow._run:
                run = self._moved()
            if not run.begun:
                workflow.begin_once(run)
            items, size = packed_items(used, run.packer)
            ts = time_ns() // 1_000_000
            try:
                del self._may_begin
            except AttributeError:
                misuse.tell("task_begun_twice", f"task {self._id!r} has begun before: make a new Task for each run")
                return self
            run.put(
                (_EVENT, _BEGUN, ts, self._key, run.key, self._id, self._transformation, self._dependencies, items),
                self._size + size,
            )
            self._may_end = True
            if run.durable:
                run.recorder.flush()
        except Exception as error:
            misuse.lost(f"the begin of task {self._id!r}", error)
        return self

    def generate(self, data: DataGiven) -> None:
        """Data that it has generated, with attributes as they are now. It is recorded when the task ends."""
        try:
            run = self._run
            items, _ = packed_items(data, run.packer)
            with run.lock:
                self._generated = [*(self._generated or ()), *items]
            if not hasattr(self, "_may_end") and not hasattr(self, "_may_begin"):
                misuse.tell("generated_too_late", f"task {self._id!r} has ended before: its data is not recorded")
        except Exception as error:
            misuse.lost(f"data of task {self._id!r}", error)

    def end(self, generated: DataGiven = None, *, error: BaseException | str | None = None) -> None:
        """Record that it has ended, and the data that it generated; with an error, that it has failed."""
        try:
            run = self._run
            items, size = packed_items(generated, run.packer)
            if self._generated is not None:
                items, size = fitted(self._generated + items, run.packer)
            text = "" if error is None else error_text(error)
            ts = time_ns() // 1_000_000
            if run is not self.workflow._run:
                misuse.tell(
                    "task_left_behind", f"task {self._id!r} was begun with an agent that this process has no more"
                )
                return
            try:
                del self._may_end
            except AttributeError:
                self._not_running()
                return
            run.put((_EVENT, _ENDED, ts, self._key, int(error is not None), text, items), _ROW_BYTES + len(text) + size)
            if run.durable:
                run.recorder.flush()
        except Exception as failure:
            misuse.lost(f"the end of task {self._id!r}", failure)

    def __enter__(self) -> Task:
        if not hasattr(self, "_may_end"):
            self.begin()
        enter(self.workflow, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave(self.workflow, self)
        if hasattr(self, "_may_end"):
            self.end(error=error)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"task {self._id!r} belongs to the process that made it: give another one its workflow and its id, "
            "and make a Task there"
        )

    def __str__(self) -> str:
        return self._id

    def __repr__(self) -> str:
        return f"Task({self.id!r}, {self.workflow!r})"

    def _moved(self) -> Run:
        """Made with an agent that this process has no more: another agent, so other keys."""
        if not hasattr(self, "_may_begin"):
            return self._run
        self._run = run = self.workflow.run()
        self._key = run.new_key()
        self._dependencies = tuple([(id, run.key_of(id)) for id, _ in self._dependencies])
        run.name(self._id, self._key)
        return run

    def _not_running(self) -> None:
        if hasattr(self, "_may_begin"):
            misuse.tell("task_not_begun", f"task {self._id!r} ends, but it has not begun")
        else:
            misuse.tell("task_ended_twice", f"task {self._id!r} has ended before")


def _resolved(dependencies: Any, run: Run) -> tuple[tuple[str, int], ...]:
    """Each with its key; a task of another recorder has none here."""
    found = []
    for each in dependencies if type(dependencies) is list else several(dependencies):
        text = text_of(each)
        if isinstance(each, Task):
            found.append((text, each._key if each._run.recorder is run.recorder else UNKNOWN))
        else:
            found.append((text, run.key_of(text)))
    if len(found) > SURELY_FIT:
        del found[fitting([text for text, _ in found]) :]
    return tuple(found)


def _workflow_for(given: Any, task_id: str) -> Workflow:
    if isinstance(given, Workflow):
        return given
    place = current.get()
    if given is None and place is not None:
        return place.workflow
    what = "has no workflow" if given is None else f"has a {type(given).__qualname__} for a workflow"
    misuse.tell(
        "no_workflow", f"task {task_id!r} {what}: give it one, or run it in `with Workflow(...)`, in this thread"
    )
    return _NOWHERE


_NOWHERE = Workflow("nowhere", recorder=NOWHERE)

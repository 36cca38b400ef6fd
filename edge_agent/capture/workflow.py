"""A workflow: the Agent of PROV-DM, with which tasks are associated and to which data is attributed."""

from __future__ import annotations

from time import time_ns
from types import TracebackType
from typing import Any

from edge_agent.capture.current import enter, leave
from edge_agent.capture.errors import error_text
from edge_agent.capture.given import text_of
from edge_agent.capture.misuse import misuse
from edge_agent.capture.process import process
from edge_agent.capture.recorder import Recorder
from edge_agent.capture.run import Run
from protocol.wire.sections import EventKind, Kind

_EVENT = Kind.EVENT
_BEGUN, _ENDED = int(EventKind.WORKFLOW_BEGUN), int(EventKind.WORKFLOW_ENDED)
_ROW_BYTES = 64


class Workflow:
    """Begin it, run tasks in it, end it; or use it in a `with` block, where an exception ends it as failed.

    The first workflow of a process starts the process's agent, unless there is a recorder. A workflow that was not
    begun when its first task begins is begun then.
    """

    __slots__ = ("__weakref__", "_id", "_run", "attributes", "id")

    def __init__(self, id: Any, attributes: Any = None, *, recorder: Recorder | None = None) -> None:
        self.id = id
        self.attributes = attributes
        self._id = text_of(id)
        self._run: Run | None = Run(process.bind(self) if recorder is None else recorder)

    def begin(self) -> Workflow:
        """Record that it has begun, with its attributes as they are now."""
        try:
            if not self.begin_once(self.run()):
                misuse.tell("workflow_begun_twice", f"workflow {self._id!r} has begun before")
        except Exception as error:
            misuse.lost(f"the begin of workflow {self._id!r}", error)
        return self

    def end(self, *, error: BaseException | str | None = None) -> None:
        """Record that it has ended; with an error, that it has failed."""
        try:
            run = self.run()
            with run.lock:
                if run.begun and not run.ended:
                    text = "" if error is None else error_text(error)
                    row = (_EVENT, _ENDED, time_ns() // 1_000_000, run.key, int(error is not None), text)
                    run.record(row, _ROW_BYTES + len(text))
                    run.ended = True
                    return
            if run.ended:
                misuse.tell("workflow_ended_twice", f"workflow {self._id!r} has ended before")
            else:
                misuse.tell("workflow_not_begun", f"workflow {self._id!r} ends, but it has not begun")
        except Exception as failure:
            misuse.lost(f"the end of workflow {self._id!r}", failure)

    def __enter__(self) -> Workflow:
        run = self.run()
        if run.ended or not run.begun:
            self.begin()
        enter(self, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave(self, None)
        run = self._run
        if run is None:
            misuse.tell("workflow_left_behind", f"workflow {self._id!r} ends after the agent that it was begun with")
        elif not run.ended:
            self.end(error=error)

    def __str__(self) -> str:
        return self._id

    def __repr__(self) -> str:
        return f"Workflow({self.id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process it is the same workflow, seen by another agent.
        return Workflow, (self.id, self.attributes)

    # For tasks and the process

    def run(self) -> Run:
        """Its life with the recorder of now."""
        return self._run or self._next_run()

    def begin_once(self, run: Run) -> bool:
        """Record its begin, if nobody has."""
        shape, value = run.packer.pack(self.attributes)
        with run.lock:
            if run.begun:
                return False
            row = (_EVENT, _BEGUN, time_ns() // 1_000_000, run.key, self._id, shape, value)
            run.record(row, _ROW_BYTES + len(self._id) + len(value))
            run.begun = True
            return True

    def unbind(self) -> None:
        """Its recorder has ended, or stayed behind in the parent process."""
        self._run = None

    def _next_run(self) -> Run:
        with process.lock:
            if self._run is None:
                self._run = Run(process.bind(self))
            return self._run

"""Several runs of workflows side by side: how long what took, what came out, and what was different between them.

A parameter is an attribute of the workflow, or one of the data that the tasks of a transformation used, as long as it
was the same in all of them. Everything is bounded, and says so where something was left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from collector.filters import MOST_STEPS, Comparable, Path, comparable, path_text, restored
from collector.store.captured_rows import RunKey, WorkflowRow, elapsed_sql, workflows_at
from collector.store.row_query import BadQuery

MOST_RUNS = 20
MOST_ATTRIBUTES = 200
_MOST_CHARACTERS = 1_000  # of a parameter


class Measure(NamedTuple):
    """A number that tasks of a transformation generated. The last one is that of the task that ended last."""

    path: str
    values: int
    """So many tasks have told it."""
    last: float
    least: float
    greatest: float


class Transformation(NamedTuple):
    """All tasks of a run that do the same. Times are of those that have ended, None if none has."""

    name: str | None
    running: int
    finished: int
    failed: int
    total_ms: int | None
    mean_ms: float | None
    least_ms: int | None
    greatest_ms: int | None
    measures: list[Measure]


class ComparedRun(NamedTuple):
    """One of the runs."""

    workflow: WorkflowRow
    transformations: list[Transformation]


class RunValue(NamedTuple):
    """What a parameter was in one run; `varies` if it was not the same in all of its tasks."""

    state: Literal["value", "missing", "varies"]
    value: Any = None


class Parameter(NamedTuple):
    """A parameter in all runs, in their order. `transformation` is None if it is one of the workflow."""

    of: Literal["workflow", "used"]
    transformation: str | None
    path: str
    values: list[RunValue]


class Comparison(NamedTuple):
    """Runs in the order in which they were asked for. `is_cut`: something was left out, as there is too much of it."""

    runs: list[ComparedRun]
    differing: list[Parameter]
    same: list[Parameter]
    is_cut: bool


def compare(db: sqlite3.Connection, runs: Sequence[RunKey]) -> Comparison:
    """Compare runs of workflows."""
    runs = list(dict.fromkeys(runs))
    if not 1 <= len(runs) <= MOST_RUNS:
        raise BadQuery("runs", f"from 1 to {MOST_RUNS} runs can be compared, not {len(runs)}")
    workflows = workflows_at(db, runs)
    if len(workflows) < len(runs):
        raise BadQuery("runs", "there is no such run of a workflow")
    read = [_Run(db, workflows[run]) for run in runs]
    names = list(dict.fromkeys(name for run in read for name in run.parameters))
    differing: list[Parameter] = []
    same: list[Parameter] = []
    is_cut = len(names) > MOST_ATTRIBUTES or any(run.is_cut for run in read)
    for of, transformation, path in names[:MOST_ATTRIBUTES]:
        found = [run.parameters.get((of, transformation, path), _MISSING) for run in read]
        if any(isinstance(each, (str, bytes)) and len(each) > _MOST_CHARACTERS for each in found):
            is_cut = True
        elif not all(each is _VARIES for each in found):
            told = Parameter(of, transformation, path_text(path), [_shown(each) for each in found])
            (same if len(set(found)) == 1 else differing).append(told)
    return Comparison([ComparedRun(run.workflow, run.transformations()) for run in read], differing, same, is_cut)


_Name = tuple[Literal["workflow", "used"], str | None, Path]
_MISSING = object()
_VARIES = object()
_FIGURES = f"""SELECT transformation, count(*) FILTER (WHERE ended_ts IS NULL),
count(*) FILTER (WHERE status = 'finished'), count(*) FILTER (WHERE status = 'failed'),
CASE WHEN count(elapsed) THEN CAST(total(elapsed) AS INTEGER) END, avg(elapsed), min(elapsed), max(elapsed)
FROM (SELECT *, {elapsed_sql("tasks")} AS elapsed FROM tasks WHERE start = ? AND workflow = ?)
GROUP BY transformation ORDER BY transformation"""
_DATA = """SELECT tasks.transformation, tasks.ended_ts, tasks.key, place, generated, attributes FROM tasks
CROSS JOIN data ON data.start = tasks.start AND data.task = tasks.key WHERE tasks.start = ? AND tasks.workflow = ?"""


class _Run:
    """One run, as it is being read."""

    def __init__(self, db: sqlite3.Connection, workflow: WorkflowRow) -> None:
        self.workflow = workflow
        self.is_cut = False
        self.parameters: dict[_Name, Comparable | object] = {}
        self._measures: dict[tuple[str | None, Path], tuple[Measure, tuple[int, ...]]] = {}
        key = (workflow.start, workflow.key)
        self._figures = db.execute(_FIGURES, key).fetchall()
        for path, value in _leaves(workflow.attributes):
            self._use(("workflow", None, path), comparable(value))
        for transformation, *at, is_generated, attributes in db.execute(_DATA, key):
            for path, value in _leaves(msgspec.json.decode(attributes)):
                found = comparable(value)
                if not is_generated:
                    self._use(("used", transformation, path), found)
                elif isinstance(found, (int, float)):
                    self._measure((transformation, path), found, tuple(at))

    def transformations(self) -> list[Transformation]:
        """What tasks took, and what came out."""
        return [
            Transformation._make(
                (name, *figures, [told for (of, _), (told, _) in self._measures.items() if of == name])
            )
            for name, *figures in self._figures
        ]

    def _use(self, name: _Name, value: Comparable) -> None:
        known = self.parameters.get(name, _MISSING)
        if known is not _MISSING:
            self.parameters[name] = value if known == value else _VARIES
        elif len(self.parameters) < MOST_ATTRIBUTES:
            self.parameters[name] = value
        else:
            self.is_cut = True

    def _measure(self, name: tuple[str | None, Path], value: int | float, at: tuple[int, ...]) -> None:
        known = self._measures.get(name)
        if known is not None:
            found, last_at = known
            last = (value, at) if at >= last_at else (found.last, last_at)
            least, greatest = min(found.least, value), max(found.greatest, value)
            self._measures[name] = Measure(found.path, found.values + 1, last[0], least, greatest), last[1]
        elif len(self._measures) < MOST_ATTRIBUTES:
            self._measures[name] = Measure(path_text(name[1]), 1, value, value, value), at
        else:
            self.is_cut = True


def _shown(value: Any) -> RunValue:
    if value is _MISSING:
        return RunValue("missing")
    return RunValue("varies") if value is _VARIES else RunValue("value", restored(value))


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """What is in a value and has no names in it; a list is one thing."""
    if isinstance(value, dict) and len(path) < MOST_STEPS:
        for name, part in value.items():
            yield from _leaves(part, (*path, name))
    elif value is not None or path:
        yield path, value

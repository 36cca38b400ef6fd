"""What the API answers where it lists things: agents, streams, plans, captured runs, and what went wrong."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from collector.api.models import Model, TaskVertex, WorkflowVertex


class AgentState(Model):
    """Whether an agent is there, as its gateway says."""

    state: Literal["online", "asleep", "offline", "unknown"]
    since_ms: int | None = None
    reason: str | None = Field(default=None, description="Why it is not known.")


class AgentStart(Model):
    """A start (epoch) of an agent."""

    epoch: int | None
    nonce: str = Field(description="By which machines know the start, in hex.")
    state: Literal["running", "ended", "retired"]
    last_seen_ms: int
    batches: int | None = Field(description="How many batches of it are in the store.")
    end_ts: int | None = None


class StreamRow(Model):
    """A stream of an agent."""

    agent: str
    epoch: int | None
    stream: str
    watermark: int | None = Field(
        default=None, description="No tuple before this time will come; None if nothing was promised."
    )
    has_ended: bool = Field(default=False, description="Nothing more will come.")
    hold: int | None = Field(default=None, description="The oldest tuple that a length window may still bring back.")
    last_seen_ms: int | None = None


class Streams(Model):
    """Streams by number."""

    items: list[StreamRow]
    next: str | None = None


class Agent(Model):
    """An agent, as of the start that was heard last."""

    name: str
    presence: AgentState
    epoch: int | None
    state: Literal["running", "ended", "retired"] = Field(
        description="running: more is expected; ended: it said so; retired: silent for so long that nobody waits."
    )
    last_seen_ms: int = Field(description="When something of it was last stored.")
    clock_ahead_ms: int | None = Field(
        default=None,
        description="How far the device's clock was ahead when its last status was stored; the time that took counts as"
        " being behind, so one that is well ahead has a wrong clock.",
    )
    spool_batches: int | None = None
    spool_bytes: int | None = None
    unacknowledged: int | None = None
    dropped: int | None = None
    replaced: int | None = Field(default=None, description="Captured values that were replaced by placeholders.")
    link: dict[str, Any] | None = None
    operators: dict[str, Any] | None = Field(
        default=None, description="Of each operator of its plan: tuples in, out, late, skipped."
    )


class Agents(Model):
    """Agents by name."""

    items: list[Agent]
    next: str | None = None


class AgentDetails(Agent):
    """An agent with all its starts and the streams of the newest one."""

    starts: list[AgentStart]
    streams: list[StreamRow]


class PlanRow(Model):
    """The plan of a start of an agent."""

    agent: str
    epoch: int | None
    seen_ms: int
    name: str | None = None
    provenance: str | None = None
    nodes: list[dict[str, Any]] | None = Field(default=None, description="None if this version cannot read the plan.")
    trouble: str | None = Field(default=None, description="Why it cannot be read.")


class Plans(Model):
    """Plans, oldest first."""

    items: list[PlanRow]
    next: str | None = None


class GapRow(Model):
    """Something that will never come, and why."""

    agent: str | None = Field(description="None: the log itself has lost it.")
    epoch: int | None
    batch: int
    reason: str
    detail: dict[str, Any]
    seen_ms: int


class Gaps(Model):
    """Gaps in the order in which they were told."""

    items: list[GapRow]
    next: str | None = None


class LateRow(Model):
    """An edge that came too late for the graph."""

    sink: str
    origin: str
    origin_ts: int | None
    reason: Literal["after_label", "purged"] = Field(
        description="after_label: the reading had expired; purged: the origin is a tuple that the pipeline had let go"
        " of, resolved from the store."
    )
    via: str | None = Field(default=None, description="The intermediate tuple by which it was found.")


class LateRows(Model):
    """The late relation, by sink."""

    items: list[LateRow]
    next: str | None = None


class LateTuple(Model):
    """A tuple that is in no result because it came after what its source had promised."""

    agent: str
    epoch: int | None
    stream: str
    ts: int | None
    watermark: int | None
    payload: Any = None
    seen_ms: int


class LateTuples(Model):
    """Late tuples in the order in which they were told."""

    items: list[LateTuple]
    next: str | None = None


class RefusedRow(Model):
    """A row of the log that could not be read, and is kept as it was."""

    agent: str
    nonce: str
    batch: int
    kind: str
    reason: str
    seen_ms: int


class RefusedRows(Model):
    """Rows that could not be read."""

    items: list[RefusedRow]
    next: str | None = None


class Series(Model):
    """Figures of one stream, slot by slot."""

    stream: str
    results: list[int]
    origins: list[int]
    open: list[int]
    incomplete: list[int]


class Statistics(Model):
    """Figures over time, in slots of equal width."""

    from_ms: int | None
    to_ms: int | None
    width_ms: int
    starts_ms: list[int] = Field(description="When each slot begins.")
    streams: list[Series]
    truncated: bool = Field(default=False, description="There are more streams than are shown.")
    tasks_begun: list[int]
    tasks_failed: list[int]
    totals: dict[str, int] = Field(description="Figures of the whole store.")


class TaskRow(TaskVertex):
    """A task with the fields that were asked for."""

    values: dict[str, Any] = Field(default_factory=dict, description="The fields of `select` and `group_by`.")


class Tasks(Model):
    """Tasks as they were asked for."""

    items: list[TaskRow]
    next: str | None = None


class DataRow(Model):
    """Data as one task used or generated it."""

    id: str = Field(description="The id of its vertex.")
    name: str
    workflow_name: str
    agent: str
    epoch: int | None
    role: Literal["used", "generated"]
    task: str
    task_name: str | None
    transformation: str | None
    begun_ms: int | None
    ended_ms: int | None
    derivations: list[str] = Field(description="The ids that the program gave: what it was derived from.")
    attributes: Any = None
    values: dict[str, Any] = Field(default_factory=dict)


class DataRows(Model):
    """Data as it was asked for."""

    items: list[DataRow]
    next: str | None = None


class WorkflowRow(WorkflowVertex):
    """A run of a workflow with the fields that were asked for."""

    values: dict[str, Any] = Field(default_factory=dict)


class Workflows(Model):
    """Runs of workflows as they were asked for."""

    items: list[WorkflowRow]
    next: str | None = None


class Health(Model):
    """It is alive."""

    status: Literal["ok"] = "ok"


class Check(Model):
    """One thing that has to be there."""

    name: str
    ready: bool
    detail: str


class Readiness(Model):
    """Whether it can answer."""

    ready: bool
    checks: list[Check]


class Measure(Model):
    """A number that tasks generated. The last one is that of the task that ended last."""

    path: str
    values: int = Field(description="How many tasks have told it.")
    last: float
    least: float
    greatest: float


class Transformation(Model):
    """All tasks of a run that do the same. Times are of those that have ended."""

    name: str | None
    running: int
    finished: int
    failed: int
    total_ms: int | None
    mean_ms: float | None
    least_ms: int | None
    greatest_ms: int | None
    measures: list[Measure]


class ComparedRun(Model):
    """One of the runs."""

    workflow: WorkflowRow
    transformations: list[Transformation]


class RunValue(Model):
    """What a parameter was in one run; `varies` if it was not the same in all of its tasks."""

    state: Literal["value", "missing", "varies"]
    value: Any = None


class Parameter(Model):
    """A parameter in all runs, in their order: an attribute of the workflow, or of data that tasks used."""

    of: Literal["workflow", "used"]
    transformation: str | None
    path: str
    values: list[RunValue]


class Comparison(Model):
    """Runs side by side."""

    runs: list[ComparedRun]
    differing: list[Parameter]
    same: list[Parameter]
    truncated: bool = Field(description="Something was left out, as there is too much of it.")


class Ingested(Model):
    """It is in the log."""

    next_batch: int = Field(description="The first batch of this run that is not in the log.")
    duplicate_agent: bool = Field(description="Another run under this name speaks as well: give them different names.")

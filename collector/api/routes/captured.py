"""What programs have captured: workflows, their tasks and data, to be filtered, ordered, and compared."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from collector.api import cursors
from collector.api.checked_route import CheckedRoute
from collector.api.context import Shared, documents, reply, reply_rows
from collector.api.parameters import (
    MOST_NAME,
    AgentFilter,
    Cursor,
    EpochFilter,
    From,
    Limit,
    TableFormat,
    To,
    Where,
    check_span,
    conditions,
)
from collector.api.problems import Problem, bad_field, responses
from collector.api.rows import (
    ComparedRun,
    Comparison,
    DataRow,
    DataRows,
    Measure,
    Parameter,
    RunValue,
    TaskRow,
    Tasks,
    Transformation,
    WorkflowRow,
    Workflows,
)
from collector.api.view import View
from collector.export import ROW_FORMATS
from collector.names import BadName, TaskName, WorkflowName, parse_name
from collector.store import captured_rows, compared
from collector.store.captured_graph import DataNode, TaskNode
from collector.store.captured_rows import DataQuery, RunKey, TaskQuery, WorkflowQuery
from collector.store.row_query import Page

router = APIRouter(route_class=CheckedRoute, tags=["captured"])
Status = Annotated[Literal["running", "finished", "failed"] | None, Query(description="Only those of this status.")]
OrderBy = Annotated[
    str | None,
    Query(
        description="Fields to order by, with commas between them; - in front: the greatest first.",
        max_length=MOST_NAME,
    ),
]
GroupBy = Annotated[
    str | None,
    Query(
        description="Fields, with commas between them: of each combination of their values only one row, see `latest`.",
        max_length=MOST_NAME,
    ),
]
Latest = Annotated[
    str | None, Query(description="Of each group, the row in which this field is greatest.", max_length=MOST_NAME)
]
Least = Annotated[
    str | None, Query(description="Of each group, the row in which this field is least.", max_length=MOST_NAME)
]
Select = Annotated[
    str | None,
    Query(
        description="Fields to show as `values`, with commas between them.",
        max_length=MOST_NAME,
    ),
]
Text = Annotated[str | None, Query(max_length=MOST_NAME)]


class _Rows(BaseModel):
    """Parameters that all three lists have."""

    model_config = ConfigDict(extra="forbid")

    agent: AgentFilter = None
    epoch: EpochFilter = None
    from_ms: From = None
    to_ms: To = None
    where: Where = None
    group_by: GroupBy = None
    latest: Latest = None
    least: Least = None
    order_by: OrderBy = None
    select: Select = None
    limit: Limit = 100
    cursor: Cursor = None
    format: TableFormat = "json"

    def query(self, of: str) -> dict[str, Any]:
        """What they mean to the store, of the list of this name. A Problem if they contradict one another."""
        check_span(self.from_ms, self.to_ms)
        if self.latest is not None and self.least is not None:
            raise bad_field("least", "a group has one best row: by latest or by least, not by both")
        if self.group_by is not None and self.latest is None and self.least is None:
            raise bad_field("group_by", "say by latest or least which row of each group is asked for")
        return {
            "agent": self.agent,
            "epoch": self.epoch,
            "from_ms": self.from_ms,
            "to_ms": self.to_ms,
            "where": conditions(self.where),
            "order_by": _fields(self.order_by),
            "group_by": _fields(self.group_by),
            "greatest": self.latest,
            "least": self.least,
            "select": _fields(self.select),
            "limit": self.limit,
            "after": cursors.decode(of, self.cursor),
        }


class _Tasks(_Rows):
    workflow: Annotated[Text, Query(description="Only those of this run, workflow:AGENT@EPOCH:NUMBER.")] = None
    workflow_name: Annotated[Text, Query(description="Only those of runs of the workflow of this name.")] = None
    transformation: Annotated[Text, Query(description="Only those that do this.")] = None
    name: Annotated[Text, Query(description="Only those that the program has given this id.")] = None
    status: Status = None


class _Data(_Rows):
    name: Annotated[Text, Query(description="Only data that the program has given this id.")] = None
    workflow: Annotated[Text, Query(description="Only data of this run, workflow:AGENT@EPOCH:NUMBER.")] = None
    workflow_name: Annotated[Text, Query(description="Only data of the workflow of this name.")] = None
    task: Annotated[Text, Query(description="Only data of this task, task:AGENT@EPOCH:NUMBER.")] = None
    role: Annotated[
        Literal["used", "generated"] | None, Query(description="Only data that a task used, or generated.")
    ] = None


class _Workflows(_Rows):
    name: Annotated[Text, Query(description="Only runs of the workflow of this name.")] = None
    status: Status = None


def _fields(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _run(view: View, text: str | None, kind: type[WorkflowName] | type[TaskName], field: str) -> RunKey | None:
    """A workflow or a task by its id."""
    if text is None:
        return None
    try:
        name = parse_name(text)
    except BadName:
        name = None
    if not isinstance(name, kind):
        of = "task" if kind is TaskName else "workflow"
        raise bad_field(field, f"{text!r} is no id of a {of}: {of}:AGENT@EPOCH:NUMBER")
    start = view.start_of(name.agent, name.epoch)
    key = None if start is None else (start, name.key)
    find = view.reader.tasks_at if kind is TaskName else view.reader.workflows_at
    if key is None or not find([key]):
        raise Problem(404, f"there is no {text}", field)
    return key


def _next(of: str, page: Page[Any]) -> str | None:
    return None if page.next is None else cursors.encode(of, *page.next)


@router.get("/tasks", response_model=Tasks, responses={**responses(400, 404), **documents(ROW_FORMATS)})
async def tasks(shared: Shared, asked: Annotated[_Tasks, Query()]) -> Response:
    """Tasks. Fields for `where`, `order_by`, `group_by`, `latest` and `select`: name, agent, epoch, transformation,
    workflow_name, status, begun_ms, ended_ms, elapsed_ms, error, and attributes of the data that a task used or
    generated, or of its workflow: used.PATH, generated.PATH, workflow.PATH. `from` and `to` are about when it began.

    Elapsed time and loss of the latest epoch of each combination of hyperparameters:
    `?transformation=train&group_by=used.rate,used.batch&latest=generated.epoch&select=elapsed_ms,generated.loss`.
    The hyperparameters of the three best accuracies:
    `?order_by=-generated.accuracy&limit=3&select=used.rate,used.batch`.
    """
    query = asked.query("tasks")
    version = shared.version()

    def find(view: View) -> Tasks:
        page = view.reader.tasks(
            TaskQuery(
                **query,
                workflow=_run(view, asked.workflow, WorkflowName, "workflow"),
                workflow_name=asked.workflow_name,
                transformation=asked.transformation,
                name=asked.name,
                status=asked.status,
            )
        )
        items = [TaskRow(**view.task_fields(row), values=dict(row.values)) for row in page.rows]
        return Tasks(items=items, next=_next("tasks", page))

    return await reply_rows(await shared.readers.ask(find), asked.format, "tasks", version)


@router.get("/data", response_model=DataRows, responses={**responses(400, 404), **documents(ROW_FORMATS)})
async def data(shared: Shared, asked: Annotated[_Data, Query()]) -> Response:
    """Data as tasks used or generated it, with its attributes. Fields are name, workflow_name, agent, epoch, role,
    task, task_name, transformation, begun_ms, ended_ms (of the task), and any path in the attributes."""
    query = asked.query("data")
    version = shared.version()

    def find(view: View) -> DataRows:
        page = view.reader.data(
            DataQuery(
                **query,
                task=_run(view, asked.task, TaskName, "task"),
                workflow=_run(view, asked.workflow, WorkflowName, "workflow"),
                workflow_name=asked.workflow_name,
                name=asked.name,
                is_generated=None if asked.role is None else asked.role == "generated",
            )
        )
        return DataRows(items=[_data_row(view, row) for row in page.rows], next=_next("data", page))

    return await reply_rows(await shared.readers.ask(find), asked.format, "data", version)


def _data_row(view: View, row: captured_rows.DataRow) -> DataRow:
    node = DataNode(row.start, row.workflow_name, row.name)
    if not row.is_generated:
        meant = list(view.reader.data_meant(row.start, row.workflow_name, row.name))
        node = meant[0] if len(meant) == 1 else DataNode(None, row.workflow_name, row.name)
    return DataRow(
        id=view.id_of(node),
        name=row.name,
        workflow_name=row.workflow_name,
        agent=row.agent,
        epoch=row.epoch,
        role="generated" if row.is_generated else "used",
        task=view.id_of(TaskNode(row.start, row.task)),
        task_name=row.task_name,
        transformation=row.transformation,
        begun_ms=row.begun_ms,
        ended_ms=row.ended_ms,
        derivations=row.derivations,
        attributes=row.attributes,
        values=dict(row.values),
    )


@router.get("/workflows", response_model=Workflows, responses={**responses(400), **documents(ROW_FORMATS)})
async def workflows(shared: Shared, asked: Annotated[_Workflows, Query()]) -> Response:
    """Runs of workflows. Fields are id, name, agent, epoch, status, begun_ms, ended_ms, elapsed_ms, error, and any path
    in the attributes. `from` and `to` are about when it began."""
    query = asked.query("workflows")
    version = shared.version()

    def find(view: View) -> Workflows:
        page = view.reader.workflows(WorkflowQuery(**query, name=asked.name, status=asked.status))
        items = [WorkflowRow(**view.workflow_fields(row), values=dict(row.values)) for row in page.rows]
        return Workflows(items=items, next=_next("workflows", page))

    return await reply_rows(await shared.readers.ask(find), asked.format, "workflows", version)


@router.get("/workflows/compare", response_model=Comparison, responses=responses(404))
async def compare(
    shared: Shared,
    run: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MOST_NAME)]],
        Query(
            description="A run, workflow:AGENT@EPOCH:NUMBER, or the name of a workflow for all its runs (the latest"
            " 20); may be repeated.",
            min_length=1,
            max_length=compared.MOST_RUNS,
        ),
    ],
) -> Response:
    """Several runs side by side: how long what took, what came out, and in what they differ."""
    version = shared.version()

    def find(view: View) -> Comparison:
        runs = dict.fromkeys(key for text in run for key in _runs_meant(view, text))
        return _comparison(view, view.reader.compare(list(runs)))

    return reply(await shared.readers.ask(find), version)


def _runs_meant(view: View, text: str) -> list[RunKey]:
    if text.startswith("workflow:"):
        key = _run(view, text, WorkflowName, "run")
        return [] if key is None else [key]
    page = view.reader.workflows(WorkflowQuery(name=text, order_by=("-begun_ms",), limit=compared.MOST_RUNS))
    if not page.rows:
        raise Problem(404, f"there is no run of a workflow {text!r}", "run")
    return [(row.start, row.key) for row in page.rows]


def _comparison(view: View, found: compared.Comparison) -> Comparison:
    return Comparison(
        runs=[
            ComparedRun(
                workflow=WorkflowRow(**view.workflow_fields(run.workflow)),
                transformations=[
                    Transformation(**{**each._asdict(), "measures": [Measure(**m._asdict()) for m in each.measures]})
                    for each in run.transformations
                ],
            )
            for run in found.runs
        ],
        differing=[_parameter(each) for each in found.differing],
        same=[_parameter(each) for each in found.same],
        truncated=found.is_cut,
    )


def _parameter(found: compared.Parameter) -> Parameter:
    values: dict[str, Any] = found._asdict()
    return Parameter(**{**values, "values": [RunValue(**each._asdict()) for each in found.values]})

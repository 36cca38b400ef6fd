"""`threadline tasks`: what programs have captured, filtered, ordered and grouped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from threadline.commands.asking import (
    DEFAULT_API,
    Agent,
    Api,
    AsJson,
    Everything,
    From,
    Limit,
    To,
    Where,
    asking,
    gather,
    note,
)
from threadline.terminal import fail

if TYPE_CHECKING:
    from threadline.printing import Part

Epoch = Annotated[int | None, typer.Option(metavar="N", help="Only what is of this start of an agent.", min=0)]
Workflow = Annotated[
    str | None, typer.Option(metavar="ID", help="Only what is of this run, workflow:AGENT@EPOCH:NUMBER.")
]
WorkflowName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only what is of runs of the workflow of this name.")
]
Transformation = Annotated[str | None, typer.Option(metavar="NAME", help="Only those that do this.")]
Name = Annotated[str | None, typer.Option(metavar="ID", help="Only those that the program has given this id.")]
Status = Annotated[Literal["running", "finished", "failed"] | None, typer.Option(help="Only those of this status.")]
OrderBy = Annotated[
    str | None,
    typer.Option(
        metavar="FIELDS", help="Fields to order by, with commas; - in front: the greatest first (--order-by=-FIELD)."
    ),
]
GroupBy = Annotated[
    str | None,
    typer.Option(metavar="FIELDS", help="Of each combination of these fields only one row, see --latest; with commas."),
]
Latest = Annotated[str | None, typer.Option(metavar="FIELD", help="Of each group, the row in which this is greatest.")]
Least = Annotated[str | None, typer.Option(metavar="FIELD", help="Of each group, the row in which this is least.")]
Select = Annotated[str | None, typer.Option(metavar="FIELDS", help="Fields to show, with commas between them.")]


def tasks(
    agent: Agent = None,
    epoch: Epoch = None,
    workflow: Workflow = None,
    workflow_name: WorkflowName = None,
    transformation: Transformation = None,
    name: Name = None,
    status: Status = None,
    from_: From = None,
    to: To = None,
    where: Where = None,
    group_by: GroupBy = None,
    latest: Latest = None,
    least: Least = None,
    order_by: OrderBy = None,
    select: Select = None,
    limit: Limit = 20,
    everything: Everything = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Show captured tasks. --from and --to are about when they began.

    Fields are name, agent, epoch, transformation, workflow_name, status, begun_ms, ended_ms, elapsed_ms, error, and
    attributes of data and workflows: used.PATH, generated.PATH, workflow.PATH.

    Elapsed time and loss of the latest epoch of each combination of hyperparameters: --group-by used.rate,used.batch
    --latest generated.epoch --select elapsed_ms,generated.loss

    Hyperparameters of the three best accuracies: --order-by=-generated.accuracy --limit 3 --select used.rate,used.batch
    """
    asked = {
        "agent": agent, "epoch": epoch, "workflow": workflow, "workflow_name": workflow_name, "name": name,
        "transformation": transformation, "status": status, "from": from_, "to": to, "where": where,
        "group_by": group_by, "latest": latest, "least": least, "order_by": order_by, "select": select,
    }  # fmt: skip
    with asking(api) as client:
        pages = client.pages("tasks", asked, of="items", limit=None if everything else limit)
        found = gather(pages, "items", "tasks", as_json)
        if not found.number:
            fail("there are no such tasks", 1)
        if not as_json:
            if select or group_by:
                _print_values(found.items)
            else:
                _print_tasks(found.items)
            if found.last["next"] is not None:
                note("there are more: --limit N or --all shows them")


def _print_values(tasks: list[dict[str, Any]]) -> None:
    """Tasks by the fields that were asked for."""
    from threadline.printing import Column, Printer, value_text

    names = list(dict.fromkeys(name for task in tasks for name in task["values"]))
    numbers = [
        all(isinstance(task["values"].get(name), (int, float, None.__class__)) for task in tasks) for name in names
    ]
    columns = [
        Column("TASK"),
        *(Column(name, is_number, not is_number) for name, is_number in zip(names, numbers, strict=True)),
    ]
    Printer().table(
        columns,
        ((task["id"], *((value_text(task["values"].get(name)), "bold") for name in names)) for task in tasks),
    )


def _print_tasks(tasks: list[dict[str, Any]]) -> None:
    from threadline.printing import Column, Printer, duration_text, state_part, time_text

    columns = [
        *(Column("TASK"), *(Column(name, is_long=True) for name in ("NAME", "TRANSFORMATION", "WORKFLOW"))),
        *(Column("STATUS"), Column("BEGUN", is_number=True), Column("ELAPSED", is_number=True)),
        Column("ERROR", is_long=True),
    ]

    def row(task: dict[str, Any]) -> list[Part]:
        return [
            *((task["id"], "bold"), task["name"] or "", task["transformation"] or "", task["workflow_name"] or ""),
            *(state_part(task["status"]), time_text(task["begun_ms"]), duration_text(task["elapsed_ms"])),
            (task["error"] or "", "red"),
        ]

    Printer().table(columns, map(row, tasks))

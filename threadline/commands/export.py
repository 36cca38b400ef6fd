"""`threadline export`: what a query shows, all of its pages, as one document in a format that other tools read.

The pages become one graph of the very models that the API answers with, and the API's own exporters write it, so an
export is what the query shows. A file is there as a whole or not at all.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from threadline.commands.asking import DEFAULT_API, Agent, Api, From, Question, Streams, To, Where, asking, note
from threadline.commands.impact import Sources, Stream, asked_readings
from threadline.commands.sinks import Oldest, State
from threadline.commands.tasks import (
    Epoch,
    GroupBy,
    Latest,
    Least,
    Name,
    OrderBy,
    Select,
    Status,
    Transformation,
    Workflow,
    WorkflowName,
)
from threadline.terminal import fail

if TYPE_CHECKING:
    from threadline.api_client import Answer

app = typer.Typer(
    name="export",
    help="Write what a query shows, all of it, as one document: PROV-JSON, PROV-N, OpenLineage, GraphML, CSV, Parquet.",
    no_args_is_help=True,
)
_MOST_VERTICES = 5_000
_BINARY = "parquet"
_JSON = "json"

Id = Annotated[str, typer.Argument(metavar="ID", help="A tuple, task or data, such as car-7/alerts@1:0.")]
Format = Annotated[
    Literal["prov-json", "prov-n", "openlineage", "graphml", "csv", "parquet"] | None,
    typer.Option("--format", "-f", help="In which format; as a rule the name of the file says it."),
]
RowFormat = Annotated[
    Literal["csv", "parquet"] | None,
    typer.Option("--format", "-f", help="In which format; as a rule the name of the file says it."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; without it, to stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="In the API's own JSON: one document with all pages.")]
Payloads = Annotated[bool, typer.Option("--payload/--no-payload", help="With what tuples said.")]


class _Target(NamedTuple):
    """Where a document goes, and in which format. As a path, None is stdout."""

    format: str
    path: Path | None
    force: bool

    def write(self, document: bytes, title: str, told: str) -> None:
        """All of it, or nothing."""
        if self.path is None:
            sys.stdout.buffer.write(document)
            sys.stdout.buffer.flush()
        else:
            _write_file(self.path, document, self.force)
        note(f"{title}: {told}, {len(document):,} bytes{'' if self.path is None else f' in {self.path}'}")


# What can be exported


@app.command(cls=Question)
def lineage(
    id: Id,
    levels: Annotated[
        int, typer.Option("--levels", "--depth", metavar="N", help="How many steps away.", min=1, max=1_000)
    ] = 1_000,
    direction: Annotated[
        Literal["backward", "forward", "both"], typer.Option(help="To what it came from, or to what came from it.")
    ] = "backward",
    payload: Payloads = True,
    format: Format = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """What is around a vertex, step by step, with the tuples that agents sent to each other."""
    from threadline.api_client import path_of

    target = _target(format, output, force, as_json)
    asked = {"levels": levels, "direction": direction, "payload": payload, "limit": _MOST_VERTICES}
    with asking(api) as client:
        answer = client.ask(path_of("vertices", id, "lineage"), asked, has="vertices")
        _export_graph([answer], target, f"lineage of {id}")


@app.command(cls=Question)
def backward(
    id: Id,
    payload: Payloads = True,
    format: Format = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Everything that a vertex came from: of a result, the readings."""
    _export_ends("backward", id, payload, _target(format, output, force, as_json), api)


@app.command(cls=Question)
def forward(
    id: Id,
    payload: Payloads = True,
    format: Format = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Everything that came from a vertex: of a reading, the results."""
    _export_ends("forward", id, payload, _target(format, output, force, as_json), api)


def _export_ends(way: str, id: str, payload: bool, target: _Target, api: str) -> None:
    from threadline.api_client import path_of

    with asking(api) as client:
        pages = client.pages(path_of("vertices", id, way), {"payload": payload}, of="vertices")
        _export_graph(pages, target, f"{way} of {id}")


@app.command(cls=Question)
def impact(
    sources: Sources = None,
    stream: Stream = None,
    from_: From = None,
    to: To = None,
    edges: Annotated[
        bool, typer.Option("--edges/--no-edges", help="With the readings, and the edges from them.")
    ] = True,
    payload: Payloads = True,
    format: Format = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Every result that readings have touched: readings by id, or all of a stream."""
    target = _target(format, output, force, as_json)
    readings = asked_readings(sources, stream, from_, to)
    with asking(api) as client:
        asked = {"edges": edges, "payload": payload}
        _export_graph(client.pages("impact", asked, of="vertices", posted=readings), target, "impact")


@app.command(cls=Question)
def sinks(
    agent: Agent = None,
    streams: Streams = None,
    from_: From = None,
    to: To = None,
    where: Where = None,
    state: State = None,
    oldest: Oldest = False,
    payload: Payloads = True,
    format: Format = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Results."""
    target = _target(format, output, force, as_json)
    asked = {
        "agent": agent, "stream": streams, "from": from_, "to": to, "where": where, "state": state,
        "order": "oldest" if oldest else "newest", "payload": payload,
    }  # fmt: skip
    with asking(api) as client:
        _export_graph(client.pages("sinks", asked, of="vertices"), target, "sinks")


@app.command(cls=Question)
def paths(
    origin: Annotated[
        str, typer.Argument(metavar="FROM", help="Where they begin: an id, or ~ and a pattern for AGENT/STREAM.")
    ],
    derived: Annotated[
        str, typer.Argument(metavar="TO", help="Where they end: an id, or ~ and a pattern for AGENT/STREAM.")
    ],
    via: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Something between the ends has to match this.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="If both are patterns: results not before this time.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="If both are patterns: results not after this time.")
    ] = None,
    payload: Payloads = True,
    format: Format = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """The ways by which something came from something else."""
    target = _target(format, output, force, as_json)
    asked = {"from": origin, "to": derived, "via": via, "since": since, "until": until, "payload": payload}
    with asking(api, ("id", "from", "to")) as client:
        _export_graph(client.pages("paths", asked, of="paths"), target, f"paths from {origin} to {derived}")


@app.command(cls=Question)
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
    format: RowFormat = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Captured tasks, as rows."""
    asked = {
        "agent": agent, "epoch": epoch, "workflow": workflow, "workflow_name": workflow_name, "name": name,
        "transformation": transformation, "status": status, "from": from_, "to": to, "where": where,
        "group_by": group_by, "latest": latest, "least": least, "order_by": order_by, "select": select,
    }  # fmt: skip
    _export_rows("tasks", asked, _target(format, output, force, as_json, are_rows=True), api)


@app.command(cls=Question)
def data(
    agent: Agent = None,
    epoch: Epoch = None,
    workflow: Workflow = None,
    workflow_name: WorkflowName = None,
    task: Annotated[
        str | None, typer.Option(metavar="ID", help="Only data of this task, task:AGENT@EPOCH:NUMBER.")
    ] = None,
    name: Name = None,
    role: Annotated[
        Literal["used", "generated"] | None, typer.Option(help="Only data that a task used, or generated.")
    ] = None,
    from_: From = None,
    to: To = None,
    where: Where = None,
    group_by: GroupBy = None,
    latest: Latest = None,
    least: Least = None,
    order_by: OrderBy = None,
    select: Select = None,
    format: RowFormat = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Data as tasks used or generated it, as rows."""
    asked = {
        "agent": agent, "epoch": epoch, "workflow": workflow, "workflow_name": workflow_name, "task": task,
        "name": name, "role": role, "from": from_, "to": to, "where": where,
        "group_by": group_by, "latest": latest, "least": least, "order_by": order_by, "select": select,
    }  # fmt: skip
    _export_rows("data", asked, _target(format, output, force, as_json, are_rows=True), api)


@app.command(cls=Question)
def workflows(
    agent: Agent = None,
    epoch: Epoch = None,
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
    format: RowFormat = None,
    output: Output = None,
    force: Force = False,
    api: Api = DEFAULT_API,
    as_json: AsJson = False,
) -> None:
    """Runs of workflows, as rows."""
    asked = {
        "agent": agent, "epoch": epoch, "name": name, "status": status, "from": from_, "to": to, "where": where,
        "group_by": group_by, "latest": latest, "least": least, "order_by": order_by, "select": select,
    }  # fmt: skip
    _export_rows("workflows", asked, _target(format, output, force, as_json, are_rows=True), api)


# From pages to a document


def _export_graph(pages: Iterable[Answer], target: _Target, title: str) -> None:
    from pydantic import ValidationError

    from collector.api.models import Graph
    from collector.export import export
    from threadline.printing import counted, counting

    vertices: dict[str, Any] = {}
    edges: dict[tuple[str, ...], Any] = {}
    is_cut = False
    with counting("vertices") as count:
        for page in pages:
            before = len(vertices)
            vertices |= {each["id"]: each for each in page.body["vertices"]}
            edges |= {
                (each["origin"], each["derived"], each["relation"], *each["flags"]): each for each in page.body["edges"]
            }
            is_cut |= page.body["truncated"]
            count(len(vertices) - before)
    told = {"vertices": list(vertices.values()), "edges": list(edges.values()), "next": None, "truncated": is_cut}
    if target.format == _JSON:
        document = _json_line(told)
    else:
        try:
            document = export(Graph.model_validate(told), target.format, title)
        except ValidationError as error:
            fail(f"the API answers with something that this version does not know ({error.error_count()} errors)", 1)
    target.write(document, title, f"{counted(len(vertices), 'vertex', 'vertices')}, {counted(len(edges), 'edge')}")
    if is_cut:
        note("there is more than the API walks at once; the document says that it is cut: ask for less at a time")
    if not vertices:
        raise typer.Exit(1)


def _export_rows(what: str, asked: dict[str, Any], target: _Target, api: str) -> None:
    from collector.export import export_rows
    from threadline.printing import counted, counting

    rows: list[dict[str, Any]] = []
    with asking(api) as client:
        with counting(what) as count:
            for page in client.pages(what, asked, of="items"):
                rows += page.body["items"]
                count(len(page.body["items"]))
        if target.format == _JSON:
            document = _json_line({"items": rows, "next": None})
        else:
            document = export_rows(rows, target.format, what)
        target.write(document, what, counted(len(rows), "row"))
        if not rows:
            raise typer.Exit(1)


def _json_line(told: dict[str, Any]) -> bytes:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


# Where it goes


def _target(format: str | None, output: Path | None, force: bool, as_json: bool, are_rows: bool = False) -> _Target:
    """Where a document goes. What cannot be is told before anything is asked for."""
    from collector.export import FORMATS, ROW_FORMATS

    path = None if output is None or str(output) == "-" else output
    if as_json and format is not None:
        fail(f"--json and --format {format} are two formats: take one of them")
    found = _JSON if as_json else format or (None if path is None else _format_named(path.name))
    formats = ROW_FORMATS if are_rows else FORMATS
    if found is None:
        fail(f"in which format? Say --format {'|'.join(formats)}, or give the file a name that ends like one")
    if found not in (*formats, _JSON):
        fail(f"these are rows and no graph, so {found} cannot hold them: take {' or '.join(formats)}")
    if path is None and found == _BINARY and sys.stdout.isatty():
        fail(f"{found} is nothing that a terminal can show: say where to with -o FILE")
    if path is not None:
        _check_path(path, force)
    return _Target(found, path, force)


def _format_named(name: str) -> str | None:
    """What the name of a file says of its format."""
    from collector.export import FORMATS

    return next((each.name for each in FORMATS.values() if name.endswith(each.suffix)), None)


def _check_path(path: Path, force: bool) -> None:
    try:
        if path.is_dir():
            fail(f"-o {path} is a folder: name a file in it")
        if not path.absolute().parent.is_dir():
            fail(f"-o {path}: there is no folder {path.parent}; make it first")
        if path.exists() and S_ISREG(path.stat().st_mode) and not force:
            fail(f"-o {path} is there already: take another name, or say --force to overwrite it")
    except OSError as error:
        fail(f"-o {path}: {error.strerror}")


def _write_file(path: Path, document: bytes, force: bool) -> None:
    """Write beside the file, and give it its name when all is on disk. A device or a pipe is written to as it is."""
    try:
        path = path.resolve()  # a link stays one
        if path.exists() and not S_ISREG(path.stat().st_mode):
            path.write_bytes(document)
            return
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("xb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            _check_path(path, force)  # it may have come meanwhile
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        fail(f"-o {path} cannot be written: {error.strerror}", 1)

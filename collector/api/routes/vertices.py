"""One vertex: what it is, what it came from, what came from it, and what is around it.

Ids hold slashes, and end in a number (or, of data, in a name), so a path that goes on behind one is told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response

from collector.api import cursors
from collector.api.checked_route import CheckedRoute, without_query
from collector.api.context import Context, Shared, documents, reply_graph, reply_shown
from collector.api.graphs import (
    Captured,
    graph_of,
    shown_edge,
    shown_edges,
    shown_graph,
    shown_vertices,
    vertices_named,
)
from collector.api.models import Lineage, Origins, ProvDocument, Results, Vertex
from collector.api.parameters import MOST_NAME, ExportFormat, Page, Payloads
from collector.api.problems import Problem, responses
from collector.api.view import Node, Shown, View
from collector.export import FORMATS
from collector.lineage import Link, walk
from collector.names import TupleName, WorkflowName, parse_name
from collector.store.vertices import Sink
from protocol.graph import EdgeFlag

router = APIRouter(route_class=CheckedRoute, prefix="/vertices", tags=["graph"])
MOST_VERTICES = 5_000
"""In a walk."""
MOST_EDGES = 20_000
"""In an answer: windows that overlap have very many."""
MOST_CLOSURE = 20_000
"""Of which a page may show some."""
QUICK_ORIGINS = 500
QUICK_BYTES = 2 << 20
_TOO_DEEP = int(EdgeFlag.TOO_DEEP)
_FIRST = (0, "")
_FIRST_PAGE = Page()
Id = Annotated[
    str,
    Path(
        description="A tuple AGENT/STREAM@EPOCH:NUMBER, a task task:AGENT@EPOCH:NUMBER, a workflow"
        " workflow:AGENT@EPOCH:NUMBER, or data data:[AGENT@EPOCH:]WORKFLOW/ID.",
        max_length=MOST_NAME,
    ),
]


def _is_half(id: str) -> bool:
    """Whether an id is the first half of one: there may be data called `backward`, `forward` or `lineage`."""
    return id.startswith("data:") and "/" not in id


async def _backward_page(shared: Context, id: str, page: Page = _FIRST_PAGE) -> Response:
    if _is_half(id):
        return await _vertex(shared, f"{id}/backward")
    after = cursors.decode("backward", page.cursor)
    return await _answer(shared, id, page, "backward", lambda view, nodes: _backward(view, nodes, page, after))


def _answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {**responses(*statuses), **documents(FORMATS)}


@router.get("/{id:path}/backward", response_model=Origins | ProvDocument, responses=_answers(400, 404))
@without_query(_backward_page)
async def backward(shared: Shared, id: Id, page: Annotated[Page, Query()]) -> Response:
    """Everything that a vertex came from. Of a result: the readings, over all agents. Of captured data and tasks: all
    data and tasks before them."""
    return await _backward_page(shared, id, page)


async def _forward_page(shared: Context, id: str, page: Page = _FIRST_PAGE) -> Response:
    if _is_half(id):
        return await _vertex(shared, f"{id}/forward")
    after = cursors.decode("forward", page.cursor)
    return await _answer(shared, id, page, "forward", lambda view, nodes: _forward(view, nodes, page, after))


@router.get("/{id:path}/forward", response_model=Results | ProvDocument, responses=_answers(400, 404))
@without_query(_forward_page)
async def forward(shared: Shared, id: Id, page: Annotated[Page, Query()]) -> Response:
    """Everything that came from a vertex. Of a reading: the results that it touched, and whether it can touch more. Of
    captured data and tasks: all data and tasks behind them."""
    return await _forward_page(shared, id, page)


@router.get("/{id:path}/lineage", response_model=Lineage | ProvDocument, responses=_answers(404))
async def lineage(
    shared: Shared,
    id: Id,
    levels: Annotated[int, Query(description="How many steps away.", ge=1, le=1_000)] = 1,
    direction: Annotated[
        Literal["backward", "forward", "both"], Query(description="To what it came from, or to what came from it.")
    ] = "backward",
    payload: Payloads = False,
    limit: Annotated[int, Query(description="So many vertices at the most.", ge=1, le=MOST_VERTICES)] = 500,
    format: ExportFormat = "json",
) -> Response:
    """What is around a vertex, step by step, with the tuples that agents sent to each other."""
    if _is_half(id):
        return await _vertex(shared, f"{id}/lineage")

    def find(view: View) -> Shown:
        return _lineage(view, vertices_named(view, id), levels, direction, payload, limit)

    version = shared.version()
    return await reply_graph(await shared.readers.ask(find), format, "lineage", version)


async def _vertex(shared: Context, id: str) -> Response:
    view = shared.readers.quick()
    version = shared.version_of(view)
    with view.reader.moment():
        name = parse_name(id)
        found: Shown | None
        if isinstance(name, WorkflowName):
            found = view.workflow(name)
            if found is None:
                raise Problem(404, f"there is no {id}", "id")
        elif isinstance(name, TupleName):
            tuple_id = view.tuple_of(name)
            found = None if tuple_id is None else view.tuples([tuple_id]).get(tuple_id)
            if found is None:
                (found,) = shown_vertices(view, vertices_named(view, id))
        else:
            nodes = vertices_named(view, id)
            if len(nodes) > 1:
                several = ", ".join(view.id_of(node) for node in nodes[:5])
                raise Problem(
                    404, f"{len(nodes)} agents have generated data of this name, ask for one: {several}", "id"
                )
            (found,) = shown_vertices(view, nodes)
    return reply_shown(found, version)


@router.get("/{id:path}", response_model=Vertex, responses=responses(404))
@without_query(_vertex)
async def vertex(shared: Shared, id: Id) -> Response:
    """One vertex: what it said, and how it is."""
    return await _vertex(shared, id)


async def _answer(shared: Context, id: str, page: Page, of: str, find: Callable[[View, list[Node]], Shown]) -> Response:
    """An answer about what an id means: on the event loop if that takes no time, else in a thread."""
    name = parse_name(id)
    view = shared.readers.quick()
    version = shared.version_of(view)
    found: Shown | None = None
    if isinstance(name, TupleName):
        with view.reader.moment():
            tuple_id = view.tuple_of(name)
            if tuple_id is not None and _is_quick(view, tuple_id, of):
                found = find(view, [tuple_id])
    if found is None:
        found = await shared.readers.ask(lambda view: find(view, vertices_named(view, id)))
    return await reply_graph(found, page.format, of, version)


def _is_quick(view: View, tuple_id: int, of: str) -> bool:
    """Whether a result has few origins, or a reading that has results is in a small page of the index."""
    origins = view.reader.origin_count(tuple_id)
    if origins is not None:
        return origins <= QUICK_ORIGINS
    return (
        of == "forward" and 0 < view.reader.forward_bytes(tuple_id) <= QUICK_BYTES and bool(view.results_of(tuple_id))
    )


# Tuples: the edges of the graph, which lead from readings to results


def _backward(view: View, nodes: list[Node], page: Page, after: object) -> Shown:
    asked = nodes[0]
    if not isinstance(asked, int):
        return _captured_page(view, nodes, page, after, is_backward=True, lost=[])
    reader = view.reader
    flags: dict[int, list[str]] = {
        each: ["too_deep"] if flag & _TOO_DEEP else [] for each, flag in reader.edges_of(asked)
    }
    flags |= {each.origin: ["late"] for each in reader.late_of(asked)}
    is_cut = False
    if not flags and reader.origin_count(asked) is None:  # no result, and so it has no edges into it
        part = walk(graph_of(view, asked), [asked], most=MOST_CLOSURE, check=reader.check_time)
        inner = {link.derived for link in part.links}
        flags = {each: [] for each in part.levels if isinstance(each, int) and each not in inner and each != asked}
        is_cut = part.is_cut
    ids, following = _page("backward", sorted(flags), page.limit, after)
    shown, *origins = vertices = view.tuple_list([asked, *ids], page.payload, likely_sinks=[asked])
    edges = [shown_edge(origin["id"], shown["id"], flags[each]) for each, origin in zip(ids, origins, strict=True)]
    lost = [view.name_of(each) for each in reader.lost_of(asked)]
    return shown_graph(vertices, edges, following, is_cut, lost=lost)


def _forward(view: View, nodes: list[Node], page: Page, after: object) -> Shown:
    asked = nodes[0]
    if not isinstance(asked, int):
        return _captured_page(view, nodes, page, after, is_backward=False, may_touch_more=None)
    reader = view.reader
    flags: dict[int, list[str]] = {each: [] for each in view.results_of(asked)}
    flags |= {each: ["late"] for each in reader.late_sinks_of(asked) if each not in flags}
    is_cut = False
    if not flags:  # maybe one that was sent: edges lead from readings
        part = walk(graph_of(view, asked), [asked], backward=False, most=MOST_CLOSURE, check=reader.check_time)
        reached = [each for each in part.levels if isinstance(each, int) and each != asked]
        flags = {each: [] for each, found in reader.tuples(reached).items() if isinstance(found, Sink)}
        is_cut = part.is_cut
    ids, following = _page("forward", sorted(flags), page.limit, after)
    shown, *results = vertices = view.tuple_list([asked, *ids], page.payload, likely_sinks=ids)
    edges = [shown_edge(shown["id"], result["id"], flags[each]) for each, result in zip(ids, results, strict=True)]
    is_alive = {"alive": True, "expired": False}.get(shown["state"])
    return shown_graph(vertices, edges, following, is_cut, may_touch_more=is_alive)


def _page(of: str, ids: list[int], limit: int, after: object) -> tuple[list[int], str | None]:
    if after is not None:
        ids = [each for each in ids if each > _number(of, after)]
    return ids[:limit], cursors.encode(of, ids[limit - 1]) if len(ids) > limit else None


def _number(of: str, after: object) -> int:
    match after:
        case (int(number),):
            return number
        case _:
            raise cursors.no_cursor(of)


# Captured runs: all that is before or behind


def _captured_page(
    view: View, nodes: list[Node], wanted: Page, after: object, *, is_backward: bool, **more: Any
) -> Shown:
    graph = Captured(view)
    part = walk(graph, nodes, backward=is_backward, most=MOST_CLOSURE, check=view.reader.check_time)
    of = "backward" if is_backward else "forward"
    reached = sorted((level, view.id_of(node), node) for node, level in part.levels.items() if level)
    # An edge is on the page of that end which comes last: all pages together have every edge once.
    places = dict.fromkeys(nodes, _FIRST) | {node: (level, id) for level, id, node in reached}
    last_of = {link: max(places[link.origin], places[link.derived]) for link in part.links}
    begin = _FIRST
    if after is not None:
        match after:
            case (int(level), str(id)):
                begin = (level, id)
            case _:
                raise cursors.no_cursor(of)
        reached = [each for each in reached if each[:2] > begin]
    page = reached[: wanted.limit]
    end = page[-1][:2] if page else begin
    links = [link for link, place in last_of.items() if begin < place <= end or (after is None and place == _FIRST)]
    return shown_graph(
        shown_vertices(view, [*nodes, *(node for *_, node in page)], wanted.payload),
        shown_edges(view, links),
        cursors.encode(of, *end) if len(reached) > wanted.limit else None,
        part.is_cut or graph.is_cut,
        **more,
    )


def _lineage(view: View, nodes: list[Node], levels: int, direction: str, with_payloads: bool, limit: int) -> Shown:
    graph = graph_of(view, nodes[0])
    found: dict[Node, int] = {}
    links: dict[Link[Node], None] = {}
    is_cut = False
    for way in ("backward", "forward"):
        if direction in (way, "both"):
            part = walk(
                graph,
                nodes,
                backward=way == "backward",
                levels=levels,
                most=max(limit - len(found), len(nodes)),
                most_links=MOST_EDGES - len(links),
                check=view.reader.check_time,
            )
            found |= {each: min(level, found.get(each, level)) for each, level in part.levels.items()}
            links |= part.links
            is_cut |= part.is_cut
    return shown_graph(
        shown_vertices(view, found, with_payloads),
        shown_edges(view, links),
        is_cut=is_cut or (isinstance(graph, Captured) and graph.is_cut),
        levels={view.id_of(each): level for each, level in found.items()},
        unresolved=list(graph.unresolved) if isinstance(graph, Captured) else [],
    )

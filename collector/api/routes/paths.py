"""By which ways things came from one another.

Ends are ids, or patterns: `~` and a regular expression (RE2) that has to match all of AGENT/STREAM of a tuple,
AGENT/TRANSFORMATION of a task, or AGENT/NAME of data. If one of the ends is an id, what is before or behind it is
walked. If both are patterns, results of streams are taken one after the other, the newest first: a page ends when it is
full, or when so many results were looked at, and the next one goes on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Response

from collector.api import cursors
from collector.api.checked_route import CheckedRoute
from collector.api.context import Shared, documents, reply_graph
from collector.api.graphs import Captured, graph_of, shown_edges, shown_graph, shown_vertices, vertices_named
from collector.api.models import Paths, ProvDocument
from collector.api.parameters import MOST_NAME, Cursor, ExportFormat, Payloads, TimeMs, span
from collector.api.problems import bad_field, responses
from collector.api.view import Node, Shown, View
from collector.export import FORMATS
from collector.filters import BadFilter, matcher
from collector.lineage import Link, Part, paths, some, walk
from collector.store.vertices import Sink
from protocol.chunks import SEQ_BITS

router = APIRouter(route_class=CheckedRoute, tags=["graph"])
MOST_VERTICES = 20_000
MOST_PATHS = 1_000
MOST_PASSED = 100_000
MOST_RESULTS = 500
_AT_ONCE = 100
End = Annotated[str, Query(min_length=1, max_length=MOST_NAME)]
_Pattern = Callable[[str], bool]
"""Says whether a place is one that was asked for."""


@router.get(
    "/paths",
    response_model=Paths | ProvDocument,
    responses={**responses(400, 404), **documents(FORMATS)},
    summary="Paths",
)
async def find_paths(
    shared: Shared,
    origin: Annotated[
        End,
        Query(
            alias="from",
            description="Where they begin: an id, or ~ and a regular expression for AGENT/STREAM.",
        ),
    ],
    derived: Annotated[
        End,
        Query(
            alias="to",
            description="Where they end: an id, or ~ and a regular expression for AGENT/STREAM.",
        ),
    ],
    via: Annotated[
        str | None,
        Query(description="A regular expression that something between the ends has to match.", max_length=MOST_NAME),
    ] = None,
    since: Annotated[TimeMs | None, Query(description="If both are patterns: results not before this time.")] = None,
    until: Annotated[TimeMs | None, Query(description="If both are patterns: results not after this time.")] = None,
    payload: Payloads = False,
    limit: Annotated[int, Query(description="So many paths at the most.", ge=1, le=MOST_PATHS)] = 100,
    cursor: Cursor = None,
    format: ExportFormat = "json",
) -> Response:
    """The ways by which something came from something else, over tuples that agents sent, tasks and data."""
    after = cursors.decode("paths", cursor)
    version = shared.version()
    begin, end = _end("from", origin), _end("to", derived)
    between = None if via is None else _pattern("via", via)

    def find(view: View) -> Shown:
        return _Search(view, begin, end, between, span(since, until, ("since", "until"))).page(limit, after, payload)

    return await reply_graph(await shared.readers.ask(find), format, "paths", version)


def _pattern(field: str, text: str) -> _Pattern:
    try:
        return matcher(text)
    except BadFilter as error:
        raise bad_field(field, str(error)) from error


def _end(field: str, text: str) -> str | _Pattern:
    return _pattern(field, text[1:]) if text.startswith("~") else text


class _Found(NamedTuple):
    """Paths, the links that they are made of, and where to go on."""

    paths: list[list[Node]]
    links: list[Link[Node]]
    after: tuple[Any, ...] | None
    is_cut: bool


class _Search:
    """One question to one view."""

    def __init__(
        self, view: View, begin: str | _Pattern, end: str | _Pattern, via: _Pattern | None, times: tuple[int, int]
    ) -> None:
        self._view = view
        self._begin, self._end = begin, end
        self._via = via
        self._times = times
        self._places: dict[Node, str] = {}

    def page(self, limit: int, after: tuple[Any, ...] | None, with_payloads: bool) -> Shown:
        """So many paths behind a cursor."""
        if not isinstance(self._begin, str) and not isinstance(self._end, str):
            found = self._of_results(limit, after)
        else:
            found = self._of_one(limit, after)
        view = self._view
        steps = {pair for path in found.paths for pair in pairwise(path)}
        links = [link for link in found.links if (link.origin, link.derived) in steps]
        vertices = list(dict.fromkeys(node for path in found.paths for node in path))
        return shown_graph(
            shown_vertices(view, vertices, with_payloads),
            shown_edges(view, links),
            None if found.after is None else cursors.encode("paths", *found.after),
            found.is_cut,
            paths=[[view.id_of(node) for node in path] for path in found.paths],
        )

    def _of_one(self, limit: int, after: tuple[Any, ...] | None) -> _Found:
        """One of the ends is known: walk from there."""
        passed = 0
        if after is not None:
            match after:
                case (int(number),) if 0 <= number <= MOST_PASSED:
                    passed = number
                case _:
                    raise cursors.no_cursor("paths")
        if isinstance(self._end, str):
            known = vertices_named(self._view, self._end, "to")
            part, is_cut = self._walk(known, backward=True)
            begins, ends = self._matching(self._begin, part, "from"), set(known)
        else:
            known = vertices_named(self._view, str(self._begin), "from")
            part, is_cut = self._walk(known, backward=False)
            begins, ends = set(known), self._matching(self._end, part, "to")
        page, has_more = some(self._paths(part, begins, ends), passed, limit)
        following = passed + limit
        if has_more and following > MOST_PASSED:
            has_more, is_cut = False, True
        return _Found(page, list(part.links), (following,) if has_more else None, is_cut)

    def _of_results(self, limit: int, after: tuple[Any, ...] | None) -> _Found:
        """Both ends are patterns: one result after the other."""
        place, passed = None, 0
        if after is not None:
            match after:
                case (int(ts), int(tuple_id), int(number)) if 0 <= number <= MOST_PASSED:
                    place, passed = (ts, tuple_id), number
                case (None, None, int(number)) if 0 <= number <= MOST_PASSED:
                    passed = number
                case _:
                    raise cursors.no_cursor("paths")
        found: list[list[Node]] = []
        links: list[Link[Node]] = []
        is_cut = False
        for count, sink in enumerate(self._results(place)):
            if count == MOST_RESULTS:
                return _Found(found, links, (*(place or (None, None)), 0), is_cut)
            part, was_cut = self._walk([sink.id], backward=True)
            is_cut |= was_cut
            begins = self._matching(self._begin, part, "from")
            page, has_more = some(self._paths(part, begins, {sink.id}), passed, limit - len(found))
            found += page
            links += part.links
            if has_more:
                return _Found(found, links, (*(place or (None, None)), passed + len(page)), is_cut)
            place, passed = (sink.ts, sink.id), 0
        return _Found(found, links, None, is_cut)

    def _results(self, after: tuple[int, int] | None) -> Iterator[Sink]:
        """Results of streams that match, the newest first."""
        assert not isinstance(self._end, str)
        streams = [each.number for each in self._view.reader.streams() if self._end(f"{each.agent}/{each.name}")]
        while page := self._view.reader.sinks(
            from_ts=self._times[0],
            to_ts=self._times[1],
            streams=streams,
            after=after,
            newest_first=True,
            limit=_AT_ONCE,
        ):
            yield from page
            after = page[-1].ts, page[-1].id

    def _walk(self, start: list[Node], *, backward: bool) -> tuple[Part[Node], bool]:
        graph = graph_of(self._view, start[0])
        part = walk(graph, start, backward=backward, most=MOST_VERTICES, check=self._view.reader.check_time)
        return part, part.is_cut or (isinstance(graph, Captured) and graph.is_cut)

    def _paths(self, part: Part[Node], begins: set[Node], ends: set[Node]) -> Iterator[list[Node]]:
        via = self._via
        if via is not None:
            self._learn(part.levels)
        found = paths(
            part.links,
            begins,
            ends,
            None if via is None else lambda node: via(self._places[node]),
            self._view.reader.check_time,
        )
        return (path for path in found if len(path) > 1)

    def _matching(self, end: str | _Pattern, part: Part[Node], field: str) -> set[Node]:
        """The vertices of a part that an end means."""
        if isinstance(end, str):
            return set(vertices_named(self._view, end, field)) & part.levels.keys()
        self._learn(part.levels)
        return {node for node in part.levels if end(self._places[node])}

    def _learn(self, nodes: Iterable[Node]) -> None:
        """What patterns are matched against."""
        new = [node for node in nodes if node not in self._places]
        for node in new:
            if isinstance(node, int):
                of = self._view.stream_of(node >> SEQ_BITS)
                self._places[node] = f"{of.agent}/{of.name}"
        captured = self._view.captured([node for node in new if not isinstance(node, int)], with_attributes=False)
        for node, vertex in captured.items():
            last = vertex["transformation" if vertex["kind"] == "task" else "name"]
            self._places[node] = f"{vertex['agent'] or ''}/{last or ''}"

"""The two graphs that can be asked about, stream tuples and captured runs, walked alike, and how they are shown.

A vertex is a number (a tuple), a task or data. They never meet: what a program captures and what streams carry are
different worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from collector.api.problems import Problem, bad_field
from collector.api.view import Node, Shown, View
from collector.lineage import Derivations, Link
from collector.names import BadName, DataName, TaskName, TupleName, VertexName, WorkflowName, parse_name


class Tuples:
    """Derivations of stream tuples."""

    def __init__(self, view: View) -> None:
        self._reader = view.reader

    def origins_of(self, vertices: Collection[Node]) -> Iterable[Link[Node]]:
        return map(_tuple_link, self._reader.origins_of(cast("Collection[int]", vertices)))

    def derived_of(self, vertices: Collection[Node]) -> Iterable[Link[Node]]:
        return map(_tuple_link, self._reader.derived_of(cast("Collection[int]", vertices)))


def _tuple_link(found: tuple[int, int, bool]) -> Link[Node]:
    origin, derived, is_late = found
    return Link(origin, derived, "wasDerivedFrom", is_late)


class Captured:
    """Derivations of captured data and dependencies of tasks; what cannot be resolved is noted."""

    def __init__(self, view: View) -> None:
        self._reader = view.reader
        self.unresolved: dict[str, None] = {}
        self.is_cut = False

    def origins_of(self, vertices: Collection[Node]) -> Iterable[Link[Node]]:
        return self._links(self._reader.captured_origins_of, vertices)

    def derived_of(self, vertices: Collection[Node]) -> Iterable[Link[Node]]:
        return self._links(self._reader.captured_derived_of, vertices)

    def _links(self, level_of: Callable[[Any], Any], vertices: Collection[Node]) -> Iterable[Link[Node]]:
        level = level_of(vertices)
        self.is_cut |= level.is_cut
        self.unresolved |= {each.id: None for each in level.unresolved}
        return [Link(edge.origin, edge.derived, edge.relation) for edge in level.edges]


def graph_of(view: View, vertex: Node) -> Derivations[Node]:
    """The graph that a vertex is in."""
    return Tuples(view) if isinstance(vertex, int) else Captured(view)


def vertices_named(view: View, text: str, field: str = "id") -> list[Node]:
    """The vertices that an id means: one, or, for data without its agent, all of that name. A Problem if there is no
    such vertex, or it has no derivations."""
    try:
        name = parse_name(text)
    except BadName as error:
        raise bad_field(field, str(error)) from error
    if isinstance(name, WorkflowName):
        raise Problem(422, f"a workflow has no lineage of its own: ask for its tasks, /v1/tasks?workflow={text}", field)
    found = find_vertices(view, name)
    if not found:
        raise Problem(404, f"there is no {text}", field)
    return found


def find_vertices(view: View, name: VertexName) -> list[Node]:
    """The vertices of derivation graphs that a name means; none if there are none."""
    match name:
        case TupleName():
            tuple_id = view.tuple_of(name)
            return [tuple_id] if tuple_id is not None and view.is_known(tuple_id) else []
        case TaskName():
            task = view.task_of(name)
            return [task] if task else []
        case DataName():
            return list(view.data_of(name))
        case _:
            return []


def shown_vertices(view: View, nodes: Iterable[Node], with_payloads: bool = True) -> list[Shown]:
    """Vertices as the API shows them, in this order."""
    wanted = list(nodes)
    tuples = dict(
        zip(
            numbers := [each for each in wanted if isinstance(each, int)],
            view.tuple_list(numbers, with_payloads),
            strict=True,
        )
    )
    captured = view.captured([each for each in wanted if not isinstance(each, int)], with_payloads)
    return [tuples[each] if isinstance(each, int) else captured[each] for each in wanted]


def shown_edge(origin: str, derived: str, flags: list[str], relation: str = "wasDerivedFrom") -> Shown:
    """An edge as the API shows it."""
    return {"origin": origin, "derived": derived, "relation": relation, "flags": flags}


def shown_edges(view: View, links: Iterable[Link[Node]]) -> list[Shown]:
    """Edges as the API shows them."""
    return [
        shown_edge(view.id_of(link.origin), view.id_of(link.derived), ["late"] if link.is_late else [], link.relation)
        for link in links
    ]


def shown_graph(
    vertices: list[Shown], edges: list[Shown], following: str | None = None, is_cut: bool = False, **more: Any
) -> Shown:
    """A part of the graph as the API shows it, with what else belongs to the answer."""
    return {"vertices": vertices, "edges": edges, "next": following, "truncated": is_cut, **more}

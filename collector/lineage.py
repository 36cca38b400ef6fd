"""Walks through the provenance graph: what is around a vertex, and by which paths one came from another.

A graph is anything that tells, for some vertices, the derivations into or out of them: those of stream tuples and those
of captured tasks and data are walked alike. Every walk is bounded, and says when it was cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

V = TypeVar("V", bound=Hashable)
_AT_ONCE = 256


class Link(NamedTuple, Generic[V]):
    """`derived` came directly from `origin`; the relation is one of PROV-DM."""

    origin: V
    derived: V
    relation: str
    is_late: bool = False


class Derivations(Protocol[V]):
    """A graph."""

    def origins_of(self, vertices: Collection[V]) -> Iterable[Link[V]]:
        """What these came from directly."""

    def derived_of(self, vertices: Collection[V]) -> Iterable[Link[V]]:
        """What came from these directly."""


@dataclass(slots=True)
class Part(Generic[V]):
    """A part of a graph around some vertices."""

    levels: dict[V, int] = field(default_factory=dict)
    """The vertices, and how many steps each is away; those of one level follow one another."""
    links: dict[Link[V], None] = field(default_factory=dict)
    is_cut: bool = False
    """There is more than could be walked."""


def walk(
    graph: Derivations[V],
    start: Iterable[V],
    *,
    backward: bool = True,
    levels: int | None = None,
    most: int,
    most_links: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> Part[V]:
    """All that can be reached, level by level: so many of them, and so many vertices and links at the most. `check` is
    called now and then, and may raise."""
    part: Part[V] = Part(dict.fromkeys(start, 0))
    frontier = list(part.levels)
    level = 0
    while frontier and (levels is None or level < levels):
        check()
        level += 1
        links = _links(graph.origins_of if backward else graph.derived_of, frontier)
        frontier = []
        for link in links:
            if len(part.links) == most_links:
                part.is_cut = True
                return part
            found = link.origin if backward else link.derived
            if found not in part.levels:
                if len(part.levels) >= most:
                    part.is_cut = True
                    continue
                part.levels[found] = level
                frontier.append(found)
            part.links[link] = None
    return part


def _links(around: Callable[[Collection[V]], Iterable[Link[V]]], vertices: list[V]) -> Iterator[Link[V]]:
    """Some vertices after the other: whoever has enough links need not wait for all of a level."""
    for begin in range(0, len(vertices), _AT_ONCE):
        yield from around(vertices[begin : begin + _AT_ONCE])


def paths(
    links: Iterable[Link[V]],
    begins: Iterable[V],
    ends: Iterable[V],
    via: Callable[[V], bool] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[list[V]]:
    """All paths over these links from one of `begins` to one of `ends`, in a fixed order; no vertex twice in one.

    With `via`, only those that have such a vertex between their ends. A step is (vertex, whether such a vertex was
    passed). First the steps are found from which an end can be reached: then no way is taken that leads nowhere, but
    for circles. `check` is called now and then, and may raise.
    """
    onward: dict[V, list[V]] = defaultdict(list)
    for link in links:
        onward[link.origin].append(link.derived)
    for derived in onward.values():
        derived.sort(key=_order)
    last = set(ends)
    first = sorted(dict.fromkeys(begins), key=_order)

    def steps(step: tuple[V, bool]) -> Iterator[tuple[V, bool]]:
        vertex, passed = step
        for derived in dict.fromkeys(onward.get(vertex, ())):
            yield derived, passed or (via is not None and via(derived))

    def has_passed(step: tuple[V, bool]) -> bool:
        return via is None or step[1]

    leads_on = _leading(
        [(each, False) for each in first],
        steps,
        # The end itself does not count as being between the ends.
        lambda before, after: after[0] in last and has_passed(before),
    )
    for begin in first:
        if begin in last and via is None:
            yield [begin]
        path: list[V] = [begin]
        branches = [iter([(step, (begin, False)) for step in steps((begin, False))])]
        while branches:
            check()
            found = next(branches[-1], None)
            if found is None:
                branches.pop()
                path.pop()
                continue
            step, before = found
            if step[0] in path:
                continue
            if step[0] in last and has_passed(before):
                yield [*path, step[0]]
            if step in leads_on:
                path.append(step[0])
                branches.append(iter([(after, step) for after in steps(step)]))


def _leading(
    starts: list[tuple[V, bool]],
    steps: Callable[[tuple[V, bool]], Iterator[tuple[V, bool]]],
    is_end: Callable[[tuple[V, bool], tuple[V, bool]], bool],
) -> set[tuple[V, bool]]:
    """The steps from which an end can be reached."""
    before: dict[tuple[V, bool], list[tuple[V, bool]]] = defaultdict(list)
    seen = set(starts)
    waiting = list(starts)
    leading: list[tuple[V, bool]] = []
    while waiting:
        step = waiting.pop()
        for after in steps(step):
            before[after].append(step)
            if is_end(step, after):
                leading.append(step)
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    found = set(leading)
    while leading:
        for step in before[leading.pop()]:
            if step not in found:
                found.add(step)
                leading.append(step)
    return found


def _order(vertex: Hashable) -> tuple[str, str]:
    """Numbers by size, everything else by how it is written."""
    return (f"{vertex:020d}", "") if isinstance(vertex, int) else ("", repr(vertex))


def some(found: Iterator[list[V]], after: int, limit: int) -> tuple[list[list[V]], bool]:
    """Paths behind the first ones, and whether there are more."""
    page = list(islice(found, after, after + limit + 1))
    return page[:limit], len(page) > limit

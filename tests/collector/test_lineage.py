"""Walks and paths on random graphs, with circles too, against the plainest way to find them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.lineage import Link, paths, some, walk

vertices = st.integers(0, 9)
graphs = st.sets(st.tuples(vertices, vertices), max_size=25)


class Pairs:
    """A graph of (origin, derived)."""

    def __init__(self, pairs: set[tuple[int, int]]) -> None:
        self.links = [Link(*pair, "wasDerivedFrom") for pair in sorted(pairs)]

    def origins_of(self, vertices: Collection[int]) -> list[Link[int]]:
        return [link for link in self.links if link.derived in vertices]

    def derived_of(self, vertices: Collection[int]) -> list[Link[int]]:
        return [link for link in self.links if link.origin in vertices]


def levels_of(pairs: set[tuple[int, int]], start: set[int], most: int | None) -> dict[int, int]:
    """How far each vertex is, backwards: by looking at all pairs again and again."""
    found = dict.fromkeys(start, 0)
    level = 0
    while most is None or level < most:
        level += 1
        new = {origin for origin, derived in pairs if found.get(derived) == level - 1} - found.keys()
        if not new:
            break
        found |= dict.fromkeys(new, level)
    return found


def every_path(pairs: set[tuple[int, int]], path: list[int], ends: set[int]) -> Iterator[list[int]]:
    if path[-1] in ends:
        yield path
    for origin, derived in pairs:
        if origin == path[-1] and derived not in path:
            yield from every_path(pairs, [*path, derived], ends)


@given(graphs, st.sets(vertices, max_size=3), st.none() | st.integers(0, 4), st.booleans())
def test_a_walk_finds_what_is_near_enough(
    pairs: set[tuple[int, int]], start: set[int], levels: int | None, backward: bool
) -> None:
    part = walk(Pairs(pairs), start, backward=backward, levels=levels, most=100)
    turned = pairs if backward else {(derived, origin) for origin, derived in pairs}
    assert part.levels == levels_of(turned, start, levels)
    inner = {each for each, level in part.levels.items() if levels is None or level < levels}
    assert {link[:2] for link in part.links} == {pair for pair in pairs if (pair[1] if backward else pair[0]) in inner}
    assert not part.is_cut


@given(graphs, st.sets(vertices, min_size=1, max_size=3), st.integers(1, 5))
def test_a_walk_that_is_cut_says_so(pairs: set[tuple[int, int]], start: set[int], most: int) -> None:
    part = walk(Pairs(pairs), start, most=most)
    whole = levels_of(pairs, start, None)
    assert part.is_cut == (len(whole) > max(most, len(start)))
    assert part.levels.items() <= whole.items()
    assert all(link.origin in part.levels and link.derived in part.levels for link in part.links)


@given(graphs, st.sets(vertices, max_size=3), st.sets(vertices, max_size=3), st.none() | st.sets(vertices, max_size=3))
def test_paths_are_all_that_there_are(
    pairs: set[tuple[int, int]], begins: set[int], ends: set[int], via: set[int] | None
) -> None:
    found = list(paths(Pairs(pairs).links, begins, ends, None if via is None else via.__contains__))
    expected = [
        path
        for begin in begins
        for path in every_path(pairs, [begin], ends)
        if via is None or via.intersection(path[1:-1])
    ]
    assert sorted(found) == sorted(expected)
    assert found == list(paths(Pairs(pairs).links, begins, ends, None if via is None else via.__contains__))


def test_ways_that_lead_nowhere_are_not_walked() -> None:
    #  0 -> 1 .. 40 in two ways each, and none of them leads to 99
    pairs = {(number, number + step) for number in range(60) for step in (1, 2)}
    assert list(paths(Pairs(pairs).links, [0], [99])) == []
    assert list(paths(Pairs(pairs | {(60, 99)}).links, [0], [99], lambda vertex: vertex == 98)) == []


def test_pages_of_very_many_paths() -> None:
    pairs = {(number, number + step) for number in range(60) for step in (1, 2)}
    page, has_more = some(paths(Pairs(pairs).links, [0], [60]), 5, 3)
    assert (len(page), has_more) == (3, True)
    assert some(paths(Pairs({(0, 1)}).links, [0], [1]), 0, 1) == ([[0, 1]], False)


def test_a_walk_may_be_given_up() -> None:
    def give_up() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        walk(Pairs({(0, 1)}), [1], most=10, check=give_up)

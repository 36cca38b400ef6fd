"""ANK-N, composed of windows as in the paper: it keeps its claims, and its graph is that of our ANK-1.

Numbers in names are those of the catalogue of behaviours (41 to 49).
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.stream import Count, Plan
from protocol.chunks import SEQ_BITS
from tests.support.ananke_reference import (
    Element,
    SinkTuple,
    ank_n,
    as_sets,
    defined,
    delay,
    delayed,
    element,
    forward_once,
    windows_of,
)
from tests.support.fleet_log import Shards, Speaker
from tests.support.pipeline import CheckedPipeline

some_examples = settings(max_examples=max(20, settings().max_examples // 3))


@st.composite
def streams(draw: st.DrawFn, least_u: int = 1) -> tuple[list[SinkTuple], int]:
    """Sink tuples in the order of time. A source s contributes to those in (s.ts, s.ts + U], or without windows to
    those of its own time."""
    u = draw(st.integers(least_u, 12))
    base = draw(st.sampled_from((-30, 0, 1_000)))
    sources = [(f"s{number}", base + ts) for number, ts in enumerate(draw(st.lists(st.integers(0, 40), max_size=8)))]
    times = sorted(base + ts for ts in draw(st.lists(st.integers(0, 50), max_size=10)))
    tuples = []
    for number, ts in enumerate(times):
        near = [each for each in sources if (each[1] < ts <= each[1] + u if u else ts == each[1])]
        chosen = draw(st.lists(st.sampled_from(near), unique=True)) if near else []
        tuples.append(SinkTuple(f"k{number}", ts, tuple(chosen)))
    return tuples, u


# ---------------------------------------------------------------------- operators


def test_41_delay_is_more_than_u_and_at_most_twice_u() -> None:
    assert [delay(ts, 10) for ts in (7, 10, 19)] == [20, 30, 30]


@given(st.integers(-100, 100), st.integers(1, 14))
def test_41_delay_by_windows_is_delay_by_definition(ts: int, u: int) -> None:
    r"""
    U = 10, 7@7:  [-10, 10)  held for 3: dropped
                     [0, 20) held for 13: kept
    """
    assert delayed(ts, u) == [delay(ts, u)]
    assert u < delay(ts, u) - ts <= 2 * u


@pytest.mark.parametrize(("copies", "stamp"), [([8, 12], 20), ([3, 3, 3], 20), ([10, 19], 30), ([-5], 10)])
def test_42_copies_less_than_u_apart_are_forwarded_once(copies: list[int], stamp: int) -> None:
    assert forward_once([("a", ts) for ts in copies], 10) == [("a", stamp)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 50), st.integers(0, 11)), max_size=12), st.integers(1, 12)
)
def test_42_forward_once_is_delay_of_the_first(drawn: list[tuple[int, int, int]], u: int) -> None:
    """For any group of copies less than U apart."""
    first = {name: ts for name, ts, _ in reversed(drawn)}
    copies = [(f"s{name}", first[name] + later % u) for name, _, later in drawn]
    expected = {name: min(ts for other, ts in copies if other == name) for name, _ in copies}
    assert dict(forward_once(copies, u)) == {name: delay(ts, u) for name, ts in expected.items()}
    assert len(forward_once(copies, u)) == len(expected)


def test_42_copies_further_apart_are_not_one() -> None:
    """So a U that is too small shows: the vertex comes more than once."""
    assert len(forward_once([("a", 0), ("a", 25)], 10)) > 1


@given(st.integers(-100, 100), st.integers(1, 12))
def test_43_neighbouring_results_meet_in_one_window_of_the_join(number: int, u: int) -> None:
    """
    A1   |-----------|-----------|        results at even multiples of U
    A2         |-----------|-----------|  and at odd ones
    J    [-----][-----][-----]            each with both of its boundaries inside
    """
    one, next_one = number * u, (number + 1) * u
    assert len({*windows_of(one, u + 1, u)}) == 2 if u > 1 else True
    shared = {*windows_of(one, u + 1, u)} & {*windows_of(next_one, u + 1, u)}
    assert (one, next_one + 1) in shared
    assert len(shared) == 1


# ---------------------------------------------------------------------- the composition


def test_44_stamps() -> None:
    assert ank_n([SinkTuple("k", 7, (("a", 1),))], 10) == [
        element("K", 7, "k"),
        element("S", 20, "a"),
        element("E", 20, "a", "k"),
        element("L", 20, "k"),
        element("L", 40, "a"),
    ]


@given(streams())
@some_examples
def test_the_composition_keeps_the_papers_claims(drawn: tuple[list[SinkTuple], int]) -> None:
    """Each vertex, edge and label once (R-V); edges not before vertices (R-E); labels not before edges (R-L)."""
    tuples, u = drawn
    graph = ank_n(tuples, u)
    assert graph == defined(tuples, u)
    assert_sound(graph)


def assert_sound(graph: list[Element]) -> None:
    parts = Counter((each.kind, each.ids) for each in graph)
    assert all(count == 1 for count in parts.values())
    vertices = {each.ids[0]: each.stamp for each in graph if each.kind in "KS"}
    labels = {each.ids[0]: each.stamp for each in graph if each.kind == "L"}
    assert vertices.keys() == labels.keys()
    for each in graph:
        if each.kind == "E":
            assert all(vertices[end] <= each.stamp <= labels[end] for end in each.ids)
    assert graph == sorted(graph), "ranks decide where stamps are equal"


def test_47_the_last_aggregate_keeps_a_vertex_and_its_label_apart() -> None:
    """They are never of one stamp if U is at least 1; without windows they are, and are told apart by their kind."""
    graph = ank_n([SinkTuple("k", 0, (("a", 0),))], 1)
    stamps = {(each.kind, each.ids): each.stamp for each in graph}
    assert stamps["S", ("a",)] < stamps["L", ("a",)]
    assert stamps["K", ("k",)] < stamps["L", ("k",)]


def test_48_without_windows_the_last_aggregate_removes_copies() -> None:
    graph = ank_n([SinkTuple("k1", 5, (("a", 5),)), SinkTuple("k2", 5, (("a", 5),))], 0)
    assert [(each.kind, each.ids) for each in graph] == [
        ("K", ("k1",)),
        ("K", ("k2",)),
        ("S", ("a",)),
        ("E", ("a", "k1")),
        ("E", ("a", "k2")),
        ("L", ("a",)),
        ("L", ("k1",)),
        ("L", ("k2",)),
    ]
    assert {each.stamp for each in graph} == {5}


# ---------------------------------------------------------------------- and our ANK-1


def ank_1(tuples: list[SinkTuple], u: int, every: int) -> list[Element]:
    """The pipeline's graph of the same sink tuples; a micro-batch has so many of them."""
    plan = Plan("one")
    stream = plan.source("s")
    (stream.window(u).aggregate(Count()) if u else stream).sink("k")
    shards, pipeline = Shards(), CheckedPipeline(1, 2)
    car = Speaker(shards, "car", plan)
    sources = {source: car.source("s", ts) for source, ts in sorted({each for one in tuples for each in one.sources})}
    for number, each in enumerate(tuples):
        car.deliver("k", each.ts, *[sources[source] for source, _ in each.sources])
        car.progress("k", each.ts)
        if number % every == every - 1:
            car.leave()
            pipeline.run(shards.micro_batch())
    car.end()
    car.leave()
    pipeline.run(shards.micro_batch())
    pipeline.finish()

    def name(number: int) -> str:
        seq = number & (1 << SEQ_BITS) - 1
        is_sink = pipeline.oracle.log.streams[number >> SEQ_BITS][2] == "k"
        return tuples[seq].id if is_sink else list(sources)[seq]

    found = []
    for batch in pipeline.batches:
        stamp = batch.stamp
        found += [element("K", stamp, name(sink)) for sink in batch.sinks.id.tolist()]
        found += [element("S", stamp, name(source)) for source in batch.sources.id.tolist()]
        pairs = zip(batch.edges.source.tolist(), batch.edges.sink.tolist(), strict=True)
        found += [element("E", stamp, name(source), name(sink)) for source, sink in pairs]
        labels = [*batch.sink_labels.id.tolist(), *batch.source_labels.tolist()]
        found += [element("L", stamp, name(each)) for each in labels]
    return found


@given(streams(least_u=0), st.integers(1, 4))
@some_examples
def test_49_both_make_the_same_graph(drawn: tuple[list[SinkTuple], int], every: int) -> None:
    """As sets of vertices, edges and labels; every part of each comes once."""
    tuples, u = drawn
    ours, theirs = ank_1(tuples, u, every), ank_n(tuples, u)
    assert as_sets(ours) == as_sets(theirs)
    assert len(ours) == len(theirs)
    assert_sound(sorted(ours))

"""Questions about the graph, on random fleets: the API's answers are those that follow from the log alone.

The fleets are run by the real engine and the real operators; the store is written by the real writer.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.collector.api.graph_truth import GraphTruth
from tests.collector.api.served import Json, Served
from tests.support.pipeline import Pipeline
from tests.support.scenarios import Scenario, Spice, TooMuch, scenarios
from tests.support.told_log import Log

LEVELS = 3
fleets = scenarios(Spice(agents=(1, 2, 3, 4), operators=5, parts=True))
some_examples = settings(max_examples=max(6, settings().max_examples // 16))
"""An example is a whole fleet, and a store."""


def filled(served: Served, scenario: Scenario) -> GraphTruth:
    """A store with all that a fleet has said, and what the log says."""
    try:
        micro_batches = scenario.micro_batches()
    except TooMuch:
        assume(False)
        raise
    log, pipeline = Log(LEVELS), Pipeline(LEVELS, 2)
    with served.new_store() as writer:
        for each in micro_batches:
            log.add(each)
            writer.write(pipeline.run(each))
    assume(log.sink_tuples)
    return GraphTruth(log)


def ids(vertices: list[Json]) -> list[str]:
    return [each["id"] for each in vertices]


def ends(edges: list[Json]) -> set[tuple[str, str]]:
    found = [(each["origin"], each["derived"]) for each in edges]
    assert len(found) == len(set(found))
    return set(found)


@given(fleets, st.integers(1, 5), st.randoms(use_true_random=False))
@some_examples
def test_backward_and_forward(served: Served, scenario: Scenario, limit: int, chance: Random) -> None:
    truth = filled(served, scenario)
    for vertex in chance.sample(sorted(truth.every), min(6, len(truth.every))):
        for way, expected in (("backward", truth.origins_of(vertex)), ("forward", truth.results_of(vertex))):
            pages = served.pages(f"/v1/vertices/{vertex}/{way}", limit=limit)
            found = [each for page in pages for each in ids(page["vertices"])[1:]]
            assert sorted(found) == sorted(expected), (way, vertex)
            assert {ids(page["vertices"])[0] for page in pages} == {vertex}
            pairs = {(each, vertex) if way == "backward" else (vertex, each) for each in expected}
            assert ends([edge for page in pages for edge in page["edges"]]) == pairs
            assert not any(page["truncated"] for page in pages)
            assert all(edge["relation"] == "wasDerivedFrom" for page in pages for edge in page["edges"])


@given(fleets, st.integers(1, 4), st.sampled_from(("backward", "forward", "both")), st.randoms(use_true_random=False))
@some_examples
def test_lineage(served: Served, scenario: Scenario, levels: int, direction: str, chance: Random) -> None:
    truth = filled(served, scenario)
    for vertex in chance.sample(sorted(truth.every), min(4, len(truth.every))):
        found = served.get(f"/v1/vertices/{vertex}/lineage", levels=levels, direction=direction, limit=5_000)
        expected: dict[str, int] = {}
        pairs: set[tuple[str, str]] = set()
        for way in ("backward", "forward"):
            if direction in (way, "both"):
                reached = truth.reached([vertex], backward=way == "backward", levels=levels)
                expected |= reached
                inner = {each for each, level in reached.items() if level < levels}
                pairs |= {pair for pair in truth.pairs if pair[1 if way == "backward" else 0] in inner}
        assert found["levels"] == expected
        assert sorted(ids(found["vertices"])) == sorted(expected)
        assert ends(found["edges"]) == pairs
        kinds = {each["id"]: each["kind"] for each in found["vertices"]}
        assert all((kind == "sink") == (each in truth.sinks) for each, kind in kinds.items())
        assert all((kind == "intermediate") == (each in truth.sent) for each, kind in kinds.items())


@given(fleets, st.integers(1, 4), st.randoms(use_true_random=False))
@some_examples
def test_paths_between_vertices_and_patterns(served: Served, scenario: Scenario, limit: int, chance: Random) -> None:
    truth = filled(served, scenario)
    streams = sorted({each.rpartition("@")[0] for each in truth.every})
    for _ in range(4):
        begin, end = (_end(truth, streams, chance) for _ in range(2))
        via = chance.choice([None, None, f"{chance.choice(streams).partition('/')[0]}/.*"])
        expected = [
            path
            for first in begin[1]
            for last in end[1]
            for path in truth.paths(first, last)
            if via is None or truth.like(via).intersection(path[1:-1])
        ]
        if begin[0].startswith("~") and end[0].startswith("~"):
            expected = [path for path in expected if path[-1] in truth.sinks]
        asked = {"from": begin[0], "to": end[0], "limit": limit, **({} if via is None else {"via": via})}
        pages = served.pages("/v1/paths", **asked)
        assert sorted(path for page in pages for path in page["paths"]) == sorted(expected), asked
        for page in pages:
            steps = {pair for path in page["paths"] for pair in pairwise(path)}
            assert ends(page["edges"]) == steps
            assert set(ids(page["vertices"])) == {each for path in page["paths"] for each in path}


def _end(truth: GraphTruth, streams: list[str], chance: Random) -> tuple[str, list[str]]:
    """An end of paths as one asks for it, and the vertices that are meant."""
    if chance.random() < 0.5:
        vertex = chance.choice(sorted(truth.every))
        return vertex, [vertex]
    pattern = chance.choice([*streams, ".*", "(car|hub)/.*", ".*/[a-m].*"])
    return f"~{pattern}", sorted(truth.like(pattern))


@given(fleets, st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
@some_examples
def test_impact_of_readings(served: Served, scenario: Scenario, limit: int, with_edges: bool, chance: Random) -> None:
    truth = filled(served, scenario)
    contributing = sorted(each for each in truth.sources if truth.results_of(each))
    assume(contributing)
    asked = chance.sample(contributing, chance.randint(1, min(4, len(contributing))))
    expected = {result for each in asked for result in truth.results_of(each)}
    pages = [served.post("/v1/impact", {"sources": asked}, edges=with_edges, limit=limit)]
    while pages[-1]["next"] is not None:
        following = pages[-1]["next"]
        pages.append(served.post("/v1/impact", {"sources": asked}, edges=with_edges, limit=limit, cursor=following))
    found = [each for page in pages for each in ids(page["vertices"]) if each in truth.sinks]
    assert sorted(found) == sorted(expected)
    assert {page["results"] for page in pages} == {len(expected)}
    assert (pages[0]["sources"], pages[0]["unknown"]) == (len(asked), [])
    if with_edges:
        pairs = {(each, result) for each in asked for result in truth.results_of(each)}
        assert ends([edge for page in pages for edge in page["edges"]]) == pairs
    assert pages[0]["alive"] + pages[0]["expired"] == len(asked)
    states = [served.get(f"/v1/vertices/{each}")["state"] for each in asked]
    assert pages[0]["alive"] == states.count("alive")


@given(fleets, st.randoms(use_true_random=False))
@some_examples
def test_impact_of_a_time_of_a_stream(served: Served, scenario: Scenario, chance: Random) -> None:
    truth = filled(served, scenario)
    contributing = {each for each in truth.sources if truth.results_of(each)}
    assume(contributing)
    times = {truth.name(origin.id): origin.ts for each in truth.log.deliveries.values() for origin in each.origins}
    stream = chance.choice(sorted({each.rpartition("@")[0] for each in contributing}))
    first, last = sorted(chance.choices(sorted(times.values()), k=2))
    meant = {each for each in contributing if each.rpartition("@")[0] == stream and first <= times[each] <= last}
    found = served.get("/v1/impact", stream=stream, from_=first, to=last, limit=1_000)
    assert found["sources"] == len(meant)
    assert set(ids(found["vertices"])) == {result for each in meant for result in truth.results_of(each)}


@given(fleets, st.integers(1, 3), st.randoms(use_true_random=False))
@some_examples
def test_results_in_order_with_what_they_said(served: Served, scenario: Scenario, limit: int, chance: Random) -> None:
    truth = filled(served, scenario)
    sinks = sorted((each.ts, number) for number, each in truth.log.sink_tuples.items())
    expected = [truth.name(number) for _, number in sinks]
    assert ids(served.every("/v1/sinks", "vertices", order="oldest", limit=limit)) == expected
    assert ids(served.every("/v1/sinks", "vertices", limit=limit)) == expected[::-1]
    agent, _, name = chance.choice(expected).rpartition("@")[0].partition("/")
    of_stream = [each for each in expected if each.startswith(f"{agent}/{name}@")]
    for asked in ({"stream": f"{agent}/{name}"}, {"stream": name, "agent": agent}):
        assert ids(served.every("/v1/sinks", "vertices", order="oldest", limit=limit, **asked)) == of_stream
    first, last = sorted(chance.choices([ts for ts, _ in sinks], k=2))
    within = [truth.name(number) for ts, number in sinks if first <= ts <= last]
    times = {"from": first, "to": last}
    assert ids(served.every("/v1/sinks", "vertices", order="oldest", limit=limit, **times)) == within

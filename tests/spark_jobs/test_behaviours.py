"""What the live forward-provenance graph is: behaviours 25 to 50 of the catalogue, each in a small example."""

from __future__ import annotations

import pytest

from edge_agent.stream import Count, Plan
from protocol.graph import Reason
from protocol.records import END_OF_TIME
from tests.spark_jobs.examples import Example, plan_of, through

# ---------------------------------------------------------------------- vertices and edges


def test_25_order_inside_one_sink_tuple(example: Example) -> None:
    """Its vertex, then its sources as far as they are new, its edges, and at last its label."""
    car = example.agent(plan_of(10))
    a, b = example.call(car.source("s", 1), "a"), example.call(car.source("s", 2), "b")
    example.call(car.deliver("out", 4, a, b), "k")
    assert example.step() == ["K k", "S a", "S b", "E a-k", "E b-k", "L k"]


def test_26_a_source_vertex_comes_once_whatever_the_number_of_sinks(example: Example) -> None:
    """Two queries share sources: three vertices and four edges."""
    plan = Plan("two")
    source = plan.source("s")
    for sink in ("q1", "q2"):
        source.window(10).aggregate(Count()).sink(sink)
    car = example.agent(plan)
    a, b, c = (example.call(car.source("s", ts), name) for ts, name in ((1, "a"), (2, "b"), (3, "c")))
    example.call(car.deliver("q1", 10, a, b), "k1")
    assert example.step() == ["K k1", "S a", "S b", "E a-k1", "E b-k1", "L k1"]
    example.call(car.deliver("q2", 10, b, c), "k2")
    assert example.step() == ["K k2", "S c", "E b-k2", "E c-k2", "L k2"]


def test_27_sources_that_contribute_to_nothing_never_appear(example: Example) -> None:
    car = example.agent(plan_of(10))
    car.source("s", 1)
    car.progress("out", 100)
    assert example.step() == []


def test_37_a_sink_tuple_may_be_a_source_tuple(example: Example) -> None:
    """A query of filters only: the sink tuple has an id of its own, and an edge from the source."""
    car = example.agent(plan_of())
    a = example.call(car.source("s", 5), "a")
    k = example.call(car.deliver("out", 5, a), "k")
    assert k.stream != a.stream
    assert example.step() == ["K k", "S a", "E a-k", "L k"]
    car.progress("out", 6)
    assert example.step() == ["L a"]


def test_39_a_tuple_is_known_by_its_id_and_not_by_its_time_or_value(example: Example) -> None:
    car = example.agent(plan_of())
    twins = [example.call(car.source("s", 5), name) for name in ("a", "b")]
    for name, twin in zip(("k1", "k2"), twins, strict=True):
        example.call(car.deliver("out", 5, twin), name)
    assert example.step() == ["K k1", "K k2", "S a", "S b", "E a-k1", "E b-k2", "L k1", "L k2"]


def test_39_times_are_milliseconds_everywhere(example: Example) -> None:
    """A window of an hour, as the plan says it, and tuples whose times are of the same unit."""
    hour = 3_600_000
    car = example.agent(plan_of(hour))
    a = example.call(car.source("s", 0), "a")
    car.deliver("out", hour, a)
    car.progress("out", hour)
    assert "L a" not in example.step()
    car.progress("out", hour + 1)
    assert example.step() == ["L a"]


def test_40_ids_are_unique_whoever_gives_them() -> None:
    """Two sources on each of four agents, a thousand tuples each: no two share an id, the first ones included."""
    example = Example()
    plan = plan_of(10, source="s", sink="k-s")
    plan_of(10, source="t", sink="k-t", plan=plan)
    for name in ("one", "two", "three", "four"):
        agent = example.agent(plan, name)
        for source in ("s", "t"):
            agent.deliver(f"k-{source}", 10, *[agent.source(source, 1) for _ in range(1_000)])
    told = example.step()
    sources = {each for each in told if each.startswith("S ")}
    assert len(sources) == 8_000
    assert len([each for each in told if each.startswith("E ")]) == 8_000


def test_46_edges_are_known_by_both_ends(example: Example) -> None:
    """Written one after the other, the ends of the edges 1-23 and 12-3 would look the same."""
    car = example.agent(plan_of(100))
    sources = [car.source("s", 1) for _ in range(13)]
    for seq in range(24):
        car.deliver("out", 5, *[source for source in sources if (source.seq, seq) in ((1, 23), (12, 3))])
    edges = [each for each in example.step() if each.startswith("E ")]
    assert edges == ["E car/s:1-car/out:23", "E car/s:12-car/out:3"]


def test_36_a_sink_tuple_after_its_sources_label_is_late() -> None:
    """It breaks a promise, so it cannot be in the graph: a late edge, and no second vertex or label."""
    example = Example(late=True)
    car = example.agent(plan_of(10))
    a = example.call(car.source("s", 1), "a")
    example.call(car.deliver("out", 4, a), "k1")
    car.progress("out", 12)
    assert example.step() == ["K k1", "S a", "E a-k1", "L a", "L k1"]
    example.call(car.deliver("out", 5, a), "k2")
    assert example.step() == ["K k2", "L k2", "late a-k2"]
    car.end()
    assert example.step() == []
    late = example.pipeline.batches[1].late
    assert (late.reason.tolist(), late.origin_ts.tolist()) == ([Reason.AFTER_LABEL], [1])
    assert example.pipeline.oracle.invariants.late == 1
    example.pipeline.finish()


# ---------------------------------------------------------------------- labels of source tuples


def test_28_the_first_watermark_beyond_u_labels_a_source_once(example: Example) -> None:
    """
    a@1, U = 10
    W   ... 11 | 12        labelled when 1 < W - 10
    """
    car = example.agent(plan_of(10))
    car.deliver("out", 4, example.call(car.source("s", 1), "a"))
    car.progress("out", 11)
    assert "L a" not in example.step()
    car.progress("out", 12)
    assert example.step() == ["L a"]
    car.progress("out", 100)
    assert example.step() == []


@pytest.mark.parametrize("zero", [0, -1_000, 1_700_000_000_000])
def test_29_time_zero_is_a_time_like_any_other(example: Example, zero: int) -> None:
    """Nothing is clamped: W - U may be negative, and so may tuples be."""
    car = example.agent(plan_of(10))
    a = example.call(car.source("s", zero), "a")
    example.call(car.deliver("out", zero + 4, a), "k1")
    car.progress("out", zero + 4)
    assert example.step() == ["K k1", "S a", "E a-k1", "L k1"]
    example.call(car.deliver("out", zero + 6, a), "k2")
    assert example.step() == ["K k2", "E a-k2", "L k2"]
    car.progress("out", zero + 10)
    assert example.step() == []
    car.progress("out", zero + 11)
    assert example.step() == ["L a"]


def test_30_stamps_never_go_down(example: Example) -> None:
    """k1@100, then k2@90 by another sink: what comes later is not stamped below what it refers to."""
    plan = Plan("two")
    source = plan.source("s")
    for sink in ("q1", "q2"):
        source.window(50).aggregate(Count()).sink(sink)
    car = example.agent(plan)
    s = car.source("s", 60)
    car.progress("q1", 80)
    car.progress("q2", 80)
    car.deliver("q1", 100, s)
    example.step()
    car.deliver("q2", 90, s)
    example.step()
    car.progress("q1", 300)
    car.progress("q2", 300)
    assert example.step() == ["L car/s:0"]
    stamps = [batch.stamp for batch in example.pipeline.batches]
    assert stamps == sorted(stamps)
    assert stamps[:2] == [80, 80]


def test_31_labels_go_out_with_the_watermark_that_causes_them_and_not_behind_it(example: Example) -> None:
    car = example.agent(plan_of(10))
    car.deliver("out", 4, example.call(car.source("s", 1), "a"))
    example.step()
    car.progress("out", 12)
    assert example.step() == ["L a"]
    assert example.pipeline.batches[-1].stamp <= 12


@pytest.mark.parametrize(
    ("sinks", "u"),
    [
        ({"out": [(120, 30)]}, 150),
        ({"out": [(24, 1), (48,)]}, 48),
        ({"plain": [()], "five": [(5,)]}, 5),
    ],
)
def test_32_u_is_the_largest_sum_of_windows_on_a_path(
    example: Example, sinks: dict[str, list[tuple[int, ...]]], u: int
) -> None:
    """A chain, a diamond, and two sinks of which one has no window."""
    plan = Plan("paths")
    source = plan.source("s")
    for sink, ways in sinks.items():
        streams = [through(source, way) for way in ways]
        (streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]).sink(sink)
    car = example.agent(plan)
    a = example.call(car.source("s", 0), "a")
    for sink in sinks:
        car.deliver(sink, 0, a)
        car.progress(sink, u)
    assert "L a" not in example.step()
    for sink in sinks:
        car.progress(sink, u + 1)
    assert example.step() == ["L a"]


def test_32_windows_of_all_agents_on_the_way_count(example: Example) -> None:
    """
    car   s -- window 20 -- send        U = 20 + 30, though no agent knows the other's windows
    hub   receive -- window 30 -- out
    """
    plan, hub_plan = Plan("car"), Plan("hub")
    plan.source("s").window(20).aggregate(Count()).send("counts", to=["hub"])
    hub_plan.receive("counts", "car").window(30).aggregate(Count()).sink("out")
    car, hub = example.agent(plan), example.agent(hub_plan, "hub")
    sent = car.deliver("counts", 20, example.call(car.source("s", 0), "a"))
    hub.deliver("out", 30, sent)
    hub.progress("out", 50)
    assert "L a" not in example.step()
    hub.progress("out", 51)
    assert example.step() == ["L a"]


def test_33_only_the_sinks_that_a_source_reaches_hold_it_back(example: Example) -> None:
    plan = Plan("three")
    shared, alone = plan.source("shared"), plan.source("alone")
    shared.window(10).aggregate(Count()).sink("slow")
    shared.union(alone).window(10).aggregate(Count()).sink("fast")
    car = example.agent(plan)
    s, t = example.call(car.source("shared", 5), "s"), example.call(car.source("alone", 5), "t")
    late = example.call(car.source("shared", 15), "s15")
    car.deliver("fast", 20, s, t, late)
    car.progress("fast", 100)
    told = example.step()
    assert [each for each in told if each[0] == "L"] == ["L car/fast:0", "L t"], "the other sink may still be idle"
    car.progress("slow", 20)
    assert example.step() == ["L s"], "and not what is above 20 - 10"
    car.progress("slow", 26)
    assert example.step() == ["L s15"]


def test_34_at_the_end_everything_is_labelled_once(example: Example) -> None:
    car = example.agent(plan_of(10))
    sources = [car.source("s", ts) for ts in (1, 2, 3)]
    for ts in (10, 11):
        car.deliver("out", ts, *sources)
    car.progress("out", 10)
    assert len([each for each in example.step() if each[0] == "L"]) == 2
    car.progress("out", END_OF_TIME)
    assert example.step() == ["L car/s:0", "L car/s:1", "L car/s:2"]
    car.end()
    assert example.step() == []
    kept = example.pipeline.figures
    assert (kept.live_sources, kept.pending_sinks, kept.waiting) == (0, 0, 0)


def test_34_the_end_of_an_agent_is_the_end_of_its_streams(example: Example) -> None:
    """Also if it was stopped in the middle of a window and promised nothing."""
    car = example.agent(plan_of(10))
    car.deliver("out", 10, example.call(car.source("s", 1), "a"))
    assert "L a" not in example.step()
    car.end()
    assert example.step() == ["L a"]


def test_35_a_source_of_two_sink_tuples_at_different_times(example: Example) -> None:
    """
    a@5, U = 10:  k1@10 | W = 12 | k2@14 | W = 15 | W = 16
    """
    car = example.agent(plan_of(10))
    a = example.call(car.source("s", 5), "a")
    example.call(car.deliver("out", 10, a), "k1")
    car.progress("out", 12)
    assert example.step() == ["K k1", "S a", "E a-k1", "L k1"]
    example.call(car.deliver("out", 14, a), "k2")
    car.progress("out", 15)
    assert example.step() == ["K k2", "E a-k2", "L k2"]
    car.progress("out", 16)
    assert example.step() == ["L a"]


def test_38_without_windows_the_next_instant_labels(example: Example) -> None:
    car = example.agent(plan_of())
    car.deliver("out", 5, example.call(car.source("s", 5), "a"))
    car.progress("out", 5)
    assert "L a" not in example.step()
    car.progress("out", 6)
    assert example.step() == ["L a"]


def test_45_equal_stamps_are_told_apart_by_rank(example: Example) -> None:
    """A vertex, its edges and its label in one micro-batch have one stamp; they are stored as K, S, E, L."""
    car = example.agent(plan_of())
    example.call(car.deliver("out", 5, example.call(car.source("s", 5), "a")), "k")
    car.progress("out", 6)
    assert example.step() == ["K k", "S a", "E a-k", "L a", "L k"]
    assert len(example.pipeline.batches) == 1


def test_47_a_vertex_and_its_label_in_the_same_instant_are_both_told(example: Example) -> None:
    car = example.agent(plan_of())
    for ts in (5, 5, 6):
        car.deliver("out", ts, car.source("s", ts))
    car.progress("out", END_OF_TIME)
    told = example.step()
    assert len([each for each in told if each[0] == "S"]) == 3
    assert len([each for each in told if each[0] == "L"]) == 6


def test_48_without_windows_a_source_of_two_sink_tuples_comes_once(example: Example) -> None:
    """a@5 through a flat map that makes two of it."""
    plan = Plan("twice")
    plan.source("s").flat_map(lambda value: [value, value]).sink("out")
    car = example.agent(plan)
    a = example.call(car.source("s", 5), "a")
    for name in ("k1", "k2"):
        example.call(car.deliver("out", 5, a), name)
    car.progress("out", 6)
    assert example.step() == ["K k1", "K k2", "S a", "E a-k1", "E a-k2", "L a", "L k1", "L k2"]


def test_50_latency_is_measured_in_event_time(example: Example) -> None:
    """Of a vertex from its tuple to its stamp, of an edge from its later vertex, of a label from its vertex."""
    car = example.agent(plan_of(10))
    car.progress("out", 10)
    example.step()
    a = car.source("s", 1)
    car.deliver("out", 10, a)
    car.progress("out", 11)
    example.step()
    car.progress("out", 12)
    example.step()
    _, second, third = example.pipeline.batches
    assert [second.stamp - ts for ts in second.sources.ts.tolist()] == [10]
    assert [second.stamp - ts for ts in second.sinks.ts.tolist()] == [1]
    assert len(second.edges.sink) == 1, "of the same stamp as both vertices: no latency"
    assert third.source_labels.tolist() == second.sources.id.tolist()
    assert third.stamp - second.stamp == 1

"""Random fleets on random input, with all that can go wrong on the way: the graph is what the definitions say.

After every micro-batch everything is compared (`tests.support.graph_oracle`): vertices and edges that the log allows by
then are there, and no others; labels are neither early nor late. A failing example prints as a `Scenario` that can be
pasted into a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from protocol.graph import EdgeFlag
from protocol.wire.batch import frame
from protocol.wire.sections import Kind
from tests.collector.agents import Shard as RealShard
from tests.edge_agent.stream.random_plans import KEEPING, inputs_for
from tests.support import fleet_log
from tests.support.fleet_log import Shards
from tests.support.graph_oracle import GraphOracle
from tests.support.oracle import (
    Aggregate,
    Filter,
    FlatMap,
    Join,
    Length,
    LengthPair,
    Map,
    Query,
    Receive,
    Recent,
    Send,
    Sink,
    Source,
    Time,
    Union,
)
from tests.support.pipeline import CheckedPipeline, MicroBatch, Pipeline, plain
from tests.support.scenarios import (
    HOUR_MS,
    Arrive,
    Crash,
    Feed,
    Garble,
    Lose,
    Scenario,
    Spice,
    Stop,
    Take,
    TooMuch,
    scenarios,
)
from tests.support.told_log import last_promises

some_examples = settings(max_examples=max(10, settings().max_examples // 7))
"""An example is a whole fleet."""


def rows_of(scenario: Scenario) -> list[MicroBatch]:
    try:
        return scenario.micro_batches()
    except TooMuch:
        assume(False)
        raise


def check(scenario: Scenario, *, levels: int = 2, buckets: int = 2, **options: Any) -> CheckedPipeline:
    """Run all of it, and compare."""
    pipeline = CheckedPipeline(levels, buckets, **options)
    pipeline.run_all(rows_of(scenario))
    pipeline.finish()
    return pipeline


# ---------------------------------------------------------------------- shapes of fleets


@given(scenarios(Spice(agents=(1,))))
@some_examples
def test_one_agent(scenario: Scenario) -> None:
    check(scenario)


@given(scenarios(Spice(agents=(2, 3))))
@some_examples
def test_two_and_three_agents_in_a_row(scenario: Scenario) -> None:
    """Origins are sources of the own agent, sources that came unchanged, and sent tuples, in any mixture."""
    check(scenario)


@given(scenarios(Spice(agents=(4,), operators=5, items=7)))
@some_examples
def test_four_agents_in_a_row_need_three_levels(scenario: Scenario) -> None:
    check(scenario, levels=3)


@given(scenarios(Spice(agents=(3, 4))), st.sampled_from((1, 2)))
@some_examples
def test_a_chain_longer_than_the_pipeline_ends_at_sent_tuples(scenario: Scenario, levels: int) -> None:
    check(scenario, levels=levels)


@given(scenarios(Spice(kinds=KEEPING, items=10)))
@some_examples
def test_length_windows_reach_back_as_far_as_they_like(scenario: Scenario) -> None:
    check(scenario)


@given(scenarios(Spice(kinds=("map", "flat_map", "filter", "union"))))
@some_examples
def test_u_is_zero_without_windows(scenario: Scenario) -> None:
    check(scenario)


#            +--> left (car -> gateway) --+
#   source --+                            +--> hub: both meet again
#            +--> right (car -> hub) -----+

LEFT: tuple[Callable[[str, str], Any], ...] = (
    lambda name, of: Map(name, of, "plus one"),
    lambda name, of: Filter(name, of, "all"),
    lambda name, of: FlatMap(name, of, "twice"),
    lambda name, of: Aggregate(name, of, Time(4, 2), ("sum",)),
    lambda name, of: Aggregate(name, of, Length(2), ("sum",)),
)
MEETING: tuple[Callable[[str, str, str], Any], ...] = (
    lambda name, left, right: Union(name, (left, right)),
    lambda name, left, right: Join(name, left, right, Time(5, 5), "fold", "one", "one"),
    lambda name, left, right: Join(name, left, right, LengthPair(2, 1), "fold", "one", "one"),
)


@st.composite
def diamonds(draw: st.DrawFn) -> Scenario:
    at_car, at_gateway, right, meeting = (draw(st.sampled_from(each)) for each in (LEFT, LEFT, LEFT, MEETING))
    fleet: dict[str, Query] = {
        "car": (
            Source("s"),
            at_car("a", "s"),
            right("b", "s"),
            Send("to-gateway", "a", ("gateway",)),
            Send("to-hub", "b", ("hub",)),
            Send("raw", "s", ("gateway", "hub")),
        ),
        "gateway": (
            Receive("a-in", "to-gateway", "car"),
            Receive("raw-in", "raw", "car"),
            Union("both", ("a-in", "raw-in")),
            at_gateway("c", "both"),
            Send("on", "c", ("hub",)),
            Sink("seen", "raw-in"),
        ),
        "hub": (
            Receive("left", "on", "gateway"),
            Receive("right", "to-hub", "car"),
            Receive("raw-in", "raw", "car"),
            meeting("d", "left", "right"),
            Aggregate("e", "d", Time(6, 3), ("count",)),
            Union("f", ("d", "raw-in")),
            Sink("k", "e"),
            Sink("k2", "f"),
        ),
    }
    drawn = draw(scenarios(Spice(agents=(3,), operators=2)))
    items = draw(inputs_for(fleet["car"], 7))
    return replace(drawn, fleet=fleet, inputs={"car": {"s": items["s"]}})


@given(diamonds())
@some_examples
def test_ways_that_part_and_meet_again_over_agents_make_one_edge(scenario: Scenario) -> None:
    check(scenario)


def test_a_chain_of_three_with_one_level_ends_at_what_the_first_agent_sent() -> None:
    pipeline = check(CHAIN, levels=1)
    edges = [batch.edges for batch in pipeline.batches]
    assert {flag for each in edges for flag in each.flags.tolist()} == {EdgeFlag.TOO_DEEP}
    log = pipeline.oracle.log
    assert {log.streams[origin >> 36] for each in edges for origin in each.source.tolist()} == {
        ("car", fleet_log.nonce_of("car", 1), "sums")
    }


CHAIN = Scenario(
    {
        "car": (Source("s"), Aggregate("n", "s", Time(4, 2), ("sum",)), Send("sums", "n", ("gateway",))),
        "gateway": (
            Receive("in", "sums", "car"),
            Aggregate("m", "in", Time(6, 6), ("sum",)),
            Send("more", "m", ("hub",)),
        ),
        "hub": (Receive("in", "more", "gateway"), Map("h", "in", "negated"), Sink("k", "h")),
    },
    {"car": {"s": [(ts, ts) for ts in range(-10, 20)]}},
    tuple(step for at in range(14) for step in (Feed(0, 0, 2), Take(1, 1), Take(2, 1))),
)


# ---------------------------------------------------------------------- time


@given(scenarios(Spice(agents=(2, 3), ahead=True)))
@some_examples
def test_an_agent_whose_clock_is_an_hour_ahead_expires_nobodys_tuples(scenario: Scenario) -> None:
    check(scenario)


def test_a_clock_that_is_ahead_holds_back_nothing_that_does_not_depend_on_it() -> None:
    """Two agents that have nothing to do with each other: the slow one's tuples expire by its own time, and so do the
    fast one's."""
    query = (Source("s"), Aggregate("n", "s", Time(10, 10), ("sum",)), Sink("k", "n"))
    times = range(0, 60, 5)
    scenario = Scenario(
        {"car": query, "hub": query},
        {"car": {"s": [(ts, 0) for ts in times]}, "hub": {"s": [(ts + HOUR_MS, 0) for ts in times]}},
        tuple(Feed(agent, 0, 1) for _ in times for agent in (0, 1)),
        arrivals=tuple(Arrive(agent, 1) for _ in range(4) for agent in (0, 1)),
    )
    pipeline = check(scenario)
    labels = [each for batch in pipeline.batches[:8] for each in batch.source_labels.tolist()]
    streams = {pipeline.oracle.log.streams[each >> 36][0] for each in labels}
    assert streams == {"car", "hub"}


@given(scenarios(Spice(agents=(2, 3))), st.integers(0, 3))
@some_examples
def test_an_agent_that_is_offline_for_long_is_waited_for(scenario: Scenario, offline: int) -> None:
    agents = range(len(scenario.fleet))
    away = offline % len(scenario.fleet)
    others = tuple(Arrive(agent, 3) for _ in range(6) for agent in agents if agent != away)
    rest = tuple(Arrive(agent, 1_000) for agent in agents if agent != away)
    check(replace(scenario, arrivals=(Arrive(away, 2), *others, *rest)))


@given(scenarios(Spice(agents=(2, 3))), st.booleans())
@some_examples
def test_plans_may_come_after_the_data_that_they_concern(scenario: Scenario, backwards: bool) -> None:
    """Senders first: what they have sent is there before anybody's plan says who takes it. Receivers first: they refer
    to tuples and sources of agents of which nothing is known."""
    check(replace(scenario, backwards=backwards, arrivals=()))


def test_a_sink_that_never_gets_a_tuple_holds_back_only_what_can_reach_it() -> None:
    """`idle` never moves before the end, and only `t` could reach it."""
    query: Query = (
        Source("s"),
        Source("t"),
        Source("u", explicit=True),
        Sink("all", "s"),
        Join("j", "t", "u", Time(5, 5), "fold", "one", "one"),
        Sink("idle", "j"),
        Sink("both", "t"),
    )
    items = [(ts, ts) for ts in range(12)]
    scenario = Scenario(
        {"car": query},
        {"car": {"s": list(items), "t": list(items), "u": []}},
        tuple(Feed(0, source, 2) for _ in range(6) for source in (0, 1)),
        sizes=(4,),
        arrivals=tuple(Arrive(0, 1) for _ in range(12)),
    )
    pipeline = check(scenario)
    log = pipeline.oracle.log
    early = {log.streams[each >> 36][2] for batch in pipeline.batches[:8] for each in batch.source_labels.tolist()}
    assert early == {"s"}


# ---------------------------------------------------------------------- trouble


_STOPPED_BEFORE_ITS_SENDER_SAID_ANYTHING = Scenario(
    {
        "car": (Source("s0"), Map("n0", "s0", "negated"), Sink("k0", "s0"), Send("n0-out", "n0", ("gateway",))),
        "gateway": (Receive("n0-in", "n0-out", "car"), Sink("k1", "n0-in")),
    },
    {"car": {"s0": [(-4, 0)]}, "gateway": {}},
    steps=(Stop(1),),
    sizes=(1,),
    arrivals=(Arrive(1, 1, ends=False),),
    shards=1,
)
_NAMED_BY_ANOTHER_BEFORE_ITS_PLAN = Scenario(
    {
        "car": (Source("s0"), Sink("k0", "s0"), Send("s0-out", "s0", ("gateway",))),
        "gateway": (Receive("s0-in", "s0-out", "car"), Sink("k1", "s0-in")),
    },
    {"car": {"s0": [(-4, 0)] * 4}, "gateway": {}},
    steps=(Stop(0),),
    sizes=(5, 1),
    arrivals=(Arrive(0, 1, ends=False),),
    backwards=True,
    shards=1,
)


@given(scenarios(Spice(agents=(1, 2, 3), crashes=True)))
@example(_STOPPED_BEFORE_ITS_SENDER_SAID_ANYTHING)
@example(_NAMED_BY_ANOTHER_BEFORE_ITS_PLAN)
@some_examples
def test_agents_that_are_killed_and_start_again(scenario: Scenario) -> None:
    check(scenario)


def test_killed_and_restarted_in_the_middle_of_a_window() -> None:
    r"""
    s      0 1 2 3 | 4 5 6 7        killed at |
    n      [------------------)     the window of 0..9 is lost with what was in it; a new one holds 4..7
    """
    query = (Source("s"), Aggregate("n", "s", Time(10, 10), ("count",)), Sink("k", "n"), Sink("raw", "s"))
    scenario = Scenario(
        {"car": query}, {"car": {"s": [(ts, ts) for ts in range(8)]}}, (Feed(0, 0, 4), Crash(0, 0)), sizes=(2,)
    )
    pipeline = check(scenario)
    log = pipeline.oracle.log
    sinks = {sink: log.streams[sink >> 36] for sink in log.sink_tuples}
    [window] = [sink for sink, stream in sinks.items() if stream[2] == "k"]
    assert sinks[window][1] == fleet_log.nonce_of("car", 2)
    assert sorted(log.resolve(window).sources.values()) == [4, 5, 6, 7]
    assert len([stream for stream in sinks.values() if stream[2] == "raw"]) == 8


@given(scenarios(Spice(agents=(2, 3), losses=True)))
@some_examples
def test_what_is_lost_on_the_way_makes_sink_tuples_incomplete(scenario: Scenario) -> None:
    check(scenario)


@pytest.mark.parametrize("fault", [Lose(0, 2, 2), Garble(0, 2)])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_lost_batch_of_a_sender_is_named_by_the_sinks_that_needed_it(fault: Lose | Garble, backwards: bool) -> None:
    pipeline = check(replace(CHAIN, faults=(fault,), backwards=backwards))
    assert pipeline.oracle.invariants.lost > 0


_LATE_BY_A_TUPLE_OF_WHICH_MORE_IS_TO_COME = Scenario(
    fleet={
        "car": (
            Source("s0", 0, False, "uid"),
            Aggregate("n0", "s0", Recent(0), ("collect",), None),
            Send("n0-out", "n0", ("gateway",)),
        ),
        "gateway": (
            Receive("n0-in", "n0-out", "car"),
            Map("n1", "n0-in", "negated"),
            Sink("k1", "n1"),
            Send("n1-out", "n1", ("hub",)),
        ),
        "hub": (Receive("n1-in", "n1-out", "gateway"), Sink("k2", "n1-in")),
    },
    inputs={"car": {"s0": [(-4, 0)]}, "gateway": {}, "hub": {}},
    sizes=(1,),
    arrivals=(Arrive(1, 4, False, False), Arrive(2, 1, True, True)),
    backwards=True,
    shards=1,
)


@given(scenarios(Spice(agents=(2, 3), retirements=True)))
@example(_LATE_BY_A_TUPLE_OF_WHICH_MORE_IS_TO_COME)
@some_examples
def test_agents_that_are_given_up_and_come_back(scenario: Scenario) -> None:
    """What comes of them afterwards may be late, and is nowhere else then."""
    check(scenario, late=True)


@given(scenarios(Spice(agents=(1, 2, 3), parts=True)))
@some_examples
def test_deliveries_told_in_parts(scenario: Scenario) -> None:
    check(scenario)


@given(scenarios(Spice(agents=(2, 3), parts=True, losses=True)))
@some_examples
def test_parts_that_are_lost(scenario: Scenario) -> None:
    check(scenario)


@given(scenarios(Spice(agents=(1, 2, 3), segments=True, crashes=True)))
@some_examples
def test_segments_repeat_what_is_known_and_that_is_no_news(scenario: Scenario) -> None:
    check(scenario)


@given(
    scenarios(
        Spice(agents=(2, 3, 4), crashes=True, losses=True, retirements=True, parts=True, ahead=True, segments=True)
    ),
    st.integers(1, 3),
    st.integers(1, 4),
)
@some_examples
def test_everything_at_once(scenario: Scenario, levels: int, buckets: int) -> None:
    check(scenario, levels=levels, buckets=buckets, late=True)


# ---------------------------------------------------------------------- again, and otherwise


@given(scenarios(Spice(agents=(2, 3), crashes=True, losses=True, parts=True)), st.integers(0, 9))
@some_examples
def test_a_micro_batch_that_is_run_again_gives_the_same(scenario: Scenario, seed: int) -> None:
    check(scenario, rerun=True, seed=seed)


def whole(batches: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for batch in batches:
        for part, rows in plain(batch).items():
            found[part] = sorted(found.get(part, []) + rows)
    return found


_ALL_PROMISED_BEFORE_ALL_IS_TOLD = Scenario(
    {
        "car": (
            Source("s0", disorder_ms=1),
            Source("s1"),
            Map("n1", "s1", "negated"),
            Send("s0-out", "s0", ("gateway",)),
            Send("n1-out", "n1", ("gateway",)),
        ),
        "gateway": (
            Receive("s0-in", "s0-out", "car"),
            Aggregate("n0", "s0-in", Recent(0), ("collect",)),
            Sink("k0", "n0"),
            Receive("n1-in", "n1-out", "car"),
            Sink("k1", "n1-in"),
        ),
    },
    {"car": {"s0": [(1, 0)], "s1": [(-4, 0), (2, 0)]}, "gateway": {}},
    sizes=(1,),
    backwards=True,
    shards=1,
)


@given(scenarios(Spice(agents=(1, 2, 3))), st.integers(3, 8))
@example(_ALL_PROMISED_BEFORE_ALL_IS_TOLD, 3)
@some_examples
def test_the_graph_does_not_depend_on_the_number_of_buckets(scenario: Scenario, buckets: int) -> None:
    rows = rows_of(scenario)
    assert whole(Pipeline(2, 1).run_all(rows)) == whole(Pipeline(2, buckets).run_all(rows))


def grown(length: int) -> CheckedPipeline:
    scenario = replace(
        CHAIN,
        inputs={"car": {"s": [(ts, ts) for ts in range(length)]}},
        steps=tuple(step for _ in range(length // 2) for step in (Feed(0, 0, 2), Take(1, 1), Take(2, 1))),
        arrivals=tuple(Arrive(agent, 4) for _ in range(length) for agent in (0, 1, 2)),
        sizes=(6,),
    )
    micro_batches = rows_of(scenario)
    pipeline = CheckedPipeline(2, 2)
    most = 0
    for each in micro_batches:
        pipeline.run(each)
        most = max(most, pipeline.state_bytes)
    pipeline.finish()
    pipeline.most_state_bytes = most  # type: ignore[attr-defined]
    return pipeline


def test_what_has_expired_is_not_remembered() -> None:
    short, long = grown(30), grown(90)
    assert long.oracle.invariants.edges > 2 * short.oracle.invariants.edges
    assert long.most_state_bytes < 1.3 * short.most_state_bytes  # type: ignore[attr-defined]
    kept = long.figures
    assert (kept.waiting, kept.live_sources, kept.pending_sinks) == (0, 0, 0), "something is left though all has ended"


def test_the_store_is_told_the_last_promises_of_every_micro_batch() -> None:
    for micro_batch in rows_of(replace(CHAIN, arrivals=(Arrive(0, 2), Arrive(0, 100), Arrive(1, 100)))):
        made = Pipeline(2, 2).run(micro_batch)
        rows = [row for each in micro_batch.values() for row in each]
        assert last_promises(made.rows) == last_promises(rows)


# ---------------------------------------------------------------------- the oracle and the log can be trusted


def test_rows_are_those_that_a_translator_writes_to_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(
        CHAIN,
        shards=1,
        steps=(*CHAIN.steps[:12], Crash(1, 0), *CHAIN.steps[12:]),
        faults=(Lose(0, 2, 2), Garble(1, 3)),
        arrivals=(Arrive(2, 1), Arrive(0, 3, ends=False), Arrive(1, 4)),
        part=2,
    )
    taken: list[tuple[str, bytes, bool]] = []
    take = Shards.take

    def noted(self: Shards, agent: str, batch: bytes, oldest: bool) -> None:
        taken.append((agent, batch, oldest))
        take(self, agent, batch, oldest)

    monkeypatch.setattr(Shards, "take", noted)
    in_memory = [row for each in scenario.micro_batches() for rows in each.values() for row in rows]
    real = RealShard(tmp_path)
    written: list[Any] = []
    append = real.log._writer.append

    def appended(rows: list[Any]) -> None:
        written.extend(rows)
        append(rows)

    monkeypatch.setattr(real.log._writer, "append", appended)
    for agent, batch, oldest in taken:
        real.log.take(agent, frame(batch, agent, oldest))
        real.log.commit()
    real.close()
    assert {row.kind for row in written} >= {Kind.GAP, Kind.REGISTER, Kind.PAYLOAD, Kind.PLAN, Kind.END}
    assert written == in_memory


TAMPERINGS: dict[str, Callable[[Any], None]] = {
    "origins of": lambda batch: _drop(batch.edges, "sink", "source", "flags"),
    "is not labelled, and nothing more": lambda batch: _drop(batch.sink_labels, "id", "flags"),
    "has no label, and": lambda batch: setattr(batch, "source_labels", batch.source_labels[1:]),
    "sink vertices": lambda batch: _drop(batch.sinks, "id", "ts"),
    "source vertices and ends": lambda batch: _drop(batch.sources, "id", "ts", "sent"),
    "deliveries for the store": lambda batch: batch.deliveries.clear(),
    "rows for the store": lambda batch: batch.rows.clear(),
}


def _drop(part: Any, *columns: str) -> None:
    for column in columns:
        setattr(part, column, getattr(part, column)[1:])


@pytest.mark.parametrize("finding", TAMPERINGS)
def test_the_oracle_notices_what_is_missing(finding: str) -> None:
    micro_batches = rows_of(CHAIN)
    everything = {shard: [row for each in micro_batches for row in each.get(shard, [])] for shard in (0, 1)}
    made = Pipeline(2, 2).run(everything)
    assert not GraphOracle(2).add(everything, made)
    TAMPERINGS[finding](made)
    found = GraphOracle(2).add(everything, made)
    assert any(finding in each for each in found), found


@pytest.mark.parametrize(("part", "columns"), [("sink_labels", ("id", "flags")), ("source_labels", ())])
def test_the_oracle_notices_in_the_end_that_a_label_never_came(part: str, columns: tuple[str, ...]) -> None:
    micro_batches = rows_of(CHAIN)
    everything = {shard: [row for each in micro_batches for row in each.get(shard, [])] for shard in (0, 1)}
    made, oracle = Pipeline(2, 2).run(everything), GraphOracle(2)
    if columns:
        _drop(getattr(made, part), *columns)
    else:
        _drop(made, part)
    oracle.add(everything, made)
    oracle.findings.clear()  # as if nobody could have known before
    (found,) = oracle.finish()
    assert f"1 {part.removesuffix('_labels')} vertices were never labelled" in found


def test_the_oracle_notices_a_label_that_comes_too_soon() -> None:
    scenario = replace(CHAIN, arrivals=tuple(Arrive(agent, 1) for _ in range(40) for agent in (0, 1, 2)))
    pipeline, oracle = Pipeline(2, 2), GraphOracle(2)
    for micro_batch in rows_of(scenario):
        made = pipeline.run(micro_batch)
        unlabelled = sorted(set(made.sources.id.tolist()) - set(made.source_labels.tolist()))
        if unlabelled:
            made.source_labels = made.sources.id[-1:]
            assert any("is labelled before" in each for each in oracle.add(micro_batch, made))
            return
        assert not oracle.add(micro_batch, made)
    pytest.fail("every source was labelled at once")

"""Random queries on random input: the engine delivers what the definitions say, whatever the provenance mode, the
interleaving of the sources and the number of agents.

A failing example prints as a `Case` that can be pasted into a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import assume, given, note
from hypothesis import strategies as st

from edge_agent.stream import Engine, Loopback, Plan, run
from protocol.plan import PlanDocument, delays, fleet_delays
from protocol.records import Delivery, Origin, Progress, Record
from tests.edge_agent.stream.expect import assert_promises_kept
from tests.edge_agent.stream.random_plans import (
    KEEPING,
    KINDS,
    Case,
    Inputs,
    Told,
    all_readings,
    assert_same_rows,
    build,
    by_attributes,
    cases,
    inputs_for,
    queries,
    readings,
)
from tests.support import oracle
from tests.support.oracle import Mark, Query, Row, Sink

MODES = ("none", "genealog", "segments")
LIMIT = 400
"""Tuples at a sink, beyond which a query (joins of joins) tells nothing new."""


def sinks_of(query: Query) -> list[Sink]:
    return [node for node in query if isinstance(node, Sink)]


def expected(case: Case) -> oracle.Answer:
    answer = oracle.evaluate(case.query, case.inputs)
    assume(all(len(rows) <= LIMIT for rows in answer.sinks.values()))
    return answer


def told_by_run(plan: Plan, inputs: Inputs) -> Told:
    records: list[Record] = []
    run(plan, all_readings(inputs), emit=records.append)
    return Told(records)


def without_provenance(rows: list[Row]) -> list[Row]:
    return [row._replace(causes=frozenset()) for row in rows]


# ---------------------------------------------------------------------- against the definitions


@given(cases(), st.booleans())
def test_every_mode_delivers_what_the_definitions_say(case: Case, multiplex: bool) -> None:
    answer = expected(case)
    in_order = oracle.ordered(case.query)
    told = {mode: told_by_run(build(case.query, mode, multiplex=multiplex), case.inputs) for mode in MODES}
    for sink in sinks_of(case.query):
        rows = answer.sinks[sink.name]
        known = sink.name in in_order
        assert not any(delivery.origins for delivery in told["none"].of(sink.name))
        assert_same_rows(told["none"].rows(sink.name), without_provenance(rows), known)
        for mode in ("genealog", "segments"):
            assert_same_rows(told[mode].rows(sink.name, by_attributes(case.query)), rows, known)
        assert told["genealog"].of(sink.name) == told["segments"].of(sink.name), "ids or order differ"
        plain = [(delivery.id, delivery.ts, delivery.payload) for delivery in told["genealog"].of(sink.name)]
        assert [(delivery.id, delivery.ts, delivery.payload) for delivery in told["none"].of(sink.name)] == plain
    assert told["genealog"].sources == told["segments"].sources
    for mode in MODES:
        late = [(each.stream.name, each.ts, each.payload.number, each.watermark) for each in told[mode].late]
        assert sorted(late) == sorted(answer.late)


@given(cases())
def test_a_source_tuple_is_told_once_and_first_and_only_if_it_contributes(case: Case) -> None:
    expected(case)
    told = told_by_run(build(case.query, "segments"), case.inputs)
    places = {id(record): place for place, record in enumerate(told.records)}
    named: set[Any] = set()
    for record in told.records:
        if isinstance(record, Delivery):
            for origin in record.origins:
                assert places[id(told.sources[origin.id])] < places[id(record)]
                named.add(origin.id)
    assert named == told.sources.keys()
    for stream in {source.stream for source in named}:
        numbers = sorted(source.seq for source in named if source.stream == stream)
        assert numbers == list(range(len(numbers)))


# ---------------------------------------------------------------------- interleavings


def feed(engine: Engine, inputs: Inputs, steps: list[tuple[int, int]]) -> Iterator[None]:
    """Feed the sources in pieces: (which source, how many items); then the rest of each, and the end."""
    waiting = {name: readings(items) for name, items in inputs.items()}
    marks = {name: list(items) for name, items in inputs.items()}
    names = list(inputs)
    for which, count in steps:
        name = names[which % len(names)]
        piece, waiting[name] = waiting[name][:count], waiting[name][count:]
        first, marks[name] = marks[name][:count], marks[name][count:]
        if len(first) == 1 and isinstance(first[0], Mark):
            engine.watermark(name, first[0].ts)
        else:
            engine.feed(name, piece)
        yield
    for which, _ in steps:
        name = names[which % len(names)]
        if name in waiting:
            engine.feed(name, waiting.pop(name))
            engine.close(name)
            yield
    for name, items in waiting.items():
        engine.feed(name, items)
        yield
    engine.finish()
    yield


steps_of_a_run = st.lists(st.tuples(st.integers(0, 2), st.sampled_from((1, 1, 1, 2, 4, 0))), max_size=24)


@given(cases(), steps_of_a_run, st.sampled_from(MODES))
def test_any_interleaving_of_the_sources_gives_the_same_deliveries(
    case: Case, steps: list[tuple[int, int]], mode: str
) -> None:
    """Also their ids. Source ids are given at the first delivery of any sink, so with several sinks these are
    numbered in the order in which the sinks happened to get there: then the tuples are compared, not their ids."""
    expected(case)
    at_once = told_by_run(build(case.query, mode), case.inputs)
    records: list[Record] = []
    for _ in feed(Engine(build(case.query, mode), records.append), case.inputs, steps):
        pass
    in_pieces = Told(records)
    attributes = by_attributes(case.query)
    for sink in sinks_of(case.query):
        assert in_pieces.rows(sink.name, attributes) == at_once.rows(sink.name, attributes)
        assert [each.id for each in in_pieces.of(sink.name)] == [each.id for each in at_once.of(sink.name)]
    if len(sinks_of(case.query)) == 1:
        assert in_pieces.deliveries == at_once.deliveries
        assert in_pieces.sources == at_once.sources
    assert sorted(map(repr, in_pieces.late)) == sorted(map(repr, at_once.late))


# ---------------------------------------------------------------------- what Progress promises


@given(cases() | cases(kinds=KEEPING), steps_of_a_run)
def test_no_delivery_reaches_further_back_than_progress_promised(case: Case, steps: list[tuple[int, int]]) -> None:
    expected(case)
    plan = build(case.query, "segments")
    delay = delays(plan.document())
    records: list[Record] = []
    for _ in feed(Engine(plan, records.append), case.inputs, steps):
        pass
    assert_promises_kept(records, lambda progress, origin: delay[origin.id.stream.name].get(progress.stream.name))
    reported = {record.stream.name for record in records if isinstance(record, Progress)}
    assert reported == {sink.name for sink in sinks_of(case.query)}


# ---------------------------------------------------------------------- several agents

AGENTS = ("car-7", "gateway", "hub")


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Case, tuple[int, ...]]:
    """A case, and for each of its nodes the agent it runs on: never one before those of its inputs."""
    query = draw(queries(operators=4, kinds=draw(st.sampled_from((KINDS, KEEPING)))))
    homes: dict[str, int] = {}
    for node in query:
        first = max((homes[name] for name in oracle.inputs_of(node)), default=0)
        homes[node.name] = draw(st.integers(first, len(AGENTS) - 1))
    return Case(query, draw(inputs_for(query))), tuple(homes.values())


def documents(plans: dict[str, Plan]) -> dict[str, PlanDocument]:
    return {agent: plan.document() for agent, plan in plans.items()}


@given(fleets(), st.sampled_from(("genealog", "segments")))
def test_agents_that_send_to_each_other_have_the_provenance_of_one_plan(
    drawn: tuple[Case, tuple[int, ...]], mode: str
) -> None:
    case, homes = drawn
    answer = expected(case)
    fleet = oracle.split(case.query, homes, AGENTS)
    note(f"fleet = {fleet!r}")
    home = {node.name: AGENTS[number] for node, number in zip(case.query, homes, strict=True)}
    inputs: dict[str, dict[str, Any]] = {agent: {} for agent in fleet}
    for name, items in case.inputs.items():
        inputs[home[name]][name] = items

    plans = {agent: build(query, mode) for agent, query in fleet.items()}
    records: list[Record] = []
    engine_inputs = {agent: all_readings(its) for agent, its in inputs.items()}
    Loopback(plans, emit=records.append).run(engine_inputs)
    told = Told(records)
    alone = told_by_run(build(case.query, mode), case.inputs)

    attributes = by_attributes(case.query)
    in_order = oracle.ordered(case.query)
    by_agent = oracle.evaluate_fleet(fleet, inputs)
    for sink in sinks_of(case.query):
        agent = home[sink.name]
        rows = told.rows(sink.name, attributes, agent)
        assert_same_rows(rows, by_agent[agent].sinks[sink.name], sink.name in in_order)
        assert without_agents(rows) == without_agents(alone.rows(sink.name, attributes))
        assert len(rows) == len(answer.sinks[sink.name])

    delay = fleet_delays(documents(plans))

    def bound(progress: Progress, origin: Origin) -> int | None:
        stream = origin.id.stream
        return delay[stream.agent, stream.name].get((progress.stream.agent, progress.stream.name))

    at_sinks = {(home[sink.name], sink.name) for sink in sinks_of(case.query)}
    assert_promises_kept(
        [record for record in records if isinstance(record, Delivery | Progress) and stream_of(record) in at_sinks],
        bound,
        lambda delivery: oracle.resolve(delivery.origins, told.upstream),
    )


def without_agents(rows: list[Row]) -> list[Any]:
    return [(row.ts, row.value, {cause[1:] for cause in row.causes}) for row in rows]


def stream_of(record: Delivery | Progress) -> tuple[str, str]:
    stream = record.id.stream if isinstance(record, Delivery) else record.stream
    return stream.agent, stream.name

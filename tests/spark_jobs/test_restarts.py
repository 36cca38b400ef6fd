"""An agent that starts anew, perhaps with another plan: what was sent to it before is not late, and not lost."""

from __future__ import annotations

import pytest

from protocol.graph import GraphBatch, Reason, SinkFlag
from protocol.plan import PlanDocument
from protocol.records import END_OF_TIME, Declared, Origin, Received
from tests.spark_jobs.rows import document, receive, send, sink, source, window
from tests.support.fleet_log import Shards, Speaker
from tests.support.pipeline import CheckedPipeline, Pipeline, plain

EDGE = document(source("readings"), send("out", "readings", "hub"))
TO_SINK = document(receive("in", "edge", "out"), sink("alerts", "in"))
TO_CENTER = document(receive("in", "edge", "out"), send("on", "in", "center"))
BOTH = document(receive("in", "edge", "out"), send("on", "in", "center"), sink("alerts", "in"))
CENTER = document(receive("in", "hub", "on"), sink("alarms", "in"))


class Fleet:
    """edge -> hub -> center, with a reading that the hub has not taken when it stops."""

    def __init__(self, hub: PlanDocument) -> None:
        self.shards = Shards(3)
        self.pipeline = CheckedPipeline()
        self.plan = hub
        self.edge = Speaker(self.shards, "edge", EDGE)
        self.hub = Speaker(self.shards, "hub", hub)
        self.center = Speaker(self.shards, "center", CENTER)
        self.hub.leave()
        self.center.progress("alarms", 0)
        self.center.leave()
        self.sent = self.edge.deliver("out", 100, self.edge.source("readings", 100))
        self.edge.progress("out", 200)
        self.edge.leave()
        self.micro_batch()

    def micro_batch(self) -> GraphBatch:
        return self.pipeline.run(self.shards.micro_batch())

    def restart(self, plan: PlanDocument) -> None:
        self.plan = plan
        self.hub.restart(plan, crashed=True)
        self.hub.leave()
        self.micro_batch()

    def end(self) -> None:
        """They come to the end of all that was sent: who only stops may start again and take more."""
        for agent, plan in ((self.edge, EDGE), (self.hub, self.plan), (self.center, CENTER)):
            for node in plan.nodes:
                if node.operator in ("send", "sink"):
                    agent.progress(str(node.parameters.get("stream", node.name)), END_OF_TIME)
            agent.end()
            agent.leave()
        self.micro_batch()
        self.pipeline.finish()


def test_what_only_had_a_sink_is_sent_on() -> None:
    fleet = Fleet(TO_SINK)
    fleet.restart(BOTH)
    sent_on = fleet.hub.deliver("on", 100, fleet.sent)
    fleet.hub.leave()
    fleet.center.deliver("alarms", 100, sent_on)
    fleet.center.progress("alarms", END_OF_TIME)
    fleet.center.leave()
    found = plain(fleet.micro_batch())
    assert len(found["edges"]) == 1 and found["lost"] == found["late"] == []
    fleet.end()


def test_what_was_only_sent_on_has_a_sink() -> None:
    fleet = Fleet(TO_CENTER)
    fleet.restart(TO_SINK)
    fleet.hub.deliver("alerts", 100, fleet.sent)
    fleet.hub.leave()
    found = plain(fleet.micro_batch())
    assert len(found["edges"]) == 1 and found["lost"] == found["late"] == []
    fleet.end()


def test_an_agent_that_is_stopped_properly_and_started_again_misses_nothing() -> None:
    """What the edge sends while the hub is away waits for it, as if the hub had been killed."""
    fleet = Fleet(TO_SINK)
    fleet.hub.progress("alerts", 50)
    fleet.hub.end()
    fleet.hub.leave()
    fleet.micro_batch()
    sent = fleet.edge.deliver("out", 300, fleet.edge.source("readings", 300))
    fleet.edge.progress("out", 400)
    fleet.edge.leave()
    assert plain(fleet.micro_batch())["source labels"] == []
    fleet.hub.restart(TO_SINK, crashed=False)
    fleet.hub.deliver("alerts", 100, fleet.sent)
    fleet.hub.deliver("alerts", 300, sent)
    fleet.hub.progress("alerts", 400)
    fleet.hub.leave()
    found = plain(fleet.micro_batch())
    assert len(found["edges"]) == len(found["source labels"]) == 2 and found["late"] == []
    fleet.end()


@pytest.mark.parametrize("order", ["edge | hub | edge again | hub again", "edge, edge again | hub | hub again"])
def test_an_end_means_the_same_whichever_shard_is_read_first(order: str) -> None:
    """The hub has taken all of the edge's first start and ended; then the edge starts again."""
    edge_plan = document(source("readings"), send("out", "readings", "hub"), sink("log", "readings"))
    shards, pipeline = Shards(2), CheckedPipeline()
    edge, hub = Speaker(shards, "edge", edge_plan), Speaker(shards, "hub", TO_SINK)
    sent: list[Origin] = []

    def at_edge(ts: int, promise: int) -> None:
        reading = edge.source("readings", ts)
        edge.deliver("log", ts, reading)
        sent.append(edge.deliver("out", ts, reading))
        edge.progress("log", promise)
        edge.progress("out", promise)

    def say(what: str) -> None:
        if what == "edge":
            at_edge(100, END_OF_TIME)
            edge.end()
        elif what == "hub":
            hub.deliver("alerts", 100, sent[0])
            hub.progress("alerts", END_OF_TIME)
            hub.end()
        elif what == "edge again":
            edge.restart(edge_plan)
            at_edge(1_000, 2_000)
        else:
            hub.restart(TO_SINK)
            hub.deliver("alerts", 1_000, sent[1])
            hub.progress("alerts", 2_000)
        for agent in (edge, hub):
            if agent.has_more:
                agent.leave()

    found: list[GraphBatch] = []
    for micro_batch in order.split(" | "):
        for what in micro_batch.split(", "):
            say(what)
        found.append(pipeline.run(shards.micro_batch()))
    assert sum(len(each.edges.sink) for each in found) == 4
    assert not any(len(each.late.sink) for each in found)
    assert sum(len(each.source_labels) for each in found[:-1]) <= 1, "the hub has not taken the second reading yet"


def test_a_segment_that_begins_says_nothing_new_in_the_first_micro_batch_either() -> None:
    edge_plan = document(source("readings"), send("out", "readings", "hub"), sink("log", "readings"))
    shards, pipeline = Shards(1), CheckedPipeline()
    hub, edge = Speaker(shards, "hub", TO_SINK), Speaker(shards, "edge", edge_plan)
    for ts, promise in ((100, END_OF_TIME), (1_000, 2_000)):
        reading = edge.source("readings", ts)
        edge.deliver("log", ts, reading)
        sent = edge.deliver("out", ts, reading)
        edge.progress("log", promise)
        edge.progress("out", promise)
        if promise == END_OF_TIME:
            edge.end()
            edge.leave()
            hub.deliver("alerts", ts, sent)
            hub.progress("alerts", END_OF_TIME)
            hub.end()
            hub.leave()
            edge.restart(edge_plan)
    edge.leave()
    shards.begin_segments()
    pipeline.run(shards.micro_batch())
    hub.restart(TO_SINK)
    hub.deliver("alerts", 1_000, sent)
    hub.leave()
    found = pipeline.run(shards.micro_batch())
    assert len(found.edges.sink) == 1
    assert not len(found.late.sink)


def test_a_plan_counts_however_many_come_after_it() -> None:
    """What was sent with the first one is under way while the edge is changed again and again."""

    def windowed(size_ms: int) -> PlanDocument:
        return document(
            source("readings"), window("w", "readings", size_ms), send("out", "w", "hub"), sink("log", "readings")
        )

    shards, pipeline = Shards(2), CheckedPipeline()
    hub, edge = Speaker(shards, "hub", TO_SINK), Speaker(shards, "edge", windowed(3_600_000))
    hub.progress("alerts", 100_000)
    hub.leave()
    reading = edge.source("readings", 100_000)
    edge.deliver("log", 100_000, reading)
    sent = edge.deliver("out", 3_600_000, reading)
    edge.leave()
    for size_ms in range(1_000, 1_020):
        edge.restart(windowed(size_ms))
        edge.progress("log", 10_000_000)
        edge.progress("out", 10_000_000)
        edge.leave()
        pipeline.run(shards.micro_batch())
    hub.progress("alerts", 3_500_000)
    hub.leave()
    assert not len(pipeline.run(shards.micro_batch()).source_labels)
    hub.deliver("alerts", 3_600_000, sent)
    hub.leave()
    assert len(pipeline.run(shards.micro_batch()).edges.sink) == 1


def test_while_a_plan_cannot_be_read_nothing_expires() -> None:
    """The oracle cannot read it either."""
    known = document(source("readings"), window("w", "readings", 10_000), sink("alerts", "w"))
    shards, pipeline = Shards(1), Pipeline()
    edge = Speaker(shards, "edge", known)
    edge.progress("alerts", 0)
    edge.leave()
    edge.restart(None)
    edge.says(Declared(known.to_json().replace('"version":1', '"version":2')))
    reading = edge.source("readings", 100)
    for ts in (1_000, 2_000):
        edge.deliver("alerts", ts, reading)
        edge.progress("alerts", ts)
        edge.leave()
        found = pipeline.run(shards.micro_batch())
        assert len(found.edges.sink) == 1
        assert not len(found.source_labels)
    edge.restart(known)
    edge.progress("alerts", 20_000)
    edge.leave()
    assert len(pipeline.run(shards.micro_batch()).source_labels) == 1


def test_a_start_that_returns_has_its_own_plan() -> None:
    """Two devices under one name."""
    first = document(source("readings"), window("w", "readings", 1_000), sink("minutes", "w"))
    second = document(source("others"), window("w", "others", 1_000), sink("hours", "w"))
    shards, pipeline = Shards(1), Pipeline()
    device, other = Speaker(shards, "car", first), Speaker(shards, "car", first)
    device.progress("minutes", 300)
    device.leave()
    other.restart(second)
    other.progress("hours", 5_000)
    other.leave()
    device.deliver("minutes", 400, device.source("readings", 400))
    device.progress("minutes", 400)
    device.leave()
    pipeline.run(shards.micro_batch())
    assert pipeline.figures.frontiers == {"car/minutes": 400, "car/hours": 5_000}
    device.progress("minutes", 1_300)
    device.leave()
    assert not len(pipeline.run(shards.micro_batch()).source_labels)


def test_stamps_are_times() -> None:
    """A sink that has come to the end has not come to a time."""
    plan = document(source("readings"), sink("alerts", "readings"))
    shards, pipeline = Shards(1), CheckedPipeline()
    edge = Speaker(shards, "edge", plan)
    edge.deliver("alerts", 100, edge.source("readings", 100))
    edge.progress("alerts", 150)
    edge.leave()
    assert pipeline.run(shards.micro_batch()).stamp == 150
    edge.progress("alerts", END_OF_TIME)
    edge.leave()
    assert pipeline.run(shards.micro_batch()).stamp == 150
    edge.end()
    edge.leave()
    assert pipeline.run(shards.micro_batch()).stamp == 150
    edge.restart(plan)
    edge.deliver("alerts", 2**62, edge.source("readings", 2**62))
    edge.leave()
    assert pipeline.run(shards.micro_batch()).stamp == 150


def test_starts_of_which_nothing_is_left_are_forgotten() -> None:
    plan = document(
        source("readings"), window("w", "readings", 1_000), send("out", "w", "hub"), sink("log", "readings")
    )
    shards, pipeline = Shards(2), CheckedPipeline()
    hub, edge = Speaker(shards, "hub", TO_SINK), Speaker(shards, "edge", plan)
    hub.leave()
    sizes: list[int] = []
    for start in range(60):
        ts = start * 10_000
        reading = edge.source("readings", ts)
        edge.deliver("log", ts, reading)
        sent = edge.deliver("out", ts + 1_000, reading)
        edge.progress("log", ts + 1)
        edge.leave()
        edge.restart(plan, crashed=start % 2 == 0)
        if start == 20:
            pipeline.run(shards.micro_batch())
            continue  # the hub is behind
        hub.deliver("alerts", ts + 1_000, sent)
        hub.progress("alerts", ts + 1_500)
        hub.leave()
        assert not len(pipeline.run(shards.micro_batch()).late.sink)
        fleets = [state.get("fleet", 0) for state in pipeline.states.values()]
        sizes.append(sum(len(each) for each in fleets if each))
    assert max(sizes[49:]) <= max(sizes[39:49])


def test_who_names_a_start_that_was_forgotten_is_late_or_names_what_was_lost() -> None:
    plan = document(source("readings"), send("out", "readings", "hub"), sink("log", "readings"))
    shards, pipeline = Shards(2), Pipeline()
    hub, edge = Speaker(shards, "hub", TO_SINK), Speaker(shards, "edge", plan)
    reading = edge.source("readings", 100)
    sent, late = edge.deliver("out", 100, reading), edge.deliver("out", 101, reading)
    edge.leave()
    lost = edge.deliver("out", 60_000, reading)
    edge.restart(plan, crashed=True)
    edge.leave()
    hub.deliver("alerts", 100, sent)
    hub.progress("alerts", 50_000)
    hub.leave()
    pipeline.run(shards.micro_batch())
    edge.progress("out", 50_000)
    edge.leave()
    pipeline.run(shards.micro_batch())
    hub.deliver("alerts", 60_000, late)
    hub.deliver("alerts", 60_001, lost)
    hub.leave()
    found = pipeline.run(shards.micro_batch())
    assert found.late.reason.tolist() == [Reason.PURGED]
    assert len(found.lost.sink) == 1
    assert sorted(found.sink_labels.flags.tolist()) == [0, SinkFlag.INCOMPLETE]


def test_a_reading_that_only_its_receiver_tells_of_is_not_late_because_its_start_is_over() -> None:
    """The edge was killed before it could tell of the reading that it had sent."""
    shards, pipeline = Shards(2), CheckedPipeline(late=True)
    hub, edge = Speaker(shards, "hub", TO_SINK), Speaker(shards, "edge", EDGE)
    first = edge.deliver("out", 1, edge.source("readings", 1))
    edge.leave()
    reading = edge.source("readings", 5)
    edge.restart(EDGE, crashed=True)
    edge.leave()
    hub.deliver("alerts", 1, first)
    hub.progress("alerts", 3)
    hub.leave()
    pipeline.run(shards.micro_batch())
    hub.progress("alerts", 4)
    hub.leave()
    pipeline.run(shards.micro_batch())
    assert {state.get("aside", 0) is not None for (stage, _), state in pipeline.states.items() if stage == 2} == {True}
    for _ in range(2):
        hub.deliver("alerts", 5, reading)
        hub.leave()
        found = pipeline.run(shards.micro_batch())
        assert len(found.edges.sink) == 1
        assert not len(found.late.sink)
    hub.progress("alerts", 6)
    hub.leave()
    assert len(pipeline.run(shards.micro_batch()).source_labels) == 1
    hub.deliver("alerts", 6, reading)
    hub.leave()
    assert pipeline.run(shards.micro_batch()).late.reason.tolist() == [Reason.AFTER_LABEL]


def test_a_fleet_that_is_run_a_second_time_sender_first() -> None:
    """Both had come to the end. What the sender says then is still there when the receiver is started again."""
    plan = document(source("readings"), window("w", "readings", 10), send("out", "w", "hub"))
    shards, pipeline = Shards(2), CheckedPipeline()
    edge, hub = Speaker(shards, "edge", plan), Speaker(shards, "hub", TO_SINK)
    for run in range(3):
        if run:
            edge.restart(plan)
        sent = edge.deliver("out", 10, edge.source("readings", 1), edge.source("readings", 2))
        edge.progress("out", END_OF_TIME)
        edge.end()
        edge.leave()
        pipeline.run(shards.micro_batch())
        if run:
            hub.restart(TO_SINK)
            hub.leave()
            pipeline.run(shards.micro_batch())
        hub.deliver("alerts", 10, sent)
        hub.says(Received("edge", "out", 1, 1, edge.start.nonce))
        hub.progress("alerts", END_OF_TIME)
        hub.end()
        hub.leave()
        found = pipeline.run(shards.micro_batch())
        assert len(found.edges.sink) == 2
        assert len(found.source_labels) == 2
    pipeline.finish()


def test_what_was_sent_with_an_older_plan_is_kept_in_all_buckets() -> None:
    """The hub had a window of a day, and has one of a second now. What it sent then, the lab has not taken."""
    day = document(receive("in", "edge", "out"), window("w", "in", 86_400), send("on", "w", "center"))
    second = document(receive("in", "edge", "out"), window("w", "in", 1), send("on", "w", "center"))
    shards, pipeline = Shards(3), CheckedPipeline(buckets=4)
    edge, hub, center = (Speaker(shards, *each) for each in (("edge", EDGE), ("hub", day), ("center", CENTER)))
    sent = [edge.deliver("out", ts, edge.source("readings", ts)) for ts in range(60, 80)]
    taken = hub.deliver("on", 86_400, *sent)
    center.progress("alarms", 80_000)
    for each in (edge, hub, center):
        each.leave()
    pipeline.run(shards.micro_batch())
    hub.restart(second, crashed=True)
    hub.leave()
    for _ in range(2):
        center.progress("alarms", 80_001)
        center.leave()
        pipeline.run(shards.micro_batch())
    center.deliver("alarms", 86_400, taken)
    center.leave()
    found = pipeline.run(shards.micro_batch())
    assert len(found.edges.sink) == 20
    assert not len(found.late.sink)


@pytest.mark.parametrize("together", [True, False])
def test_what_was_let_go_of_is_late_once_though_it_came_by_two_ways(together: bool) -> None:
    shards, pipeline = Shards(3), CheckedPipeline(late=True)
    edge, hub, center = (
        Speaker(shards, name, plan) for name, plan in (("edge", EDGE), ("hub", TO_CENTER), ("center", CENTER))
    )
    sent = edge.deliver("out", 100, edge.source("readings", 100))
    edge.progress("out", 200)
    for agent in (edge, hub, center):
        agent.leave()
    pipeline.run(shards.micro_batch())
    for name in ("hub", "center"):  # nobody is left who could name it
        shards.retire(name)
    pipeline.run(shards.micro_batch())
    first, second = (hub.deliver("on", ts, sent) for ts in (100, 101))
    hub.leave(None if together else 1)
    center.deliver("alarms", 300, first, second)
    center.leave()
    pipeline.run(shards.micro_batch())
    if not together:
        hub.leave()
        pipeline.run(shards.micro_batch())
    late = [row for batch in pipeline.batches for row in plain(batch)["late"]]
    assert [(origin_ts, reason) for _, _, origin_ts, reason in late] == [(100, Reason.PURGED)]

"""An agent that starts anew, perhaps with another plan: what was sent to it before is not late, and not lost."""

from __future__ import annotations

from protocol.graph import GraphBatch
from protocol.plan import PlanDocument
from protocol.records import END_OF_TIME
from tests.spark_jobs.rows import document, receive, send, sink, source
from tests.support.fleet_log import Shards, Speaker
from tests.support.pipeline import CheckedPipeline, plain

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
        self.hub.restart(plan, crashed=True)
        self.hub.leave()
        self.micro_batch()

    def end(self) -> None:
        for agent in (self.edge, self.hub, self.center):
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

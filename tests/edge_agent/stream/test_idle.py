"""Idle streams: nobody waits for them where streams meet, and nowhere else does it matter."""

from __future__ import annotations

import copy
from typing import Any

from edge_agent.stream import IDLE, Collect, Count, Engine, Loopback, Plan
from protocol.records import Delivery, Late, Record
from tests.edge_agent.stream.expect import at, every_mode


class Running:
    """An engine and what it has told."""

    def __init__(self, plan: Plan) -> None:
        self.records: list[Record] = []
        self.engine = Engine(plan, self.records.append)

    def delivered(self, sink: str = "out") -> list[Any]:
        return [
            record.payload for record in self.records if isinstance(record, Delivery) and record.stream.name == sink
        ]

    def late(self) -> list[Any]:
        return [(record.stream.name, record.payload) for record in self.records if isinstance(record, Late)]


@every_mode
def test_an_idle_source_that_meets_no_other_is_as_if_it_were_not_idle(mode: str) -> None:
    plan = Plan("apart", provenance=mode)
    plan.source("a").sink("A")
    plan.source("b").sink("B")
    running = Running(plan)
    running.engine.feed("b", [*at("b1@1"), IDLE])
    running.engine.feed("a", at("a@1000"))
    running.engine.feed("b", at("b2@500"))
    assert running.delivered("B") == ["b1", "b2"]
    assert running.late() == []


@every_mode
def test_a_silent_source_elsewhere_does_not_keep_an_idle_one_back(mode: str) -> None:
    plan = Plan("elsewhere", provenance=mode)
    plan.source("a").union(plan.source("b")).sink("out")
    plan.source("silent").sink("other")
    running = Running(plan)
    running.engine.idle("b")
    running.engine.feed("a", at("x@1 y@2"))
    assert running.delivered() == ["x"]


@every_mode
def test_what_comes_late_after_idleness_is_late_where_the_streams_meet(mode: str) -> None:
    plan = Plan("meet", provenance=mode)
    quiet = plan.source("quiet")
    plan.source("busy").union(quiet, name="both").sink("out")
    quiet.sink("quiet out")
    running = Running(plan)
    running.engine.idle("quiet")
    running.engine.feed("busy", at("a@10 b@20"))
    running.engine.feed("quiet", at("early@5 fine@20"))
    running.engine.finish()
    assert running.delivered() == ["a", "b", "fine"]
    assert running.delivered("quiet out") == ["early", "fine"]
    assert running.late() == [("both", "early")]
    assert running.engine.metrics["both"].late == 1


@every_mode
def test_when_all_are_idle_nothing_waits(mode: str) -> None:
    plan = Plan("all", provenance=mode)
    plan.source("busy").union(plan.source("quiet")).sink("out")
    running = Running(plan)
    running.engine.feed("quiet", [*at("q@1"), IDLE])
    running.engine.feed("busy", [*at("x@1 a@10"), IDLE])
    assert running.delivered() == ["x", "q", "a"]
    running.engine.feed("busy", at("b@10 c@11"))
    running.engine.finish()
    assert running.delivered() == ["x", "q", "a", "b", "c"]


@every_mode
def test_an_idle_source_does_not_keep_the_last_window_of_one_that_ended(mode: str) -> None:
    # busy  |--1-----|--12----|   closed
    # quiet  idle
    plan = Plan("window", provenance=mode)
    plan.source("busy").window(10).aggregate(Count()).union(plan.source("quiet")).sink("out")
    running = Running(plan)
    running.engine.idle("quiet")
    running.engine.feed("busy", at("a@1 b@12"))
    running.engine.close("busy")
    assert running.delivered() == [1, 1]


@every_mode
def test_idleness_crosses_to_another_agent(mode: str) -> None:
    car = Plan("car", provenance=mode)
    car.source("s", [*at("a@1"), IDLE], live=True).send("values", to=["hub"])
    hub = Plan("hub", provenance=mode)
    seen: list[Any] = []
    own = hub.source("own", at("b@5 c@9"))
    hub.receive("values", "car-7").union(own).sink("out", seen.append)
    results = Loopback({"car-7": car, "hub": hub}).run()
    assert [delivery.payload for delivery in results["hub"].of("out")] == ["a", "b", "c"]


@every_mode
def test_a_received_stream_is_not_held_back_by_an_idle_source(mode: str) -> None:
    plan = Plan("hub", provenance=mode)
    plan.receive("values", "car-7").union(plan.source("quiet")).sink("out")
    running = Running(plan)
    running.engine.idle("quiet")
    car = Plan("car", provenance=mode)
    car.source("s").send("values", to=["hub"])
    sender = Engine(car, lambda record: None, agent="car-7", transmit=running.engine.receive)
    sender.feed("s", at("a@1 b@2"))
    assert running.delivered() == ["a"]


@every_mode
def test_a_copy_of_idle_is_idle(mode: str) -> None:
    plan = Plan("copied", provenance=mode)
    plan.source("busy").union(plan.source("quiet")).window(10).aggregate(Collect()).sink("out")
    running = Running(plan)
    running.engine.feed("quiet", [copy.copy(IDLE)])
    running.engine.feed("busy", at("a@1 b@12"))
    assert running.delivered() == [["a"]]


@every_mode
def test_an_idle_source_lets_go_of_what_it_was_still_sorting(mode: str) -> None:
    plan = Plan("sorting", provenance=mode)
    plan.source("a", disorder_ms=100).union(plan.source("b")).sink("out")
    running = Running(plan)
    running.engine.feed("a", [*at("a2@1000 a1@950"), IDLE])
    running.engine.feed("b", at("b1@500 b2@5000"))
    running.engine.feed("a", at("a3@6000"))
    running.engine.finish()
    assert running.delivered() == ["b1", "a1", "a2", "b2", "a3"]
    assert running.late() == []

"""Run a plan to its end and gather what it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edge_agent.stream.builder import Plan
from edge_agent.stream.engine import Counts, Engine
from edge_agent.stream.feeder import Feeder
from protocol.ids import TupleId
from protocol.plan import PlanError
from protocol.records import Delivery, Late, Progress, Record, Skipped, SourcePayload


class Results:
    """The records of a run, and its counters."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.sources: dict[TupleId, SourcePayload] = {}
        self.late: list[Late] = []
        self.skipped: list[Skipped] = []
        self.progress: dict[str, Progress] = {}
        self.metrics: dict[str, Counts] = {}

    def note(self, record: Record) -> None:
        """Keep a record; of progress only the latest."""
        if isinstance(record, Delivery):
            self.deliveries.append(record)
        elif isinstance(record, SourcePayload):
            self.sources[record.id] = record
        elif isinstance(record, Progress):
            self.progress[record.stream.name] = record
        elif isinstance(record, Late):
            self.late.append(record)
        else:
            self.skipped.append(record)

    def of(self, sink: str) -> list[Delivery]:
        """The deliveries of one sink or send."""
        return [delivery for delivery in self.deliveries if delivery.stream.name == sink]

    def causes(self, delivery: Delivery) -> list[SourcePayload]:
        """The source tuples of this agent that the delivery came from, oldest first."""
        return [origin for origin in delivery.origins if isinstance(origin, SourcePayload)]


def run(
    plan: Plan,
    inputs: Mapping[str, Iterable[Any]] | None = None,
    *,
    agent: str = "local",
    epoch: int = 0,
    emit: Callable[[Record], None] | None = None,
) -> Results:
    """Run the plan until its sources have ended; `inputs` gives or replaces the items of sources by name.

    With `emit` the records go there as they come about, and the results hold the counters only.
    """
    for node in plan.document().nodes:
        if node.operator in ("send", "receive"):
            raise PlanError("joins the plan to other agents: run it together with theirs", node.name)
    results = Results()
    engine = Engine(plan, results.note if emit is None else emit, agent=agent, epoch=epoch)
    feeder = Feeder(plan, engine, inputs)
    try:
        feeder.run()
    finally:
        feeder.stop()
        results.metrics = engine.metrics
    return results

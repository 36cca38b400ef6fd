"""Several agents in one process: what one sends, the others receive at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from edge_agent.stream.builder import Plan
from edge_agent.stream.engine import Engine
from edge_agent.stream.feeder import Feeder
from edge_agent.stream.run import Results
from protocol.ids import StreamId
from protocol.plan import PlanError, fleet_delays
from protocol.records import Origin, Record


class Loopback:
    """Runs the plans of several agents, joined by Send and Receive.

    What crosses is what would be transmitted: ts, payload and origin, then watermark and hold.
    """

    def __init__(self, plans: Mapping[str, Plan], *, emit: Callable[[Record], None] | None = None) -> None:
        documents = {agent: plan.document() for agent, plan in plans.items()}
        fleet_delays(documents)  # refuses agents that send to each other in a circle
        self._receivers = {
            (agent, node.name): cast("list[str]", node.parameters["to"])
            for agent, document in documents.items()
            for node in document.nodes
            if node.operator == "send"
        }
        received = {
            (cast(str, node.parameters["sender"]), cast(str, node.parameters["stream"]), agent): node.name
            for agent, document in documents.items()
            for node in document.nodes
            if node.operator == "receive"
        }
        for (sender, stream, agent), name in received.items():
            if agent not in self._receivers.get((sender, stream), []):
                raise PlanError(f"agent {sender!r} does not send {stream!r} to {agent!r}", name)
        for (agent, stream), receivers in self._receivers.items():
            for receiver in receivers:
                if (agent, stream, receiver) not in received:
                    raise PlanError(f"agent {receiver!r} does not receive what {agent!r} sends it", stream)
        self._plans = plans
        self._emit = emit
        self._engines: dict[str, Engine] = {}

    def run(self, inputs: Mapping[str, Mapping[str, Iterable[Any]]] | None = None) -> dict[str, Results]:
        """Run until the sources of all agents have ended, each agent in turn."""
        given = inputs or {}
        for agent in given:
            if agent not in self._plans:
                raise PlanError(f"there is no agent {agent!r}")
        results = {agent: Results() for agent in self._plans}
        self._engines = {
            agent: Engine(
                plan,
                results[agent].note if self._emit is None else self._emit,
                agent=agent,
                transmit=self._cross,
            )
            for agent, plan in self._plans.items()
        }
        arrival = threading.Condition()
        feeders: list[Feeder] = []
        try:
            for agent, engine in self._engines.items():
                feeders.append(Feeder(engine.plan, engine, given.get(agent), arrival=arrival))
            while any(feeder.running for feeder in feeders):
                fed = [feeder.feed() for feeder in feeders]
                if not any(fed):
                    with arrival:
                        arrival.wait_for(lambda: any(feeder.ready for feeder in feeders))
        finally:
            for feeder in feeders:
                feeder.stop()
            for agent, engine in self._engines.items():
                results[agent].metrics = engine.metrics
        return results

    def _cross(
        self, stream: StreamId, tuples: list[tuple[int, Any, Origin]], watermark: int, hold: int, idle: bool
    ) -> None:
        for receiver in self._receivers[stream.agent, stream.name]:
            self._engines[receiver].receive(stream, tuples, watermark, hold, idle)

"""A plan that runs in an agent: fed by its own sources and by other agents, until all of them have ended."""

from __future__ import annotations

from typing import Any

from edge_agent.agent import Agent
from edge_agent.stream import Engine, Feeder, Plan
from edge_agent.stream.feeder import MANY_WAITING
from protocol.ids import StreamId
from protocol.records import Origin, Record
from protocol.wire.crossing import Crossing
from protocol.wire.sections import Pending


class _Outcome:
    """What comes of one crossing, until all of it has gone through the plan."""

    def __init__(self) -> None:
        self.rows: list[Pending] = []
        self.sent: list[tuple[StreamId, list[tuple[int, Any, Origin]], int, int, bool]] = []


class PlanRun:
    """One run of a plan."""

    def __init__(self, agent: Agent, plan: Plan, many_waiting: int = MANY_WAITING) -> None:
        self.engine = Engine(
            plan,
            self._emit,
            agent=agent.name,
            epoch=agent.epoch.counter,
            nonce=agent.epoch.nonce,
            transmit=self._transmit,
        )
        agent.operators = self._operators
        self._agent = agent
        self._many_waiting = many_waiting
        self._outcome: _Outcome | None = None
        self._held_back: list[Crossing] = []
        self._stopped = False
        self._feeder = Feeder(plan, self.engine, arrival=agent.arrival)

    def _operators(self) -> dict[str, tuple[int, int, int, int]]:
        counts = self.engine.metrics
        return {name: (each.taken, each.given, each.late, each.skipped) for name, each in counts.items()}

    def run(self) -> None:
        """Until everything that feeds the plan has ended, or `stop`. AgentFailed if what it says goes nowhere."""
        agent, feeder = self._agent, self._feeder
        while not self._stopped and (feeder.running or self.engine.receiving):
            agent.check()
            fed = feeder.feed() if feeder.running else False
            if not self._take() and not fed:
                with agent.arrival:
                    agent.arrival.wait_for(
                        lambda: self._stopped or agent.failure is not None or bool(agent.arrived) or feeder.ready
                    )

    def stop(self) -> None:
        """Take nothing more. Windows that are open stay open."""
        self._stopped = True
        self._feeder.stop()
        with self._agent.arrival:
            self._agent.arrival.notify_all()

    def _take(self) -> bool:
        """What has come from other agents through the plan, but not of a stream that is far ahead of others."""
        with self._agent.arrival:
            came = self._held_back + list(self._agent.arrived)
            self._agent.arrived.clear()
        if not came:
            return False
        ahead = self.engine.ahead(self._many_waiting)
        receiving = self.engine.receiving
        self._held_back = []
        for crossing in came:
            operators = receiving.get((crossing.stream.agent, crossing.stream.name), [])
            if ahead.intersection(operators):
                self._held_back.append(crossing)
            elif not self._stopped:
                self._take_over(crossing)
        return len(self._held_back) < len(came)

    def _take_over(self, crossing: Crossing) -> None:
        """One crossing, all or nothing: if the plan fails, nothing came of it, and it comes again at the next start."""
        outcome = self._outcome = _Outcome()
        try:
            self.engine.receive(crossing.stream, crossing.tuples, crossing.watermark, crossing.hold, crossing.idle)
        finally:
            self._outcome = None
        self._agent.took(crossing, outcome.rows)
        for sent in outcome.sent:
            self._agent.transmit(*sent)

    def _emit(self, record: Record) -> None:
        if self._outcome is None:
            self._agent.emit(record)
        else:
            self._outcome.rows += self._agent.rows(record)

    def _transmit(
        self, stream: StreamId, tuples: list[tuple[int, Any, Origin]], watermark: int, hold: int, idle: bool
    ) -> None:
        if self._outcome is None:
            self._agent.transmit(stream, tuples, watermark, hold, idle)
        else:  # behind the deliveries of these tuples
            self._outcome.sent.append((stream, tuples, watermark, hold, idle))

"""A plan that runs in an agent: fed by its own sources and by other agents, until all of them have ended."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from edge_agent.agent import Agent
from edge_agent.stream import Engine, Feeder, Plan
from edge_agent.stream.feeder import MANY_WAITING
from protocol.ids import StreamId
from protocol.records import Origin, Record
from protocol.wire.sections import Pending

if TYPE_CHECKING:  # most plans run on one agent
    from edge_agent.exchange import Exchange
    from protocol.wire.crossing import Crossing


class _Outcome:
    """What comes of one crossing, until all of it has gone through the plan."""

    def __init__(self) -> None:
        self.rows: list[tuple[Pending, int]] = []
        self.sent: list[tuple[StreamId, list[tuple[int, Any, Origin]], int, int, bool]] = []


class PlanRun:
    """One run of a plan."""

    def __init__(self, agent: Agent, plan: Plan, many_waiting: int = MANY_WAITING) -> None:
        exchange = agent.exchange
        self.engine = Engine(
            plan,
            self._emit,
            agent=agent.name,
            epoch=agent.epoch.counter,
            nonce=agent.epoch.nonce,
            transmit=None if exchange is None else partial(self._transmit, exchange),
        )
        self._agent = agent
        self._exchange = exchange
        self._arrival = threading.Condition() if exchange is None else exchange.arrival
        self._many_waiting = many_waiting
        self._outcome: _Outcome | None = None
        self._held_back: list[Crossing] = []
        self._stopped = False
        self._feeder = Feeder(plan, self.engine, arrival=self._arrival)
        agent.operators = self._operators
        agent.on_failure = self._wake

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
                with self._arrival:
                    self._arrival.wait_for(lambda: self._stopped or agent.failure is not None or self._has_more)

    @property
    def _has_more(self) -> bool:
        """Whether there is anything for the plan to do. The condition must be held."""
        return self._feeder.ready or (self._exchange is not None and bool(self._exchange.arrived))

    def stop(self) -> None:
        """Take nothing more. Windows that are open stay open."""
        self._stopped = True
        self._feeder.stop()
        self._wake()

    def _wake(self) -> None:
        with self._arrival:
            self._arrival.notify_all()

    def _take(self) -> bool:
        """What has come from other agents through the plan, but not of a stream that is far ahead of others. Nor of one
        that has ended: if its sender has started again, that is for the next start here."""
        exchange = self._exchange
        if exchange is None:
            return False
        with exchange.arrival:
            came = self._held_back + list(exchange.arrived)
            exchange.arrived.clear()
        if not came:
            return False
        ahead = self.engine.ahead(self._many_waiting)
        self._held_back = []
        waiting: set[tuple[str, str]] = set()
        for crossing in came:
            stream = (crossing.stream.agent, crossing.stream.name)
            operators = self.engine.receiving.get(stream, [])
            if stream in waiting or not operators or ahead.intersection(operators):
                self._held_back.append(crossing)
                waiting.add(stream)
            elif not self._stopped:
                self._take_over(exchange, crossing)
                ahead = self.engine.ahead(self._many_waiting)
        return len(self._held_back) < len(came)

    def _take_over(self, exchange: Exchange, crossing: Crossing) -> None:
        """One crossing, all or nothing: if the plan fails, nothing came of it, and it comes again at the next start."""
        outcome = self._outcome = _Outcome()
        try:
            self.engine.receive(crossing.stream, crossing.tuples, crossing.watermark, crossing.hold, crossing.idle)
        finally:
            self._outcome = None
        exchange.took(crossing, outcome.rows)
        for sent in outcome.sent:
            exchange.transmit(*sent)

    def _emit(self, record: Record) -> None:
        if self._outcome is None:
            self._agent.emit(record)
        else:
            self._outcome.rows += self._agent.rows(record)

    def _transmit(
        self,
        exchange: Exchange,
        stream: StreamId,
        tuples: list[tuple[int, Any, Origin]],
        watermark: int,
        hold: int,
        idle: bool,
    ) -> None:
        if self._outcome is None:
            exchange.transmit(stream, tuples, watermark, hold, idle)
        else:  # behind the deliveries of these tuples
            self._outcome.sent.append((stream, tuples, watermark, hold, idle))

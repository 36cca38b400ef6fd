"""A plan that runs in an agent: fed by its own sources and by other agents, until all of them have ended."""

from __future__ import annotations

from edge_agent.agent import Agent
from edge_agent.stream import Engine, Feeder, Plan
from edge_agent.stream.feeder import MANY_WAITING
from protocol.wire.crossing import Crossing


class PlanRun:
    """One run of a plan."""

    def __init__(self, agent: Agent, plan: Plan) -> None:
        self.engine = Engine(
            plan,
            agent.emit,
            agent=agent.name,
            epoch=agent.epoch.counter,
            nonce=agent.epoch.nonce,
            transmit=agent.transmit,
        )
        agent.operators = self._operators
        self._agent = agent
        self._feeder = Feeder(plan, self.engine, arrival=agent.arrival)
        self._held_back: list[Crossing] = []
        self._stopped = False

    def _operators(self) -> dict[str, tuple[int, int, int, int]]:
        counts = self.engine.metrics
        return {name: (each.taken, each.given, each.late, each.skipped) for name, each in counts.items()}

    def run(self) -> None:
        """Until everything that feeds the plan has ended, or `stop`."""
        feeder, arrival = self._feeder, self._agent.arrival
        while not self._stopped and (feeder.running or self.engine.receiving):
            fed = feeder.feed() if feeder.running else False
            if not self._take() and not fed:
                with arrival:
                    arrival.wait_for(lambda: self._stopped or bool(self._agent.arrived) or feeder.ready)

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
        ahead = self.engine.ahead(MANY_WAITING)
        receiving = self.engine.receiving
        taken: list[Crossing] = []
        self._held_back = []
        for crossing in came:
            operators = receiving.get((crossing.stream.agent, crossing.stream.name), [])
            if ahead.intersection(operators):
                self._held_back.append(crossing)
                continue
            self.engine.receive(crossing.stream, crossing.tuples, crossing.watermark, crossing.hold, crossing.idle)
            taken.append(crossing)
        self._agent.took(taken)
        return bool(taken)

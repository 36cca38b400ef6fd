"""`threadline-agent run` with a gateway: the plan and the `main(agent)` of an app file, in an agent of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edge_agent import capture
from edge_agent.agent import Agent
from edge_agent.app_file import App
from edge_agent.config import Settings
from edge_agent.garbage import collect_seldom
from edge_agent.home import at_home
from edge_agent.interruptible import interruptible
from edge_agent.plan_run import PlanRun

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.5
_STOP_S = 2.0


class ConnectedRun:
    """One app in one agent, from start to drained."""

    def __init__(self, app: App, settings: Settings, provenance: str | None) -> None:
        plan = app.build() if app.has_plan else None
        if plan is not None and provenance:
            plan.provenance = provenance
        self._main = app.main
        self._plan = plan
        self.agent = Agent(at_home(settings), None if plan is None else plan.document())
        self._running: PlanRun | None = None
        self._over = threading.Event()  # a thread that was joined when a signal came is wrongly taken for ended
        self._error: BaseException | None = None

    def run(self, say: Callable[[str], None]) -> None:
        """Until the app has ended. Its errors are raised here."""
        agent = self.agent.start()
        say(f"agent {agent.name} epoch {agent.epoch.counter}, spool {agent.folder}, gateway {agent.settings.gateway}")
        capture.use(agent)
        collect_seldom()
        if self._plan is not None:
            self._running = PlanRun(agent, self._plan)
            # On a thread of its own: a signal must not cut it off in the middle of a tuple's way to other agents.
            threading.Thread(target=self._run_plan, args=(self._running,), name="plan", daemon=True).start()
        if self._main is not None:
            self._main(agent)
        with interruptible():
            while self._running is not None and not self._over.wait(_LOOK_S):
                pass  # a signal may have gone to another thread, and would not wake this one
        if self._error is not None:
            raise self._error
        agent.check()

    def _run_plan(self, running: PlanRun) -> None:
        try:
            running.run()
        except BaseException as error:
            self._error = error
            if self._main is not None:
                _LOG.error("the plan has ended, main(agent) goes on agent=%s error=%s", self.agent.name, error)
        finally:
            self._over.set()

    def close(self, drain_s: float) -> str:
        """Stop, and say what is left."""
        if self._running is not None:
            self._running.stop()
            self.agent.let_go()
            self._over.wait(_STOP_S)  # it may wait for a source; what it says after the end is left out
        left = self.agent.close(drain_s)
        status = self.agent.status()
        text = f"{status['batches']} batch{'es' * (status['batches'] != 1)}, {status['dropped']} records dropped"
        given_up = sum(send["given_up"] for send in status["sends"].values())
        if given_up:
            text += f", {given_up} tuples for other agents given up"
        if self.agent.unwritten:
            text += f", {self.agent.unwritten} records could not be written: they are lost"
        if self._has_lost_tuples:
            text += ", the last tuples for other agents could not be written: they are lost"
        if left:
            return f"{text}; {left} not acknowledged yet: they stay in {self.agent.folder} for the next start"
        return f"{text}, all acknowledged"

    @property
    def has_lost(self) -> bool:
        """Whether something could not be written until the end, and so is lost."""
        return self.agent.unwritten > 0 or self._has_lost_tuples

    @property
    def _has_lost_tuples(self) -> bool:
        return self.agent.exchange is not None and self.agent.exchange.waiting

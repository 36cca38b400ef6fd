"""`threadline-agent run` with a gateway: the plan and the `main(agent)` of an app file, in an agent of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edge_agent import capture
from edge_agent.agent import Agent, host_name, state_folder
from edge_agent.app_file import App
from edge_agent.collector import relax_collector
from edge_agent.config import Settings
from edge_agent.plan_run import PlanRun
from protocol.structs import replaced

_LOG = logging.getLogger(__name__)


class ConnectedRun:
    """One app in one agent, from start to drained."""

    def __init__(self, app: App, settings: Settings, provenance: str | None) -> None:
        name = settings.name or host_name()
        settings = replaced(settings, name=name, spool=settings.spool or str(state_folder() / name))
        plan = app.build() if app.has_plan else None
        if plan is not None and provenance:
            plan.provenance = provenance
        self._main = app.main
        self.agent = Agent(settings, None if plan is None else plan.document())
        self._plan = None if plan is None else PlanRun(self.agent, plan)
        self._error: BaseException | None = None

    def run(self, say: Callable[[str], None]) -> None:
        """Until the app has ended. Its errors are raised here."""
        agent = self.agent.start()
        say(f"agent {agent.name} epoch {agent.epoch.counter}, spool {agent.folder}, gateway {agent.settings.gateway}")
        capture.use(agent)
        relax_collector()
        if self._main is None:
            assert self._plan is not None
            self._plan.run()
            return
        running = threading.Thread(target=self._run_plan, name="plan", daemon=True)
        if self._plan is not None:
            running.start()
        self._main(agent)
        if self._plan is not None:
            running.join()
        if self._error is not None:
            raise self._error

    def _run_plan(self) -> None:
        assert self._plan is not None
        try:
            self._plan.run()
        except BaseException as error:
            self._error = error

    def close(self, drain_s: float) -> str:
        """Stop, and say what is left."""
        if self._plan is not None:
            self._plan.stop()
        left = self.agent.close(drain_s)
        status = self.agent.status()
        text = f"{status['batches']} batches, {status['dropped']} records dropped"
        if left:
            return f"{text}; {left} not acknowledged yet: they stay in {self.agent.folder} for the next start"
        return f"{text}, all acknowledged"

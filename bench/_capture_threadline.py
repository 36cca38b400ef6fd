"""Our own capture, spooling to disk. Its API is the paper's, so there is nothing to adapt."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

FINISH_S = 60.0

Workflow: Any
Task: Any
Data: Any
_capture: Any


def start(server: str, agent: str, spool: str) -> None:
    """Import it; the environment tells it who it is and where its gateway is, and to fail rather than to do without."""
    global Workflow, Task, Data, _capture  # noqa: PLW0603
    os.environ |= {"THREADLINE_GATEWAY": server, "THREADLINE_AGENT": agent, "THREADLINE_SPOOL": spool}
    os.environ["THREADLINE_STRICT"] = "1"
    _capture = import_module("edge_agent.capture")
    Workflow, Task, Data = _capture.Workflow, _capture.Task, _capture.Data


def finish() -> None:
    """Until everything is acknowledged."""
    _capture.close(FINISH_S)

"""Flowcept, offline (its buffer, dumped to a file at the end) or online to Redis in messages of 50.

Its own API takes the dicts as they are, and sends nothing at begin: one message per task. Offline it runs with its
built-in settings, which is also its cheapest import. Logging, telemetry and the key-value store are off either way.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

BUFFER = 50

_controller: Any
_new_task: Any


def start(server: str) -> None:
    """Offline if there is no server."""
    global _controller, _new_task  # noqa: PLW0603
    if server:
        os.environ["FLOWCEPT_SETTINGS_PATH"] = str(_online_settings(server))
    else:
        os.environ["FLOWCEPT_USE_DEFAULT"] = "true"
    import flowcept

    _new_task = flowcept.FlowceptTask
    _controller = flowcept.Flowcept(start_persistence=False, check_safe_stops=False)


def _online_settings(server: str) -> Path:
    """A settings file in the current folder; JSON is YAML too."""
    host, port = server.rsplit(":", 1)
    queue = {"enabled": True, "type": "redis", "host": host, "port": int(port), "channel": "interception"}
    settings = {
        "log": {"log_file_level": "disable", "log_stream_level": "disable"},
        "project": {"db_flush_mode": "online", "dump_buffer": {"enabled": False}, "enrich_messages": False},
        "mq": queue | {"buffer_size": BUFFER, "insertion_buffer_time_secs": 1},
        "kv_db": {"enabled": False},
    }
    file = Path("flowcept.yaml").resolve()
    file.write_text(json.dumps(settings))
    return file


def finish() -> None:
    """Its buffer is in the file, or with Redis."""
    _controller.stop()


class Workflow:
    def __init__(self, id: int) -> None:
        self.id = id

    def begin(self) -> None:
        _controller.start()

    def end(self) -> None:
        pass


class Data:
    def __init__(self, id: str, workflow_id: int, attributes: dict[str, Any]) -> None:
        self.attributes = attributes


class Task:
    def __init__(self, id: str, workflow: Workflow, transformation_id: int, dependencies: list[str]) -> None:
        self.id = id
        self.transformation_id = transformation_id
        self.dependencies = dependencies

    def begin(self, data: list[Data]) -> None:
        self._task = _new_task(
            task_id=self.id,
            activity_id=str(self.transformation_id),
            parent_task_id=self.dependencies[0] if self.dependencies else None,
            used=data[0].attributes,
        )

    def end(self, data: list[Data]) -> None:
        self._task.end(generated=data[0].attributes)

"""A workflow as one recorder knows it: its key there, and the keys of its tasks.

Keys mean something to that recorder only. So what has a key also has the run that gave it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edge_agent.capture.recorder import Recorder, Row
from protocol.events import UNKNOWN
from protocol.wire.packer import Packer

MOST_IDS = 4096


class Run:
    """One workflow's life with one recorder."""

    __slots__ = (
        "_older",
        "_recent",
        "begun",
        "durable",
        "ended",
        "key",
        "lock",
        "new_key",
        "packer",
        "put",
        "recorder",
    )

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.packer: Packer = recorder.packer
        self.put: Callable[[Row, int], None] = recorder.put
        self.new_key: Callable[[], int] = recorder.new_key
        self.durable = recorder.durable
        self.key = recorder.new_key()
        self.begun = False
        self.ended = False
        # The latest ids in two parts: when one is full, the other is forgotten as a whole.
        self._recent: dict[str, int] = {}
        self._older: dict[str, int] = {}
        self.lock = threading.RLock()  # a signal handler or destructor may capture, too

    def name(self, task_id: str, key: int) -> None:
        """From now on the id means this task."""
        self._recent[task_id] = key
        if len(self._recent) >= MOST_IDS:
            with self.lock:
                if len(self._recent) >= MOST_IDS:
                    self._older = self._recent
                    self._recent = {}

    def key_of(self, task_id: str) -> int:
        """The latest task with this id, if it is among the latest few thousand ids."""
        key = self._recent.get(task_id)
        return self._older.get(task_id, UNKNOWN) if key is None else key

    def record(self, row: Row, size: int) -> None:
        """Hand a row over; when it must be durable, wait until it is."""
        self.put(row, size)
        if self.durable:
            self.recorder.flush()

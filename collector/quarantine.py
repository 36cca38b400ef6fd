"""Batches that cannot be read are kept for whoever wants to know why, with the reason, in bounded room."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

_LOG = logging.getLogger(__name__)
MOST_BYTES = 64 << 20


class Quarantine:
    """A folder of batches, `NUMBER.batch` each, and an index of one line per batch."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._left_bytes = most_bytes
        self.kept = self.not_kept = 0
        if folder.exists():
            self._left_bytes -= sum(each.stat().st_size for each in folder.iterdir())

    def keep(self, agent: str, data: bytes, reason: str) -> None:
        """Put a batch away. That there is no room for it is no reason to stop."""
        line = json.dumps({"at_ms": time.time_ns() // 1_000_000, "agent": agent, "bytes": len(data), "reason": reason})
        size = len(data) + len(line) + 64
        if size > self._left_bytes:
            self.not_kept += 1
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{time.time_ns()}-{agent}.batch"
            (self._folder / name).write_bytes(data)
            with (self._folder / "index.jsonl").open("a") as index:
                index.write(json.dumps({"file": name, **json.loads(line)}) + "\n")
        except OSError as error:
            self.not_kept += 1
            _LOG.warning("a batch could not be put into quarantine agent=%s error=%s", agent, error)
            return
        self._left_bytes -= size
        self.kept += 1

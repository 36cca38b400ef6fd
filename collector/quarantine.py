"""Batches that cannot be read are kept for whoever wants to know why, with the reason, in bounded room."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from pathlib import Path

_LOG = logging.getLogger(__name__)
MOST_BYTES = 64 << 20
MOST_KEPT_BYTES = 64 << 10  # of one batch: no batch has more
_BLOCK_BYTES = 4096  # what a file takes up at least


class Quarantine:
    """A folder of batches, `TIME-AGENT.batch` each, and an index of one line per batch."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._left_bytes = most_bytes
        self.kept = self.not_kept = 0
        if folder.exists():
            self._left_bytes -= sum(_room_bytes(each.stat().st_size) for each in folder.glob("*.batch"))

    def keep(self, agent: str, data: bytes, reason: str) -> None:
        """Put a batch away. That there is no room for it is no reason to stop."""
        room_bytes = _room_bytes(min(len(data), MOST_KEPT_BYTES))
        if room_bytes > self._left_bytes:
            self.not_kept += 1
            return
        now_ns = time.time_ns()
        name = f"{now_ns}-{agent}.batch"
        line = {"file": name, "at_ms": now_ns // 1_000_000, "agent": agent, "bytes": len(data), "reason": reason[:500]}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_bytes(data[:MOST_KEPT_BYTES])
            with (self._folder / "index.jsonl").open("a") as index:
                index.write(json.dumps(line) + "\n")
        except OSError as error:
            self.not_kept += 1
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)
            _LOG.warning("a batch could not be put into quarantine agent=%s error=%s", agent, error)
            return
        self._left_bytes -= room_bytes
        self.kept += 1


def _room_bytes(size_bytes: int) -> int:
    """What a file and its line in the index take up of the disk."""
    return (size_bytes // _BLOCK_BYTES + 2) * _BLOCK_BYTES

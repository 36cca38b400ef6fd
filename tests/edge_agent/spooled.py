"""What an agent has left on disk, for tests of agents that nobody acknowledges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_agent.spool import Spool
from protocol.records import End, Status
from protocol.wire.batch import decode_batch

NOWHERE = "127.0.0.1:9"
"""A gateway that is not there: whatever an agent says stays in its spool."""


def spooled(folder: Path, agent: str) -> list[Any]:
    """The records in the spool of an agent that does not run, but not how it was."""
    found = [decode_batch(data, agent) for data in batches(folder)]
    return [record for batch in found for record in batch.records() if not isinstance(record, Status)]


def batches(folder: Path) -> list[bytes]:
    """The batches in the spool of an agent that does not run."""
    with Spool.open(folder / "up") as spool:
        return [entry.data for entry in spool.entries(spool.first)]


def has_ended(records: list[Any]) -> bool:
    """Whether the last epoch among these says that it has ended as it should."""
    return any(isinstance(each, End) for each in records)

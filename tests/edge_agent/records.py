"""Records as a program and its plan would hand them over, and an outbox to put them into."""

from __future__ import annotations

import shutil
from pathlib import Path
from time import monotonic
from typing import Any

from edge_agent.config import Settings
from edge_agent.epoch import Epoch
from edge_agent.outbox import Outbox
from edge_agent.outbox.memory import Memory
from edge_agent.outbox.recovery import close_journal
from edge_agent.spool import Spool
from protocol.ids import StreamId
from protocol.wire.batch import Batch, decode_batch
from protocol.wire.packer import Packer
from protocol.wire.sections import EventKind, Kind, Pending, pending_sized

AGENT = "pump-7"
EPOCH = Epoch(3, 2**64 - 5)
STREAM = StreamId(AGENT, EPOCH.counter, "reports", EPOCH.nonce)
ALERTS = StreamId(AGENT, EPOCH.counter, "alerts", EPOCH.nonce)
EVENT_BYTES = 100
LEAST_MEMORY_BYTES = 64 << 10
PACKER = Packer()


def begun(key: int, payload: Any = None) -> Pending:
    """A task that has begun, with one datum of its own."""
    data = [(f"data-{key}", "w", (), *PACKER.pack(payload))]
    return (Kind.EVENT, EventKind.TASK_BEGUN, 1_000 + key, key, 0, f"task-{key}", "f", (), data)


def ended(key: int) -> Pending:
    """A task that has ended."""
    return (Kind.EVENT, EventKind.TASK_ENDED, 1_000 + key, key, 0, "", [])


def put(outbox: Outbox, *records: Any) -> None:
    """Records of a plan, or rows as the capture API makes them."""
    for record in records:
        if isinstance(record, tuple) and isinstance(record[0], Kind):
            outbox.put(record, EVENT_BYTES)
        else:
            outbox.put(*pending_sized(record, PACKER))


def path_of(fd: int) -> str:
    """The file that is open there."""
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def records_after_crash(folder: Path) -> list[Any]:
    """What the next process finds: entries of the spool, those made from the journal included."""
    with Spool.open(folder / "up") as spool:
        assert close_journal(spool, AGENT) == []
        return [record for entry in spool.entries() for record in decode_batch(entry.data, AGENT).records()]


def crashed(folder: Path, copy: str = "after") -> Path:
    """A copy of the folder as it is now: what a process that is killed at this moment leaves."""
    return Path(shutil.copytree(folder, folder.with_name(copy)))


class Bench:
    """An outbox with its spool and memory in a folder, and a time that passes when it is told to."""

    def __init__(self, folder: Path, *, spool_bytes: int = 1 << 20, epoch: Epoch = EPOCH, **options: Any) -> None:
        self.settings = Settings(name=AGENT, spool_bytes=max(spool_bytes, 64 << 10), **options)
        self.spool = Spool.open(folder / "up", max_bytes=spool_bytes, fsync=self.settings.fsync)
        self.memory = Memory(folder)
        self.outbox = Outbox(AGENT, epoch, self.spool, self.memory, PACKER, self.settings)
        self.now = monotonic()

    def put(self, *records: Any) -> None:
        put(self.outbox, *records)

    def step(self, seconds: float = 0.0) -> float:
        self.now += seconds
        return self.outbox.step(self.now)

    def batches(self) -> list[Batch]:
        return [decode_batch(entry.data, AGENT) for entry in self.spool.entries()]

    def events(self) -> list[list[int]]:
        """The numbers of the events in each batch."""
        return [[each.number for each in batch.records() if hasattr(each, "number")] for batch in self.batches()]

    def close(self) -> None:
        self.spool.close()
        self.memory.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

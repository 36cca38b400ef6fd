"""Batches as an agent would publish them, and a shard to put them into."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from collector.log_view import Entry, entries
from collector.quarantine import Quarantine
from collector.registry import Registry
from collector.shard_log import ShardLog
from protocol.ids import StreamId
from protocol.wire.answers import Logged
from protocol.wire.batch import Header, encode_batch, frame
from protocol.wire.compression import Codec
from protocol.wire.packer import Packer
from protocol.wire.sections import EventKind, Kind, pending

SHARD = 5
PACKER = Packer()


def event(key: int) -> tuple[Any, ...]:
    """A task that has begun."""
    return (Kind.EVENT, EventKind.TASK_BEGUN, 1_000 + key, key, 0, f"task-{key}", "f", (), [])


class QuickRegistry(Registry):
    """A registry that does not wait for the disk: a test reads what it wrote through the same kernel."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self._db.execute("PRAGMA synchronous=OFF")


class FakeAgent:
    """Makes the batches of one epoch."""

    def __init__(self, name: str = "pump-7", nonce: int = 1, epoch: int | None = None) -> None:
        self.name = name
        self.nonce = nonce
        self.epoch = nonce if epoch is None else epoch

    def stream(self, name: str) -> StreamId:
        return StreamId(self.name, self.epoch, name, self.nonce)

    def batch(
        self, seq: int, *records: Any, covers: int = 1, first_event: int = 0, codec: Codec | None = None
    ) -> bytes:
        """A batch; without records, one event whose number is the batch's."""
        if not records:
            records, first_event = (event(seq),), seq
        rows = [each if isinstance(each, tuple) else pending(each, PACKER) for each in records]
        header = Header(self.epoch, self.nonce, seq, covers)
        return encode_batch(header, rows, self.name, first_event=first_event, codec=codec)

    def framed(self, seq: int, *records: Any, oldest: bool = False, **options: Any) -> bytes:
        return frame(self.batch(seq, *records, **options), self.name, oldest or seq == 0)


class Shard:
    """A shard log in a folder, with a clock that can be set."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.now = 1_000.0
        self.registry = QuickRegistry(folder / "registry.db", wait_s=0.1)
        self.quarantine = Quarantine(folder / "quarantine")
        self._options = options
        self.open()

    def open(self) -> None:
        self.log = ShardLog(self.folder, SHARD, self.registry, self.quarantine, clock=lambda: self.now, **self._options)

    def reopen(self) -> None:
        """As after a crash: what was not committed is gone."""
        self.log.close()
        self.open()

    def take(self, agent: FakeAgent, *payloads: bytes) -> dict[int, Logged]:
        """Take, commit, and say what the agent is told, by nonce."""
        for payload in payloads:
            self.log.take(agent.name, payload)
        return {answer.nonce: answer for name, answer in self.log.commit() if name == agent.name}

    def entries(self, *kinds: Kind) -> list[Entry]:
        return list(entries(self.folder, kinds))

    def records(self, *kinds: Kind) -> list[Any]:
        return [entry.record for entry in self.entries(*kinds)]

    def events(self, nonce: int = 1) -> list[int]:
        return [entry.record.number for entry in self.entries(Kind.EVENT) if entry.nonce == nonce]

    def close(self) -> None:
        self.log.close()
        self.registry.close()


def seqs(found: Iterable[Entry]) -> list[int]:
    return [entry.seq for entry in found]

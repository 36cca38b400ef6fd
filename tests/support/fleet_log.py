"""Logs of whole fleets, in memory: what agents say becomes rows of the log, cut into micro-batches.

    Shards    the translators' own code, with dictionaries instead of disks: batches in, rows out
    Speaker   an agent that says what a test wants it to say, batch by batch

Random fleets are in `tests.support.scenarios`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from collector.epochs import Tally
from collector.log import Row
from collector.registry import ClosedEpoch, Epoch, StreamName, StreamNumber
from collector.shard_log import Counters, ShardLog
from edge_agent.outbox.giving_up import replacement
from edge_agent.outbox.recovery import CRASH
from edge_agent.stream import Plan
from protocol.ids import StreamId
from protocol.plan import PlanDocument
from protocol.records import (
    END_OF_TIME,
    Declared,
    Delivery,
    End,
    Gap,
    Origin,
    OriginKind,
    Progress,
    SourcePayload,
    Status,
)
from protocol.topics import SHARDS, shard_of
from protocol.wire.batch import Header, encode_batch, frame
from protocol.wire.compression import Codec
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, Pending, in_parts, pending
from tests.support.pipeline import MicroBatch

PACKER = Packer()
_BROKEN = b"\xff"

# ---------------------------------------------------------------------- translators without disks


class _Registry:
    """Numbers of streams, from a dictionary."""

    def __init__(self) -> None:
        self._numbers: dict[StreamName, StreamNumber] = {}
        self._epochs: dict[tuple[str, int], Epoch] = {}
        self._closed: dict[tuple[str, int], tuple[int, int]] = {}

    def numbers_of(self, streams: Iterable[StreamName]) -> dict[StreamName, StreamNumber]:
        found = {}
        for each in streams:
            key = each._replace(epoch=0)
            is_new = key not in self._numbers
            self._numbers.setdefault(key, StreamNumber(len(self._numbers) + 1, is_new))
            found[each] = self._numbers[key]
        return found

    def epoch_of(self, agent: str, nonce: int, counter: int) -> Epoch:
        return self._epochs.setdefault((agent, nonce), Epoch(counter, False))

    def close_epochs(self, closed: Iterable[ClosedEpoch]) -> None:
        for each in closed:
            self._closed[each.agent, each.nonce] = each.shown, each.next_seq

    def closed_epoch(self, agent: str, nonce: int) -> tuple[int, int] | None:
        return self._closed.get((agent, nonce))


class _Writer:
    """Rows that are not in a micro-batch yet."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, rows: Iterable[Row]) -> None:
        self.rows += rows

    def commit(self) -> None:
        """There is no disk to wait for."""


class _Quarantine:
    def keep(self, agent: str, payload: bytes, reason: str) -> None:
        """Nobody looks at it."""


class _Shard(ShardLog):
    """A shard whose log is a list."""

    def __init__(self, shard: int, registry: _Registry) -> None:
        self.shard = shard
        self.counters = Counters()
        self.written = _Writer()
        self.now = 0.0
        self._registry: Any = registry
        self._quarantine: Any = _Quarantine()
        self._writer: Any = self.written
        self._retire_after_s = 1.0
        self._clock = lambda: self.now
        self._agents = {}
        self._tally = Tally()
        self._unanswered = {}
        self._refusals_told_at = None
        self._no_room_until = 0.0

    def retire_agent(self, agent: str) -> None:
        """It was silent for too long."""
        self._agents[agent].heard_at = self.now - self._retire_after_s
        self.retire()

    def begin_segment(self) -> None:
        """A new segment begins with what is known."""
        self.written.append(self._snapshot())


class Shards:
    """All shards of a log, and what has come since the last micro-batch. Agents go to so many shards in turn, or, if it
    is not said how many, to those that they belong to."""

    def __init__(self, shards: int | None = 2) -> None:
        registry = _Registry()
        self._in_turn = shards is not None
        self._shards = [_Shard(number, registry) for number in range(SHARDS if shards is None else shards)]
        self._homes: dict[str, _Shard] = {}

    def home(self, agent: str) -> _Shard:
        """Where an agent is."""
        number = len(self._homes) % len(self._shards) if self._in_turn else shard_of(agent)
        return self._homes.setdefault(agent, self._shards[number])

    def take(self, agent: str, batch: bytes, oldest: bool) -> None:
        """A batch comes to its translator."""
        shard = self.home(agent)
        before = len(shard.written.rows)
        shard.take(agent, frame(batch, agent, oldest))
        shard.commit()
        assert len(shard.written.rows) > before, "a batch left no row"

    def retire(self, agent: str) -> None:
        self.home(agent).retire_agent(agent)

    def begin_segments(self) -> None:
        for shard in self._shards:
            shard.begin_segment()

    def micro_batch(self) -> MicroBatch:
        """The rows since the last time."""
        rows = {shard.shard: shard.written.rows for shard in self._shards if shard.written.rows}
        for shard in self._shards:
            shard.written.rows = []
        return rows


# ---------------------------------------------------------------------- an agent that says what it is told


def nonce_of(agent: str, epoch: int) -> int:
    """Different for every start, and for some agents beyond what fits a signed number."""
    return (
        sum(agent.encode()) % 2 << 63
        | sum(byte << 8 * place for place, byte in enumerate(agent.encode()[:6])) << 8
        | epoch
    )


def in_batch(rows: Iterable[Pending]) -> list[Pending]:
    """Of each stream's progress, only the last is told."""
    progress: dict[str, Pending] = {}
    others = []
    for row in rows:
        if row[0] is Kind.PROGRESS:
            progress[row[1].name] = row
        else:
            others.append(row)
    return others + list(progress.values())


class Start:
    """One start of an agent: makes its batches, and keeps what the next start has to know of it."""

    def __init__(self, agent: str, epoch: int) -> None:
        self.agent = agent
        self.epoch = epoch
        self.nonce = nonce_of(agent, epoch)
        self.next_batch = 0
        self.ended = False
        self._progress: dict[str, tuple[int, int]] = {}
        self._next_seqs: dict[str, int] = {}

    def stream(self, name: str) -> StreamId:
        return StreamId(self.agent, self.epoch, name, self.nonce)

    def batch(self, rows: Sequence[Pending]) -> bytes:
        """The next batch."""
        return encode_batch(self._header(rows), in_batch(rows), self.agent, codec=Codec.NONE)

    def unreadable(self, rows: Sequence[Pending]) -> bytes:
        """A batch of these that a translator cannot understand."""
        return self._header(rows).encode() + _BROKEN

    def _header(self, rows: Sequence[Pending]) -> Header:
        self.next_batch += 1
        for row in rows:
            if row[0] is Kind.PROGRESS:
                self._progress[row[1].name] = (row[2], row[3])
            elif row[0] in (Kind.SOURCE, Kind.DELIVERY):
                self._next_seqs[row[1].name] = row[2] + 1
        return Header(self.epoch, self.nonce, self.next_batch - 1)

    def gap(self) -> Gap:
        """What the next start says of this one, if this one was killed."""
        progress = tuple((name, *promise) for name, promise in sorted(self._progress.items()))
        return Gap(
            CRASH,
            self.epoch,
            self.nonce,
            progress=progress,
            next_seqs=tuple(sorted(self._next_seqs.items())),
            next_event=0,
        )


class Speaker:
    """An agent of a test: `says` what it delivers and promises, and `leave` makes a batch of it."""

    def __init__(self, shards: Shards, name: str, plan: Plan | PlanDocument | None) -> None:
        self.name = name
        self.start = Start(name, 0)
        self._shards = shards
        self._rows: list[Pending] = []
        self._seqs: dict[str, Iterator[int]] = {}
        self.restart(plan)

    def restart(self, plan: Plan | PlanDocument | None, *, crashed: bool = False) -> None:
        """The next start; what was said and has not left is lost."""
        before = self.start
        self.start = Start(self.name, before.epoch + 1)
        self._rows, self._seqs = [], {}
        if plan is not None:
            document = plan if isinstance(plan, PlanDocument) else plan.document()
            self.says(Declared(document.to_json()))
        if crashed:
            self.says(before.gap())

    def says(self, *records: Any) -> None:
        self._rows += [pending(record, PACKER) for record in records]

    def source(self, stream: str, ts: int) -> Origin:
        """A new source tuple."""
        made = SourcePayload(self.start.stream(stream), self._seq(stream), ts, ts)
        self.says(made)
        return Origin(OriginKind.SOURCE, made.stream, made.seq, ts)

    def deliver(self, stream: str, ts: int, *origins: Origin, parts: int = 1) -> Origin:
        """A tuple reaches a sink or send; returns what a receiver would call it."""
        made = Delivery(self.start.stream(stream), self._seq(stream), ts, ts, origins)
        row = pending(made, PACKER)
        self._rows += in_parts(row, -(-len(origins) // parts) or 1)
        return Origin(OriginKind.REMOTE, made.stream, made.seq, ts)

    def progress(self, stream: str, watermark: int, hold: int = END_OF_TIME) -> None:
        self.says(Progress(self.start.stream(stream), watermark, hold))

    def end(self, ts: int = 0) -> None:
        self.says(End(ts))
        self.start.ended = True

    @property
    def has_more(self) -> bool:
        """Something was said and has not left."""
        return bool(self._rows)

    def leave(self, some: int | None = None) -> None:
        """What was said so far becomes a batch, or so many records of it."""
        rows, self._rows = self._rows[:some], [] if some is None else self._rows[some:]
        seq = self.start.next_batch
        self._shards.take(self.name, self.start.batch(rows), oldest=seq == 0)

    def lose(self) -> None:
        """What was said so far is dropped: the spool was full."""
        batch = self.start.batch(self._rows)
        self._rows = []
        self._shards.take(self.name, replacement([batch], self.name, PACKER)[0], oldest=False)

    def garble(self) -> None:
        """What was said so far cannot be understood."""
        batch = self.start.unreadable(self._rows)
        self._rows = []
        self._shards.take(self.name, batch, oldest=False)

    def _seq(self, stream: str) -> int:
        return next(self._seqs.setdefault(stream, count()))


def status() -> Status:
    """Something of an agent that concerns no stream."""
    return Status(0, 0, 0, 0, 0, 0, {}, {})

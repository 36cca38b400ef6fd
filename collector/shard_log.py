"""One shard of the log and what is known of its agents: batches in, rows out, nothing twice and nothing missing unsaid.

All of it is rebuilt from the log itself: each segment begins with what was known when it was started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np

from collector.epochs import AgentEpochs, Arrival, EpochState, StreamKey
from collector.log import Row, ShardWriter
from collector.quarantine import Quarantine
from collector.registry import Registry, StreamName
from protocol.chunks import SEQ_BITS, Numbers, pack_deliveries, pack_payloads, pack_progress, pack_sources, unpack
from protocol.ids import StreamId
from protocol.records import End, Gap
from protocol.wire.answers import Logged
from protocol.wire.batch import Batch, decode_batch, read_header, unframe
from protocol.wire.compression import READABLE
from protocol.wire.errors import MalformedBatch, UnknownCodec
from protocol.wire.sections import (
    DeliveryColumns,
    Kind,
    ProgressColumns,
    SourceColumns,
    TupleColumns,
    decode_section,
    encode_section,
    pending,
)
from protocol.wire.values import Packer, decode

_LOG = logging.getLogger(__name__)
CODECS = sum(1 << codec for codec in READABLE)
MOST_EPOCHS = 2  # of one agent, in memory and in snapshots; older ones are in the registry
RETIRE_AFTER_S = 24 * 3600.0
_PACKER = Packer(most_bytes=1 << 24)


@dataclass(slots=True)
class Counters:
    """What happened to the batches of a shard."""

    batches: int = 0
    bytes: int = 0
    records: int = 0
    origins: int = 0
    rows: int = 0
    malformed: int = 0
    quarantined: int = 0
    gaps: int = 0
    reflashed: int = 0
    duplicate_agents: int = 0
    retired: int = 0
    unknown_codec: int = 0


@dataclass(slots=True)
class _Agent:
    epochs: AgentEpochs
    current: int = 0  # the nonce of the newest epoch
    duplicate: bool = False
    heard_at: float = field(default_factory=monotonic)


class ShardLog:
    """The agents of one shard and the log that their batches go to. Not for several threads."""

    def __init__(
        self,
        folder: Path,
        shard: int,
        registry: Registry,
        quarantine: Quarantine,
        *,
        retire_after_s: float = RETIRE_AFTER_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Take the shard, or raise ShardInUse at once."""
        self.shard = shard
        self.counters = Counters()
        self._registry = registry
        self._quarantine = quarantine
        self._retire_after_s = retire_after_s
        self._clock = clock
        self._agents: dict[str, _Agent] = {}
        self._unanswered: dict[tuple[str, int], None] = {}
        self._writer = ShardWriter(folder, shard)
        try:
            for row in self._writer.tail():
                self._replay(row)
            self._writer.begin(self._snapshot)
        except BaseException:
            self._writer.close()
            raise

    def close(self) -> None:
        """Let a successor have the shard."""
        self._writer.close()

    # Batches

    def take(self, agent: str, payload: bytes) -> None:
        """What an agent has published. Whatever it is: nothing is raised but that it cannot be logged now."""
        try:
            oldest, data = unframe(payload, agent)
            header, _ = read_header(data)
        except MalformedBatch as error:
            self._refuse(agent, payload, str(error))
            return
        known = self._agents.get(agent)
        if known is None:
            known = self._agents[agent] = _Agent(AgentEpochs(agent))
        known.heard_at = self._clock()
        self._recall(known, header.nonce)
        self._unanswered[agent, header.nonce] = None
        for arrival, gap in known.epochs.arrived(Arrival(agent, oldest, header, data)):
            self._log(known, arrival, gap)

    def _refuse(self, agent: str, payload: bytes, reason: str) -> None:
        """Nobody knows what it was: the agent, if it was one, sends it again."""
        self.counters.malformed += 1
        self._quarantine.keep(agent, payload, reason)
        _LOG.warning("refused what is no batch agent=%s reason=%s", agent, reason)

    def _recall(self, known: _Agent, nonce: int) -> None:
        """An epoch that was closed long ago, if it is one: a late copy of its batches must not be taken for news."""
        if nonce not in known.epochs.known:
            closed = self._registry.closed_epoch(known.epochs.agent, nonce)
            if closed is not None:
                shown, next_seq = closed
                known.epochs.known[nonce] = EpochState(known.epochs.agent, shown, nonce, next_seq)

    def _log(self, known: _Agent, arrival: Arrival, missing: Gap | None) -> None:
        agent, header = arrival.agent, arrival.header
        state = known.epochs.known.get(header.nonce) or self._new_epoch(agent, arrival)
        rows: list[Row] = []
        named: dict[StreamKey, int] = {}
        if missing is not None:
            rows.append(self._gap_row(agent, header.nonce, state.next_seq, missing))
        seq = max(header.seq, state.next_seq) if missing is None else header.seq
        batch: Batch | None = None
        try:
            batch = decode_batch(arrival.data, agent)
            rows += self._rows(state, batch, seq, named)
        except UnknownCodec:
            self.counters.unknown_codec += 1
            return
        except MalformedBatch as error:
            gap = Gap(f"quarantined: {error}", header.epoch, header.nonce, (seq, header.next_seq - 1))
            rows.append(self._gap_row(agent, header.nonce, seq, gap))
            self.counters.quarantined += 1
            self._quarantine.keep(agent, arrival.data, str(error))
            _LOG.warning("quarantined a batch agent=%s seq=%d reason=%s", agent, seq, error)
        self._writer.append(rows)
        # From here on nothing fails: the rows will be in the log.
        state.streams.update(named)
        if batch is not None:
            self._note(state, batch)
        state.next_seq = header.next_seq
        state.retired = False
        self.counters.batches += 1
        self.counters.bytes += len(arrival.data)
        self.counters.rows += len(rows)
        self._adopt(known, state)

    def _new_epoch(self, agent: str, arrival: Arrival) -> EpochState:
        header = arrival.header
        epoch = self._registry.epoch_of(agent, header.nonce, header.epoch)
        if epoch.reflashed:
            self.counters.reflashed += 1
            _LOG.warning("agent counts its starts anew agent=%s counter=%d shown=%d", agent, header.epoch, epoch.shown)
        return EpochState(agent, epoch.shown, header.nonce)

    def _adopt(self, known: _Agent, state: EpochState) -> None:
        """The epoch has something in the log: the newest one, unless two devices have one name."""
        epochs = known.epochs.known
        if state.nonce not in epochs:
            epochs[state.nonce] = state
            known.current, known.duplicate = state.nonce, False
            for old in list(epochs)[:-MOST_EPOCHS]:
                self._registry.close_epoch(state.agent, old, epochs[old].next_seq)
                del epochs[old]
        elif state.nonce != known.current:
            if not known.duplicate:
                self.counters.duplicate_agents += 1
                _LOG.error("two devices use one name agent=%s", state.agent)
            known.duplicate = True
            known.current = state.nonce

    # Rows

    def _rows(self, state: EpochState, batch: Batch, seq: int, named: dict[StreamKey, int]) -> list[Row]:
        rows: list[Row] = []
        for kind, section, raw in batch.sections:
            if isinstance(section, (TupleColumns, ProgressColumns)):
                numbers, registered = self._numbers(state, section.streams, seq, named)
                rows += registered
                self._add_columns(rows, kind, section, raw, numbers, state, seq)
            elif kind is Kind.GAP:
                rows += self._gap_rows(state, section, seq)
            else:
                rows.append(Row(kind, state.agent, state.nonce, seq, raw))
        return rows

    def _add_columns(
        self,
        rows: list[Row],
        kind: Kind,
        section: TupleColumns | ProgressColumns,
        raw: bytes,
        numbers: Numbers,
        state: EpochState,
        seq: int,
    ) -> None:
        if isinstance(section, ProgressColumns):
            rows.append(Row(kind, state.agent, state.nonce, seq, pack_progress(section, numbers)))
            return
        if isinstance(section, DeliveryColumns):
            rows.append(Row(kind, state.agent, state.nonce, seq, pack_deliveries(section, numbers)))
            self.counters.origins += len(section.origin_seq)
        elif isinstance(section, SourceColumns):
            rows.append(Row(kind, state.agent, state.nonce, seq, pack_sources(section, numbers)))
        rows.append(Row(Kind.PAYLOAD, state.agent, state.nonce, seq, pack_payloads(kind, numbers, raw)))
        self.counters.records += len(section.seq)

    def _numbers(
        self, state: EpochState, streams: list[StreamId], seq: int, named: dict[StreamKey, int]
    ) -> tuple[Numbers, list[Row]]:
        """The numbers of streams; those that this epoch names for the first time are told in the log."""
        keys = [(stream.agent, stream.nonce, stream.name) for stream in streams]
        new = [
            stream for key, stream in zip(keys, streams, strict=True) if key not in state.streams and key not in named
        ]
        rows: list[Row] = []
        if new:
            epochs = [state.epoch if stream.nonce == state.nonce else stream.epoch for stream in new]
            names = [StreamName(at.agent, at.nonce, epoch, at.name) for at, epoch in zip(new, epochs, strict=True)]
            for name, given in self._registry.numbers_of(names).items():
                named[name.agent, name.nonce, name.name] = given.number
                data = _PACKER.encode([given.number, name.agent, name.epoch, name.name, name.nonce])
                rows.append(Row(Kind.REGISTER, state.agent, state.nonce, seq, data))
        known = state.streams
        return np.array([known[key] if key in known else named[key] for key in keys], "<i8"), rows

    def _gap_rows(self, state: EpochState, gaps: Sequence[object], seq: int) -> list[Row]:
        rows: list[Row] = []
        for gap in gaps:
            assert isinstance(gap, Gap)
            known = self._agents[state.agent].epochs.known
            of = state if gap.nonce == state.nonce else known.get(gap.nonce)
            left = gap if of is None else of.trimmed(gap)
            if left is not None:
                rows.append(self._gap_row(state.agent, state.nonce, seq, left))
        return rows

    def _gap_row(self, agent: str, nonce: int, seq: int, gap: Gap) -> Row:
        self.counters.gaps += 1
        data = encode_section(Kind.GAP, [pending(gap, _PACKER)], agent, nonce, 0)
        return Row(Kind.GAP, agent, nonce, seq, bytes(data))

    def _note(self, state: EpochState, batch: Batch) -> None:
        """What the batch says of how far its streams have come."""
        for kind, section, _ in batch.sections:
            if isinstance(section, TupleColumns):
                last_of = dict(zip(section.stream, section.seq, strict=True))
                for place, seq in last_of.items():
                    stream = section.streams[place]
                    if stream.nonce == state.nonce:
                        state.next_seqs[stream.name] = seq + 1
            elif isinstance(section, list):
                self.counters.records += len(section)
                last = section[-1]
                if kind is Kind.EVENT:
                    state.next_event = last.number + 1
                elif isinstance(last, End):
                    state.ended = True
                elif isinstance(last, Gap):
                    _note_gap(state, section)

    # Commits and answers

    def commit(self) -> list[tuple[str, Logged]]:
        """Make everything durable and readable; returns what to tell the agents."""
        self._writer.commit()
        answers: list[tuple[str, Logged]] = []
        for agent, nonce in self._unanswered:
            known = self._agents[agent]
            answers.append((agent, known.epochs.answer(nonce, CODECS, known.duplicate)))
        self._unanswered.clear()
        return answers

    @property
    def idle(self) -> bool:
        """Nothing waits for a commit or an answer."""
        return not self._unanswered and not self._writer.held_rows

    def greetings(self) -> list[tuple[str, Logged]]:
        """For every agent, how far it had come: those that wait for an answer need not wait any longer."""
        return [
            (agent, known.epochs.answer(known.current, CODECS, False))
            for agent, known in self._agents.items()
            if known.current in known.epochs.known
        ]

    def retire(self) -> None:
        """Give up agents that were silent for very long: nobody need wait for them. If they return, they return."""
        now = self._clock()
        for agent, known in self._agents.items():
            state = known.epochs.known.get(known.current)
            if state is None or state.ended or state.retired or now - known.heard_at < self._retire_after_s:
                continue
            self._writer.append([Row(Kind.RETIRE, agent, state.nonce, state.next_seq, b"")])
            state.retired = True
            self.counters.retired += 1
            _LOG.warning("retired an agent that is silent agent=%s epoch=%d", agent, state.epoch)

    @property
    def duplicates(self) -> int:
        return sum(known.epochs.duplicates for known in self._agents.values())

    @property
    def early_dropped(self) -> int:
        return sum(known.epochs.early_dropped for known in self._agents.values())

    @property
    def agents(self) -> int:
        return len(self._agents)

    # The log as memory

    def _snapshot(self) -> list[Row]:
        rows: list[Row] = []
        for agent, known in self._agents.items():
            for state in known.epochs.known.values():
                told = asdict(state)
                told["streams"] = [[number, *key] for key, number in state.streams.items()]
                rows.append(Row(Kind.SNAPSHOT, agent, state.nonce, state.next_seq, _PACKER.encode(told)))
        return rows

    def _replay(self, row: Row) -> None:
        known = self._agents.setdefault(row.agent, _Agent(AgentEpochs(row.agent), heard_at=self._clock()))
        epochs = known.epochs.known
        if row.kind == Kind.SNAPSHOT:
            told = decode(row.data)
            told["streams"] = {(agent, nonce, name): number for number, agent, nonce, name in told["streams"]}
            epochs[row.nonce] = EpochState(**told)
            known.current = row.nonce
            return
        state = epochs.get(row.nonce)
        if state is None:
            epoch = self._registry.epoch_of(row.agent, row.nonce, 0)
            state = epochs[row.nonce] = EpochState(row.agent, epoch.shown, row.nonce)
        known.current = row.nonce
        if row.kind == Kind.RETIRE:
            state.retired = True
            return
        state.next_seq = max(state.next_seq, row.seq + 1)
        own = StreamId(row.agent, state.epoch, "", row.nonce)
        if row.kind == Kind.REGISTER:
            number, agent, _, name, nonce = decode(row.data)
            state.streams[agent, nonce, name] = number
        elif row.kind == Kind.GAP:
            gaps = decode_section(Kind.GAP, row.data, own)
            assert isinstance(gaps, list)
            _note_gap(state, gaps)
        elif row.kind == Kind.END:
            state.ended = True
        elif row.kind == Kind.EVENT:
            events = decode_section(Kind.EVENT, row.data, own)
            assert isinstance(events, list)
            state.next_event = events[-1].number + 1
        elif row.kind in (Kind.SOURCE, Kind.DELIVERY):
            self._replay_tuples(state, row)

    def _replay_tuples(self, state: EpochState, row: Row) -> None:
        names = {number: key[2] for key, number in state.streams.items() if key[1] == state.nonce}
        ids = unpack(row.data)[0]
        for number in np.unique(ids >> SEQ_BITS).tolist():
            if number in names:
                last = int(ids[ids >> SEQ_BITS == number].max()) & (1 << SEQ_BITS) - 1
                state.next_seqs[names[number]] = last + 1


def _note_gap(state: EpochState, gaps: Sequence[object]) -> None:
    """What is missing has been named: it is not missed any more."""
    for gap in gaps:
        assert isinstance(gap, Gap)
        if gap.nonce != state.nonce:
            continue
        if gap.batches is not None:
            state.next_seq = max(state.next_seq, gap.batches[1] + 1)
        if gap.events is not None:
            state.next_event = max(state.next_event, gap.events[1] + 1)
        for lost in gap.tuples:
            state.next_seqs[lost.name] = max(state.next_seqs.get(lost.name, 0), lost.last + 1)

"""A batch as rows of the log.

What an agent says is checked here as far as others rely on it: that it speaks for itself only, within bounds, and in
numbers that one can count on with. Streams get the numbers by which rows name them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from collector.epochs import MOST_OWN_STREAMS, EpochState, nodes_of, sends_in
from collector.log import Row
from collector.registry import Registry, StreamName
from protocol.chunks import Numbers, pack_deliveries, pack_payloads, pack_progress, pack_sources
from protocol.ids import StreamId
from protocol.records import Gap
from protocol.structs import replaced
from protocol.wire.batch import Batch, Header
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.sections import (
    DeliveryColumns,
    Kind,
    ProgressColumns,
    SourceColumns,
    TupleColumns,
    encode_section,
    pending,
)

_LOG = logging.getLogger(__name__)
MOST_STREAMS = 4_096  # that one batch may name: each number that is given is given for ever
MOST_NAME_BYTES = 500
MOST_SEQ = 2**62
PACKER = Packer(strict=True, most_bytes=1 << 24)
GIVEN_UP = "given up by the agent, which does not say more"
NO_NEWS = "nothing in this batch is news"


@dataclass(slots=True)
class BatchRows:
    """The rows of one batch on their way into the log."""

    state: EpochState
    seq: int
    registry: Registry
    recall: Callable[[int], EpochState | None]
    """What is known of another epoch of the agent."""
    rows: list[Row] = field(default_factory=list)
    numbers: dict[StreamId, int] = field(default_factory=dict)
    """Of streams that the epoch names for the first time."""
    given_up_before: int = 0
    """The batch after the last one that it says was given up."""
    records: int = 0
    origins: int = 0
    unreadable_plans: int = 0

    @property
    def sends(self) -> frozenset[str]:
        """The names of the Send streams: the plan comes before what it is about, often in the same batch."""
        told = next((row.data for row in self.rows if row.kind == Kind.PLAN), None)
        return self.state.sends if told is None else sends_in(told)

    def add(self, kind: Kind, data: bytes) -> None:
        """A row of its own."""
        self.rows.append(Row(kind, self.state.agent, self.state.nonce, self.seq, data))

    def add_gap(self, gap: Gap) -> None:
        """What is missing."""
        state = self.state
        if gap.nonce == state.nonce and gap.batches is not None:
            self.given_up_before = gap.batches[1] + 1
        self.add(Kind.GAP, encoded_gap(gap, state.agent, state.nonce))

    def add_batch(self, batch: Batch) -> None:
        """All that it says. MalformedBatch if nobody could rely on it: then some of its rows may have been added."""
        before = len(self.rows)
        for kind, section, raw in batch.sections:
            if isinstance(section, (TupleColumns, ProgressColumns)):
                _check_streams(self.state, section)
                self._add_columns(kind, section, raw)
            elif kind is Kind.GAP:
                self._add_gaps(batch.header, cast("list[Gap]", section))
            elif kind is not Kind.PLAN or not self.state.plan:  # what stands for lost batches repeats the plan
                self.add(kind, raw)
                self.records += len(section)
                if kind is Kind.PLAN and nodes_of(raw) is None:
                    self.unreadable_plans += 1
                    _LOG.warning("a plan cannot be read, so its Sends are not known agent=%s", self.state.agent)
        header = batch.header
        if header.covers > 1 and self.given_up_before < header.next_seq:
            self.add_gap(Gap(GIVEN_UP, header.epoch, header.nonce, (self.seq, header.next_seq - 1)))
        if len(self.rows) == before:  # without a row, the log would seem to have a hole
            self.add_gap(Gap(NO_NEWS, header.epoch, header.nonce))

    def _add_columns(self, kind: Kind, section: TupleColumns | ProgressColumns, raw: bytes) -> None:
        numbers = self._numbers(section.streams)
        if isinstance(section, ProgressColumns):
            self.add(kind, pack_progress(section, numbers))
            self.records += len(section.stream)
            return
        if isinstance(section, DeliveryColumns):
            self.add(kind, pack_deliveries(section, numbers, self.sends))
            self.origins += len(section.origin_seq)
        elif isinstance(section, SourceColumns):
            self.add(kind, pack_sources(section, numbers))
        self.add(Kind.PAYLOAD, pack_payloads(kind, numbers, raw))
        self.records += len(section.seq)

    def _numbers(self, streams: list[StreamId]) -> Numbers:
        """The numbers of streams; those that this epoch names for the first time are told in the log."""
        state = self.state
        new = [each for each in dict.fromkeys(streams) if each not in self.numbers and state.number_of(each) is None]
        own = sum(_is_own(state, each) for each in (*self.numbers, *new))
        if len(new) + len(self.numbers) > MOST_STREAMS or len(state.own_streams) + own > MOST_OWN_STREAMS:
            raise MalformedBatch(f"too many streams: {len(new)} new ones")
        _check_names([part for stream in new for part in (stream.agent, stream.name)])
        if new:
            epochs = [state.epoch if _is_own(state, stream) else stream.epoch for stream in new]
            names = [StreamName(at.agent, at.nonce, epoch, at.name) for at, epoch in zip(new, epochs, strict=True)]
            found = self.registry.numbers_of(names)
            for stream, name in zip(new, names, strict=True):
                number = self.numbers[stream] = found[name].number
                told = [number, name.agent, name.epoch, name.name, name.nonce]
                # Others know a start by its agent's own count, which is another one if the device was reflashed.
                own_count = [stream.epoch] if stream.epoch != name.epoch else []
                self.add(Kind.REGISTER, PACKER.encode(told + own_count))
        known = [state.number_of(stream) or self.numbers[stream] for stream in streams]
        return np.array(known, "<i8")

    def _add_gaps(self, header: Header, gaps: Iterable[Gap]) -> None:
        gaps = list(gaps)
        lowest: dict[int, int] = {}
        for gap in gaps:
            _check_gap(gap, header)
            if gap.batches is not None:
                lowest[gap.nonce] = min(gap.batches[0], lowest.get(gap.nonce, gap.batches[0]))
        for gap in gaps:
            of = self.state if gap.nonce == header.nonce else self.recall(gap.nonce)
            if gap.batches is not None and gap.nonce != header.nonce and gap.batches[0] == lowest[gap.nonce]:
                # Nothing of an earlier start can still come: what is missing before this is lost, too, and the batch
                # that would have told so is among those that were given up.
                first = min(gap.batches[0], 0 if of is None else of.next_seq)
                gap = replaced(gap, batches=(first, gap.batches[1]))
            left = gap if of is None else of.trimmed(gap)
            if left is not None:
                self.add_gap(left)
                self.records += 1


def encoded_gap(gap: Gap, agent: str, nonce: int) -> bytes:
    """As the log has it."""
    return bytes(encode_section(Kind.GAP, [pending(gap, PACKER)], agent, nonce, 0))


def _is_own(state: EpochState, stream: StreamId) -> bool:
    return stream.nonce == state.nonce and stream.agent == state.agent


def _check_streams(state: EpochState, section: TupleColumns | ProgressColumns) -> None:
    """An agent may refer to tuples of others, but speaks only for its own streams."""
    for place in set(section.stream):
        if not _is_own(state, section.streams[place]):
            raise MalformedBatch(f"speaks for {section.streams[place]}, which is not its own")


def _check_names(names: Iterable[str]) -> None:
    """They are kept in memory and repeated in every snapshot."""
    for name in names:
        if len(name.encode()) > MOST_NAME_BYTES:
            raise MalformedBatch(f"a name of {len(name.encode())} bytes")


def _check_gap(gap: Gap, header: Header) -> None:
    """Numbers that one can count on with."""
    _check_names([lost.name for lost in gap.tuples])
    spans = [span for span in (gap.batches, gap.events) if span is not None]
    spans += [(lost.first, lost.last) for lost in gap.tuples]
    last = [span[-1] for span in spans] + [seq for _, seq in gap.next_seqs]
    if gap.next_event is not None:
        last.append(gap.next_event)
    if any(len(span) != 2 or not 0 <= span[0] <= span[1] for span in spans) or max(last, default=0) > MOST_SEQ:
        raise MalformedBatch("a gap of impossible numbers")
    if gap.nonce == header.nonce and gap.batches is not None and gap.batches[1] >= header.next_seq:
        raise MalformedBatch("a gap that names batches which are yet to come")
    if not 0 <= gap.nonce < 2**64 or not 0 <= gap.epoch < 2**62:
        raise MalformedBatch("a gap of an impossible epoch")

"""Rows of the log as a translator makes them of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protocol.chunks import pack_payloads, pack_progress
from protocol.ids import StreamId
from protocol.records import Progress
from protocol.row import Row
from protocol.wire.sections import Kind, ProgressColumns, TupleColumns, decode_section, encode_section, pending
from tests.collector.agents import PACKER, FakeAgent

AGENT = FakeAgent("pump-7", nonce=2**64 - 1, epoch=3)
OWN = StreamId(AGENT.name, AGENT.epoch, "", AGENT.nonce)


def row(kind: Kind, data: bytes, seq: int = 0, of: FakeAgent = AGENT) -> Row:
    return Row(kind, of.name, of.nonce, seq, data)


def record_row(*records: Any, seq: int = 0, of: FakeAgent = AGENT, first_event: int = 0) -> Row:
    """Records of one kind; events as the capture API makes them."""
    made = [each if isinstance(each, tuple) else pending(each, PACKER) for each in records]
    kind = made[0][0]
    return row(kind, bytes(encode_section(kind, made, of.name, of.nonce, first_event)), seq, of)


def payload_row(numbers: dict[StreamId, int], records: Sequence[Any], seq: int = 0, of: FakeAgent = AGENT) -> Row:
    """Tuples of streams that have these numbers."""
    section = record_row(*records, seq=seq, of=of)
    columns = decode_section(Kind(section.kind), section.data, StreamId(of.name, of.epoch, "", of.nonce))
    assert isinstance(columns, TupleColumns)
    found = np.array([numbers[each] for each in columns.streams], "<i8")
    return row(Kind.PAYLOAD, pack_payloads(Kind(section.kind), found, section.data), seq, of)


def progress_row(number: int, watermark: int, hold: int, seq: int = 0, of: FakeAgent = AGENT) -> Row:
    section = record_row(Progress(of.stream("out"), watermark, hold), of=of)
    columns = decode_section(Kind.PROGRESS, section.data, OWN)
    assert isinstance(columns, ProgressColumns)
    return row(Kind.PROGRESS, pack_progress(columns, np.array([number], "<i8")), seq, of)


def register_row(
    number: int, name: str, seq: int = 0, stream_of: FakeAgent = AGENT, of: FakeAgent = AGENT, epoch: int | None = None
) -> Row:
    told = [number, stream_of.name, stream_of.epoch if epoch is None else epoch, name, stream_of.nonce]
    return row(Kind.REGISTER, PACKER.encode(told), seq, of)

"""Records as the cloud computes with them: packed columns of 64-bit numbers, ids included.

A tuple's id in the cloud is one number: that of its stream, then its own. Only the server side imports this module: it
needs NumPy.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from protocol.ids import StreamId
from protocol.wire.columns import Reader, put_varint
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import (
    MOST_NAMES,
    MOST_RECORDS,
    DeliveryColumns,
    Kind,
    ProgressColumns,
    TupleColumns,
    decode_section,
)

SEQ_BITS = 36
_TYPES = ("<i8", "<i4", "|u1")
OTHER_PARTS = 0xFF
"""Of a part of a delivery: these bits say how many others there are."""

_ONE_PROMISE = struct.Struct("<7q")
_ONE_HEAD = [3, 1 << 8, 1 << 8, 1 << 8]

Numbers = NDArray[np.int64]


def cloud_ids(numbers: Numbers, places: Any, seqs: Any) -> Numbers:
    """Ids of tuples, of the streams at these places."""
    return np.left_shift(numbers[_array(places)], SEQ_BITS) | _array(seqs)


def _array(column: Any) -> Numbers:
    """A column as NumPy has it, copied only if it is of another width."""
    found = np.asarray(column)
    return cast(Numbers, found if found.dtype == np.int64 else found.astype(np.int64))


def pack(columns: Sequence[NDArray[Any]]) -> bytes:
    """Columns, each at a multiple of eight bytes."""
    head = np.zeros(1 + len(columns), "<i8")
    parts = [b""]
    for place, column in enumerate(columns):
        code = _TYPES.index(column.dtype.str)
        data = column.tobytes()
        head[1 + place] = len(column) << 8 | code
        parts += [data, bytes(-len(data) % 8)]
    head[0] = len(columns)
    parts[0] = head.tobytes()
    return b"".join(parts)


def unpack(data: bytes) -> list[NDArray[Any]]:
    """The columns again, without a copy."""
    (count,) = np.frombuffer(data, "<i8", 1)
    at = 8 * (1 + int(count))
    columns: list[NDArray[Any]] = []
    for entry in np.frombuffer(data, "<i8", int(count), 8).tolist():
        column = np.frombuffer(data, _TYPES[entry & 0xFF], entry >> 8, at)
        columns.append(column)
        at += column.nbytes + -column.nbytes % 8
    return columns


@dataclass(frozen=True, slots=True)
class SourceChunk:
    """Source tuples that contributed to something: told once each."""

    id: Numbers
    ts: Numbers


@dataclass(frozen=True, slots=True)
class DeliveryChunk:
    """Deliveries; the origins of all of them follow one another. `remote` is 1 for an origin behind another agent's
    Send, `sent` for a delivery of a Send. `part` is 0 for one that is told at once (see `DeliveryColumns`)."""

    id: Numbers
    ts: Numbers
    count: NDArray[np.int32]
    part: NDArray[np.int32]
    sent: NDArray[np.uint8]
    origin_id: Numbers
    origin_ts: Numbers
    remote: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ProgressChunk:
    """Promises of streams, by their numbers."""

    stream: Numbers
    watermark: Numbers
    hold: Numbers


def is_last_part(part: NDArray[Any]) -> NDArray[np.bool_]:
    """Which parts of deliveries are the last ones."""
    found: NDArray[np.bool_] = part >> 8 == part & OTHER_PARTS
    return found


def pack_sources(section: TupleColumns, numbers: Numbers) -> bytes:
    """Ids and times of source tuples."""
    return pack([cloud_ids(numbers, section.stream, section.seq), _array(section.ts)])


def pack_deliveries(section: DeliveryColumns, numbers: Numbers, sends: Collection[str] = ()) -> bytes:
    """Deliveries and their origins; `sends` are the names of the Send streams."""
    of = _array(section.origin_stream)
    sent = np.array([stream.name in sends for stream in section.streams], "u1")
    return pack(
        [
            cloud_ids(numbers, section.stream, section.seq),
            _array(section.ts),
            np.asarray(section.counts).astype("<i4"),
            np.asarray(section.part).astype("<i4"),
            sent[_array(section.stream)],
            cloud_ids(numbers, of >> 1, section.origin_seq),
            _array(section.origin_ts),
            (of & 1).astype("u1"),
        ]
    )


def pack_progress(section: ProgressColumns, numbers: Numbers) -> bytes:
    """Promises."""
    return pack([numbers[_array(section.stream)], _array(section.watermark), _array(section.hold)])


def read_sources(data: bytes) -> SourceChunk:
    """What `pack_sources` made."""
    return SourceChunk(*unpack(data))


def read_deliveries(data: bytes) -> DeliveryChunk:
    """What `pack_deliveries` made."""
    return DeliveryChunk(*unpack(data))


def read_progress(data: bytes) -> ProgressChunk:
    """What `pack_progress` made."""
    return ProgressChunk(*unpack(data))


def promises_in(data: bytes) -> Iterable[tuple[int, int, int]]:
    """The same, promise by promise: stream, watermark and hold. As a rule there is one, and to make columns of it takes
    twenty times as long."""
    if len(data) == _ONE_PROMISE.size:
        *head, stream, watermark, hold = _ONE_PROMISE.unpack(data)
        if head == _ONE_HEAD:
            return ((stream, watermark, hold),)
    numbers = struct.unpack(f"<{len(data) // 8}q", data)
    count = numbers[1] >> 8 if len(numbers) > 3 else 0
    if numbers[:4] != (3, count << 8, count << 8, count << 8):
        raise MalformedBatch("these are no columns of promises")
    return zip(*(numbers[at : at + count] for at in range(4, 4 + 3 * count, count)), strict=True) if count else ()


def pack_payloads(kind: Kind, numbers: Numbers, section: bytes) -> bytes:
    """What tuples said: the agent's own section, and the numbers of the streams that it names."""
    out = bytearray((kind,))
    put_varint(out, len(numbers))
    return bytes(out) + numbers.astype("<i8").tobytes() + section


def payload_section(data: bytes) -> tuple[Kind, bytes]:
    """The agent's own section again, and what it is of."""
    reader = Reader(data, 1)
    reader.take(8 * reader.varint(MOST_NAMES))
    return Kind(data[0]), reader.take(reader.left)


def payload_ids(data: bytes) -> Numbers:
    """Ids of the tuples of which `pack_payloads` was given the values."""
    return read_tuples(data)[0]


def read_tuples(data: bytes) -> tuple[Numbers, TupleColumns]:
    """Ids of the tuples of which `pack_payloads` was given the values, and all that was said of them."""
    reader = Reader(data, 1)
    numbers = np.frombuffer(reader.take(8 * reader.varint(MOST_NAMES)), "<i8")
    kind, raw = payload_section(data)
    section = decode_section(kind, raw, StreamId("", 0, ""))
    if not isinstance(section, TupleColumns):
        raise MalformedBatch(f"section {kind} has no payloads")
    return cloud_ids(numbers, section.stream, section.seq), section


def last_event(section: bytes) -> int:
    """The number of the last event of a section, without reading it: they count on from the first."""
    reader = Reader(section)
    count = reader.varint(MOST_RECORDS)
    return reader.varint() + count - 1

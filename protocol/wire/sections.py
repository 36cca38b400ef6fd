"""Records in columns. A section holds records of one kind and all names that they need, so it can be read, kept and
passed on by itself.

The agent hands records over as tuples that begin with their kind, their values already packed: see `pending`. A section
is read back as columns, which is what the cloud computes with, or as records (`records`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from typing import Any

from protocol.events import STATUSES, DataItem, Dependency, Event, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded
from protocol.ids import StreamId
from protocol.records import (
    Assertion,
    Declared,
    Delivery,
    End,
    Gap,
    Late,
    Origin,
    OriginKind,
    Progress,
    Received,
    Sketch,
    Skipped,
    SourcePayload,
    Status,
)
from protocol.structs import Struct
from protocol.wire.columns import Allowance, Reader, put_blobs, put_ints, put_small, put_texts, put_varint
from protocol.wire.documents import encode_document, read_document
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.values import Captured, Payloads, Shape, put_payloads

MOST_SECTIONS = 1024
MOST_RECORDS = 1 << 16
MOST_ORIGINS = 1 << 18
MOST_DELIVERY_PARTS = 256
MOST_NAMES = 1 << 16
_ROW_BYTES, _ORIGIN_BYTES = 64, 4
_ROW_NUMBERS = 16


class Kind(IntEnum):
    """The kinds of records. Those from 32 on are written by the cloud itself."""

    PLAN = 1
    SOURCE = 2
    DELIVERY = 3
    PROGRESS = 4
    GAP = 5
    END = 6
    STATUS = 7
    EVENT = 8
    LATE = 9
    SKIPPED = 10
    ASSERTION = 11
    SKETCH = 12
    RECEIVED = 13
    SNAPSHOT = 32
    REGISTER = 33
    RETIRE = 34
    PAYLOAD = 35
    EPOCH = 36
    """By which number people know a start of an agent: told with its first batch."""


class EventKind(IntEnum):
    """The kinds of captured events."""

    WORKFLOW_BEGUN = 0
    WORKFLOW_ENDED = 1
    TASK_BEGUN = 2
    TASK_ENDED = 3


Pending = tuple[Any, ...]
_DOCUMENTS: dict[Kind, type] = {
    Kind.PLAN: Declared,
    Kind.GAP: Gap,
    Kind.END: End,
    Kind.STATUS: Status,
    Kind.LATE: Late,
    Kind.SKIPPED: Skipped,
    Kind.SKETCH: Sketch,
    Kind.RECEIVED: Received,
}
_KINDS = {kind: code for code, kind in _DOCUMENTS.items()}


def in_parts(delivery: Pending, most_origins: int) -> list[Pending]:
    """A delivery with very many origins as several of the same id. Each says how many others there are, so that it is
    noticed if one is missing. It is the only part if it has no more than that."""
    origins = delivery[6]
    size = max(most_origins, -(-len(origins) // MOST_DELIVERY_PARTS))
    starts = range(0, len(origins), size) or range(1)
    return [(*delivery[:6], origins[at : at + size], index << 8 | len(starts) - 1) for index, at in enumerate(starts)]


def pending(record: Any, packer: Packer) -> Pending:
    """A record on its way into a batch: its values are bytes from now on."""
    return pending_sized(record, packer)[0]


def pending_sized(record: Any, packer: Packer) -> tuple[Pending, int]:
    """The same, and about how many bytes that takes up before compression."""
    if isinstance(record, SourcePayload):
        shape, data, size = packer.pack_sized(record.payload)
        return (Kind.SOURCE, record.stream, record.seq, record.ts, shape, data), _ROW_BYTES + size
    if isinstance(record, Delivery):
        shape, data, size = packer.pack_sized(record.payload)
        row = (Kind.DELIVERY, record.stream, record.seq, record.ts, shape, data, record.origins, 0)
        return row, _ROW_BYTES + size + _ORIGIN_BYTES * len(record.origins)
    if isinstance(record, Progress):
        return (Kind.PROGRESS, record.stream, record.watermark, record.hold), _ROW_BYTES
    if isinstance(record, Assertion):
        shape, data, size = packer.pack_sized(record.payload)
        return (
            (Kind.ASSERTION, record.stream, record.seq, record.ts, shape, data, record.delay_ms),
            _ROW_BYTES + size,
        )
    document = encode_document(record, packer)
    return (_KINDS[type(record)], document), _ROW_BYTES + len(document)


def numbers_in(row: Pending) -> int:
    """No fewer than a record takes of the numbers that may be read of one batch: of which most may take up no bytes."""
    kind = row[0]
    if kind is Kind.EVENT:
        if row[1] < EventKind.TASK_BEGUN:
            return _ROW_NUMBERS + (_cells(row[5], row[6]) if row[1] == EventKind.WORKFLOW_BEGUN else 0)
        linked = 3 * len(row[7]) if row[1] == EventKind.TASK_BEGUN else 0
        items = [_ROW_NUMBERS + 2 * len(sources) + _cells(shape, value) for _, _, sources, shape, value in row[-1]]
        return _ROW_NUMBERS + linked + sum(items)
    if kind in _DOCUMENTS or kind is Kind.PROGRESS:
        return _ROW_NUMBERS
    return _ROW_NUMBERS + _cells(row[4], row[5]) + (5 * len(row[6]) if kind is Kind.DELIVERY else 0)


def _cells(shape: Shape | None, captured: Captured) -> int:
    names = 0 if shape is None else len(shape.names)
    if not isinstance(captured, tuple):
        return names + 1
    return names + sum([2 + len(part) if isinstance(part, tuple) else 2 for part in captured])


class Names:
    """The tables of one section being written: streams and shapes, each told once."""

    def __init__(self, agent: str, nonce: int) -> None:
        self._agent = agent
        self._nonce = nonce
        self._streams: dict[StreamId, int] = {}
        self._shapes: dict[Shape | None, int] = {None: 0}
        # Records of a stream share one StreamId, and hashing it anew each time takes longer than all the rest.
        self._places: dict[int, tuple[int, StreamId]] = {}

    def stream(self, stream: StreamId) -> int:
        """The place of a stream in the table."""
        known = self._places.get(id(stream))
        if known is None:
            known = self._places[id(stream)] = self._streams.setdefault(stream, len(self._streams)), stream
        return known[0]

    def shape(self, shape: Shape | None) -> int:
        """The place of a shape in the table."""
        return self._shapes.setdefault(shape, len(self._shapes))

    def put_streams(self, out: bytearray) -> None:
        """An agent of no name is the one that wrote the batch."""
        put_varint(out, len(self._streams))
        own = [stream.agent == self._agent and stream.nonce == self._nonce for stream in self._streams]
        put_texts(out, [stream.name for stream in self._streams])
        put_texts(out, ["" if mine else stream.agent for mine, stream in zip(own, self._streams, strict=True)])
        for mine, stream in zip(own, self._streams, strict=True):
            if not mine:
                out += stream.nonce.to_bytes(8, "little")
                put_varint(out, stream.epoch)

    def put_shapes(self, out: bytearray) -> None:
        put_shapes(out, [shape for shape in self._shapes if shape is not None])


def put_shapes(out: bytearray, shapes: Sequence[Shape]) -> None:
    """A table of shapes; place 0 is that of a value without any."""
    out += _shape_table(tuple(shapes))


@lru_cache(64)  # an agent has few, and tells them with every batch
def _shape_table(shapes: tuple[Shape, ...]) -> bytes:
    out = bytearray()
    put_varint(out, len(shapes))
    put_texts(out, [shape.type for shape in shapes])
    put_small(out, [len(shape.names) for shape in shapes])
    put_texts(out, [name for shape in shapes for name in shape.names])
    return bytes(out)


def read_shapes(reader: Reader) -> list[Shape | None]:
    """The table again."""
    count = reader.varint(MOST_NAMES)
    types = reader.texts(count)
    sizes = reader.small(count, MOST_NAMES)
    if sum(sizes) > MOST_NAMES or 0 in sizes:
        raise MalformedBatch(f"shapes of no names, or of more than {MOST_NAMES}")
    names = iter(reader.texts(sum(sizes)))
    shapes = [Shape(kind, tuple(next(names) for _ in range(size))) for kind, size in zip(types, sizes, strict=True)]
    return [None, *shapes]


def read_streams(reader: Reader, own: StreamId) -> list[StreamId]:
    """The table of streams; `own` stands for the agent and epoch that wrote the batch."""
    count = reader.varint(MOST_NAMES)
    names = reader.texts(count)
    agents = reader.texts(count)
    streams: list[StreamId] = []
    for name, agent in zip(names, agents, strict=True):
        if agent:
            nonce = int.from_bytes(reader.take(8), "little")
            streams.append(StreamId(agent, reader.varint(2**62), name, nonce))
        else:
            streams.append(StreamId(own.agent, own.epoch, name, own.nonce))
    return streams


# Writing


def encode_sections(records: Sequence[Pending], agent: str, nonce: int, first_event: int) -> bytes:
    """All records, one section per kind, each kind in the order in which its records came."""
    by_kind: dict[Kind, list[Pending]] = {}
    for row in records:
        try:
            by_kind[row[0]].append(row)
        except KeyError:
            by_kind[row[0]] = [row]
    out = bytearray()
    for kind in sorted(by_kind):
        body = encode_section(kind, by_kind[kind], agent, nonce, first_event)
        out.append(kind)
        put_varint(out, len(body))
        out += body
    return bytes(out)


def encode_section(kind: Kind, rows: list[Pending], agent: str, nonce: int, first_event: int) -> bytearray:
    """The body of one section."""
    out = bytearray()
    put_varint(out, len(rows))
    if kind is Kind.EVENT:
        _put_events(out, rows, first_event)
        return out
    if kind in _DOCUMENTS:
        put_blobs(out, [row[1] for row in rows])
        return out
    names = Names(agent, nonce)
    columns = bytearray()
    place = names.stream
    if kind is Kind.PROGRESS:
        put_small(columns, [place(row[1]) for row in rows])
        put_ints(columns, [row[2] for row in rows])
        put_ints(columns, [row[3] for row in rows])
        names.put_streams(out)
        return out + columns
    put_small(columns, [place(row[1]) for row in rows])
    put_ints(columns, [row[2] for row in rows])
    put_ints(columns, [row[3] for row in rows])
    put_payloads(columns, [names.shape(row[4]) for row in rows], [row[5] for row in rows])
    if kind is Kind.ASSERTION:
        put_ints(columns, [row[6] for row in rows])
    if kind is Kind.DELIVERY:
        put_small(columns, [row[7] for row in rows])
        put_small(columns, [len(row[6]) for row in rows])
        _put_origins(columns, list(chain.from_iterable([row[6] for row in rows])), names)
    names.put_streams(out)
    names.put_shapes(out)
    return out + columns


def _put_origins(out: bytearray, origins: list[Origin], names: Names) -> None:
    place, remote = names.stream, OriginKind.REMOTE
    put_small(out, [place(origin.stream) << 1 | (origin.kind is remote) for origin in origins])
    put_ints(out, [origin.seq for origin in origins])
    put_ints(out, [origin.ts for origin in origins])


def _put_events(out: bytearray, rows: list[Pending], first_event: int) -> None:
    """Rows as the capture API makes them; data as (id, workflow id, derivations, shape, captured). `_read_events` reads
    the columns in this order."""
    put_varint(out, first_event)
    put_small(out, [row[1] for row in rows])
    put_ints(out, [row[2] for row in rows])
    put_ints(out, [row[3] for row in rows])
    shapes: dict[Shape | None, int] = {None: 0}
    by_kind: dict[int, list[Pending]] = {kind: [] for kind in EventKind}
    for row in rows:
        by_kind[row[1]].append(row)
    columns = bytearray()
    begun = by_kind[EventKind.WORKFLOW_BEGUN]
    put_texts(columns, [row[4] for row in begun])
    put_payloads(columns, [shapes.setdefault(row[5], len(shapes)) for row in begun], [row[6] for row in begun])
    _put_endings(columns, by_kind[EventKind.WORKFLOW_ENDED])
    begun = by_kind[EventKind.TASK_BEGUN]
    put_ints(columns, [row[4] for row in begun])
    put_texts(columns, [row[5] for row in begun])
    put_texts(columns, [row[6] for row in begun])
    dependencies = [each for row in begun for each in row[7]]
    put_small(columns, [len(row[7]) for row in begun])
    put_texts(columns, [each[0] for each in dependencies])
    put_ints(columns, [each[1] for each in dependencies])
    ended = by_kind[EventKind.TASK_ENDED]
    _put_endings(columns, ended)
    items = [row[8] for row in begun] + [row[6] for row in ended]
    put_small(columns, [len(each) for each in items])
    data = list(chain.from_iterable(items))
    put_texts(columns, [each[0] for each in data])
    put_texts(columns, [each[1] for each in data])
    put_small(columns, [len(each[2]) for each in data])
    put_texts(columns, [source for each in data for source in each[2]])
    put_payloads(columns, [shapes.setdefault(each[3], len(shapes)) for each in data], [each[4] for each in data])
    put_shapes(out, [shape for shape in shapes if shape is not None])
    out += columns


def _put_endings(out: bytearray, rows: list[Pending]) -> None:
    put_small(out, [row[4] for row in rows])
    put_texts(out, [row[5] for row in rows])


# Reading


class TupleColumns(Struct):
    """Source payloads, assertions and the tuples of deliveries: row i of each column is tuple i."""

    streams: list[StreamId]
    stream: Sequence[int]
    seq: array[int]
    ts: array[int]
    payloads: Payloads


class SourceColumns(TupleColumns):
    """Source payloads."""


class AssertionColumns(TupleColumns):
    """SAF keys."""

    delay_ms: array[int]


class DeliveryColumns(TupleColumns):
    """Deliveries: `counts` says how many of the origins, which follow one another, belong to each. `part` is 0 if that
    is all of them, or else the number of the part (from 0 on) times 256, plus how many other parts there are."""

    part: Sequence[int]
    counts: Sequence[int]
    origin_stream: Sequence[int]  # place of the stream, times two, plus one if REMOTE
    origin_seq: array[int]
    origin_ts: array[int]


class ProgressColumns(Struct):
    """Promises about delivering streams."""

    streams: list[StreamId]
    stream: Sequence[int]
    watermark: array[int]
    hold: array[int]


Section = SourceColumns | AssertionColumns | DeliveryColumns | ProgressColumns | list[Event] | list[Any]


def read_sections(body: bytes) -> Iterator[tuple[Kind, bytes]]:
    """The sections of a body, unread."""
    reader = Reader(body)
    for _ in range(MOST_SECTIONS):
        if not reader.left:
            return
        code = reader.byte()
        if code not in _SECTIONS:
            raise MalformedBatch(f"there is no section {code}")
        yield Kind(code), reader.take(reader.varint(reader.left))
    if reader.left:
        raise MalformedBatch(f"more than {MOST_SECTIONS} sections")


def decode_section(kind: Kind, data: bytes, own: StreamId, allowance: Allowance | None = None) -> Section:
    """A section as columns, checked throughout; events and documents as records."""
    reader = Reader(data, 0, allowance)
    count = reader.varint(MOST_RECORDS)
    if count == 0:
        raise MalformedBatch("a section without records")
    section = _SECTIONS[kind](reader, count, kind, own)
    if reader.left:
        raise MalformedBatch(f"{reader.left} bytes follow section {kind}")
    return section


def _read_progress(reader: Reader, count: int, kind: Kind, own: StreamId) -> ProgressColumns:
    streams = read_streams(reader, own)
    return ProgressColumns(streams, reader.small(count, len(streams)), reader.ints(count), reader.ints(count))


def _read_tuples(reader: Reader, count: int, kind: Kind, own: StreamId) -> Section:
    streams = read_streams(reader, own)
    shapes = read_shapes(reader)
    stream = reader.small(count, len(streams))
    seq, ts = read_seqs(reader, count), reader.ints(count)
    payloads = Payloads(reader, count, shapes)
    if kind is Kind.SOURCE:
        return SourceColumns(streams, stream, seq, ts, payloads)
    if kind is Kind.ASSERTION:
        return AssertionColumns(streams, stream, seq, ts, payloads, reader.ints(count))
    part = reader.small(count, MOST_DELIVERY_PARTS << 8)
    counts = reader.small(count, MOST_ORIGINS + 1)
    total = sum(counts)
    if total > MOST_ORIGINS:
        raise MalformedBatch(f"more than {MOST_ORIGINS} origins")
    origin_stream = reader.small(total, 2 * len(streams))
    origin_seq, origin_ts = read_seqs(reader, total), reader.ints(total)
    return DeliveryColumns(streams, stream, seq, ts, payloads, part, counts, origin_stream, origin_seq, origin_ts)


def read_seqs(reader: Reader, count: int) -> array[int]:
    """A column of numbers of tuples."""
    seqs = reader.ints(count)
    if count and (min(seqs) < 0 or max(seqs) >= 1 << 36):
        raise MalformedBatch("a tuple's number is not between 0 and 2^36")
    return seqs


def _read_events(reader: Reader, count: int, kind: Kind, own: StreamId) -> list[Event]:
    first = reader.varint(2**62)
    kinds = list(reader.small(count, len(EventKind)))
    ts, keys = reader.ints(count), reader.ints(count)
    shapes = read_shapes(reader)
    counts = [kinds.count(kind) for kind in EventKind]
    begun = counts[EventKind.WORKFLOW_BEGUN]
    workflow_ids = iter(reader.texts(begun))
    workflow_attributes = iter(Payloads(reader, begun, shapes).values())
    workflow_endings = iter(_read_endings(reader, counts[EventKind.WORKFLOW_ENDED]))
    begun, ended = counts[EventKind.TASK_BEGUN], counts[EventKind.TASK_ENDED]
    workflows = iter(reader.ints(begun))
    task_ids = iter(reader.texts(begun))
    transformations = iter(reader.texts(begun))
    dependency_counts = reader.small(begun, MOST_RECORDS)
    total = _bounded(sum(dependency_counts))
    dependencies = map(Dependency, reader.texts(total), reader.ints(total))
    endings = iter(_read_endings(reader, ended))
    item_counts = reader.small(begun + ended, MOST_RECORDS)
    items = _read_items(reader, _bounded(sum(item_counts)), shapes)
    used = [tuple(next(items) for _ in range(size)) for size in item_counts[:begun]]
    generated = [tuple(next(items) for _ in range(size)) for size in item_counts[begun:]]
    depends = [tuple(next(dependencies) for _ in range(size)) for size in dependency_counts]
    of_begun, of_ended = iter(zip(depends, used, strict=True)), iter(generated)
    events: list[Event] = []
    for place, code in enumerate(kinds):
        head = (first + place, ts[place], keys[place])
        if code == EventKind.TASK_BEGUN:
            of_task = next(workflows), next(task_ids), next(transformations)
            events.append(TaskBegun(*head, *of_task, *next(of_begun)))
        elif code == EventKind.TASK_ENDED:
            status, error = next(endings)
            events.append(TaskEnded(*head, STATUSES[status], error, next(of_ended)))
        elif code == EventKind.WORKFLOW_BEGUN:
            events.append(WorkflowBegun(*head, next(workflow_ids), next(workflow_attributes)))
        else:
            status, error = next(workflow_endings)
            events.append(WorkflowEnded(*head, STATUSES[status], error))
    return events


def _read_endings(reader: Reader, count: int) -> list[tuple[int, str]]:
    return list(zip(reader.small(count, len(STATUSES)), reader.texts(count), strict=True))


def _read_items(reader: Reader, count: int, shapes: list[Shape | None]) -> Iterator[DataItem]:
    ids, workflow_ids = reader.texts(count), reader.texts(count)
    derivation_counts = reader.small(count, MOST_RECORDS)
    derivations = iter(reader.texts(_bounded(sum(derivation_counts))))
    attributes = Payloads(reader, count, shapes)
    return iter(
        [
            DataItem(
                ids[at],
                workflow_ids[at],
                tuple(next(derivations) for _ in range(derivation_counts[at])),
                attributes[at],
            )
            for at in range(count)
        ]
    )


def _bounded(count: int) -> int:
    if count > MOST_RECORDS:
        raise MalformedBatch(f"more than {MOST_RECORDS} parts")
    return count


def _read_documents(reader: Reader, count: int, kind: Kind, own: StreamId) -> list[Any]:
    return [read_document(_DOCUMENTS[kind], data) for data in reader.blobs(count)]


_SECTIONS: dict[int, Callable[[Reader, int, Kind, StreamId], Section]] = {
    Kind.SOURCE: _read_tuples,
    Kind.DELIVERY: _read_tuples,
    Kind.ASSERTION: _read_tuples,
    Kind.PROGRESS: _read_progress,
    Kind.EVENT: _read_events,
    **dict.fromkeys(_DOCUMENTS, _read_documents),
}


def records(section: Section) -> Iterator[Any]:
    """A section's records, one by one."""
    if isinstance(section, list):
        yield from section
    elif isinstance(section, ProgressColumns):
        for place, watermark, hold in zip(section.stream, section.watermark, section.hold, strict=True):
            yield Progress(section.streams[place], watermark, hold)
    elif isinstance(section, DeliveryColumns):
        yield from _deliveries(section)
    else:
        for place in range(len(section.seq)):
            of = section.streams[section.stream[place]], section.seq[place], section.ts[place]
            if isinstance(section, AssertionColumns):
                yield Assertion(*of, section.delay_ms[place], section.payloads[place])
            else:
                yield SourcePayload(*of, section.payloads[place])


def _deliveries(section: DeliveryColumns) -> Iterator[Delivery]:
    kinds = (OriginKind.SOURCE, OriginKind.REMOTE)
    at = 0
    for place in range(len(section.seq)):
        end = at + section.counts[place]
        origins = tuple(
            Origin(kinds[of & 1], section.streams[of >> 1], seq, ts)
            for of, seq, ts in zip(
                section.origin_stream[at:end], section.origin_seq[at:end], section.origin_ts[at:end], strict=True
            )
        )
        stream = section.streams[section.stream[place]]
        yield Delivery(stream, section.seq[place], section.ts[place], section.payloads[place], origins)
        at = end

"""Flat rows: one record per row, as Spark's own operators want it.

All kinds of records have the same numbers, (id, origin, ts, flags), and `ts` is the one that Spark's watermark goes by:
of a sink tuple its own, of everything else that of the origin.

    SINK       sink tuple, -, its ts
    EDGE       sink tuple, source tuple, the source's ts
    REFERENCE  sink tuple, sent tuple, the sent tuple's ts
    SENT       sent tuple, its origin, the origin's ts; flags are of `Sent`
    CONTROL    -, -, how far a stream has come: it moves the watermark and is nothing else

What only the store wants is a row with `data`.

Spark's watermark starts at 0 and is never below. So that tuples may be older than that, its clock is `SHIFT_MS` ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntFlag
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import BinaryType, ByteType, LongType, StructField, StructType

from protocol.chunks import Numbers, is_last_part, read_progress, unpack
from protocol.row import Row
from protocol.wire.sections import Kind as RowKind
from spark_jobs.chunks import Chunk, Kind
from spark_jobs.shelf import Columns
from spark_jobs.split import read_control, split

ENDING = -1
"""The shard of what no log says: see `spark_jobs.native_end`. Nothing of it goes to the store."""
SHIFT_MS = 2**52
"""Times from minus this to this (142,000 years) are exact; those beyond count as the nearest one within."""
_NO_TIME = 2**62  # a watermark of so much, or so little, is no time

# Nothing is ever null, and says so: or Spark would add filters, other ones in each place where rows are used.
SCHEMA = StructType(
    [
        StructField("kind", ByteType(), nullable=False),
        StructField("id", LongType(), nullable=False),
        StructField("origin", LongType(), nullable=False),
        StructField("ts", LongType(), nullable=False),
        StructField("flags", ByteType(), nullable=False),
        StructField("data", BinaryType(), nullable=False),
    ]
)
_TYPES = (pa.int8(), pa.int64(), pa.int64(), pa.int64(), pa.int8(), pa.binary())
_ARROW_SCHEMA = pa.schema(
    [pa.field(name, type_, nullable=False) for name, type_ in zip(SCHEMA.names, _TYPES, strict=True)]
)


class Sent(IntFlag):
    """What is special about an origin of a sent tuple."""

    REMOTE = 1
    """It was sent itself."""
    LAST = 2
    """All other origins were told before."""


def native_split(shard: int, rows: Iterable[Row], buckets: int) -> Iterator[Chunk]:
    """The chunk rows of all rows that one shard adds to a micro-batch. Spark brings together what belongs together, so
    one bucket is enough, however many there are."""
    for chunk in split(shard, rows, 1):
        if shard != ENDING or chunk.kind < Kind.ROWS:
            yield chunk


def flatten(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Flat rows from the chunk rows of `native_split`, for `mapInArrow`."""
    for batch in batches:
        kinds, datas = (batch.column(name).to_pylist() for name in ("kind", "data"))
        for kind, data in zip(kinds, datas, strict=True):
            if kind >= Kind.ROWS:
                yield _stored(kind, data)
            else:
                yield _flat(kind, *_numbers(Chunk(kind, 0, data)))


def _numbers(chunk: Chunk) -> tuple[Numbers, Numbers, Numbers, NDArray[np.uint8] | None]:
    if chunk.kind == Kind.CONTROL:
        reached = np.array(
            [each for control in read_control([chunk]) for row in control.rows for each in reached_ms(row)], "<i8"
        )
        nothing = np.zeros(len(reached), "<i8")
        return nothing, nothing, reached, None
    columns = unpack(chunk.data)
    if chunk.kind == Kind.SENT:
        return _sent(columns)
    if chunk.kind == Kind.SINK:
        return columns[0], np.zeros(len(columns[0]), "<i8"), columns[1], None
    return columns[0], columns[2], columns[3], None


def _sent(columns: Columns) -> tuple[Numbers, Numbers, Numbers, NDArray[np.uint8]]:
    ids, _, part, counts, origins, origin_times, remote = columns
    flags = remote * np.uint8(Sent.REMOTE)
    is_last = is_last_part(part) & (counts > 0)
    flags[np.cumsum(counts)[is_last] - 1] |= np.uint8(Sent.LAST)
    return np.repeat(ids, counts), origins, origin_times, flags


def reached_ms(row: Row) -> list[int]:
    """How far streams are that have promised something and have not ended: when one has, others may be far behind."""
    if row.kind != RowKind.PROGRESS:
        return []
    progress = read_progress(row.data)
    promised = np.minimum(progress.watermark, progress.hold)
    found: list[int] = promised[(progress.watermark < _NO_TIME) & (promised > -_NO_TIME)].tolist()
    return found


def _flat(kind: int, ids: Numbers, origins: Numbers, times: Numbers, flags: NDArray[np.uint8] | None) -> pa.RecordBatch:
    count = len(ids)
    no_data = pa.repeat(pa.scalar(b"", pa.binary()), count)
    marks = np.zeros(count, "i1") if flags is None else flags.view("i1")
    return _record_batch(np.full(count, kind, "i1"), ids, origins, shifted(times), marks, no_data)


def shifted(times: Numbers) -> Numbers:
    """Times as Spark is told."""
    found: Numbers = np.clip(times, -SHIFT_MS, SHIFT_MS - 1) + SHIFT_MS
    return found


def _stored(kind: int, data: bytes) -> pa.RecordBatch:
    nothing = np.zeros(1, "<i8")
    flags = np.zeros(1, "i1")
    return _record_batch(np.array([kind], "i1"), nothing, nothing, nothing, flags, pa.array([data], pa.binary()))


def _record_batch(*columns: Any) -> pa.RecordBatch:
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, _TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)

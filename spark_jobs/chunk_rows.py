"""Chunks as rows of Spark, which brings those of a bucket together by its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import BinaryType, ByteType, IntegerType, StructField, StructType

from spark_jobs.chunks import Chunk
from spark_jobs.placement import Placement

SCHEMA = StructType(
    [
        StructField("kind", ByteType()),
        StructField("key", IntegerType()),
        StructField("data", BinaryType()),
    ]
)
_ARROW_SCHEMA = pa.schema([("kind", pa.int8()), ("key", pa.int32()), ("data", pa.binary())])
_BATCH_BYTES = 16 << 20


def record_batches(chunks: Iterable[Chunk], placement: Placement) -> Iterator[pa.RecordBatch]:
    """Chunks for Spark, a bounded amount at a time."""
    waiting: list[Chunk] = []
    waiting_bytes = 0
    for chunk in chunks:
        waiting.append(chunk)
        waiting_bytes += len(chunk.data)
        if waiting_bytes >= _BATCH_BYTES:
            yield _record_batch(waiting, placement)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _record_batch(waiting, placement)


def _record_batch(chunks: list[Chunk], placement: Placement) -> pa.RecordBatch:
    columns = [
        [chunk.kind for chunk in chunks],
        [placement.keys[chunk.bucket] for chunk in chunks],
        [chunk.data for chunk in chunks],
    ]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, _ARROW_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def read_chunks(table: pa.Table, placement: Placement) -> list[Chunk]:
    """The chunks of a table, in an order that is the same whenever a micro-batch is run."""
    columns = (table.column(name).to_pylist() for name in _ARROW_SCHEMA.names)
    return sorted(Chunk(kind, placement.bucket(key), data) for kind, key, data in zip(*columns, strict=True))

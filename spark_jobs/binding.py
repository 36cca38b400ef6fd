"""Binds stages to Spark: each is called once per bucket and micro-batch, with the bucket's state and all its chunks.

Spark's interface for rows fits better than that for pandas: a chunk row is a few fat fields, and the workers need not
load pandas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from spark_jobs.chunk_rows import SCHEMA
from spark_jobs.chunks import Chunk, Kind
from spark_jobs.placement import Placement
from spark_jobs.state import State
from spark_jobs.workers import settle

_STATE_KEY = StructType([StructField("name", StringType()), StructField("number", LongType())])
_STATE_VALUE = StructType([StructField("value", BinaryType())])
_OutputRow = Row(*SCHEMA.names)


class Stage(Protocol):
    """A pure function of state and chunks; it can be pickled."""

    def run(self, state: State, bucket: int, chunks: Sequence[Chunk]) -> list[Chunk]: ...


def bind(rows: DataFrame, stage: Stage, placement: Placement) -> DataFrame:
    """The chunk rows that a stage makes of chunk rows."""
    return rows.groupBy("key").transformWithState(BoundStage(stage, placement), SCHEMA, "append", "none")


class BoundStage(StatefulProcessor):
    """A stage as Spark calls it."""

    def __init__(self, stage: Stage, placement: Placement) -> None:
        self._stage = stage
        self._placement = placement

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark hands out its state."""
        self._state = _SparkState(handle.getMapState("state", _STATE_KEY, _STATE_VALUE))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """All chunks of one bucket in one micro-batch, in an order that is the same whenever it is run."""
        placement, stored = self._placement, int(Kind.ROWS)
        bucket = placement.bucket(key[0])
        chunks: list[Chunk] = []
        for row in rows:
            if row.kind >= stored:
                yield row
            else:
                chunks.append(Chunk(row.kind, bucket, row.data))
        for kind, target, data in self._stage.run(self._state, bucket, sorted(chunks)):
            yield _OutputRow(int(kind), placement.keys[target], data)
        settle()

    def close(self) -> None:
        """Nothing is held."""


class _SparkState:
    """A bucket's state in Spark's state store. Every call is a round trip to the JVM."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def get(self, name: str, number: int) -> bytes | None:
        found = self._entries.getValue((name, number))
        return None if found is None else bytes(found[0])

    def put(self, name: str, number: int, value: bytes) -> None:
        self._entries.updateValue((name, number), (value,))

    def remove(self, name: str, number: int) -> None:
        self._entries.removeKey((name, number))

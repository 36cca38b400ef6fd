"""ANK-N (Ananke, section 5.2): the live forward-provenance graph from Spark's own operators.

Source vertices are told once by `dropDuplicates`, and so are sink vertices and edges: a source may come to a sink tuple
on two ways. Labels are groups that Spark closes when its watermark passes them. Everything is one streaming query in
append mode, and its rows make the same `GraphBatch` as ANK-1.

Spark's watermark is the latest time of all rows, minus U + D, minus U for each level of joins. So labels come later
than from ANK-1, whoever is further behind than D is left out (`losses` tells), and after the last row of a finite input
there are none, unless `spark_jobs.native_end` moves the watermark. docs/ank-n.md has the limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from protocol.chunks import pack
from protocol.graph import GraphBatch
from protocol.records import BEGINNING
from spark_jobs.assembly import assemble
from spark_jobs.chunks import Chunk, Kind
from spark_jobs.flat_rows import SCHEMA, SHIFT_MS, flatten, native_split
from spark_jobs.native_mu import SETTLED, WAITING, NativeOptions, only, resolved

__all__ = [
    "NATIVE_SETTINGS",
    "Losses",
    "NativeOptions",
    "assemble_native",
    "build_native",
    "frontier",
    "losses",
    "native_split",
]

NATIVE_SETTINGS = {
    # Joins touch every row of their state by itself, for which RocksDB takes nearly three times as long as a map does.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
}
"""What to set in the session before the query starts. The checkpoint keeps it; the state has to fit in memory."""

# The columns of the chunks that `assemble` takes.
_COLUMNS = {
    Kind.NEW_SINK: ("id", "ts"),
    Kind.NEW_SOURCE: ("id", "ts", "flags"),
    Kind.NEW_EDGE: ("id", "origin", "flags"),
    Kind.SINK_LABEL: ("id", "flags"),
    Kind.SOURCE_LABEL: ("id",),
}


def build_native(rows: DataFrame, options: NativeOptions) -> DataFrame:
    """From the chunk rows of `native_split` to the rows of `assemble_native`, of all that a micro-batch adds."""
    flat = (
        rows.mapInArrow(flatten, SCHEMA)
        .repartition("id")
        .withColumn("time", F.timestamp_millis("ts"))
        .withWatermark("time", f"{options.lateness_ms} milliseconds")
    )
    stored = only(flat, F.col("kind") >= int(Kind.ROWS)).select(*SCHEMA.names)
    vertices_and_edges = _graph(resolved(flat, options, counted=True))
    return stored.unionByName(vertices_and_edges).unionByName(_labels(resolved(flat, options)))


def _graph(found: DataFrame) -> DataFrame:
    """Vertices and edges, each once."""
    sink = _told(Kind.NEW_SINK, F.col("id"))
    source = _told(Kind.NEW_SOURCE, F.col("origin"))
    edge = _told(Kind.NEW_EDGE, F.col("id"), F.col("origin"))
    is_sink = F.col("kind") == int(Kind.SINK)
    told = found.select("time", "flags", F.inline(F.when(is_sink, F.array(sink)).otherwise(F.array(source, edge))))
    return _finished(told.dropDuplicates(["kind", "id", "origin", "time"]))


def _labels(found: DataFrame) -> DataFrame:
    """Labels, each once: of a source when nobody can name it any more, of a sink tuple when no edge can follow."""
    is_sink = F.col("kind") == int(Kind.SINK)
    label = F.when(is_sink, _told(Kind.SINK_LABEL, F.col("id"))).otherwise(_told(Kind.SOURCE_LABEL, F.col("origin")))
    due = found.select("time", label.alias("label")).select("time", "label.*")
    flags = F.lit(0).cast("byte").alias("flags")
    return _finished(due.groupBy("time", "kind", "id", "origin").agg(F.count(F.lit(1))).withColumn("flags", flags))


def _told(kind: Kind, of: Column, to: Column | None = None) -> Column:
    other = F.lit(0).cast("long") if to is None else to
    return F.struct(F.lit(int(kind)).cast("byte").alias("kind"), of.alias("id"), other.alias("origin"))


def _finished(told: DataFrame) -> DataFrame:
    ts = F.unix_millis("time").alias("ts")
    return told.select("kind", "id", "origin", ts, "flags", F.lit(b"").alias("data"))


def assemble_native(query: str, batch: int, rows: pa.Table, stamp: int = BEGINNING) -> GraphBatch:
    """All that a micro-batch adds: `rows` are those of `build_native` (`DataFrame.toArrow`), `stamp` is `frontier`."""
    kinds = rows.column("kind").to_numpy()
    chunks = [Chunk(Kind.STAMP, 0, pack([np.array([stamp], "<i8")]))]
    for kind, names in _COLUMNS.items():
        of_kind = rows.filter(pa.array(kinds == kind))
        if len(of_kind):
            chunks.append(Chunk(kind, 0, pack([_column(of_kind, name) for name in names])))
    stored = rows.filter(pa.array(kinds < min(_COLUMNS)))
    for kind, data in zip(stored.column("kind").to_pylist(), stored.column("data").to_pylist(), strict=True):
        chunks.append(Chunk(kind, 0, data))
    return assemble(query, batch, chunks)


def _column(rows: pa.Table, name: str) -> NDArray[Any]:
    column: NDArray[Any] = rows.column(name).to_numpy()
    if name == "ts":
        column = column - SHIFT_MS
    return column.astype("u1") if name == "flags" else column


def frontier(checkpoint: Path, batch: int, options: NativeOptions) -> int:
    """How far the sinks had come before a micro-batch, as Spark sees it. It is what the checkpoint says, so it is the
    same however often the micro-batch is run."""
    _, metadata, *_ = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    watermark = int(json.loads(metadata)["batchWatermarkMs"])
    return watermark - SHIFT_MS + options.u_ms + 1 if watermark else BEGINNING


@dataclass(frozen=True, slots=True)
class Losses:
    """What one micro-batch left out, or did not settle."""

    late: int
    """How often an operator has dropped a row because it was behind the watermark. A row may be in several."""
    unsettled: int
    """References that came, less those that were settled. The sum over all micro-batches is what waits or is lost."""


def losses(progress: Mapping[str, Any]) -> Losses:
    """What Spark says of a micro-batch (`StreamingQueryProgress`, or `StreamingQuery.lastProgress`)."""
    late = sum(int(each["numRowsDroppedByWatermark"]) for each in progress["stateOperators"])
    unsettled = 0
    for metric in dict(progress["observedMetrics"]).values():
        counts = metric.asDict()
        unsettled += int(counts.get(WAITING) or 0) - int(counts.get(SETTLED) or 0)
    return Losses(late, unsettled)

"""The algorithms as jobs run them: what the source makes of rows, the operators, what the sink makes of their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from protocol.graph import GraphBatch
from spark_jobs.ank import Ank
from spark_jobs.ank_n import NATIVE_SETTINGS, assemble_native, build_native, frontier, native_split
from spark_jobs.assembly import Figures, assemble, figures
from spark_jobs.binding import Stage, bind
from spark_jobs.chunk_rows import read_chunks
from spark_jobs.log_source import Split
from spark_jobs.mu import Mu
from spark_jobs.native_end import EndingLog
from spark_jobs.native_mu import NativeOptions
from spark_jobs.placement import Placement
from spark_jobs.split import split


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All that differs between algorithms."""

    split: Split
    build: Callable[[DataFrame], DataFrame]
    """Chunk rows in, the rows of a micro-batch out."""
    assemble: Callable[[str, int, pa.Table], tuple[GraphBatch, Figures]]
    """For a query and the number of a micro-batch, what its rows are to the store, and to whoever watches."""
    finish: Callable[[], bool] = lambda: False
    """Called when all rows were read that there will be: whether the query has to run once more."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of Spark's session, while the query is started."""


def ank_1(levels: int, placement: Placement) -> Pipeline:
    """MU, stage by stage, and ANK-1."""
    stages: list[Stage] = [Mu(level, levels, placement.buckets) for level in range(1, levels + 1)]
    stages.append(Ank(placement.buckets))

    def build(rows: DataFrame) -> DataFrame:
        for stage in stages:
            rows = bind(rows, stage, placement)
        return rows

    def assembled(query: str, batch: int, rows: pa.Table) -> tuple[GraphBatch, Figures]:
        chunks = read_chunks(rows, placement)
        return assemble(query, batch, chunks), figures(chunks)

    return Pipeline(split, build, assembled)


def ank_n(options: NativeOptions, checkpoint: Path, log: EndingLog) -> Pipeline:
    """Joins and aggregates of Spark's own; the job has to read this log."""

    def assembled(query: str, batch: int, rows: pa.Table) -> tuple[GraphBatch, Figures]:
        return assemble_native(query, batch, rows, frontier(checkpoint, batch, options)), Figures()

    return Pipeline(
        native_split,
        lambda rows: build_native(rows, options),
        assembled,
        finish=lambda: log.finish(options),
        settings=NATIVE_SETTINGS,
    )

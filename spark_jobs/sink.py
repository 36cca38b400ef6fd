"""Gives every micro-batch to the store, in one piece, under a name that stays the same when it is run again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import DataFrame

from protocol.graph import EdgeFlag, GraphBatch
from spark_jobs.checkpoint import Checkpoint
from spark_jobs.pipeline import Pipeline
from spark_jobs.progress import Progress

_LOG = logging.getLogger(__name__)


class GraphWriter(Protocol):
    """What keeps the graph. A batch that it knows by its name it skips."""

    def write(self, batch: GraphBatch) -> object:
        """Keep all of a batch, durably, before this returns."""

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that it has kept."""

    def told_upto(self) -> Sequence[str]:
        """Up to where it was told the log, by each query: `upto` of the last batch."""


class GraphSink:
    """For `foreachBatch`."""

    def __init__(self, pipeline: Pipeline, checkpoint: Checkpoint, writer: GraphWriter, progress: Progress) -> None:
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._writer = writer
        self._progress = progress
        self.failure: Exception | None = None
        """What was wrong with the last micro-batch, if it was not Spark: it only says where in its own code."""

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Keep a micro-batch. The rows are asked for once: asking is what makes Spark compute them."""
        table = rows.toArrow()
        try:
            batch, figures = self._pipeline.assemble(self._checkpoint.query, number, table)
            batch.since, batch.upto = self._checkpoint.since(number), self._checkpoint.upto(number)
            self._writer.write(batch)
        except Exception as error:
            self.failure = error
            raise
        if not self._progress.totals.too_deep and (batch.edges.flags & EdgeFlag.TOO_DEEP).any():
            _LOG.warning("a chain of agents is longer than --levels: edges end at tuples that were sent on")
        self._progress.stored(batch, figures)

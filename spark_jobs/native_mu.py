"""MU as stream-stream joins of Spark: references to sent tuples meet the origins of these, level by level.

Spark computes a tree, so what is used twice is computed twice. A level therefore is two joins: with the origins that
are sources, which are edges, and with those that were sent themselves, which are the references of the next level. The
last level is one join: what is still behind a Send then is an edge `TOO_DEEP`.

An origin is older than what came from it, by at most U. That bounds how long either side of a join is kept, and by how
much each level is behind the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from protocol.graph import EdgeFlag
from spark_jobs.chunks import Kind
from spark_jobs.flat_rows import Sent

WAITING, SETTLED = "references", "settled"
"""What is counted on the way (`DataFrame.observe`), in metrics whose names begin so."""


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """What ANK-N is built with. All of it is fixed with the checkpoint."""

    levels: int
    """How many Sends may be on the way from a source to a sink."""
    u_ms: int
    """U: for how long a tuple may still contribute, anywhere (`Horizon.u_ms`)."""
    delay_ms: int = 10_000
    """D: how much later than others a tuple may come."""

    def __post_init__(self) -> None:
        if self.levels < 1 or self.u_ms < 0 or self.delay_ms < 0:
            raise ValueError(f"there is at least one level, and neither U nor the delay is below 0: {self}")

    @property
    def lateness_ms(self) -> int:
        """Spark takes what is at its watermark for late; a tuple that is U + D older than the newest is not."""
        return self.u_ms + self.delay_ms + 1


def resolved(flat: DataFrame, options: NativeOptions, *, counted: bool = False) -> DataFrame:
    """Sink tuples, and edges to their sources: (kind, id, origin, time, flags). `flat` has all rows, with the watermark
    on `time`. What is counted must be so in one place only of a query."""
    found = only(flat, F.col("kind").isin(int(Kind.SINK), int(Kind.EDGE))).select(
        "kind", "id", "origin", "time", "flags"
    )
    references = only(flat, F.col("kind") == int(Kind.REFERENCE))
    chain = references.observe(f"{WAITING}-1", _waiting()) if counted else references
    is_sent = F.col("kind") == int(Kind.SENT)
    is_remote = F.col("flags").bitwiseAND(int(Sent.REMOTE)) != 0
    for level in range(1, options.levels):
        sources = _met(references, only(flat, is_sent & ~is_remote), options.u_ms)
        onward = only(flat, is_sent & is_remote)
        references, chain = _met(references, onward, options.u_ms), _met(chain, onward, options.u_ms)
        if counted:
            sources = sources.observe(f"{SETTLED}-{level}", _settled())
            chain = chain.observe(f"{WAITING}-{level + 1}", _waiting(), _settled())
        found = found.unionByName(_edges(sources))
    last = _met(chain, only(flat, is_sent), options.u_ms)
    if counted:
        last = last.observe(f"{SETTLED}-{options.levels}", _settled())
    return found.unionByName(_edges(last))


def only(flat: DataFrame, condition: Column) -> DataFrame:
    """Some of the flat rows, in a way that Spark cannot look through.

    Spark would filter, and leave out columns, as early as it can: each use of the rows would read the log for itself,
    and have a watermark of its own, of which the lowest counts, and some kinds of rows may never come. This condition
    needs the time, so it stays behind the watermark, and all columns, so they stay. What is before it is the same
    everywhere, and Spark computes it once.
    """
    is_row = F.hash(*flat.columns) % 2 < 2  # always; but Spark does not know
    return flat.filter(F.when(is_row, condition).otherwise(F.lit(False)))


def _met(references: DataFrame, sent: DataFrame, u_ms: int) -> DataFrame:
    """References and the origins of what they refer to: these have the place of the references now."""
    left = references.select(F.col("id").alias("sink"), F.col("origin").alias("sent"), F.col("time").alias("sent_time"))
    right = sent.select("id", "origin", "time", "flags")
    longest = F.expr(f"INTERVAL {u_ms} MILLISECONDS")
    is_within = (F.col("time") <= F.col("sent_time")) & (F.col("time") >= F.col("sent_time") - longest)
    met = left.join(right, (F.col("sent") == F.col("id")) & is_within)
    return met.select(F.col("sink").alias("id"), "origin", "time", "flags")


def _edges(met: DataFrame) -> DataFrame:
    flags = F.when(F.col("flags").bitwiseAND(int(Sent.REMOTE)) != 0, F.lit(int(EdgeFlag.TOO_DEEP))).otherwise(F.lit(0))
    return met.select(
        F.lit(int(Kind.EDGE)).cast("byte").alias("kind"), "id", "origin", "time", flags.cast("byte").alias("flags")
    )


def _waiting() -> Column:
    return F.count(F.lit(1)).alias(WAITING)


def _settled() -> Column:
    """How many references have met all that they came from."""
    return F.count_if(F.col("flags").bitwiseAND(int(Sent.LAST)) != 0).alias(SETTLED)

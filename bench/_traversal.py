"""How long it takes to find the source tuples of one result, by their number: the paper's traversal of the graph.

The results are over sliding windows of one key, side by side on one log, made without running a plan. Each is unfolded
once, for the first time, as a sink does; so the ids of its source tuples are given and their payloads told as well.
"""

from __future__ import annotations

from typing import Any

from bench._stream_worker import Tally
from edge_agent.stream.lineage import LINEAGES, Lineage, StreamTuple
from edge_agent.stream.source_ids import UniqueIds
from protocol.ids import StreamId


def results_over(mode: str, size: int, count: int) -> tuple[Lineage, list[StreamTuple]]:
    """`count` results, each over `size` source tuples of its own."""
    lineage = LINEAGES[mode]()
    ids = UniqueIds(StreamId("local", 0, "numbers"), False, Tally().add)
    log = lineage.window_log()
    assert log is not None, f"mode {mode} remembers nothing"
    results: list[StreamTuple] = []
    for number in range(count):
        tuples: list[Any] = [(ts, ts, ids) for ts in range(number * size, (number + 1) * size)]
        log.rotate()
        log.extend(lineage.born(tuples))
        results.append(((number + 1) * size, size, log.lineage()))
        log.drop(size)
    return lineage, results


def unfold_all(lineage: Lineage, results: list[StreamTuple]) -> None:
    for result in results:
        lineage.origins(result)

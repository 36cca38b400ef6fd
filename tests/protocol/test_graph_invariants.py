"""Each test breaks one rule and expects one sentence about it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from protocol.graph import (
    EdgeFlag,
    Edges,
    GraphBatch,
    LateEdges,
    LostOrigins,
    Reason,
    SinkFlag,
    SinkLabels,
    Sinks,
    Sources,
)
from protocol.graph_invariants import MOST_FINDINGS, GraphInvariants, check_graph

K, K2, A, B, SENT = 101, 102, 1, 2, 50


def numbers(values: Any) -> Any:
    return np.array(list(values), "<i8")


def flags(values: Any) -> Any:
    return np.array(list(values), "u1")


def batch(
    number: int = 0,
    *,
    stamp: int = 0,
    sinks: tuple[int, ...] = (),
    sources: tuple[int, ...] = (),
    edges: tuple[tuple[int, int], ...] = (),
    sink_labels: tuple[int, ...] = (),
    label_flags: int = 0,
    source_labels: tuple[int, ...] = (),
    late: tuple[tuple[int, int], ...] = (),
    lost: tuple[tuple[int, int], ...] = (),
    reason: int = Reason.AFTER_LABEL,
) -> GraphBatch:
    """Edges, also late and lost ones, are (source, sink); a source of the number SENT is a sent tuple."""
    return GraphBatch(
        "q",
        number,
        stamp,
        Sinks(numbers(sinks), numbers(0 for _ in sinks)),
        Sources(numbers(sources), numbers(0 for _ in sources), flags(each == SENT for each in sources)),
        Edges(
            numbers(sink for _, sink in edges),
            numbers(source for source, _ in edges),
            flags(EdgeFlag.TOO_DEEP * (source == SENT) for source, _ in edges),
        ),
        SinkLabels(numbers(sink_labels), flags(label_flags for _ in sink_labels)),
        numbers(source_labels),
        LateEdges(
            numbers(sink for _, sink in late),
            numbers(source for source, _ in late),
            numbers(0 for _ in late),
            flags(reason for _ in late),
        ),
        LostOrigins(numbers(sink for _, sink in lost), numbers(source for source, _ in lost)),
    )


WHOLE = (
    batch(0, stamp=4, sinks=(K,), sources=(A, B), edges=((A, K), (B, K)), sink_labels=(K,)),
    batch(1, stamp=12, sinks=(K2,), edges=((B, K2),), sink_labels=(K2,), source_labels=(A,)),
    batch(2, stamp=12, source_labels=(B,)),
)


TWICE = batch(
    3, stamp=12, sinks=(103,), sources=(3,), edges=((3, 103), (3, 103)), sink_labels=(103,), source_labels=(3,)
)


def test_a_sound_graph_has_no_findings() -> None:
    assert check_graph(WHOLE) == []


def test_everything_of_one_tuple_may_come_in_one_batch() -> None:
    assert check_graph([batch(sinks=(K,), sources=(A,), edges=((A, K),), sink_labels=(K,), source_labels=(A,))]) == []


def test_a_sink_tuple_may_have_no_origins() -> None:
    assert check_graph([batch(sinks=(K,), sink_labels=(K,))]) == []


@pytest.mark.parametrize(
    ("extra", "finding"),
    [
        (batch(3, stamp=12, sinks=(K,)), "sink vertex 101 comes a second time"),
        (batch(3, stamp=12, sinks=(A,)), "sink vertex 1 is a source vertex already"),
        (batch(3, stamp=12, sources=(A,)), "source vertex 1 comes a second time"),
        (batch(3, stamp=12, sources=(K,)), "source vertex 101 is a sink vertex already"),
        (batch(3, stamp=12, sinks=(103,), edges=((A, 103),), sink_labels=(103,)), "that source is labelled"),
        (batch(3, stamp=12, sources=(3,), edges=((3, K),), source_labels=(3,)), "that sink is labelled"),
        (batch(3, stamp=12, sources=(3,), edges=((3, 999),), source_labels=(3,)), "that sink is unknown"),
        (batch(3, stamp=12, sinks=(103,), edges=((9, 103),), sink_labels=(103,)), "that source is unknown"),
        (batch(3, stamp=12, sink_labels=(K,)), "a second label for sink 101"),
        (batch(3, stamp=12, source_labels=(A,)), "a second label for source 1"),
        (batch(3, stamp=12, sink_labels=(999,)), "a label without a vertex for sink 999"),
        (batch(3, stamp=12, source_labels=(9,)), "a label without a vertex for source 9"),
        (batch(3, stamp=11), "is stamped 11, below the 12 of batch 2"),
        (batch(2, stamp=12), "batch 2 of query q came twice"),
        (batch(3, stamp=12, late=((A, K),)), "late edge 1 -> 101, and its sink is labelled"),
        (batch(3, stamp=12, late=((A, 999),)), "late edge 1 -> 999, and its sink is unknown"),
        (batch(3, stamp=12, lost=((50, K),)), "lost origin 50 of sink 101, and that is labelled"),
        (batch(3, stamp=12, lost=((50, 999),)), "lost origin 50 of sink 999, and that is unknown"),
        (batch(3, stamp=12, sinks=(103,)), "1 sink vertices were never labelled: 103"),
        (batch(3, stamp=12, sources=(3,)), "1 source vertices were never labelled: 3"),
        (TWICE, "edge 3 -> 103 comes a second time"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(extra: GraphBatch, finding: str) -> None:
    [found] = check_graph([*WHOLE, extra])
    assert finding in found


def test_what_is_still_open_is_no_finding_while_the_graph_grows() -> None:
    graph = GraphInvariants()
    assert graph.add_all([batch(sinks=(K, K2), sources=(A,), edges=((A, K),))]) == []
    assert graph.finish(all_labelled=False) == []
    assert graph.unlabelled == (2, 1)


# ---------------------------------------------------------------------- beside the graph


def test_a_late_edge_is_counted() -> None:
    graph = GraphInvariants()
    graph.add_all(WHOLE)
    late = batch(3, stamp=12, sinks=(103,), late=((A, 103),), sink_labels=(103,))
    assert graph.add(late) == []
    assert graph.finish() == []
    assert (graph.late, graph.edges) == (1, 3)


@pytest.mark.parametrize(
    ("extra", "finding"),
    [
        (
            batch(3, stamp=12, sinks=(103,), late=((A, 103), (A, 103)), sink_labels=(103,)),
            "late edge 1 -> 103 comes a second time",
        ),
        (
            batch(3, stamp=12, sinks=(103,), late=((A, 103),), sink_labels=(103,), reason=9),
            "unknown reason 9",
        ),
        (
            batch(3, stamp=12, sinks=(103,), lost=((50, 103),), sink_labels=(103,)),
            "has lost origins, and its label does not say so",
        ),
    ],
)
def test_what_stands_beside_the_graph_is_in_order_too(extra: GraphBatch, finding: str) -> None:
    [found] = check_graph([*WHOLE, extra])
    assert finding in found


def test_an_incomplete_sink_tuple_says_so() -> None:
    lost = batch(sinks=(K,), lost=((SENT, K),), sink_labels=(K,), label_flags=SinkFlag.INCOMPLETE)
    assert check_graph([lost]) == []


def test_an_edge_is_in_the_graph_or_late_and_never_both() -> None:
    first = batch(sinks=(K,), sources=(A,), edges=((A, K),))
    second = batch(1, late=((A, K),), sink_labels=(K,), source_labels=(A,))
    found = check_graph([first, second])
    assert any("is in the graph as well" in each for each in found)
    assert any("called late, and its source has no label yet" in each for each in found)


def test_an_edge_to_a_sent_tuple_is_told_as_such() -> None:
    sound = batch(sinks=(K,), sources=(SENT,), edges=((SENT, K),), sink_labels=(K,), source_labels=(SENT,))
    assert check_graph([sound]) == []
    sound.edges.flags[:] = 0
    [found] = check_graph([sound])
    assert "do not agree on whether it is too deep" in found


def test_columns_that_are_torn_are_said_and_not_read() -> None:
    torn = batch(sinks=(K,))
    torn.sinks.ts = numbers(())
    [found] = check_graph([torn])
    assert "the columns of sinks are not equally long" in found


# ---------------------------------------------------------------------- size


def test_findings_are_few_however_wrong_a_graph_is() -> None:
    found = check_graph([batch(sink_labels=tuple(range(1_000)))])
    assert len(found) == MOST_FINDINGS + 1
    assert found[-1] == "... and 900 findings more"


def test_a_hundred_thousand_edges_take_little_time() -> None:
    graph = GraphInvariants()
    begun = time.process_time()
    for number in range(10):
        sinks = np.arange(1_000, dtype="<i8") + (1 << 40) + number * 1_000
        sources = np.arange(1_000, dtype="<i8") + number * 1_000
        edges = Edges(np.repeat(sinks, 10), np.tile(sources, 10), np.zeros(10_000, "u1"))
        graph.add(
            GraphBatch(
                "q", number, number, Sinks(sinks, sinks), Sources(sources, sources, np.zeros(1_000, "u1")), edges,
                SinkLabels(sinks, np.zeros(1_000, "u1")), sources,
            )
        )  # fmt: skip
    assert graph.finish() == []
    assert graph.edges == 100_000
    assert time.process_time() - begun < 2

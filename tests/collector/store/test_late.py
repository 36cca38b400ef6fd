"""What came too late, and the intermediate tuples through which the store follows it."""

from __future__ import annotations

from pathlib import Path

from collector.store import StoreReader
from collector.store.reader import DirectOrigin
from protocol.graph import Reason
from tests.collector.store.graphs import QuickWriter, delivery, graph_batch, tuple_id
from tests.collector.store.rows import register_row

K = tuple_id(9, 1)
S = [tuple_id(1, n) for n in range(6)]
D = [tuple_id(4, 4094 + n) for n in range(6)]  # over the edge of a page
AFTER, PURGED = int(Reason.AFTER_LABEL), int(Reason.PURGED)


def test_what_was_purged_is_followed_to_its_sources(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(
            graph_batch(
                "q", 0, deliveries=[delivery(D[0], 5, [(S[0], 1, 0), (D[1], 2, 1)]), delivery(D[1], 2, [(S[1], 1, 0)])]
            )
        )
        late = [(K, D[0], 5, PURGED), (K, S[2], 3, AFTER), (K, D[3], 7, PURGED)]
        # What a delivery came from may be told in the very batch that needs it.
        sent = [delivery(D[3], 7, [(D[4], 6, 1), (D[5], -6, 1)]), delivery(D[4], 6, [(S[4], 4, 0)])]
        writer.write(graph_batch("q", 1, stamp=50, sinks={K: 9}, late=late, deliveries=sent))
        assert reader.late_of(K) == [
            (K, S[0], 1, Reason.PURGED, D[0], 50),
            (K, S[1], 1, Reason.PURGED, D[0], 50),
            (K, S[2], 3, Reason.AFTER_LABEL, None, 50),
            (K, S[4], 4, Reason.PURGED, D[3], 50),
            (K, D[5], -6, Reason.PURGED, D[3], 50),
        ], "the last one could not be followed"
        assert reader.counters()["late"] == 5
        assert reader.late_of(tuple_id(9, 2)) == []


def test_what_cannot_be_followed_stays_as_it_was_told(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, sinks={K: 9}, late=[(K, D[0], 5, PURGED)]))
        assert reader.late_of(K) == [(K, D[0], 5, Reason.PURGED, None, 0)]


def test_circles_and_several_ways_end(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        sent = [
            delivery(D[0], 5, [(D[1], 2, 1), (D[2], 2, 1), (S[0], 1, 0)]),
            delivery(D[1], 5, [(D[0], 2, 1), (S[0], 1, 0)]),
            delivery(D[2], 5, [(D[2], 2, 1), (S[0], 1, 0), (S[1], 1, 0)]),
        ]
        writer.write(graph_batch("q", 0, sinks={K: 9}, late=[(K, D[0], 5, PURGED)], deliveries=sent))
        assert [each.origin for each in reader.late_of(K)] == S[:2]


def test_an_origin_is_in_the_graph_or_late_and_never_both(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        sources = dict.fromkeys(S, 1)
        writer.write(graph_batch("q", 0, sinks={K: 9}, sources=sources, edges=[(K, S[0])], deliveries=[
            delivery(D[0], 5, [(each, 1, 0) for each in S[:3]])
        ]))  # fmt: skip
        writer.write(graph_batch("q", 1, edges=[(K, S[1])], late=[(K, D[0], 5, PURGED)]))
        assert [each.origin for each in reader.late_of(K)] == [S[2]]
        writer.write(graph_batch("q", 2, edges=[(K, S[2]), (K, S[3])]))
        assert [each.id for each in reader.backward(K)] == [S[0], S[1], S[3]]
        assert reader.forward(S[2]) == []


def test_a_replay_that_tells_late_what_was_not_or_otherwise_changes_nothing(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        first = graph_batch(
            "q",
            0,
            sinks={K: 9},
            sources={S[0]: 1},
            edges=[(K, S[0])],
            late=[(K, D[0], 5, PURGED), (K, S[3], 5, AFTER)],
            deliveries=[delivery(D[0], 5, [(S[1], 1, 0)])],
        )
        writer.write(first)
        stored, end = reader.late_of(K), reader.feed_end()
        assert [each.origin for each in stored] == [S[1], S[3]]
        again = graph_batch("r", 0, sinks={K: 9}, sources={S[0]: 1}, edges=[(K, S[3]), (K, S[1])])
        writer.write(again)
        writer.write(graph_batch("r", 1, late=[(K, S[0], 1, AFTER), (K, D[0], 5, PURGED), (K, S[1], 1, AFTER)]))
        writer.retain(6)  # the delivery is gone, the sink is not labelled
        assert reader.intermediate(D[0]) is None
        writer.write(graph_batch("s", 1, late=[(K, D[0], 5, PURGED)]))
        assert reader.late_of(K) == stored
        assert [each.id for each in reader.backward(K)] == [S[0]]
        assert list(reader.changes(end, 100)) == []


def test_parts_of_a_delivery_are_united(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        assert reader.intermediate(D[0]) is None
        names = [register_row(4, "out")]
        writer.write(graph_batch("q", 0, rows=names, deliveries=[delivery(D[0], -5, [(S[1], 1, 0)], part=0x002)]))
        found = reader.intermediate(D[0])
        assert found is not None and not found.is_whole
        assert reader.counters().get("deliveries", 0) == 0
        rest = [delivery(D[0], -5, [(S[0], 2, 0)], part=0x102), delivery(D[0], -5, [(D[1], 3, 1)], part=0x202)]
        writer.write(graph_batch("q", 1, deliveries=rest))
        origins = (DirectOrigin(S[0], 2, False), DirectOrigin(S[1], 1, False), DirectOrigin(D[1], 3, True))
        assert reader.intermediate(D[0]) == (D[0], -5, True, origins)
        # A replay groups them otherwise.
        writer.write(graph_batch("r", 0, deliveries=[delivery(D[0], -5, [(S[1], 1, 0)], part=0x002), *rest]))
        writer.write(graph_batch("r", 1))
        writer.write(graph_batch("r", 2, deliveries=[delivery(D[1], 3)]))
        assert reader.intermediate(D[0]) == (D[0], -5, True, origins)
        assert reader.intermediate(D[1]) == (D[1], 3, True, ())
        assert reader.counters()["deliveries"] == 2

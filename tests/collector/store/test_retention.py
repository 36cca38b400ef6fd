"""Retention beyond the graph itself: deliveries, payloads, late rows, keys of batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from collector.store import Removed, StoreReader, StoreWriter
from protocol.graph import Reason
from protocol.records import Delivery, Late, SourcePayload
from protocol.row import Row
from protocol.topics import shard_of
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.collector.store.graphs import QuickWriter, delivery, graph_batch, tuple_id
from tests.collector.store.rows import AGENT, payload_row, record_row, register_row
from tests.support.whole_graph import every_sink, every_source

S = [tuple_id(1, n) for n in range(4)]
K = [tuple_id(5, n) for n in range(3)]
D = [tuple_id(6, n) for n in range(3)]


def test_everything_old_goes_and_is_counted(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db", clock_ms=lambda: 10**6) as writer, StoreReader(tmp_path / "g.db") as reader:
        batch = graph_batch(
            "q",
            0,
            sinks={K[0]: 10, K[1]: 20, K[2]: 5},
            sources={S[0]: 1, S[1]: 2, S[2]: 3, D[2]: 4},
            edges=[(K[0], S[0]), (K[0], S[1]), (K[1], S[1]), (K[2], S[2]), (K[1], D[2])],
            sink_labels=[K[0], K[1]],
            source_labels=[S[0], S[1], S[2], D[2]],
            late=[(K[0], S[3], 1, Reason.AFTER_LABEL), (K[1], S[3], 1, Reason.AFTER_LABEL)],
            lost=[(K[0], 77), (K[1], 78)],
            deliveries=[delivery(D[0], 9, [(S[0], 1, 0)]), delivery(D[1], 15, [(S[0], 1, 0)]), delivery(D[2], 9)],
        )
        writer.write(batch)
        removed = Removed(sinks=1, sources=1, edges=2, late=1, lost=1, deliveries=1, payloads=0, kept=0)
        assert writer.retain(15) == removed
        assert [each.id for each in every_sink(reader)] == [K[1], K[2]], "one is young, one may get more edges"
        assert [each.id for each in every_source(reader)] == [S[1], S[2], D[2]]
        assert reader.forward(S[1]) == [K[1]]
        assert reader.late_of(K[0]) == [] and reader.lost_of(K[0]) == []
        assert len(reader.late_of(K[1])) == len(reader.lost_of(K[1])) == 1
        assert reader.intermediate(D[0]) is None
        assert reader.intermediate(D[1]) is not None
        assert reader.intermediate(D[2]) is not None, "it is a vertex"
        counters = reader.counters()
        assert (counters["sinks"], counters["sources"], counters["edges"], counters["deliveries"]) == (2, 3, 3, 2)
        assert (counters["sink_labels"], counters["source_labels"]) == (1, 3)
        assert writer.retain(15) == Removed(0, 0, 0, 0, 0, 0, 0, 0)
        assert writer.retain(100) == Removed(1, 2, 2, 1, 1, 2, 0, 0)
        assert [each.id for each in every_source(reader)] == [S[2]]


def test_it_can_be_cut_short_between_two_steps_and_goes_on_next_time(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db", clock_ms=lambda: 10**6) as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(
            graph_batch(
                "q",
                0,
                sinks={K[0]: 1},
                sources={S[0]: 1},
                edges=[(K[0], S[0])],
                sink_labels=[K[0]],
                source_labels=[S[0]],
            )
        )
        asked = iter([False, False])  # to note it, and the first sinks
        removed = writer.retain(5, lambda: next(asked, True))
        assert (removed.sinks, removed.edges, removed.sources) == (1, 1, 0)
        assert [each.id for each in every_source(reader)] == [S[0]]
        assert writer.retain(5).sources == 1


def test_a_source_that_was_labelled_after_its_sinks_were_gone_goes_too(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db", clock_ms=lambda: 10**6) as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, sinks={K[0]: 1}, sources={S[0]: 1}, edges=[(K[0], S[0])], sink_labels=[K[0]]))
        assert writer.retain(5).sources == 0
        writer.write(graph_batch("q", 1, sinks={K[1]: 9}, edges=[(K[1], S[0])], source_labels=[S[0]]))
        assert writer.retain(5).sources == 0
        writer.write(graph_batch("q", 2, sink_labels=[K[1]]))
        assert writer.retain(10) == Removed(1, 1, 1, 0, 0, 0, 0, 0)
        assert list(every_source(reader)) == []


def test_payloads_stay_as_long_as_one_of_their_tuples(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db", clock_ms=lambda: 10**6) as writer, StoreReader(tmp_path / "g.db") as reader:
        stream = AGENT.stream("reports")
        rows = [
            payload_row({stream: 1}, [SourcePayload(stream, n, n + 1, f"value {n}") for n in (0, 1)], seq=0),
            payload_row({stream: 1}, [SourcePayload(stream, n, n + 1, f"value {n}") for n in (2, 3)], seq=1),
            payload_row({stream: 5}, [SourcePayload(stream, 0, 9, "of the sink")], seq=2),
        ]
        told = {"sinks": {K[0]: 9}, "sources": {S[1]: 2}, "edges": [(K[0], S[1])]}
        writer.write(graph_batch("q", 0, **told, rows=rows))  # type: ignore[arg-type]
        assert reader.counters()["payloads"] == 5
        assert writer.retain(3).payloads == 0, "the youngest of the second row is not that old"
        assert writer.retain(100).payloads == 2
        assert [reader.payload(each) is not None for each in (*S, K[0])] == [True, True, False, False, True]
        writer.write(graph_batch("q", 1, sink_labels=[K[0]], source_labels=[S[1]]))
        assert writer.retain(100).payloads == 3
        assert reader.payload(S[1]) is None
        assert reader.counters()["payloads"] == 0
        writer.write(graph_batch("q", 2, rows=[rows[0]]))
        found = reader.payload(S[1])
        assert found == (Kind.SOURCE, "value 1", 2)


def test_keys_of_old_batches_are_remembered_without_being_kept(tmp_path: Path) -> None:
    now = [10]
    path = tmp_path / "g.db"
    with QuickWriter(path, clock_ms=lambda: now[0]) as writer, StoreReader(path) as reader:
        for number in range(5):
            writer.write(graph_batch("q", number, sinks={tuple_id(5, number): 10**9}))
        writer.write(graph_batch("other", 7))
        now[0] = 20
        writer.write(graph_batch("q", 5))
        writer.retain(15)
        assert reader._db.execute("SELECT count(*) FROM batches").fetchone() == (2,)
        assert all(writer.write(graph_batch("q", number)) is None for number in range(6))
        assert writer.write(graph_batch("other", 7)) is None
        assert (writer.last_batch("q"), writer.last_batch("other")) == (5, 7)
        writer.retain(10**6)
        assert (writer.last_batch("q"), writer.last_batch("other")) == (5, 7)
        assert writer.write(graph_batch("q", 6)) is not None


OTHER = FakeAgent("valve-1", nonce=4, epoch=1)
OWN_SHARD, OTHER_SHARD = shard_of(AGENT.name), shard_of(OTHER.name)
LATE = Late(AGENT.stream("reports"), 1, "x", 12)
SAID = payload_row({OTHER.stream("out"): 6}, [Delivery(OTHER.stream("out"), 1, 6, "said", ())], of=OTHER)


class Teller:
    """A query that has read the shards of both agents up to some row. Stream 5 is of the first, 6 of the second."""

    def __init__(self, writer: StoreWriter, query: str, begun: tuple[int, int] | None = None) -> None:
        self._writer, self._query, self._batch = writer, query, 0
        self._since = self._position(begun) if begun else "{}"

    def tell(self, rows: tuple[int, int], sinks: dict[int, int], told: Sequence[Row] = (), **more: Any) -> None:
        names = [register_row(5, "out"), register_row(6, "out", stream_of=OTHER, of=OTHER)]
        read, labels = (self._since, self._position(rows)), list(sinks)
        batch = graph_batch(
            self._query, self._batch, sinks=sinks, sink_labels=labels, rows=[*names, *told], read=read, **more
        )
        self._writer.write(batch)
        self._since, self._batch = read[1], self._batch + 1

    @staticmethod
    def _position(rows: tuple[int, int]) -> str:
        return json.dumps({OWN_SHARD: [1, rows[0]], OTHER_SHARD: [1, rows[1]]})


def test_what_is_old_and_new_is_not_taken_for_removed_once_a_replay_is_over(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db", clock_ms=lambda: 10**9) as writer, StoreReader(tmp_path / "g.db") as reader:
        Teller(writer, "first").tell((7, 4), {K[0]: 5})
        writer.retain(100)
        second = Teller(writer, "second")
        second.tell((3, 4), {K[0]: 5})
        second.tell((7, 4), {K[1]: 6})
        assert reader.sinks() == [], "they were removed, or may have been"
        second.tell((9, 4), {K[2]: 7})
        assert [each.id for each in reader.sinks()] == [K[2]]


def test_what_is_old_and_new_is_kept_while_another_shard_is_told_once_more(tmp_path: Path) -> None:
    """The first query has read 7 rows of one shard and 4 of the other; of that, the second has caught up at once."""
    with QuickWriter(tmp_path / "g.db", clock_ms=lambda: 10**9) as writer, StoreReader(tmp_path / "g.db") as reader:
        Teller(writer, "first").tell((7, 4), {K[0]: 5, D[0]: 5})
        writer.retain(100)
        second = Teller(writer, "second")
        second.tell((3, 4), {K[0]: 5, D[0]: 5})
        second.tell((5, 8), {K[1]: 6, D[1]: 6}, [SAID], deliveries=[delivery(D[2], 7), delivery(K[2], 7)])
        assert [each.id for each in reader.sinks()] == [D[1]], "K[1] may have been removed, D[1] was never told"
        assert (reader.intermediate(D[2]) is not None, reader.intermediate(K[2]) is not None) == (True, False)
        assert reader.payloads([D[1]])[D[1]].value == "said"


@pytest.mark.parametrize("begun", [None, (3, 2)])
def test_a_shard_of_which_nobody_has_read_anything_is_new(tmp_path: Path, begun: tuple[int, int] | None) -> None:
    """It was there and empty, or what it had was removed before the first query began."""
    empty = begun[1] if begun else 0
    with QuickWriter(tmp_path / "g.db", clock_ms=lambda: 10**9) as writer, StoreReader(tmp_path / "g.db") as reader:
        Teller(writer, "first", begun).tell((7, empty), {K[0]: 5})
        writer.retain(100)
        Teller(writer, "second", begun).tell((7, empty + 3), {K[0]: 5, D[1]: 6}, [SAID], deliveries=[delivery(D[2], 7)])
        assert [each.id for each in reader.sinks()] == [D[1]]
        assert reader.intermediate(D[2]) is not None
        assert reader.payloads([D[1]])[D[1]].value == "said"


def test_late_tuples_and_rows_that_cannot_be_read_go_after_a_time_and_stay_away(tmp_path: Path) -> None:
    now = [10]
    path = tmp_path / "g.db"

    def kept(reader: StoreReader) -> tuple[int, int]:
        query = "SELECT (SELECT count(*) FROM kept), (SELECT count(*) FROM refused)"
        rows: tuple[int, int] = reader._db.execute(query).fetchone()
        return rows

    with QuickWriter(path, clock_ms=lambda: now[0]) as writer, StoreReader(path) as reader:
        first, second = Teller(writer, "first"), Teller(writer, "second")
        rows = [record_row(LATE, seq=1), Row(Kind.PLAN, AGENT.name, AGENT.nonce, 2, b"?")]
        first.tell((3, 0), {}, rows)
        now[0] = 20
        first.tell((4, 0), {}, [record_row(LATE, seq=3)])
        assert kept(reader) == (2, 1)
        assert writer.retain(15).kept == 2
        assert kept(reader) == (1, 0)
        assert (reader.counters()["late_records"], reader.counters()["refused"]) == (2, 1), "so many have come"
        second.tell((3, 0), {}, rows)
        second.tell((4, 0), {}, [record_row(LATE, seq=3)])
        assert kept(reader) == (1, 0)
        second.tell((6, 0), {}, [record_row(LATE, seq=5)])
        assert kept(reader) == (2, 0), "that one is new"

"""The store against a model of dicts: what queries tell, in whatever batches and however often, is there once."""

from __future__ import annotations

import sqlite3
import tempfile
from itertools import groupby
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.store import (
    ChangeKind,
    Cursor,
    OtherContent,
    StoreReader,
    StoreUnavailable,
    StoreUnusable,
    Written,
    pages,
)
from protocol.graph import EdgeFlag, SinkFlag
from protocol.graph_invariants import GraphInvariants
from protocol.records import BEGINNING, END_OF_TIME
from tests.collector.store.graphs import QuickWriter, graph_batch, stored_graph, tuple_id
from tests.collector.store.model import TIMES, Model, Truth

S1, S2 = tuple_id(1, 10), tuple_id(1, 11)
K1, K2 = tuple_id(5, 1), tuple_id(5, 2)
SMALL = settings(max_examples=25)


def feed_of(reader: StoreReader) -> list[tuple[ChangeKind, int, int]]:
    """Kinds and ids of all changes."""
    changes = list(reader.changes(Cursor(), 10_000))
    two = (ChangeKind.EDGE, ChangeKind.LATE)
    return [(each.kind, each.values[0], each.values[1] if each.kind in two else 0) for each in changes]


def by_kind(feed: list[tuple[ChangeKind, int, int]]) -> list[list[tuple[ChangeKind, int, int]]]:
    """Within a kind, order has no meaning."""
    return [sorted(group) for _, group in groupby(feed, key=lambda change: change[0])]


@SMALL
@given(st.randoms(use_true_random=False))
def test_one_query_and_one_that_replays_it_in_other_batches(chance: Random) -> None:
    truth, model = Truth(chance), Model()
    told = truth.told()
    batches = told.written("first", upto=chance.randint(0, told.batches))
    batches += truth.told().written("second")
    batches += truth.told().written("third")
    batches += chance.sample(batches, min(len(batches), chance.randint(0, 3)))
    with tempfile.TemporaryDirectory() as folder, QuickWriter(Path(folder) / "g.db") as writer:
        reader = StoreReader(Path(folder) / "g.db")
        for batch in batches:
            model.write(batch)
            writer.write(batch)
            assert stored_graph(reader) == model.graph
        assert by_kind(feed_of(reader)) == by_kind(model.feed)
        reader.close()


@SMALL
@given(st.randoms(use_true_random=False))
def test_retention_between_batches(chance: Random) -> None:
    truth, model = Truth(chance), Model()
    told = truth.told()
    with tempfile.TemporaryDirectory() as folder, QuickWriter(Path(folder) / "g.db", clock_ms=lambda: 0) as writer:
        reader = StoreReader(Path(folder) / "g.db")
        for batch in told.written("first"):
            model.write(batch)
            writer.write(batch)
            if chance.random() < 0.5:
                before = chance.choice(TIMES)
                model.retain(before)
                writer.retain(before)
                # What is told of things that are gone would need a vertex; a pipeline does not tell it.
            graph = stored_graph(reader)
            assert {sink for sink, _ in graph.edges} <= set(graph.sinks)
            assert {source for _, source in graph.edges} <= set(graph.sources)
            assert graph == model.graph
        reader.close()


@SMALL
@given(st.randoms(use_true_random=False))
def test_a_replay_after_retention_leaves_no_edge_without_its_ends(chance: Random) -> None:
    truth = Truth(chance)
    with tempfile.TemporaryDirectory() as folder, QuickWriter(Path(folder) / "g.db", clock_ms=lambda: 0) as writer:
        reader = StoreReader(Path(folder) / "g.db")
        for query in ("first", "second"):
            for batch in truth.told().written(query):
                writer.write(batch)
                if query == "second" or chance.random() < 0.3:
                    writer.retain(chance.choice(TIMES))
                graph = stored_graph(reader)
                assert {sink for sink, _ in graph.edges} <= set(graph.sinks)
                assert {source for _, source in graph.edges} <= set(graph.sources)
        reader.close()


@given(st.randoms(use_true_random=False))
@settings(max_examples=8)
def test_many_batches_to_few_pages_are_merged_and_stay_the_same(chance: Random) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
        QuickWriter(Path(folder) / "g.db") as writer,
    ):
        patch.setattr(pages, "MOST_FRAGMENTS", 2)
        patch.setattr(pages, "MOST_MERGED_BYTES", chance.choice([200, 1 << 20]))
        reader = StoreReader(Path(folder) / "g.db")
        model, queries = Model(), [("first", 20), ("second", 30)]
        for query, last in queries:
            for number in range(last):
                source, sink = tuple_id(1, number * 300), tuple_id(5, number)
                batch = graph_batch(query, number, sinks={sink: number}, sources={source: number})
                batch.edges = graph_batch("", 0, edges=[(sink, tuple_id(1, n * 300)) for n in range(number + 1)]).edges
                model.write(batch)
                writer.write(batch)
        assert stored_graph(reader) == model.graph
        fragments = sqlite3.connect(Path(folder) / "g.db").execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM forward_pages WHERE tier < 2 GROUP BY page, tier)"
        )
        assert fragments.fetchone()[0] <= 2
        reader.close()


def test_a_batch_is_written_once(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer:
        assert writer.last_batch("q") is None
        batch = graph_batch("q", 3, sinks={K1: 5}, sources={S1: 1}, edges=[(K1, S1)], sink_labels=[K1])
        assert writer.write(batch) == Written(1, 1, 1, 1, 0, 0, 0, 0, 0)
        assert writer.write(batch) is None
        assert writer.last_batch("q") == 3
        assert writer.write(graph_batch("another", 3, sinks={K1: 5})) == Written(0, 0, 0, 0, 0, 0, 0, 0, 1)
        assert writer.last_batch("another") == 3
        assert writer.last_batch("a third") is None


def test_what_is_read_of_vertices_and_edges(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        first = graph_batch(
            "q", 0, stamp=BEGINNING, sinks={K1: -7, K2: END_OF_TIME}, sources={S1: BEGINNING}, edges=[(K1, S1)]
        )
        first.edges.flags[:] = EdgeFlag.TOO_DEEP
        first.sources.sent[:] = 1
        writer.write(first)
        second = graph_batch(
            "q", 1, stamp=END_OF_TIME, sources={S2: 3}, edges=[(K2, S1), (K1, S2)], sink_labels=[K1], source_labels=[S1]
        )
        second.sink_labels.flags[:] = SinkFlag.INCOMPLETE
        writer.write(second)
        assert reader.vertex(K1) == (K1, -7, BEGINNING, END_OF_TIME, SinkFlag.INCOMPLETE, 2)
        assert reader.vertex(K2) == (K2, END_OF_TIME, BEGINNING, None, 0, 1)
        assert reader.vertex(S1) == (S1, BEGINNING, BEGINNING, END_OF_TIME, True)
        assert reader.vertex(S2) == (S2, 3, END_OF_TIME, None, False)
        assert reader.vertex(tuple_id(1, 12)) is None
        assert reader.backward(K1) == [(S1, BEGINNING, EdgeFlag.TOO_DEEP), (S2, 3, EdgeFlag(0))]
        assert reader.backward(S1) == []
        assert reader.forward(S1) == [K1, K2]
        assert reader.forward(K1) == []


def test_sinks_are_read_by_time_and_stream_page_by_page(tmp_path: Path) -> None:
    ids = {tuple_id(stream, seq): ts for stream in (5, 6) for seq, ts in enumerate([BEGINNING, -5, 0, 0, END_OF_TIME])}
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, sinks=ids))
        everything = sorted((ts, each) for each, ts in ids.items())
        found: list[tuple[int, int]] = []
        after = None
        while page := reader.sinks(after=after, limit=3):
            found += [(each.ts, each.id) for each in page]
            after = page[-1].ts, page[-1].id
        assert found == everything
        of_6 = [tuple_id(6, n) for n in (1, 2, 3)]
        assert [each.id for each in reader.sinks(from_ts=-5, to_ts=0, streams=[6])] == of_6
        assert [each.id for each in reader.sinks(from_ts=-5, to_ts=0, streams=[6], newest_first=True)] == of_6[::-1]
        assert reader.sinks(streams=[7]) == reader.sinks(streams=[]) == []


def test_an_edge_or_a_label_of_an_unknown_sink_is_ignored(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        written = writer.write(graph_batch("q", 0, sources={S1: 1}, edges=[(K1, S1)], sink_labels=[K2]))
        assert written is not None and (written.edges, written.sink_labels, written.ignored) == (0, 0, 2)
        assert stored_graph(reader).edges == set()
        assert reader.forward(S1) == []


def test_a_sink_that_is_labelled_takes_nothing_more(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, sinks={K1: 5}, sources={S1: 1}, edges=[(K1, S1)], sink_labels=[K1]))
        complete = reader.vertex(K1)
        more = {"sources": {S2: 1}, "edges": [(K1, S2)], "late": [(K1, tuple_id(1, 12), 1, 1)], "lost": [(K1, 7)]}
        writer.write(graph_batch("deeper", 0, stamp=9, sinks={K1: 6}, sink_labels=[K1], **more))  # type: ignore[arg-type]
        assert reader.vertex(K1) == complete
        assert [edge.id for edge in reader.backward(K1)] == [S1]
        assert (reader.forward(S2), reader.late_of(K1), reader.lost_of(K1)) == ([], [], [])


def test_lost_origins_are_kept_once(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, sinks={K1: 1}, lost=[(K1, 8), (K1, 7), (K1, 8)]))
        writer.write(graph_batch("r", 0, sinks={K1: 1}, lost=[(K1, 8)], sink_labels=[K1]))
        writer.write(graph_batch("s", 0, lost=[(K1, 9)]))
        assert reader.lost_of(K1) == [7, 8]
        assert reader.counters()["lost"] == 2


def test_a_batch_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, sinks={K1: 1}))
        torn = graph_batch("q", 1, sinks={K2: 1}, sources={S1: 1}, edges=[(K2, S1)])
        with monkeypatch.context() as patch:
            patch.setattr(
                "collector.store.feed.append", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("odd"))
            )
            with pytest.raises(StoreUnusable, match="odd"):
                writer.write(torn)
        assert stored_graph(reader).sinks == {K1: 1}
        assert writer.last_batch("q") == 0
        assert writer.write(torn) is not None
        assert stored_graph(reader).edges == {(K2, S1)}


def test_another_batch_under_a_known_name_is_refused_and_not_skipped(tmp_path: Path) -> None:
    """As when a checkpoint is put back from an older copy: what it tells from there on is cut in other places."""
    with QuickWriter(tmp_path / "g.db") as writer:
        told = graph_batch("q", 0, sinks={K1: 1})
        told.upto = "row 5"
        assert writer.write(told) is not None
        assert writer.write(told) is None
        told.upto = "row 7"
        with pytest.raises(OtherContent, match="has another batch 0 of this query"):
            writer.write(told)


def test_what_may_pass_is_told_apart_from_what_does_not(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer:
        writer.write(graph_batch("q", 0, sinks={K1: 1}))
        (pages_now,) = writer._db.execute("PRAGMA page_count").fetchone()
        writer._db.execute(f"PRAGMA max_page_count={pages_now}")
        much = graph_batch("q", 1, sinks={tuple_id(9, each): 1 for each in range(5_000)})
        with pytest.raises(StoreUnavailable, match="full"):
            writer.write(much)
        writer._db.execute("PRAGMA max_page_count=1000000")
        assert writer.write(much) is not None
        writer._db.execute("DROP TABLE late")
        with pytest.raises(StoreUnusable, match="no such table: late"):
            writer.write(graph_batch("q", 2, sinks={K2: 1}, sources={S1: 1}, edges=[(K2, S1)]))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_deleted_while_it_is_written_to_is_told(tmp_path: Path, is_replaced: bool) -> None:
    """Or else everything would be told to a file that nobody can open."""
    path = tmp_path / "g.db"
    with QuickWriter(path) as writer:
        writer.write(graph_batch("q", 0, sinks={K1: 1}))
        path.unlink()
        if is_replaced:
            path.touch()
        with pytest.raises(
            StoreUnusable, match=r"g\.db was deleted or replaced .* --checkpoint, which replays the log"
        ):
            writer.write(graph_batch("q", 1, sinks={K2: 1}))


def test_a_store_is_made_from_one_log(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer:
        writer.made_from({"log": "b", "--levels": "1"})  # and nothing was written
    for number in range(2):
        with QuickWriter(tmp_path / "g.db") as writer:
            writer.made_from({"log": "a", "--levels": "2"})
            writer.write(graph_batch("q", number))
            writer.made_from({"log": "a"})
            with pytest.raises(OtherContent, match="was made with log a, not b: take a new store"):
                writer.made_from({"--levels": "2", "log": "b"})


def test_what_the_feed_tells_of_a_replay_keeps_the_invariants(tmp_path: Path) -> None:
    """An edge that a new checkpoint tells before a label, and the old one had labelled its source, is late."""
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        told = [
            graph_batch("old", 0, sinks={K1: 1}, sources={S1: 1}, edges=[(K1, S1)], sink_labels=[K1]),
            graph_batch("old", 1, source_labels=[S1]),
        ]
        for batch in told:
            writer.write(batch)
        writer.write(graph_batch("new", 0, sinks={K1: 1, K2: 2}, sources={S1: 1}, edges=[(K1, S1), (K2, S1)]))
        assert stored_graph(reader).edges == {(K1, S1)}
        (late,) = reader.late_of(K2)
        assert (late.origin, late.origin_ts, late.reason, late.via) == (S1, 1, 1, None)
        invariants = GraphInvariants()
        assert not invariants.add_all([*told, graph_batch("new", 2, sinks={K2: 2}, late=[(K2, S1, 1, 1)])])


def test_ids_like_hashes_work(tmp_path: Path) -> None:
    chance = np.random.default_rng(3)
    ids = chance.integers(0, 1 << 36, 500) | 3 << 36
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        for number in range(3):
            part = ids[number::3].tolist()
            sink = tuple_id(9, number)
            writer.write(
                graph_batch(
                    "q", number, sinks={sink: 1}, sources=dict.fromkeys(part, 4), edges=[(sink, s) for s in part]
                )
            )
            assert [edge.id for edge in reader.backward(sink)] == sorted(part)
        assert all(reader.forward(each) == [tuple_id(9, place % 3)] for place, each in enumerate(ids.tolist()))
        assert stored_graph(reader).sources == dict.fromkeys(ids.tolist(), 4)

"""The change feed: in order, resumable anywhere, and clear about what is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.store import Change, ChangeKind, Cursor, CursorExpired, StoreReader, feed
from protocol.records import BEGINNING, END_OF_TIME
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id

S = [tuple_id(1 + n % 3, n) for n in range(5)]
K = [tuple_id(7, n) for n in range(3)]
ALL = 1000


def write_some(writer: QuickWriter) -> None:
    writer.write(
        graph_batch(
            "q",
            0,
            stamp=BEGINNING,
            sinks={K[0]: -1, K[1]: END_OF_TIME},
            sources={S[0]: 1, S[1]: BEGINNING},
            edges=[(K[0], S[0]), (K[1], S[0]), (K[1], S[1])],
            sink_labels=[K[0]],
            source_labels=[S[1]],
            late=[(K[1], S[4], -9, 1)],
        )
    )
    writer.write(graph_batch("q", 1))
    writer.write(graph_batch("q", 2, stamp=40, sinks={K[2]: 8}, edges=[(K[2], S[0])]))


@pytest.fixture(params=[1, 2, 4096])
def small_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_ITEMS", request.param)


@pytest.mark.usefixtures("small_rows")
def test_changes_come_in_order_and_can_be_resumed_at_each(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        assert list(reader.changes(Cursor(), ALL)) == []
        write_some(writer)
        found = list(reader.changes(Cursor(), ALL))
        assert [(each.kind, each.stamp, each.values) for each in found] == [
            (ChangeKind.SINK, BEGINNING, (K[0], -1)),
            (ChangeKind.SINK, BEGINNING, (K[1], END_OF_TIME)),
            (ChangeKind.SOURCE, BEGINNING, (S[0], 1, 0)),
            (ChangeKind.SOURCE, BEGINNING, (S[1], BEGINNING, 0)),
            (ChangeKind.EDGE, BEGINNING, (K[0], S[0], 0)),
            (ChangeKind.EDGE, BEGINNING, (K[1], S[0], 0)),
            (ChangeKind.EDGE, BEGINNING, (K[1], S[1], 0)),
            (ChangeKind.SINK_LABEL, BEGINNING, (K[0], 0)),
            (ChangeKind.SOURCE_LABEL, BEGINNING, (S[1],)),
            (ChangeKind.LATE, BEGINNING, (K[1], S[4], -9, 1, 0)),
            (ChangeKind.SINK, 40, (K[2], 8)),
            (ChangeKind.EDGE, 40, (K[2], S[0], 0)),
        ]
        for place, change in enumerate(found):
            assert list(reader.changes(change.cursor, ALL)) == found[place + 1 :]
            assert list(reader.changes(change.cursor, 2)) == found[place + 1 : place + 3]
        assert reader.feed_end() == found[-1].cursor
        assert list(reader.changes(Cursor(), 0)) == []


def test_a_reader_that_waits_sees_what_comes(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        seen: list[Change] = []
        cursor = Cursor()
        for number in range(4):
            writer.write(graph_batch("q", number, sinks={tuple_id(7, number): number}))
            new = list(reader.changes(cursor, ALL))
            assert [each.values for each in new] == [(tuple_id(7, number), number)]
            seen += new
            cursor = new[-1].cursor
        assert list(reader.changes(Cursor(), ALL)) == seen


@pytest.mark.usefixtures("small_rows")
def test_one_kind_of_changes_can_be_followed_by_itself(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        assert reader.told(ChangeKind.SINK, 0) == []
        write_some(writer)
        rows = reader.told(ChangeKind.SINK, 0)
        sinks = [pair for _, (ids, times) in rows for pair in zip(ids.tolist(), times.tolist(), strict=True)]
        assert sinks == [(K[0], -1), (K[1], END_OF_TIME), (K[2], 8)]
        last, columns = rows[-1]
        assert [column.tolist() for column in columns] == [[K[2]], [8]]
        assert reader.told(ChangeKind.SINK, last) == []
        assert [row for row, _ in reader.told(ChangeKind.SINK, last - 1)] == [last]


def test_a_reader_that_is_too_far_behind_is_told(tmp_path: Path) -> None:
    now = [100]
    with QuickWriter(tmp_path / "g.db", clock_ms=lambda: now[0]) as writer, StoreReader(tmp_path / "g.db") as reader:
        write_some(writer)
        before = list(reader.changes(Cursor(), ALL))
        now[0] = 200
        writer.write(graph_batch("q", 3, sources={S[2]: 3000}))
        slow = reader.changes(Cursor(), ALL)
        assert next(slow) == before[0]
        writer.retain(150)
        assert [each.values for each in reader.changes(before[-1].cursor, ALL)] == [(S[2], 3000, 0)]
        assert reader.feed_start() == before[-1].cursor
        for cursor in (Cursor(), before[0].cursor, before[-2].cursor):
            with pytest.raises(CursorExpired, match="outside"):
                list(reader.changes(cursor, ALL))
        with pytest.raises(CursorExpired, match="removed before it was read"):
            list(slow)
        with pytest.raises(CursorExpired, match="outside"):
            list(reader.changes(Cursor(1000, 1), ALL))
        now[0] = 300
        writer.retain(250)
        end = reader.feed_end()
        assert end == reader.feed_start() and list(reader.changes(end, ALL)) == []
        writer.write(graph_batch("q", 4, sources={S[3]: 3000}))
        assert [each.values for each in reader.changes(end, ALL)] == [(S[3], 3000, 0)]


def test_a_replay_tells_nothing_that_is_known(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        write_some(writer)
        end = reader.feed_end()
        writer.write(graph_batch("r", 0, sinks={K[2]: 8, K[0]: -1}, sources={S[1]: BEGINNING}, source_labels=[S[1]]))
        assert list(reader.changes(end, ALL)) == []
        writer.write(graph_batch("r", 1, sources={S[3]: 4, S[0]: 1}, source_labels=[S[0]]))
        assert [each.values for each in reader.changes(end, ALL)] == [(S[3], 4, 0), (S[0],)]

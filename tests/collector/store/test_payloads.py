"""What tuples said is found by their ids, whatever agent batch it came in."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.store import StoreReader, StoreUnusable, payloads
from collector.store.payloads import read_head
from protocol.chunks import payload_ids
from protocol.ids import StreamId
from protocol.records import BEGINNING, END_OF_TIME, Assertion, Delivery, Origin, OriginKind, SourcePayload
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from tests.collector.store.rows import AGENT, payload_row
from tests.support.whole_graph import every_source

CARS, PUMPS, FAR = AGENT.stream("cars"), AGENT.stream("pumps"), FakeAgent("car-1", 2**63, 9).stream("sent")
NUMBERS = {CARS: 3, PUMPS: 2**27 - 1, FAR: 8}


def source(stream: StreamId, seq: int, ts: int = 0) -> SourcePayload:
    return SourcePayload(stream, seq, ts, {"of": stream.name, "seq": seq})


def test_payloads_of_many_streams_and_kinds(tmp_path: Path) -> None:
    origins = (Origin(OriginKind.SOURCE, CARS, 4095, 1), Origin(OriginKind.REMOTE, FAR, 1, 1))
    rows = [
        payload_row(NUMBERS, [source(CARS, 4095), source(PUMPS, 7), source(CARS, 4096), source(PUMPS, 2**36 - 1)]),
        payload_row(NUMBERS, [source(CARS, 4100), source(CARS, 4098, END_OF_TIME)], seq=1),
        payload_row({**NUMBERS, CARS: 5}, [Delivery(CARS, 0, BEGINNING, None, origins)], seq=1),
        payload_row(NUMBERS, [Assertion(PUMPS, 9, -4, 3, "first input")], seq=2),
    ]
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, rows=rows))
        expected = {
            **{tuple_id(3, seq): (Kind.SOURCE, {"of": "cars", "seq": seq}, 0) for seq in (4095, 4096, 4100)},
            **{tuple_id(2**27 - 1, seq): (Kind.SOURCE, {"of": "pumps", "seq": seq}, 0) for seq in (7, 2**36 - 1)},
            tuple_id(3, 4098): (Kind.SOURCE, {"of": "cars", "seq": 4098}, END_OF_TIME),
            tuple_id(5, 0): (Kind.DELIVERY, None, BEGINNING),
            tuple_id(2**27 - 1, 9): (Kind.ASSERTION, "first input", -4),
        }
        assert {each: reader.payload(each) for each in expected} == expected
        assert reader.payloads([*expected, tuple_id(3, 4099), 0]) == expected
        assert reader.payload(tuple_id(3, 4099)) is None
        assert reader.payload(tuple_id(3, 4097)) is None
        assert reader.payload(tuple_id(4, 4096)) is None
        assert list(every_source(reader)) == [], "a payload makes no vertex"
        writer.write(graph_batch("r", 0, rows=rows))
        assert reader.counters()["payloads"] == 8
        assert reader._db.execute("SELECT count(*) FROM payloads").fetchone() == (4,)


def test_the_head_of_a_row_is_what_all_of_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "MOST_TABLES", 1)
    for numbers in (NUMBERS, {**NUMBERS, CARS: 4}, NUMBERS, NUMBERS):
        for records in ([source(CARS, 5, 9), source(FAR, 1, -3)], [source(CARS, 1, -2)], [source(PUMPS, 1, 4)]):
            data = payload_row(numbers, records).data
            head = read_head(data)
            assert (
                head.ids.tolist() == payload_ids(data).tolist() == [tuple_id(numbers[r.stream], r.seq) for r in records]
            )
            assert head.last_ts == max(each.ts for each in records)


def test_other_shapes_under_the_same_streams_are_read(tmp_path: Path) -> None:
    for value in ({"a": 1}, {"b": 1, "c": 2}, 7, {"a": 1}):
        data = payload_row(NUMBERS, [SourcePayload(CARS, 3, 8, value)]).data
        assert (read_head(data).ids.tolist(), read_head(data).last_ts) == ([tuple_id(3, 3)], 8)


def test_values_that_cannot_be_read_are_noticed_when_asked_for(tmp_path: Path) -> None:
    whole = payload_row(NUMBERS, [source(CARS, 1)])
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, rows=[whole._replace(data=whole.data[:-2])]))
        with pytest.raises(StoreUnusable, match="payload 1 cannot be read"):
            reader.payload(tuple_id(3, 1))


def test_a_payload_in_the_place_of_one_that_was_removed(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        for seq in (0, 1):
            writer.write(graph_batch("q", seq, rows=[payload_row(NUMBERS, [source(CARS, seq)], seq=seq)]))
            assert reader.payload(tuple_id(3, seq)) == (Kind.SOURCE, {"of": "cars", "seq": seq}, 0)
            assert reader._db.execute("SELECT number FROM payloads").fetchall() == [(1,)]
            writer.retain(END_OF_TIME)
            assert reader.payload(tuple_id(3, seq)) is None

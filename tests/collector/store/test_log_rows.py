"""What the log says of agents, streams, plans and gaps: in any order, and told again, it comes to the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from collector.epochs import EpochState
from collector.store import StoreReader
from collector.store.people import Span
from protocol.records import BEGINNING, END_OF_TIME, Declared, End, Gap, Late, Lost, Received, Sketch, Skipped, Status
from protocol.row import Row
from protocol.wire.sections import Kind
from tests.collector.agents import PACKER, FakeAgent
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from tests.collector.store.rows import AGENT, progress_row, record_row, register_row, row

NEXT = FakeAgent(AGENT.name, nonce=5, epoch=4)
OTHER = FakeAgent("car-1", nonce=2**63, epoch=1)


class Opened:
    """A store that is given rows."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 1_000
        self.writer = QuickWriter(folder / "g.db", clock_ms=lambda: self.now_ms)
        self.reader = StoreReader(folder / "g.db")
        self._batches = 0

    def write(self, *rows: Row, query: str = "q") -> None:
        self._batches += 1
        assert self.writer.write(graph_batch(query, self._batches, rows=rows)) is not None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path)
    yield opened
    opened.reader.close()
    opened.writer.close()


def status(clock_ms: int) -> Status:
    return Status(clock_ms, 1, 2, 3, 4, 5, {"rtt_ms": 1.5, "bad": float("nan")}, {"map": (1, 2, 3, 4)})


def test_streams_with_nonces_of_64_bits(store: Opened) -> None:
    store.write(register_row(1, "reports"), register_row(2, "sent", of=AGENT, stream_of=OTHER))
    assert store.reader.streams() == [
        (1, "pump-7", 2**64 - 1, 3, "reports", None, None, 1_000),
        (2, "car-1", 2**63, 1, "sent", None, None, None),
    ]
    assert store.reader.stream_names([2, 3]) == {2: ("car-1", 2**63, 1, "sent")}
    assert [each.number for each in store.reader.streams(agent="car-1", name="sent", epoch=1)] == [2]
    assert [each.number for each in store.reader.streams(after=1, limit=5)] == [2]
    assert [each.number for each in store.reader.streams(seen=Span(1_000, 1_000))] == [1]
    assert store.reader.streams(seen=Span(0, 999)) == store.reader.streams(epoch=2) == []


def test_the_agent_itself_knows_its_epoch_best(store: Opened) -> None:
    other = register_row(2, "sent", of=AGENT, stream_of=OTHER, epoch=7)
    own = register_row(2, "sent", of=OTHER, stream_of=OTHER, epoch=8)
    for rows in ([other], [own], [other]):
        store.write(*rows)
    assert [each.epoch for each in store.reader.streams()] == [8]
    store.write(register_row(2, "another name", of=OTHER, stream_of=OTHER, epoch=9), query="r")
    assert [(each.epoch, each.name) for each in store.reader.streams()] == [(8, "sent")]


def test_the_last_promise_is_that_of_the_last_batch(store: Opened) -> None:
    store.write(register_row(1, "out"), progress_row(1, 10, END_OF_TIME, seq=4), progress_row(9, 1, 1))
    store.write(progress_row(1, 5, 3, seq=2))
    assert [(each.watermark, each.hold) for each in store.reader.streams()] == [(10, END_OF_TIME)]
    store.write(progress_row(1, BEGINNING, -3, seq=5))
    assert [(each.watermark, each.hold) for each in store.reader.streams()] == [(BEGINNING, -3)]


def test_agents_are_as_their_last_start(store: Opened) -> None:
    store.write(register_row(1, "out", seq=0), record_row(status(50), seq=6), record_row(status(40), seq=5))
    (agent,) = store.reader.agents()
    assert (agent.name, agent.nonce, agent.epoch, agent.last_seq) == ("pump-7", 2**64 - 1, 3, 6)
    assert (agent.state, agent.clock_ms, agent.last_seen_ms) == ("running", 50, 1_000)
    assert agent.status_seen_ms == 1_000
    assert agent.status is not None
    assert agent.status["link"] == {"rtt_ms": 1.5, "bad": "nan"}
    assert agent.status["operators"] == {"map": [1, 2, 3, 4]}
    store.now_ms = 2_000
    store.write(register_row(2, "out", of=NEXT, stream_of=NEXT), record_row(End(-5), seq=7, of=NEXT))
    (agent,) = store.reader.agents()
    assert (agent.nonce, agent.epoch, agent.state, agent.end_ts, agent.status) == (5, 4, "ended", -5, None)
    store.now_ms = 3_000
    store.write(record_row(status(40), seq=5), query="r")
    assert store.reader.agents() == [agent], "what is old news does not make a start the last one"
    store.write(record_row(status(50), seq=6), query="r")
    seen = [each.status_seen_ms for each in store.reader.starts_of("pump-7")]
    assert seen == [1_000, None], "nor is it news"


def test_an_agent_that_was_given_up_may_return(store: Opened) -> None:
    rows = [record_row(status(1), seq=3), row(Kind.RETIRE, b"", seq=4)]
    for told in permutations(rows):
        store.write(*told)
        assert [each.state for each in store.reader.agents()] == ["retired"]
    store.write(record_row(status(2), seq=4))
    assert [each.state for each in store.reader.agents()] == ["running"]
    store.write(*rows, query="r")
    assert [each.state for each in store.reader.agents()] == ["running"]


def snapshot(**fields: Any) -> Row:
    state = EpochState(AGENT.name, AGENT.epoch, AGENT.nonce, next_seq=8, **fields)
    return row(Kind.SNAPSHOT, PACKER.encode(state.told()), seq=state.next_seq)


def test_a_snapshot_tells_what_older_segments_told(store: Opened) -> None:
    plan = record_row(Declared("{}")).data
    others = {("car-1", 2**63, "sent"): 2}
    told = snapshot(own_streams={"reports": 1}, other_streams=others, plan=plan, ended=True)
    for _ in range(2):
        store.write(told)
        assert store.reader.streams() == [
            (1, "pump-7", 2**64 - 1, 3, "reports", None, None, 1_000),
            (2, "car-1", 2**63, None, "sent", None, None, None),
        ]
        assert store.reader.plans() == [(1, "pump-7", 2**64 - 1, 3, "{}", 1_000)]
        (agent,) = store.reader.agents()
        assert (agent.state, agent.last_seq) == ("ended", 7)
        store.now_ms += 1
    store.write(snapshot(retired=True), query="r")
    assert [each.state for each in store.reader.agents()] == ["ended"]


def test_the_first_plan_of_a_start_stays(store: Opened) -> None:
    store.write(record_row(Declared('{"nodes": []}')))
    store.write(record_row(Declared("another")), record_row(Declared("of the next"), of=NEXT))
    assert [(each.nonce, each.plan) for each in store.reader.plans()] == [
        (2**64 - 1, '{"nodes": []}'),
        (5, "of the next"),
    ]


def test_gaps_are_kept_with_their_reasons_once(store: Opened) -> None:
    crash = Gap("crash", 2, 2**64 - 9, None, (Lost("reports", 3, 9),), next_seqs=(("reports", 10),), next_event=4)
    rows = [
        record_row(Gap("dropped", 3, AGENT.nonce, (2, 4)), seq=4),
        record_row(crash, seq=4),
        Row(Kind.GAP, "", 0, 0, record_row(Gap("the log was damaged", 0, 0)).data),
    ]
    for query in ("q", "r"):
        store.write(*rows, query=query)
    assert [(each.agent, each.seq, each.reason) for each in store.reader.gaps()] == [
        ("pump-7", 4, "dropped"),
        ("pump-7", 4, "crash"),
        ("", 0, "the log was damaged"),
    ]
    assert store.reader.gaps()[1].detail["nonce"] == 2**64 - 9
    assert [each.reason for each in store.reader.gaps(after=1, limit=1)] == ["crash"]
    assert [each.reason for each in store.reader.gaps(agent="", seen=Span(1_000, 1_000))] == ["the log was damaged"]
    assert store.reader.gaps(seen=Span(1_001, 2_000)) == []
    assert store.reader.counters()["gaps"] == 3
    assert [each.name for each in store.reader.agents()] == ["pump-7"]


def test_what_is_only_kept_is_counted_once(store: Opened) -> None:
    rows = [
        record_row(Late(AGENT.stream("reports"), 5, {"a": 1}, 9), Late(AGENT.stream("reports"), 6, {"a": 2}, 9)),
        record_row(Skipped("map", "f", None, 1, "ValueError")),
        record_row(Sketch("vertices", 3, 10, b"\x01")),
        record_row(Received("car-1", "sent", 1, 5, 6)),
    ]
    for query in ("q", "r"):
        store.write(*rows, query=query)
    counters = store.reader.counters()
    assert (counters["late_records"], counters["skipped_records"], counters["sketch_records"]) == (2, 1, 1)
    assert store.reader._db.execute("SELECT data FROM kept WHERE kind=?", (Kind.LATE,)).fetchall() == [(rows[0].data,)]


def broken_rows() -> Sequence[Row]:
    return [
        row(Kind.PLAN, b"\xff\xff\xff"),
        row(Kind.EVENT, b""),
        row(Kind.REGISTER, b"\xc1"),
        row(Kind.REGISTER, PACKER.encode([1, "a"])),
        row(Kind.REGISTER, PACKER.encode([2**64 - 1, "a", 1, "too large a number", 3])),
        row(Kind.REGISTER, PACKER.encode([4, "a", 1, None, 3])),
        row(Kind.REGISTER, PACKER.encode([5, "a", 1, {"no": "name"}, 3])),
        row(Kind.SNAPSHOT, PACKER.encode({"epoch": 1, "own_streams": {"half": 6}})),
        row(Kind.SNAPSHOT, PACKER.encode([1])),
        row(Kind.PROGRESS, b"\x01"),
        row(Kind.STATUS, record_row(End(1)).data),
        row(Kind.PAYLOAD, b""),
        row(Kind.PAYLOAD, bytes((Kind.PLAN, 0, 1))),
        row(Kind.PAYLOAD, bytes((Kind.SOURCE, 3, 1))),
        row(Kind.SOURCE, b"goes another way"),
        Row(99, "pump-7", 1, 2, b"of the future"),
    ]


def test_what_cannot_be_read_is_kept_and_the_rest_goes_on(store: Opened) -> None:
    broken = broken_rows()
    rows = [*broken, register_row(1, "reports"), record_row(status(7), seq=9)]
    Random(1).shuffle(rows)
    sink = tuple_id(1, 1)
    for query in ("q", "r"):
        written = store.writer.write(graph_batch(query, 0, rows=rows, sinks={sink: 1}))
        assert written is not None
        assert written.refused == (len(broken) if query == "q" else 0), "told again, it is known"
    refused = store.reader.refused()
    assert len(refused) == store.reader.counters()["refused"] == len(broken)
    assert {(each.kind, each.agent) for each in refused} == {(each.kind, each.agent) for each in broken}
    assert all(each.reason for each in refused)
    assert [each.name for each in store.reader.streams()] == ["reports"], "not even half of a row is kept"
    assert store.reader.vertex(sink) is not None
    (agent,) = (each for each in store.reader.agents() if each.nonce == AGENT.nonce)
    assert agent.clock_ms == 7


def test_any_bytes_are_refused_or_kept(store: Opened) -> None:
    chance = Random(4)
    for kind in Kind:
        rows = [row(kind, chance.randbytes(chance.randrange(40)), seq) for seq in range(20)]
        store.write(*rows)
    assert store.reader.counters()["refused"] > 100
    for stream in store.reader.streams():
        assert json.dumps(stream)

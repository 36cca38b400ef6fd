"""ANK-N gives the graph of ANK-1, on input in which agents are in step.

Spark takes seconds for a micro-batch of so many operators, so there are few runs, each of several fleets at once.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from protocol.chunks import SEQ_BITS
from protocol.graph import EdgeFlag, GraphBatch
from protocol.graph_invariants import GraphInvariants
from protocol.plan import Node
from protocol.records import BEGINNING, END_OF_TIME, Origin
from protocol.row import Row
from protocol.wire.sections import Kind as RowKind
from spark_jobs.ank_n import (
    NATIVE_SETTINGS,
    Losses,
    NativeOptions,
    assemble_native,
    build_native,
    frontier,
    losses,
    native_split,
)
from spark_jobs.checkpoint import opened
from spark_jobs.chunk_rows import record_batches
from spark_jobs.chunks import Kind
from spark_jobs.flat_rows import ENDING, SHIFT_MS, Sent, flatten
from spark_jobs.log_source import FIRST, Log, LogStream, Position, log_source
from spark_jobs.native_end import EndingLog, horizon_of
from spark_jobs.placement import Placement
from spark_jobs.session import SessionOptions, start_session, stop_session
from tests.spark_jobs.rows import document, receive, send, sink, source, window
from tests.support.fleet_log import Shards, Speaker
from tests.support.pipeline import MicroBatch, Pipeline, plain

PLACEMENT = Placement(1, 1)
QUERY = "query"
GRAPH = ("sinks", "sources", "edges", "sink labels", "source labels", "late", "lost", "sent")


class FileLog:
    """A log of micro-batches, each of which is a segment; no more than one is read at a time."""

    def __init__(self, path: Path, micro_batches: Sequence[MicroBatch]) -> None:
        self._path = path
        self._write(micro_batches)

    def append(self, micro_batch: MicroBatch) -> None:
        self._write([*self._read(), micro_batch])

    def _write(self, micro_batches: Sequence[MicroBatch]) -> None:
        unfinished = self._path.with_suffix(".new")
        unfinished.write_bytes(pickle.dumps(list(micro_batches)))
        unfinished.replace(self._path)

    def _read(self) -> list[MicroBatch]:
        found: list[MicroBatch] = pickle.loads(self._path.read_bytes())
        return found

    def shards(self) -> Sequence[int]:
        return sorted({shard for each in self._read() for shard in each})

    def start(self, shard: int) -> Position:
        return FIRST

    def end(self, shard: int) -> Position:
        return Position(len(self._read()) + 1, 0)

    def ahead(self, shard: int, start: Position, most_rows: int, most_bytes: int) -> Position:
        return Position(start.segment + 1, 0)

    def rows(self, shard: int, start: Position, end: Position) -> Iterator[Row]:
        for each in self._read()[start.segment - 1 : end.segment - 1]:
            yield from each.get(shard, ())


class Chain:
    """Agents of which each receives from all before it. At the end of its windows each tells what it found."""

    def __init__(self, shards: Shards, name: str, windows_ms: Sequence[int], seed: int) -> None:
        self._random = random.Random(f"{name} {seed}")
        self._windows_ms = windows_ms
        names = [f"{name}-{place}" for place in range(len(windows_ms))]
        self.agents = [
            Speaker(shards, each, document(*_plan(names, place, windows_ms[place]))) for place, each in enumerate(names)
        ]
        self._open: list[list[Origin]] = [[] for _ in names]

    def tick(self, now: int) -> None:
        """A moment, on all agents: upstream first."""
        for place, (agent, size) in enumerate(zip(self.agents, self._windows_ms, strict=True)):
            ready = self._open[place] if size else []
            if size and now % size == 0:
                self._open[place] = []
                self._deliver(place, now, ready)
            for _ in range(self._random.randrange(4)):
                read = agent.source("readings", now)
                if size:
                    self._open[place].append(read)
                else:
                    self._deliver(place, now, [read])
            for number in (1, 2):
                agent.progress(f"sink-{number}", now)
            agent.leave()

    def _deliver(self, place: int, now: int, origins: list[Origin]) -> None:
        if not origins:
            return
        agent, parts = self.agents[place], self._random.randrange(1, 3)
        for number in (1, 2):
            chosen = [each for each in origins if self._random.random() < 0.8]
            if chosen:
                agent.deliver(f"sink-{number}", now, *chosen, parts=parts)
        if place + 1 < len(self.agents):
            sent = agent.deliver("onward", now, *origins, parts=parts)
            for later in range(place + 1, len(self.agents)):
                if self._windows_ms[later]:
                    self._open[later].append(sent)
                else:
                    self._deliver(later, now, [sent])

    def end(self) -> None:
        for agent in self.agents:
            onward = ["onward"] if agent is not self.agents[-1] else []
            for stream in ("sink-1", "sink-2", *onward):
                agent.progress(stream, END_OF_TIME)
            agent.end()
            agent.leave()


def _plan(names: Sequence[str], place: int, size_ms: int) -> Iterator[Node]:
    inputs = ["readings", *(f"from-{sender}" for sender in names[:place])]
    yield source("readings")
    for sender in names[:place]:
        yield receive(f"from-{sender}", sender, "onward")
    last = "readings"
    if place:
        yield Node("all", "union", tuple(inputs))
        last = "all"
    if size_ms:
        yield window("window", last, size_ms)
        last = "window"
    yield sink("sink-1", last)
    yield sink("sink-2", last)
    if place + 1 < len(names):
        yield send("onward", last, *names[place + 1 :])


def in_step(chains: Mapping[str, Sequence[int]], seed: int, times: range, cuts: int) -> list[MicroBatch]:
    """The log of some chains, whose windows are given, until all have ended."""
    shards = Shards(2)
    running = [Chain(shards, name, windows_ms, seed) for name, windows_ms in chains.items()]
    found: list[MicroBatch] = []
    for count, now in enumerate(times, 1):
        for chain in running:
            chain.tick(now)
        if count % -(-len(times) // cuts) == 0 and count < len(times):
            found.append(shards.micro_batch())
    for chain in running:
        chain.end()
    return [*found, shards.micro_batch()]


class Run:
    """A query that is running."""

    def __init__(self, spark: SparkSession, log: Log, options: NativeOptions, checkpoint: Path) -> None:
        self._options, self._checkpoint = options, checkpoint
        self.batches: list[GraphBatch] = []
        start = {shard: log.start(shard) for shard in log.shards()}
        stream = LogStream(log, native_split, PLACEMENT, checkpoint, start, 1_000, 1 << 20)
        spark.dataSource.register(log_source(stream))
        rows = build_native(spark.readStream.format("threadline_log").load(), options)
        writer = rows.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self._query = writer.start()

    def _take(self, rows: DataFrame, batch: int) -> None:
        stamp = frontier(self._checkpoint, batch, self._options)
        self.batches.append(assemble_native(QUERY, batch, rows.toArrow(), stamp))

    def all_there_is(self) -> None:
        """Until everything in the log is read, and Spark has nothing more to tell of it."""
        self._query.processAllAvailable()

    def lost(self) -> Losses:
        """What was left out so far."""
        reports = self._query.recentProgress
        assert all(len(each["sources"]) == 1 for each in reports), "every use of the rows reads the log for itself"
        each = [losses(report) for report in reports]
        return Losses(sum(one.late for one in each), sum(one.unsettled for one in each))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    with opened(tmp_path / "session", {}, {}) as checkpoint:
        session = start_session(SessionOptions(partitions=PLACEMENT.partitions), checkpoint)
        try:
            yield session
        finally:
            stop_session(session)


def prepare(session: SparkSession) -> None:
    """From now on, queries of this session are those of ANK-N, started as quickly as it gets."""
    # To compile each of the many operators takes longer than all that they have to do here.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100")
    for name, value in NATIVE_SETTINGS.items():
        session.conf.set(name, value)


def all_of(batches: Sequence[GraphBatch]) -> dict[str, list[Any]]:
    """What several batches say together. Promises are left out: only the last of a micro-batch is told."""
    parts = [plain(each) for each in batches]
    found: dict[str, list[Any]] = {name: sorted(row for part in parts for row in part[name]) for name in GRAPH}
    found["rows"] = sorted(row for part in parts for row in part["rows"] if row.kind != RowKind.PROGRESS)
    return found


def check(run: Run, micro_batches: Sequence[MicroBatch], levels: int) -> dict[str, list[Any]]:
    """Everything is there, labelled, told in the right order, and the same as from ANK-1, which is returned."""
    invariants = GraphInvariants()
    invariants.add_all(run.batches)
    assert invariants.finish() == []
    expected = all_of(Pipeline(levels).run_all(micro_batches))
    assert all_of(run.batches) == expected
    assert run.lost() == Losses(late=0, unsettled=0)
    return expected


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_graph_is_that_of_ank_1(spark: SparkSession, tmp_path: Path) -> None:
    """Also with sent tuples that come to a sink on two ways, and over more agents than there are levels."""
    prepare(spark)
    chains = {"alone": (20,), "pair": (10, 20), "three": (10, 20, 40), "four": (10, 10, 10, 10)}
    micro_batches = in_step(chains, seed=1, times=range(-300, 100, 5), cuts=2)
    rows = FileLog(tmp_path / "log", micro_batches)
    log = EndingLog(rows, tmp_path)
    options = NativeOptions(levels=2, u_ms=horizon_of(log).u_ms, delay_ms=5)
    assert options.u_ms == 70
    with Run(spark, log, options, tmp_path) as run:
        run.all_there_is()
        assert any(len(batch.source_labels) for batch in run.batches), "labels come while the input goes on"
        assert log.finish(options)
        run.all_there_is()
        expected = check(run, micro_batches, options.levels)
        assert {flags for _, _, flags in expected["edges"]} == {0, EdgeFlag.TOO_DEEP}
        assert min(ts for _, ts, _ in expected["sources"]) < 0 <= max(ts for _, ts, _ in expected["sources"])

        rows.append(out_of_step(late=-500, waiting=500))
        run.all_there_is()
        assert run.lost().late > 0
        assert run.lost().unsettled == 1


def out_of_step(late: int, waiting: int) -> MicroBatch:
    """A sink tuple that is behind the watermark, and one that came from what never comes."""
    shards = Shards(2)
    hub = Speaker(shards, "hub", document(receive("in", "gone", "onward"), sink("sink-1", "in")))
    gone = Speaker(shards, "gone", None)
    hub.deliver("sink-1", late, hub.source("own", late))
    hub.deliver("sink-1", waiting, gone.deliver("onward", waiting))
    hub.leave()
    return shards.micro_batch()


def ank_n_without_windows(spark: SparkSession, folder: Path) -> None:
    """What `make test` runs of ANK-N, in the session that the job is tested in."""
    prepare(spark)
    folder.mkdir()
    micro_batches = in_step({"alone": (0,), "pair": (0, 0)}, seed=2, times=range(-4, 4), cuts=1)
    log = EndingLog(FileLog(folder / "log", micro_batches), folder)
    options = NativeOptions(levels=1, u_ms=horizon_of(log).u_ms, delay_ms=0)
    assert options.u_ms == 0
    assert log.finish(options)
    with Run(spark, log, options, folder) as run:
        run.all_there_is()
        assert len(check(run, micro_batches, options.levels)["edges"]) > 20


# Without Spark


def flat(*rows: Row, shard: int = 0) -> list[dict[str, Any]]:
    batches = list(flatten(record_batches(native_split(shard, rows, 1), PLACEMENT)))
    return [each for batch in batches for each in pa.Table.from_batches([batch]).to_pylist()]


def told(rows: Sequence[dict[str, Any]], kind: Kind) -> list[tuple[int, int, int, int]]:
    """Ids without their streams, and times as agents know them."""
    seq = (1 << SEQ_BITS) - 1
    return [
        (row["id"] & seq, row["origin"] & seq, row["ts"] - SHIFT_MS, row["flags"])
        for row in rows
        if row["kind"] == kind
    ]


def test_every_record_is_a_row() -> None:
    shards = Shards(1)
    edge = Speaker(shards, "edge", document(source("r"), send("s", "r", "hub"), sink("k", "r")))
    hub = Speaker(shards, "hub", document(receive("in", "edge", "s"), sink("k", "in")))
    readings = [edge.source("r", ts) for ts in (-5, 0, 5)]
    sent = [edge.deliver("s", 5, *readings, parts=2), edge.deliver("s", 6, readings[2])]
    edge.deliver("k", 7, readings[0])
    edge.progress("k", 8, hold=6)
    edge.progress("s", 2**63 - 1)
    edge.leave()
    hub.deliver("k", 9, *sent)
    hub.leave()
    [rows] = shards.micro_batch().values()
    found = flat(*rows)
    last = int(Sent.LAST)
    assert told(found, Kind.SENT) == [(0, 0, -5, 0), (0, 1, 0, 0), (0, 2, 5, last), (1, 2, 5, last)]
    assert told(found, Kind.EDGE) == [(0, 0, -5, 0)]
    assert told(found, Kind.REFERENCE) == [(0, 0, 5, 0), (0, 1, 6, 0)]
    assert told(found, Kind.SINK) == [(0, 0, 7, 0), (0, 0, 9, 0)]
    assert told(found, Kind.CONTROL) == [(0, 0, 6, 0)], "the end of a stream is no time"
    assert {row["kind"] for row in found if row["data"]} == {Kind.ROWS, Kind.DELIVERED}


@pytest.mark.parametrize(("ts", "seen"), [(-1, -1), (-(2**62), -SHIFT_MS), (2**61, SHIFT_MS - 1)])
def test_times_beyond_what_spark_knows_are_the_nearest_ones(ts: int, seen: int) -> None:
    shards = Shards(1)
    edge = Speaker(shards, "edge", document(source("r"), sink("k", "r")))
    edge.deliver("k", ts, edge.source("r", ts))
    edge.leave()
    [rows] = shards.micro_batch().values()
    assert [ts for _, _, ts, _ in told(flat(*rows), Kind.EDGE)] == [seen]


def test_u_is_the_largest_of_all_agents(tmp_path: Path) -> None:
    found = horizon_of(FileLog(tmp_path / "log", in_step({"three": (10, 20, 40), "alone": (60,)}, 3, range(10), 1)))
    assert found.u_ms == 70
    assert horizon_of(FileLog(tmp_path / "log", [])).u_ms == 0


def test_nothing_is_finished_before_all_have_ended(tmp_path: Path) -> None:
    [whole] = in_step({"pair": (10, 20)}, 4, range(0, 30, 5), 1)
    ends = [(shard, row) for shard, rows in whole.items() for row in rows if row.kind == RowKind.END]
    assert len(ends) == 2
    options = NativeOptions(levels=1, u_ms=30)
    for shard, end in ends:
        without = {**whole, shard: [row for row in whole[shard] if row is not end]}
        assert not EndingLog(FileLog(tmp_path / "log", [without]), tmp_path).finish(options)
    log = EndingLog(FileLog(tmp_path / "log", [whole]), tmp_path)
    assert ENDING not in log.shards()
    assert log.finish(options)
    assert not log.finish(options), "once is enough"
    assert ENDING in EndingLog(FileLog(tmp_path / "log", [whole]), tmp_path).shards(), "it stays so"
    assert log.end(ENDING) == FIRST._replace(row=1)
    rows = flat(*log.rows(ENDING, log.start(ENDING), log.end(ENDING)), shard=ENDING)
    [(_, _, ts, _)] = told(rows, Kind.CONTROL)
    assert len(rows) == 1, "the store is told nothing"
    assert 25 + options.lateness_ms + options.u_ms < ts < 35 + options.lateness_ms + 2 * options.u_ms
    [later] = in_step({"pair": (10, 20)}, 4, range(100, 130, 5), 1)
    log = EndingLog(FileLog(tmp_path / "log", [whole, later]), tmp_path)
    assert log.finish(options), "a fleet that was started again and has ended again"
    assert log.end(ENDING) == FIRST._replace(row=2)
    rows = flat(*log.rows(ENDING, FIRST._replace(row=1), log.end(ENDING)), shard=ENDING)
    assert [each - ts for _, _, each, _ in told(rows, Kind.CONTROL)] == [100]


def test_the_frontier_is_what_the_checkpoint_says(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    options = NativeOptions(levels=1, u_ms=30, delay_ms=5)
    for watermark, expected in ((0, BEGINNING), (SHIFT_MS - 36 - 100, -105)):
        (tmp_path / "offsets" / "7").write_text(f'v1\n{{"batchWatermarkMs":{watermark},"batchTimestampMs":1}}\n{{}}')
        assert frontier(tmp_path, 7, options) == expected


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ((0, 0, 0), (1, -1, 0), (1, 0, -1)):
        with pytest.raises(ValueError, match="level"):
            NativeOptions(*wrong)


def test_an_empty_micro_batch_is_a_batch() -> None:
    names = {"kind": "i1", "id": "<i8", "origin": "<i8", "ts": "<i8", "flags": "i1"}
    columns = {name: pa.array(np.empty(0, type_)) for name, type_ in names.items()}
    made = assemble_native(QUERY, 3, pa.table({**columns, "data": pa.array([], pa.binary())}), stamp=5)
    assert (made.query, made.batch, made.stamp) == (QUERY, 3, 5)
    assert not len(made.sinks.id)

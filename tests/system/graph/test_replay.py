"""A new checkpoint tells the log once more, to a store that has removed what is old: nothing comes back halfway."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from collector.store import open_store
from protocol.topics import shard_of
from tests.spark_jobs.rows import document, sink, source
from tests.support.pipeline import MicroBatch, Pipeline
from tests.support.told_log import Log
from tests.support.whole_graph import every_edge, every_late, every_sink, every_source
from tests.system.graph.city import City, DiskLog, differences
from threadline.graph_check import check_feed
from threadline.lab import SparkService

ROUNDS = 20


@pytest.fixture(scope="module")
def city() -> list[MicroBatch]:
    count = itertools.count()
    return list(City(3).rounds(lambda: next(count) == ROUNDS))


def tell(store: str, city: list[MicroBatch], query: str, levels: int = 2) -> None:
    pipeline, read = Pipeline(levels, 4), Counter[int]()
    with open_store(store).writer() as writer:
        for rows in city:
            made = pipeline.run(rows)
            made.query, made.since = query, position(read)
            read.update({shard: len(of) for shard, of in rows.items()})
            made.upto = position(read)
            writer.write(made)


def position(read: Counter[int]) -> str:
    return json.dumps({shard: [1, row] for shard, row in read.items()})


@pytest.mark.parametrize("before_ts", [-1, 4_500, 10_000, 10**9])
def test_what_was_removed_stays_removed_and_what_was_not_stays_whole(
    tmp_path: Path, city: list[MicroBatch], before_ts: int
) -> None:
    store = f"sqlite:///{tmp_path / 'graph.db'}"
    log = Log(levels=2)
    for rows in city:
        log.add(rows)
    tell(store, city, "first")
    assert differences(store, log) == []
    with open_store(store).writer() as writer:
        writer.retain(before_ts)
    with closing(open_store(store).reader()) as reader:
        left = (set(every_sink(reader)), set(every_source(reader)), set(every_edge(reader)))
        counted = {name: reader.counters()[name] for name in ("payloads", "deliveries")}
    tell(store, city, "second")
    with closing(open_store(store).reader()) as reader:
        assert {name: reader.counters()[name] for name in counted} == counted
        assert (set(every_sink(reader)), set(every_source(reader)), set(every_edge(reader))) == left
        assert list(every_late(reader)) == []
        assert check_feed(reader, all_labelled=True) == []
        for each in every_sink(reader):
            assert {edge.id for edge in reader.backward(each.id)} == set(log.resolve(each.id).sources)


def test_what_comes_while_the_log_is_told_once_more_is_not_lost(tmp_path: Path, city: list[MicroBatch]) -> None:
    """However old it is by its own time, and whatever was removed."""
    store = f"sqlite:///{tmp_path / 'graph.db'}"
    log = Log(levels=2)
    for rows in city:
        log.add(rows)
    tell(store, city[: ROUNDS // 2], "first")
    with open_store(store).writer() as writer:
        removed = writer.retain(10**9)
    assert removed.sinks
    tell(store, city, "second")
    with closing(open_store(store).reader()) as reader:
        left = {each.id for each in every_sink(reader)}
        assert len(left) == len(log.sink_tuples) - removed.sinks
        assert check_feed(reader, all_labelled=True) == []
        for each in left:
            assert {edge.id for edge in reader.backward(each)} == set(log.resolve(each).sources)


def test_stamps_do_not_go_back_when_the_beginning_is_told_once_more(tmp_path: Path, city: list[MicroBatch]) -> None:
    store = f"sqlite:///{tmp_path / 'graph.db'}"
    tell(store, city[: ROUNDS // 2], "first")
    tell(store, city, "second")
    with closing(open_store(store).reader()) as reader:
        assert check_feed(reader, all_labelled=True) == []
        stamps = [each.stamp for each in every_sink(reader)]
        assert min(stamps) > -(2**62), "what everybody has told has a time, also if all have ended"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_new_checkpoint_takes_what_has_come_since(tmp_path: Path) -> None:
    """All that was complete was removed. Then shards go on, and one that was empty begins, with old times."""
    (tmp_path / "log").mkdir()
    log, count, city = DiskLog(tmp_path / "log"), itertools.count(), City(3)
    log.begin(shard_of("newcomer"))
    rounds = city.rounds(lambda: next(count) == ROUNDS)
    for rows in itertools.islice(rounds, ROUNDS // 2):
        assert shard_of("newcomer") not in rows
        log.append(rows)
    store = run_once(tmp_path, "first", "--remove-results-after", "0")
    with closing(open_store(store).reader()) as reader:
        removed = log.told.sink_tuples.keys() - {each.id for each in every_sink(reader)}
    assert removed
    newcomer = city.joined_by("newcomer", document(source("readings"), sink("alerts", "readings")))
    for ts in range(5):
        newcomer.deliver("alerts", ts, newcomer.source("readings", ts))
    newcomer.end()
    newcomer.leave()
    for rows in rounds:
        log.append(rows)
    log.close()
    run_once(tmp_path, "second")
    with closing(open_store(store).reader()) as reader:
        found = {each.id for each in every_sink(reader) if each.label_stamp is not None}
        assert found == log.told.sink_tuples.keys() - removed
        for each in found:
            assert {edge.id for edge in reader.backward(each)} == set(log.told.resolve(each).sources)
            assert reader.payload(each) is not None


def run_once(folder: Path, name: str, *options: str) -> str:
    """A job with a checkpoint of its own; returns the store, which is the same for all."""
    job = SparkService(folder, folder / "log", "--once", *options, name=name)
    assert subprocess.run(job.command(), stderr=subprocess.DEVNULL, timeout=200, check=False).returncode == 0
    return job.store

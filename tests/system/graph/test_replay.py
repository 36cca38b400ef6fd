"""A new checkpoint tells the log once more, to a store that has removed what is old: nothing comes back halfway."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from collector.store import open_store
from tests.support.pipeline import MicroBatch, Pipeline
from tests.support.told_log import Log
from tests.system.graph.city import City, differences
from threadline.graph_check import check_feed

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
            read.update({shard: len(of) for shard, of in rows.items()})
            made.query, made.upto = query, json.dumps({shard: [1, row] for shard, row in read.items()})
            writer.write(made)


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
        left = (set(reader.every_sink()), set(reader.every_source()), set(reader.every_edge()))
        counted = {name: reader.counters()[name] for name in ("payloads", "deliveries")}
    tell(store, city, "second")
    with closing(open_store(store).reader()) as reader:
        assert {name: reader.counters()[name] for name in counted} == counted
        assert (set(reader.every_sink()), set(reader.every_source()), set(reader.every_edge())) == left
        assert list(reader.every_late()) == []
        assert check_feed(reader, all_labelled=True) == []
        for sink in reader.every_sink():
            assert {edge.id for edge in reader.backward(sink.id)} == set(log.resolve(sink.id).sources)


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
        left = {sink.id for sink in reader.every_sink()}
        assert len(left) == len(log.sink_tuples) - removed.sinks
        assert check_feed(reader, all_labelled=True) == []
        for sink in left:
            assert {edge.id for edge in reader.backward(sink)} == set(log.resolve(sink).sources)


def test_stamps_do_not_go_back_when_the_beginning_is_told_once_more(tmp_path: Path, city: list[MicroBatch]) -> None:
    store = f"sqlite:///{tmp_path / 'graph.db'}"
    tell(store, city[: ROUNDS // 2], "first")
    tell(store, city, "second")
    with closing(open_store(store).reader()) as reader:
        assert check_feed(reader, all_labelled=True) == []
        stamps = [sink.stamp for sink in reader.every_sink()]
        assert min(stamps) > -(2**62), "what everybody has told has a time, also if all have ended"

"""A writer killed at any moment, a reader beside it: batches are there wholly or not at all."""

from __future__ import annotations

import random
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from collector.store import Cursor, StoreReader, StoreWriter
from tests.collector.store.graphs import graph_batch, stored_graph, tuple_id

ORIGINS = 40


def numbered(number: int) -> dict[str, object]:
    sink, sources = tuple_id(5, number), [tuple_id(1, number * ORIGINS + each) for each in range(ORIGINS)]
    return {
        "sinks": {sink: number},
        "sources": dict.fromkeys(sources, number),
        "edges": [(sink, each) for each in sources],
        "sink_labels": [sink],
        "source_labels": sources if number % 2 else [],
    }


def write_until_killed(path: Path, told: Connection) -> None:
    with StoreWriter(path) as writer:
        last = writer.last_batch("q")
        number = 0 if last is None else last + 1
        while True:
            writer.write(graph_batch("q", number, **numbered(number)))  # type: ignore[arg-type]
            if number % 7 == 0:
                writer.retain(number - 20)
            told.send(number)
            number += 1


def test_a_killed_writer_leaves_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "g.db"
    context = get_context("spawn")
    chance = random.Random(5)
    for _ in range(3):
        telling, told = context.Pipe()
        writer = context.Process(target=write_until_killed, args=(path, told))
        writer.start()
        told.close()
        acknowledged = -1
        for _ in range(chance.randrange(10, 30)):
            acknowledged = telling.recv()
        time.sleep(chance.uniform(0, 0.02))
        writer.kill()
        writer.join()
        try:
            while True:
                acknowledged = telling.recv()
        except (EOFError, OSError):
            pass
        with StoreReader(path) as reader:
            graph = stored_graph(reader)
            newest = max(graph.sinks) & 0xFFFF
            assert newest in (acknowledged, acknowledged + 1)
            for sink, number in graph.sinks.items():
                assert len(reader.backward(sink)) == ORIGINS
                assert sink in graph.sink_labels
                assert (tuple_id(1, number * ORIGINS) in graph.source_labels) == bool(number % 2)
            told_sinks = [each.values[0] for each in reader.changes(Cursor(), 10**6) if each.kind == 1]
            assert told_sinks == [tuple_id(5, number) for number in range(newest + 1)]
    with StoreWriter(path) as successor:
        assert successor.last_batch("q") == newest
        assert successor.write(graph_batch("q", newest)) is None

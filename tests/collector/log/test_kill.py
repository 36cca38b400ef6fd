"""A writer killed at any moment, readers beside it: what a commit returned for is there, and stays as it was read."""

from __future__ import annotations

import random
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from collector.log import FIRST, LogReader, Row, ShardWriter, verify
from tests.collector.log.batches import NONCE, SHARD, SNAPSHOT, NextSeqs, batch

AGENTS = "abc"


def write_until_killed(folder: Path, told: Connection) -> None:
    """Log batch after batch, and tell each commit, as an acknowledgement would."""
    writer = ShardWriter(folder, SHARD, segment_bytes=20_000, compression=None)
    state = NextSeqs(writer.tail())
    writer.begin(state.snapshot)
    chance = random.Random(sum(state.next.values()))
    while True:
        for agent in AGENTS:
            for _ in range(chance.randrange(4)):
                rows = batch(agent, state.next.get((agent, NONCE), 0), size_bytes=chance.randrange(20, 3_000))
                writer.append(rows)
                state.note(rows)
        writer.commit()
        told.send(dict(state.next))


def test_a_killed_writer_loses_nothing_that_it_has_committed(tmp_path: Path) -> None:
    context = get_context("spawn")
    chance = random.Random(7)
    reader = LogReader(tmp_path)
    read: list[Row] = []
    at = FIRST
    for _ in range(3):
        telling, told = context.Pipe()
        writer = context.Process(target=write_until_killed, args=(tmp_path, told))
        writer.start()
        told.close()
        acknowledged: dict[tuple[str, int], int] = {}
        for _ in range(chance.randrange(10, 40)):
            acknowledged = telling.recv()
            end = reader.ahead(SHARD, at, 50, 100_000)
            read += reader.rows(SHARD, at, end)
            at = end
        time.sleep(chance.uniform(0, 0.02))
        writer.kill()
        writer.join()
        try:
            while True:
                acknowledged = telling.recv()
        except (EOFError, OSError):
            pass
        logged = NextSeqs(row for row in reader.rows(SHARD, FIRST, reader.end(SHARD)))
        assert all(logged.next[agent] >= seq for agent, seq in acknowledged.items())
    with ShardWriter(tmp_path, SHARD) as successor:
        assert not successor.repair.lost
        everything = list(reader.rows(SHARD, FIRST, successor.position))
    assert read
    assert everything[: len(read)] == read
    (report,) = verify(tmp_path, own_kinds=[SNAPSHOT])
    assert report.findings == []
    assert report.segments > 3

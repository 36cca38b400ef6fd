"""When results and tasks become visible, on a store that holds exactly what the tests put there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from collector.store import ChangeKind, StoreReader, StoreUnavailable
from protocol.wire.sections import EventKind, Kind
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from tests.collector.store.rows import AGENT, record_row, register_row
from tests.support.waiting import wait_until
from threadline.load.latency import Arrivals
from threadline.load.profiles import RESULTS

START = (AGENT.name, AGENT.nonce)
STREAM = 7


def test_results_and_tasks_are_late_by_their_own_time(tmp_path: Path) -> None:
    """Those of others, and those that were captured before the clock started, do not count."""
    store = f"sqlite:///{tmp_path / 'g.db'}"
    now_ms = time.time_ns() // 1_000_000
    with QuickWriter(tmp_path / "g.db") as writer, Arrivals(store, [START], with_tasks=True) as arrivals:
        arrivals.since_ms = now_ms - 60_000
        ours = {tuple_id(STREAM, 0): now_ms - 5_000, tuple_id(STREAM, 1): now_ms - 300_000}
        others = {tuple_id(STREAM + 1, 0): now_ms}
        begun: tuple[Any, ...] = (Kind.EVENT, EventKind.TASK_BEGUN, now_ms - 2_000, 3, 0, "t", "", (), [])
        rows = [register_row(STREAM, RESULTS), record_row(begun, seq=1)]
        writer.write(graph_batch("q", 0, sinks=ours | others, rows=rows))
        wait_until(lambda: arrivals.seen == 3, "both results and the task are seen")
        late = arrivals.take_ms()
    assert late.count == 2
    assert 5_000 <= late.most < 60_000
    assert arrivals.take_ms().count == 0


def test_what_was_read_when_the_store_failed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is busy just when the tasks are looked for, after the results."""
    failed: list[int] = []
    tasks_after = StoreReader.tasks_after

    def fails_once(reader: StoreReader, agent: str, nonce: int, key: int) -> list[tuple[int, int, int | None]]:
        if reader.feed_end().row and not failed:
            failed.append(key)
            raise StoreUnavailable("busy")
        return tasks_after(reader, agent, nonce, key)

    monkeypatch.setattr(StoreReader, "tasks_after", fails_once)
    rows = [register_row(STREAM, RESULTS)]
    with (
        QuickWriter(tmp_path / "g.db") as writer,
        Arrivals(f"sqlite:///{tmp_path / 'g.db'}", [START], with_tasks=True) as arrivals,
    ):
        writer.write(graph_batch("q", 0, sinks={tuple_id(STREAM, 0): 5}, rows=rows))
        wait_until(lambda: failed, "it has failed")
        writer.write(graph_batch("q", 1, sinks={tuple_id(STREAM, 1): 6}))
        wait_until(lambda: arrivals.seen == 2, "both results are seen")


def test_whatever_else_ends_it_is_made_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else results would seem to have stayed away."""

    def fails(*_: object) -> None:
        raise KeyError(7)

    monkeypatch.setattr(StoreReader, "told", fails)
    with (
        QuickWriter(tmp_path / "g.db"),
        Arrivals(f"sqlite:///{tmp_path / 'g.db'}", [START], with_tasks=False) as arrivals,
    ):
        wait_until(lambda: arrivals.failure is not None, "it has failed")
    assert arrivals.failure is not None
    assert arrivals.failure.told(3.0).startswith("the look at the store failed at 3 s: KeyError: 7 (")


def test_what_was_there_before_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may hold the results of years."""
    read: list[int] = []
    told = StoreReader.told

    def noted(reader: StoreReader, kind: ChangeKind, row: int) -> list[tuple[int, Any]]:
        read.append(row)
        return [*told(reader, kind, row)]

    monkeypatch.setattr(StoreReader, "told", noted)
    with QuickWriter(tmp_path / "g.db") as writer:
        sinks = {tuple_id(STREAM, seq): 5 for seq in range(3)}
        writer.write(graph_batch("q", 0, sinks=sinks, rows=[register_row(STREAM, RESULTS)]))
        with StoreReader(tmp_path / "g.db") as reader:
            end = reader.feed_end().row
        with Arrivals(f"sqlite:///{tmp_path / 'g.db'}", [START], with_tasks=False) as arrivals:
            writer.write(graph_batch("q", 1, sinks={tuple_id(STREAM, 3): 5}))
            wait_until(lambda: arrivals.seen == 1, "the new one is seen")
    assert read[0] == end > 0

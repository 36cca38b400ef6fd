"""Captured events become workflows, tasks and data, in whatever order they come and however often."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from collector.store import StoreReader
from collector.store.captured_rows import DataQuery, DataRow, TaskQuery, WorkflowQuery
from protocol.events import UNKNOWN
from protocol.wire.sections import EventKind, Kind
from tests.collector.agents import PACKER
from tests.collector.store.graphs import QuickWriter, graph_batch
from tests.collector.store.rows import AGENT, record_row


def item(data_id: str, derivations: tuple[str, ...] = (), attributes: Any = None) -> tuple[Any, ...]:
    return (data_id, "w", derivations, *PACKER.pack(attributes))


EVENTS = [
    (Kind.EVENT, EventKind.WORKFLOW_BEGUN, -10, 0, "w", *PACKER.pack({"model": "a", "at": b"\x01\xff"})),
    (Kind.EVENT, EventKind.TASK_BEGUN, 11, 1, 0, "t1", "train", (), [item("in", (), {"rate": 0.5})]),
    (Kind.EVENT, EventKind.TASK_BEGUN, 12, 2, 0, "t2", "test", (("t1", 1), ("?", UNKNOWN)), [item("out")]),
    (Kind.EVENT, EventKind.TASK_ENDED, 13, 1, 0, "", [item("out", ("in",), {"loss": float("inf")}), item("log")]),
    (Kind.EVENT, EventKind.WORKFLOW_ENDED, 14, 0, 1, "it broke"),
]
ROWS = [record_row(event, seq=seq, first_event=seq) for seq, event in enumerate(EVENTS)]


@pytest.mark.parametrize("order", list(permutations(range(5)))[::7])
def test_in_any_order_and_told_twice(tmp_path: Path, order: tuple[int, ...]) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        for number, place in enumerate(order):
            writer.write(graph_batch("q", number, rows=[ROWS[place]]))
        writer.write(graph_batch("r", 0, rows=ROWS))
        ((workflow,), _) = reader.workflows(WorkflowQuery(name="w"))
        assert (workflow.agent, workflow.nonce, workflow.key, workflow.begun_ms, workflow.ended_ms) == (
            "pump-7", AGENT.nonce, 0, -10, 14,
        )  # fmt: skip
        assert (workflow.status, workflow.error) == ("failed", "it broke")
        assert workflow.attributes == {"model": "a", "at": "01ff"}
        tasks = [
            (row.key, row.workflow, row.name, row.transformation, row.begun_ms, row.ended_ms, row.status)
            for row in reader.tasks(TaskQuery()).rows
        ]
        assert tasks == [(1, 0, "t1", "train", 11, 13, "finished"), (2, 0, "t2", "test", 12, None, "running")]
        data = [(row.task, row.is_generated, row.derivations, row.attributes) for row in _data(reader, "out")]
        assert data == [(1, True, ["in"], {"loss": "inf"}), (2, False, [], None)]
        assert [row.attributes for row in _data(reader, "in")] == [{"rate": 0.5}]
        dependencies = reader._db.execute("SELECT task, id, key FROM dependencies").fetchall()
        assert dependencies == [(2, "t1", 1), (2, "?", UNKNOWN)]
        counters = reader.counters()
        assert {name: counters[name] for name in counters if name.startswith(("tasks", "workflows"))} == {
            "workflows_begun": 1,
            "workflows_failed": 1,
            "tasks_begun": 2,
            "tasks_finished": 1,
        }


def test_an_end_without_a_beginning_is_shown(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, rows=[ROWS[3], ROWS[4]]))
        assert [(row.key, row.name, row.ended_ms) for row in reader.tasks(TaskQuery()).rows] == [(1, None, 13)]
        workflows = reader.workflows(WorkflowQuery()).rows
        assert [(row.key, row.name, row.status, row.attributes) for row in workflows] == [(0, None, "failed", None)]


def test_the_tasks_of_a_start_can_be_followed(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(graph_batch("q", 0, rows=ROWS))
        assert reader.tasks_after("pump-7", AGENT.nonce, -1) == [(1, 11, 13), (2, 12, None)]
        assert reader.tasks_after("pump-7", AGENT.nonce, 1) == [(2, 12, None)]
        assert reader.tasks_after("pump-7", AGENT.nonce + 1, -1) == []


def _data(reader: StoreReader, name: str) -> list[DataRow]:
    return reader.data(DataQuery(name=name)).rows

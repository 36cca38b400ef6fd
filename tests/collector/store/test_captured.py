"""Captured events become workflows, tasks and data, in whatever order they come and however often."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from collector.store import StoreReader
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
NONCE = AGENT.nonce


@pytest.mark.parametrize("order", list(permutations(range(5)))[::7])
def test_in_any_order_and_told_twice(tmp_path: Path, order: tuple[int, ...]) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        for number, place in enumerate(order):
            writer.write(graph_batch("q", number, rows=[ROWS[place]]))
        writer.write(graph_batch("r", 0, rows=ROWS))
        (workflow,) = reader.workflows("w")
        assert workflow == (
            "pump-7", NONCE, 0, "w", -10, 14, "failed", "it broke", {"model": "a", "at": "01ff"},
        )  # fmt: skip
        assert reader.workflows("v") == []
        assert reader.tasks() == [
            ("pump-7", NONCE, 1, 0, "t1", "train", 11, 13, "finished", ""),
            ("pump-7", NONCE, 2, 0, "t2", "test", 12, None, None, None),
        ]
        assert [task.id for task in reader.tasks(is_running=True)] == ["t2"]
        assert [task.id for task in reader.tasks(is_running=False, workflow=0, agent="pump-7")] == ["t1"]
        assert reader.tasks(agent="pump-8") == reader.tasks(workflow=1) == []
        assert reader.data("out") == [
            ("pump-7", NONCE, 1, True, "out", "w", ["in"], {"loss": "inf"}),
            ("pump-7", NONCE, 2, False, "out", "w", [], None),
        ]
        assert [each.attributes for each in reader.data("in")] == [{"rate": 0.5}]
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
        assert [(each.key, each.id, each.ended_ts) for each in reader.tasks()] == [(1, None, 13)]
        assert [(each.key, each.id, each.status, each.attributes) for each in reader.workflows()] == [
            (0, None, "failed", None)
        ]

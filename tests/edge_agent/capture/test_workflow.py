"""Workflows: begun once, ended once, by whoever comes first."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from edge_agent.capture import CaptureError, Data, Task, Workflow, counts, use
from protocol.events import TaskBegun, WorkflowBegun, WorkflowEnded
from tests.edge_agent.capture.memory import Memory


def test_a_workflow_has_attributes_and_an_end(memory: Memory) -> None:
    attributes = {"city": "Bordeaux", "rate": 0.1}
    workflow = Workflow(1, attributes)
    attributes["rate"] = 0.2
    workflow.begin()
    attributes["rate"] = 0.3
    workflow.end()
    begun, ended = memory.events()
    assert isinstance(begun, WorkflowBegun)
    assert isinstance(ended, WorkflowEnded)
    assert (begun.id, begun.attributes, begun.key) == ("1", {"city": "Bordeaux", "rate": 0.2}, 0)
    assert (ended.key, ended.status, ended.error) == (0, "finished", "")


def test_the_first_task_begins_a_workflow_that_nobody_has_begun(memory: Memory) -> None:
    workflow = Workflow("w", {"a": 1})
    Task("t", workflow).begin(Data("d", workflow.id)).end()
    Task("t", workflow).begin().end()
    workflow.end()
    assert [row[1] for row in memory.rows] == [0, 2, 3, 2, 3, 1]
    assert memory.of(WorkflowBegun)[0].attributes == {"a": 1}
    assert counts() == {"replaced": 0}


def test_a_task_after_the_end_of_its_workflow_is_recorded_and_does_not_begin_it_again(memory: Memory) -> None:
    with Workflow("w") as workflow:
        pass
    Task("late", workflow).begin().end()
    assert [row[1] for row in memory.rows] == [0, 1, 2, 3]


def end_twice() -> None:
    workflow = Workflow("w").begin()
    workflow.end()
    workflow.end()


@pytest.mark.parametrize("strict", [False, True])
def test_wrong_order(memory: Memory, strict: bool) -> None:
    use(memory, strict=strict)
    wrong: dict[str, Any] = {
        "workflow_begun_twice": lambda: Workflow("w").begin().begin(),
        "workflow_ended_twice": end_twice,
        "workflow_not_begun": lambda: Workflow("w").end(),
    }
    expected: dict[str, list[int]] = {"workflow_begun_twice": [0], "workflow_not_begun": []}
    for kind, act in wrong.items():
        memory.rows.clear()
        if strict:
            with pytest.raises(CaptureError, match="workflow 'w'"):
                act()
        else:
            act()
            assert counts()[kind] == 1
        assert [row[1] for row in memory.rows] == expected.get(kind, [0, 1])


def test_begin_in_front_of_a_with_block_is_the_same_begin(memory: Memory) -> None:
    with Workflow("w").begin():
        pass
    assert [row[1] for row in memory.rows] == [0, 1]
    assert counts() == {"replaced": 0}


def test_an_ended_workflow_is_not_entered_again(memory: Memory) -> None:
    workflow = Workflow("w")
    with workflow:
        pass
    with workflow:
        pass
    assert [row[1] for row in memory.rows] == [0, 1]
    assert counts()["workflow_begun_twice"] == 1


def test_workflows_with_one_id_are_different_workflows(memory: Memory) -> None:
    for _ in range(2):
        with Workflow("w"):
            Task("t").begin().end()
    first, second = memory.of(WorkflowBegun)
    assert first.key != second.key
    assert [begun.workflow for begun in memory.of(TaskBegun)] == [first.key, second.key]


def test_blocks_inside_each_other_are_left_in_order(memory: Memory) -> None:
    with Workflow("outer") as outer:
        with Workflow("inner") as inner:
            assert Task("t").workflow is inner
        assert Task("t").workflow is outer
    Task("t")
    assert counts()["no_workflow"] == 1


@pytest.mark.parametrize("again", [copy.deepcopy, lambda workflow: pickle.loads(pickle.dumps(workflow))])
def test_a_copy_in_another_process_is_the_same_workflow_seen_by_another_agent(memory: Memory, again: Any) -> None:
    copied = again(Workflow(5, {"a": 1}).begin())
    copied.begin()
    first, second = memory.of(WorkflowBegun)
    assert (first.id, first.attributes) == (second.id, second.attributes) == ("5", {"a": 1})
    assert first.key != second.key

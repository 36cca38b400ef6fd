"""Events, and the relations of W3C PROV-DM that they state."""

from __future__ import annotations

from protocol.events import (
    UNKNOWN,
    DataItem,
    Dependency,
    Relation,
    TaskBegun,
    TaskEnded,
    WorkflowBegun,
    WorkflowEnded,
    relations,
)


def test_a_task_that_begins() -> None:
    used = (DataItem("in_1", "1", ("raw_1", "raw_2"), {"in": [1]}),)
    waits = (Dependency("0-0", 1), Dependency("lost", UNKNOWN))
    begun = TaskBegun(7, 1000, 2, 0, "0-1", "0", waits, used)
    assert list(relations(begun)) == [
        Relation("wasAssociatedWith", "task:2", "workflow:0"),
        Relation("wasInformedBy", "task:2", "task:1"),
        Relation("wasInformedBy", "task:2", "task:?lost"),
        Relation("used", "task:2", "data:in_1"),
        Relation("wasAttributedTo", "data:in_1", "workflow:?1"),
        Relation("wasDerivedFrom", "data:in_1", "data:raw_1"),
        Relation("wasDerivedFrom", "data:in_1", "data:raw_2"),
    ]


def test_a_task_that_ends_well_or_not() -> None:
    generated = (DataItem("out_1", "1", ("in_1",), None), DataItem("log", "1", (), None))
    for status, error in (("finished", ""), ("failed", "ValueError: no")):
        ended = TaskEnded(8, 1001, 2, status, error, generated)  # type: ignore[arg-type]
        assert list(relations(ended)) == [
            Relation("wasGeneratedBy", "data:out_1", "task:2"),
            Relation("wasAttributedTo", "data:out_1", "workflow:?1"),
            Relation("wasDerivedFrom", "data:out_1", "data:in_1"),
            Relation("wasGeneratedBy", "data:log", "task:2"),
            Relation("wasAttributedTo", "data:log", "workflow:?1"),
        ]


def test_a_workflow_alone_relates_nothing() -> None:
    assert list(relations(WorkflowBegun(0, 1000, 0, "1"))) == []
    assert list(relations(WorkflowEnded(9, 1002, 0, "finished"))) == []


def test_tasks_of_the_same_id_are_told_apart_by_their_keys() -> None:
    first, second = (TaskBegun(key, 1000, key, 0, "0-1", "0", (), ()) for key in (1, 2))
    assert {each.subject for task in (first, second) for each in relations(task)} == {"task:1", "task:2"}

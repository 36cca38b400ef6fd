"""The derivation graph of captured events, against one that is made in plain Python of what was told."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from collector.store.captured_graph import (
    FILL,
    CapturedEdge,
    DataNode,
    Node,
    TaskNode,
    Unresolved,
    derived_of,
    exists,
    meant_by,
    origins_of,
    told_of,
)
from protocol.events import UNKNOWN, Dependency, Event, TaskBegun, TaskEnded, WorkflowBegun
from tests.collector.store.captures import Told, begun, captures, data, empty_store, ended, tell, workflow_begun

STARTS = (1, 2, 3)

some_examples = settings(max_examples=max(25, settings().max_examples // 4))


class Oracle:
    """All edges, found by looking at everything."""

    def __init__(self, told: list[Told]) -> None:
        self.told = told
        self.workflows = {(start, each.key): each.id for start, each in told if isinstance(each, WorkflowBegun)}
        self.tasks = {(start, each.key) for start, each in told if isinstance(each, (TaskBegun, TaskEnded))}
        self.begun = {(start, each.key): each for start, each in told if isinstance(each, TaskBegun)}
        self.owners: dict[tuple[str, str], set[int]] = defaultdict(set)
        for start, each in told:
            for item in each.generated if isinstance(each, TaskEnded) else ():
                self.owners[item.workflow_id, item.id].add(start)
        self.nodes: set[Node] = {TaskNode(*task) for task in self.tasks}
        self.edges: set[CapturedEdge] = set()
        self.unresolved: set[Unresolved] = set()
        for start, event in told:
            if isinstance(event, (TaskBegun, TaskEnded)):
                self._add(start, event)
        self.edges = {edge for edge in self.edges if edge.origin != edge.derived}

    def meant(self, start: int, workflow: str, name: str) -> set[DataNode]:
        owners = self.owners.get((workflow, name), set())
        meant: set[int] | set[None] = {start} if start in owners else owners or {None}
        found = {DataNode(owner, workflow, name) for owner in meant}
        self.nodes |= found
        return found

    def _add(self, start: int, event: TaskBegun | TaskEnded) -> None:
        task = TaskNode(start, event.key)
        for item in event.used if isinstance(event, TaskBegun) else event.generated:
            for node in self.meant(start, item.workflow_id, item.id):
                if isinstance(event, TaskBegun):
                    self.edges.add(CapturedEdge(node, task, "used"))
                else:
                    self.edges.add(CapturedEdge(task, node, "wasGeneratedBy"))
                for name in item.derivations:
                    for origin in self.meant(start, item.workflow_id, name):
                        self.edges.add(CapturedEdge(origin, node, "wasDerivedFrom"))
        for each in event.dependencies if isinstance(event, TaskBegun) else ():
            origins = self._waited_for(task, each)
            self.edges |= {CapturedEdge(origin, task, "wasInformedBy") for origin in origins}
            if not origins:
                self.unresolved.add(Unresolved(task, each.id))

    def _waited_for(self, task: TaskNode, named: Dependency) -> set[TaskNode]:
        if named.key != UNKNOWN:
            return {TaskNode(task.start, named.key)} & {TaskNode(*each) for each in self.tasks}
        return {
            TaskNode(*key)
            for key, other in self.begun.items()
            if other.id == named.id and key[0] != task.start and self._workflow(key) == self._workflow(task) is not None
        }

    def _workflow(self, task: tuple[int, int]) -> str | None:
        return self.workflows.get((task[0], self.begun[task].workflow))


def every_node() -> list[Node]:
    """All nodes that there could be, and some that cannot."""
    found: list[Node] = [TaskNode(start, key) for start in (*STARTS, 9) for key in (-1, 0, 1, 2, 3)]
    return found + [
        DataNode(start, workflow, name) for start in (None, *STARTS, 9) for workflow in "vw" for name in "wxyz"
    ]


@given(captures())
@some_examples
def test_every_edge_is_found_from_both_ends(told: list[Told]) -> None:
    db, oracle = empty_store(), Oracle(told)
    tell(db, told)
    for node in every_node():
        assert exists(db, node) == (node in oracle.nodes)
        back, onward = origins_of(db, [node]), derived_of(db, [node])
        assert sorted(back.edges, key=repr) == sorted((e for e in oracle.edges if e.derived == node), key=repr)
        assert sorted(onward.edges, key=repr) == sorted((e for e in oracle.edges if e.origin == node), key=repr)
        assert set(back.unresolved) == {each for each in oracle.unresolved if each.task == node}
        assert not onward.unresolved and not back.is_cut and not onward.is_cut
    back, onward = origins_of(db, every_node()), derived_of(db, every_node())
    assert len(back.edges) == len(onward.edges) == len(oracle.edges)
    assert set(back.edges) == set(onward.edges) == oracle.edges
    db.close()


@given(captures(), st.integers(0, 5))
@some_examples
def test_no_more_edges_than_asked_for(told: list[Told], limit: int) -> None:
    db, oracle = empty_store(), Oracle(told)
    tell(db, told)
    found = derived_of(db, every_node(), limit)
    assert set(found.edges) <= oracle.edges
    assert len(found.edges) == min(limit, len(oracle.edges))
    assert found.is_cut == (len(oracle.edges) > limit)
    db.close()


def _contents(db: sqlite3.Connection) -> list[list[tuple[object, ...]]]:
    return [
        db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4").fetchall()
        for table in ("data_names", "data_derivations")
    ]


@given(captures())
@some_examples
def test_a_store_of_before_is_filled_with_what_would_have_been_told(told: list[Told]) -> None:
    db = empty_store()
    tell(db, told)
    tell(db, told)
    expected = _contents(db)
    db.executescript("DELETE FROM data_names; DELETE FROM data_derivations;")
    db.executescript(FILL)
    assert _contents(db) == expected
    db.close()


RUN: list[Event] = [
    workflow_begun(0, "w"),
    begun(1, "t", data("in")),
    ended(1, data("out", None, "in")),
    begun(2, "u", data("out"), after=[Dependency("t", 1), Dependency("v", UNKNOWN)]),
]


def test_nothing_is_looked_for_by_looking_at_everything() -> None:
    db = empty_store()
    tell(db, [(start, event) for start in (1, 2) for event in RUN])
    tell(db, [(3, workflow_begun(0, "w")), (3, begun(1, "v", data("out", None, "in")))])
    asked: list[str] = []
    db.set_trace_callback(asked.append)
    nodes = every_node() + [DataNode(start, "w", name) for start in (None, 1, 2) for name in ("in", "out")]
    edges = {*origins_of(db, nodes).edges, *derived_of(db, nodes).edges}
    told_of(db, [node for node in nodes if isinstance(node, DataNode)])
    db.set_trace_callback(None)
    assert {edge.relation for edge in edges} == {"used", "wasGeneratedBy", "wasDerivedFrom", "wasInformedBy"}
    for statement in {" ".join(each.split()) for each in asked}:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert not [step for step in plan if step.startswith("SCAN") and "VIRTUAL TABLE" not in step], plan


def test_a_program_that_is_run_twice_has_two_graphs() -> None:
    db = empty_store()
    tell(db, [(start, event) for start in (1, 2) for event in RUN])
    out = [DataNode(start, "w", "out") for start in (1, 2)]
    assert origins_of(db, [out[0]]).edges == [
        CapturedEdge(TaskNode(1, 1), out[0], "wasGeneratedBy"),
        CapturedEdge(DataNode(None, "w", "in"), out[0], "wasDerivedFrom"),
    ]
    assert derived_of(db, [out[1]]).edges == [CapturedEdge(out[1], TaskNode(2, 2), "used")]
    assert {edge.derived for edge in derived_of(db, [DataNode(None, "w", "in")]).edges} == {
        *out,
        TaskNode(1, 1),
        TaskNode(2, 1),
    }
    assert origins_of(db, [TaskNode(2, 2)]).unresolved == [Unresolved(TaskNode(2, 2), "v")]
    tell(db, [(3, begun(1, "reader", data("out")))])
    assert list(meant_by(db, 1, "w", "out")) == out[:1]
    assert list(meant_by(db, 3, "w", "out")) == out
    assert {edge.origin for edge in origins_of(db, [TaskNode(3, 1)]).edges} == set(out)


def test_an_input_belongs_to_whoever_turns_out_to_have_generated_it() -> None:
    db = empty_store()
    tell(db, [(1, begun(1, "t", data("x")))])
    shared, owned = DataNode(None, "w", "x"), DataNode(2, "w", "x")
    assert exists(db, shared) and not exists(db, owned)
    tell(db, [(2, ended(1, data("x")))])
    assert exists(db, owned) and not exists(db, shared)
    assert origins_of(db, [TaskNode(1, 1)]).edges == [CapturedEdge(owned, TaskNode(1, 1), "used")]
    assert derived_of(db, [shared]).edges == []


def test_data_is_told_as_it_was_generated_or_used_last() -> None:
    db = empty_store()
    tell(
        db, [(1, begun(1, "t", data("in", {"n": 1}))), (1, begun(2, "u", data("in", {"n": 2}), data("out", {"n": 9})))]
    )
    tell(
        db, [(1, ended(1, data("out", {"n": 3}, "lost"))), (1, ended(2, data("out", {"n": 4}), data("out", {"n": 5})))]
    )
    nodes = [DataNode(None, "w", "in"), DataNode(1, "w", "out"), DataNode(None, "w", "lost"), DataNode(2, "w", "out")]
    found = told_of(db, nodes)
    assert [(node.id, row.task, row.attributes) for node, row in found.items()] == [
        ("in", 2, {"n": 2}),
        ("out", 2, {"n": 5}),
    ]
    assert exists(db, nodes[2])

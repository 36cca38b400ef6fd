"""Tasks: what their rows say, whatever order and form they are given in."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edge_agent.capture import CaptureError, Data, Task, Workflow, counts, use
from edge_agent.capture.run import MOST_IDS
from protocol.events import Dependency, TaskBegun, TaskEnded, WorkflowBegun
from tests.edge_agent.capture.memory import Memory


@pytest.fixture
def workflow() -> Workflow:
    return Workflow("w").begin()


def run(task: Task) -> Task:
    task.begin()
    task.end()
    return task


def ids(events: list[Any], name: str) -> list[list[str]]:
    return [[item.id for item in getattr(event, name)] for event in events]


# Data given and ids


def test_begin_and_end_take_one_data_several_or_none(memory: Memory, workflow: Workflow) -> None:
    a, b = Data("a", 1, {"x": 1}), Data("b", 1, {"x": 2})

    def lazy() -> Iterator[Data]:
        yield a
        yield b

    forms: list[Any] = [a, [a, b], (a, b), lazy(), iter([a]), {"k": a}.values(), None, [], ()]
    for form in forms:
        Task("t", workflow).begin(form)
    Task("t", workflow).begin()
    expected = [["a"], ["a", "b"], ["a", "b"], ["a", "b"], ["a"], ["a"], [], [], [], []]
    assert ids(memory.of(TaskBegun), "used") == expected
    for form in (a, [a, b], (b,), lazy(), None):
        Task("t", workflow).begin().end(form)
    assert ids(memory.of(TaskEnded), "generated") == [["a"], ["a", "b"], ["b"], ["a", "b"], []]


def test_objects_keep_the_ids_that_the_user_gave_and_rows_have_texts(memory: Memory, workflow: Workflow) -> None:
    task = Task(7, workflow, transformation=3)
    data = Data(("x", 1), workflow.id, derivations=[1, "two", Data(3.5, 1)])
    task.begin(data)
    assert (task.id, task.transformation, data.id, data.workflow_id) == (7, 3, ("x", 1), "w")
    (begun,) = memory.of(TaskBegun)
    assert (begun.id, begun.transformation) == ("7", "3")
    (item,) = begun.used
    assert (item.id, item.workflow_id, item.derivations) == ("('x', 1)", "w", ("1", "two", "3.5"))


def test_one_derivation_needs_no_list(memory: Memory, workflow: Workflow) -> None:
    source = Data("source", 1)
    Task("t", workflow).begin([Data("a", 1, derivations="source"), Data("b", 1, derivations=source)])
    assert [item.derivations for item in memory.of(TaskBegun)[0].used] == [("source",), ("source",)]


def test_a_workflow_may_stand_for_its_id(memory: Memory, workflow: Workflow) -> None:
    Task("t", workflow).begin(Data("a", workflow))
    assert memory.of(TaskBegun)[0].used[0].workflow_id == "w"


# Dependencies


def test_tasks_with_one_id_are_different_tasks(memory: Memory, workflow: Workflow) -> None:
    tasks = [Task("epoch", workflow).begin() for _ in range(3)]
    for task in reversed(tasks):
        task.end(Data(f"out-{tasks.index(task)}", "w"))
    assert [begun.id for begun, _ in memory.tasks()] == ["epoch"] * 3
    assert [ended.generated[0].id for _, ended in memory.tasks()] == ["out-0", "out-1", "out-2"]


def test_an_id_means_the_latest_task_that_had_it_before(memory: Memory, workflow: Workflow) -> None:
    for _ in range(3):
        run(Task("a", workflow, dependencies=["a"]))
    made = Task("made, not begun", workflow)
    run(Task("b", workflow, dependencies=["a", "made, not begun", "nobody"]))
    a1, a2, a3, b = (begun for begun, _ in memory.tasks())
    assert a1.dependencies == (Dependency("a", -1),)
    assert a2.dependencies == (Dependency("a", a1.key),)
    assert a3.dependencies == (Dependency("a", a2.key),)
    made.begin()
    key = memory.of(TaskBegun)[-1].key
    assert b.dependencies == (Dependency("a", a3.key), Dependency("made, not begun", key), Dependency("nobody", -1))


def test_ids_belong_to_their_workflow(memory: Memory, workflow: Workflow) -> None:
    run(Task("a", workflow))
    run(Task("b", Workflow("other"), dependencies=["a"]))
    assert memory.of(TaskBegun)[1].dependencies == (Dependency("a", -1),)


def test_a_task_as_dependency_is_exactly_that_task_in_any_workflow(memory: Memory, workflow: Workflow) -> None:
    first, second = run(Task("a", workflow)), run(Task("a", workflow))
    run(Task("b", Workflow("other"), dependencies=(first, second)))
    a1, a2, b = (begun for begun, _ in memory.tasks())
    assert b.dependencies == (Dependency("a", a1.key), Dependency("a", a2.key))


def test_a_task_of_another_recorder_is_known_by_id_only(memory: Memory, workflow: Workflow) -> None:
    elsewhere = Task("a", Workflow("x", recorder=Memory()))
    run(Task("b", workflow, dependencies=elsewhere))
    assert memory.of(TaskBegun)[0].dependencies == (Dependency("a", -1),)


@pytest.mark.parametrize("given", ["abc", ("abc",), ["abc"], iter(["abc"])])
def test_one_dependency_needs_no_list(memory: Memory, workflow: Workflow, given: Any) -> None:
    Task("t", workflow, dependencies=given).begin()
    assert memory.of(TaskBegun)[0].dependencies == (Dependency("abc", -1),)


@pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_task_belongs_to_its_process(memory: Memory, workflow: Workflow, leave: Any) -> None:
    with pytest.raises(TypeError, match=r"task 'measure' belongs to the process .* its workflow and its id"):
        leave(Task("measure", workflow))


def test_old_ids_are_forgotten_so_memory_is_bounded(memory: Memory, workflow: Workflow) -> None:
    for number in range(3 * MOST_IDS):
        Task(number, workflow)
    known = workflow.run()
    assert len(known._recent) + len(known._older) <= 2 * MOST_IDS
    keys = [known.key_of(str(number)) for number in range(3 * MOST_IDS)]
    assert keys[-MOST_IDS:] == list(range(2 * MOST_IDS + 1, 3 * MOST_IDS + 1))
    assert keys[:MOST_IDS] == [-1] * MOST_IDS


# Used in the wrong order


@pytest.mark.parametrize("strict", [False, True])
def test_wrong_order_is_counted_and_told_once_and_recorded_never(
    memory: Memory, caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    use(memory, strict=strict)
    workflow = Workflow("w").begin()
    wrong: dict[str, Any] = {
        "task_begun_twice": lambda: Task("t", workflow).begin().begin(),
        "task_ended_twice": lambda: run(Task("t", workflow)).end(),
        "task_not_begun": lambda: Task("t", workflow).end(),
        "generated_too_late": lambda: run(Task("t", workflow)).generate(Data("d", 1)),
        "not_data": lambda: Task("t", workflow).begin([5]),  # type: ignore[list-item]
        "no_workflow": lambda: Task("t").begin(),
    }
    for kind, act in wrong.items():
        memory.rows.clear()
        caplog.clear()
        if strict:
            with pytest.raises(CaptureError, match="task"):
                act()
            continue
        act()
        rows = list(memory.rows)
        act()
        assert [row[1] for row in memory.rows[len(rows) :]] == [row[1] for row in rows]
        assert counts()[kind] == 2
        (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert "'t'" in record.getMessage() or kind == "not_data"
        expected = {"task_begun_twice": [2], "task_not_begun": [], "not_data": [2], "no_workflow": []}
        assert [row[1] for row in rows] == expected.get(kind, [2, 3])


def test_a_task_whose_begin_was_refused_can_still_begin(memory: Memory) -> None:
    use(memory, strict=True)
    task = Task("t", Workflow("w"))
    with pytest.raises(CaptureError):
        task.begin("no data")  # type: ignore[arg-type]
    task.begin()
    task.end()
    assert len(memory.tasks()) == 1


def test_what_is_no_data_is_left_out_and_the_rest_recorded(memory: Memory, workflow: Workflow) -> None:
    Task("t", workflow).begin([Data("a", 1), {"x": 1}, Data("b", 1)])  # type: ignore[list-item]
    assert ids(memory.of(TaskBegun), "used") == [["a", "b"]]


def test_an_iterator_that_raises_costs_only_what_it_did_not_give(memory: Memory, workflow: Workflow) -> None:
    def failing() -> Iterator[Data]:
        yield Data("a", 1)
        raise OSError("gone")

    Task("t", workflow).begin(failing())
    assert ids(memory.of(TaskBegun), "used") == [["a"]]
    assert counts()["iteration"] == 1


def test_a_recorder_that_raises_does_not_break_the_program(memory: Memory, workflow: Workflow) -> None:
    def broken(row: Any, size: int) -> None:
        raise OSError("no space")

    memory.put = broken  # type: ignore[method-assign]
    with Workflow("v") as other, Task("t", other):
        pass
    assert counts()["not_recorded"] >= 2
    assert memory.rows[1:] == []


# With blocks


def test_a_with_block_begins_and_ends(memory: Memory, workflow: Workflow) -> None:
    with Task("t", workflow, "train").begin(Data("in", "w", {"x": 1})) as task:
        task.generate(Data("out-1", "w", {"y": 1}))
        task.generate([Data("out-2", "w"), Data("out-3", "w")])
    ((begun, ended),) = memory.tasks()
    assert (begun.transformation, begun.used[0].attributes) == ("train", {"x": 1})
    assert [item.id for item in ended.generated] == ["out-1", "out-2", "out-3"]
    assert ended.status == "finished"


def test_a_task_may_be_ended_inside_its_block(memory: Memory, workflow: Workflow) -> None:
    with Task("t", workflow) as task:
        task.generate(Data("a", "w"))
        task.end(Data("b", "w"))
    ((_, ended),) = memory.tasks()
    assert [item.id for item in ended.generated] == ["a", "b"]
    assert counts() == {"replaced": 0}


def test_blocks_inside_each_other_inform_each_other(memory: Memory) -> None:
    with Workflow("w") as workflow:
        with Task("outer") as outer, Task("inner") as inner:
            assert outer.workflow is inner.workflow is workflow
            Task("listed", dependencies=[]).begin().end()
        Task("after").begin().end()
    depends = {begun.id: [each.id for each in begun.dependencies] for begun, _ in memory.tasks()}
    assert depends == {"outer": [], "inner": ["outer"], "listed": [], "after": []}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("too hot"), "ValueError: too hot"),
        (KeyError(), "KeyError"),
        (Unspeakable(), "Unspeakable"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
        (GeneratorExit(), "GeneratorExit"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 488),
        (ValueError("half \ud800"), "ValueError: half \\ud800"),
    ],
)
def test_an_exception_ends_task_and_workflow_as_failed_and_goes_on(
    memory: Memory, error: BaseException, text: str
) -> None:
    with pytest.raises(type(error)) as raised, Workflow("w"), Task("t") as task:
        task.generate(Data("so far", "w"))
        raise error
    assert raised.value is error
    ((_, ended),) = memory.tasks()
    assert (ended.status, ended.error) == ("failed", text)
    assert [item.id for item in ended.generated] == ["so far"]
    last = memory.events()[-1]
    assert (getattr(last, "status", ""), getattr(last, "error", "")) == ("failed", text)


def test_a_task_can_be_ended_with_an_error(memory: Memory, workflow: Workflow) -> None:
    Task("t", workflow).begin().end(error="sensor gone")
    Task("t", workflow).begin().end(Data("partial", "w"), error=ValueError("too hot"))
    assert [(e.status, e.error) for _, e in memory.tasks()] == [
        ("failed", "sensor gone"),
        ("failed", "ValueError: too hot"),
    ]


# Threads and durability


def test_eight_threads(memory: Memory, workflow: Workflow) -> None:
    def work(thread: int) -> None:
        previous: list[Any] = []
        for number in range(1000):
            task = Task(f"{thread}-{number}", workflow, thread, dependencies=previous)
            task.begin([Data(f"in-{thread}-{number}", "w", {"n": number})])
            task.end([Data(f"out-{thread}-{number}", "w", {"n": -number})])
            previous = [task.id]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(memory.rows) == 1 + 2 * 8000
    key_of: dict[str, int] = {}
    for row in memory.rows:
        if row[1] == 2:
            assert row[4] == 0
            thread, number = row[5].split("-")
            expected = () if number == "0" else ((before := f"{thread}-{int(number) - 1}", key_of[before]),)
            assert row[7] == expected
            key_of[row[5]] = row[3]
    assert len(set(key_of.values())) == len(key_of) == 8000
    for begun, ended in memory.tasks():
        assert begun.used[0].id == f"in-{begun.id}"
        assert ended.generated[0].id == f"out-{begun.id}"


def test_of_many_threads_that_begin_and_end_a_task_one_does(memory: Memory) -> None:
    for _ in range(30):
        task = Task("t", Workflow("not begun"))
        start = threading.Barrier(4)

        def work(task: Task = task, start: threading.Barrier = start) -> None:
            start.wait()
            task.begin()
            task.end()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(memory.tasks()) == len(memory.of(WorkflowBegun)) == 30


def test_durable_calls_end_with_a_flush(memory: Memory) -> None:
    durable = Memory(durable=True)
    with Workflow("w", recorder=durable) as workflow, Task("t", workflow):
        pass
    assert durable.flushed == [1, 2, 3, 4]
    with Workflow("w") as workflow, Task("t", workflow):
        pass
    assert memory.flushed == []

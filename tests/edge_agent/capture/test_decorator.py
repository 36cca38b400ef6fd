"""@task: calls as tasks, and who called whom."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from edge_agent.capture import CaptureError, Data, Task, Workflow, counts, task, use
from protocol.events import DataItem, TaskBegun, TaskEnded
from protocol.wire.packer import Unserialisable
from tests.edge_agent.capture.memory import Memory


def callers(memory: Memory) -> list[tuple[str, str | None]]:
    """Every task and the one that it was informed by, as the names of their functions."""
    tasks = [begun for begun, _ in memory.tasks()]
    name = {begun.key: begun.id.split("-")[0] for begun in tasks}
    return [(name[begun.key], name[begun.dependencies[0].key] if begun.dependencies else None) for begun in tasks]


def used(memory: Memory) -> list[tuple[DataItem, ...]]:
    return [event.used for event in memory.of(TaskBegun)]


def generated(memory: Memory) -> list[tuple[DataItem, ...]]:
    return [event.generated for event in memory.of(TaskEnded)]


@task
def add(left: int, right: int = 2, *more: int, scale: int = 1, **other: int) -> int:
    """Adds."""
    return (left + right + sum(more)) * scale


def test_arguments_are_used_by_name_and_the_result_is_generated(memory: Memory) -> None:
    with Workflow("w") as workflow:
        assert add(1) == 3
        assert add(1, right=5, scale=2) == 12
        assert add(1, 2, 3, 4, extra=9) == 10
    assert [items[0].attributes for items in used(memory)] == [
        {"left": 1, "right": 2, "scale": 1},
        {"left": 1, "right": 5, "scale": 2},
        {"left": 1, "right": 2, "more": [3, 4], "scale": 1, "extra": 9},
    ]
    assert [items[0].attributes for items in generated(memory)] == [3, 12, 10]
    for begun, ended in memory.tasks():
        assert begun.transformation == "add"
        assert begun.id.startswith("add-")
        assert (begun.used[0].id, ended.generated[0].id) == (f"{begun.id}/arguments", f"{begun.id}/result")
        assert ended.generated[0].derivations == (begun.used[0].id,)
        assert begun.used[0].workflow_id == ended.generated[0].workflow_id == workflow.id
    assert len({begun.id for begun, _ in memory.tasks()}) == 3


def test_a_decorated_function_is_still_itself() -> None:
    assert (add.__name__, add.__doc__) == ("add", "Adds.")


def test_name_and_workflow_can_be_given(memory: Memory) -> None:
    workflow = Workflow("mine")

    @task(name="training", workflow=workflow)
    def train() -> None: ...

    with Workflow("around"):
        train()
    ((begun, ended),) = memory.tasks()
    assert begun.transformation == "training"
    assert begun.workflow == workflow.run().key
    assert (begun.used, ended.generated) == ((), ())


def test_data_goes_in_and_out_as_it_is(memory: Memory) -> None:
    @task
    def merge(first: Data, rest: list[Data], factor: int) -> Data:
        return Data("merged", "w", {"n": factor}, derivations=[first])

    @task
    def split(whole: Data) -> tuple[Data, Data]:
        return Data("half-1", "w"), Data("half-2", "w")

    with Workflow("w"):
        split(merge(Data("a", "w"), [Data("b", "w"), Data("c", "w")], 3))
    merging, splitting = memory.tasks()
    assert [item.id for item in merging[0].used][:3] == ["a", "b", "c"]
    assert merging[0].used[3].attributes == {"factor": 3}
    assert [(item.id, item.derivations) for item in merging[1].generated] == [("merged", ("a",))]
    assert [item.id for item in splitting[0].used] == ["merged"]
    assert [item.id for item in splitting[1].generated] == ["half-1", "half-2"]


class Worker:
    def work(this, hours: int, speed: int = 1, *, self: int = 1) -> int:
        return hours * speed


class Model:
    @task
    def fit(self, rate: float) -> float:
        return rate * 2

    @classmethod
    @task
    def load(cls, path: str) -> str:
        return path

    @staticmethod
    @task
    def score(error: float) -> float:
        return -error


def test_methods(memory: Memory) -> None:
    with Workflow("w"):
        assert Model().fit(0.5) == 1.0
        assert Model.fit(Model(), rate=1.0) == 2.0
        assert Model.load("here") == "here"
        assert Model.score(0.5) == -0.5
        assert task(Worker().work)(7, speed=2) == 14
    assert [items[0].attributes for items in used(memory)] == [
        {"rate": 0.5},
        {"rate": 1.0},
        {"path": "here"},
        {"error": 0.5},
        {"hours": 7, "speed": 2, "self": 1},
    ]
    assert counts() == {"replaced": 0}


def test_below_classmethod_not_above() -> None:
    with pytest.raises(TypeError, match="classmethod"):
        task(classmethod(lambda cls: 1))  # type: ignore[call-overload]


def test_callables_without_code(memory: Memory) -> None:
    with Workflow("w"):
        assert task(partial(divmod, 7))(2) == (3, 1)
        assert task(max)([1, 3]) == 3
    assert [items[0].attributes for items in used(memory)] == [{"args": [2]}, {"args": [[1, 3]]}]
    assert memory.of(TaskBegun)[1].transformation == "max"


def test_calls_inside_calls_are_informed_by_their_caller(memory: Memory) -> None:
    @task
    def outer(depth: int) -> None:
        if depth:
            outer(depth - 1)
            outer(0)

    with Workflow("w"):
        outer(2)
        outer(0)
    tasks = [begun for begun, _ in memory.tasks()]
    depth = [begun.used[0].attributes["depth"] for begun in tasks]
    caller = [tuple(each.key - tasks[0].key for each in begun.dependencies) for begun in tasks]
    assert list(zip(depth, caller, strict=True)) == [(2, ()), (1, (0,)), (0, (1,)), (0, (1,)), (0, (0,)), (0, ())]


def test_exceptions(memory: Memory) -> None:
    @task
    def fail(text: str) -> None:
        raise ValueError(text)

    with Workflow("w"):
        with pytest.raises(ValueError, match="too hot"):
            fail("too hot")
        with pytest.raises(TypeError, match="missing"):
            fail()  # type: ignore[call-arg]
        assert Task("after").begin().workflow is not None
    first, second = (event for event in memory.of(TaskEnded))
    assert (first.status, first.error, first.generated) == ("failed", "ValueError: too hot", ())
    assert (second.status, second.error.split(":")[0]) == ("failed", "TypeError")
    assert memory.of(TaskBegun)[2].dependencies == (), "the failed calls are over"


def test_without_a_workflow_the_function_runs_and_the_loss_is_counted(memory: Memory) -> None:
    add(0, 0)  # with the first one of the process, a workflow of those that have none has begun
    before = counts()
    assert add(1, 1) == 2
    assert memory.rows == []
    assert [counts()[kind] - before[kind] for kind in ("no_workflow", "discarded")] == [1, 2]
    use(memory, strict=True)
    with pytest.raises(CaptureError, match="no workflow"):
        add(1, 1)


def test_arguments_that_cannot_be_captured(memory: Memory) -> None:
    @task
    def locked(lock: Any, count: int) -> Any:
        return lock

    with Workflow("w"):
        locked(threading.Lock(), 3)
    assert used(memory)[0][0].attributes == {"lock": {"$unserialisable": "_thread.lock"}, "count": 3}
    assert generated(memory)[0][0].attributes == {"$unserialisable": "_thread.lock"}
    strict = Memory(strict=True)
    use(strict)
    with pytest.raises(Unserialisable), Workflow("w"):
        locked(threading.Lock(), 3)


# asyncio


def test_gathered_coroutines_have_the_right_parents(memory: Memory) -> None:
    @task
    async def leaf(number: int) -> int:
        await asyncio.sleep(0.0001 * (number % 7))
        return number

    @task
    async def branch(number: int) -> int:
        await asyncio.sleep(0.0001 * (number % 5))
        return sum(await asyncio.gather(*(leaf(10 * number + each) for each in range(10))))

    async def main() -> list[int]:
        with Workflow("w"):
            return await asyncio.gather(*(branch(number) for number in range(10)))

    assert sum(asyncio.run(main())) == sum(range(100))
    tasks = {begun.key: begun for begun, _ in memory.tasks()}
    assert len(tasks) == 110
    for begun, ended in memory.tasks():
        (argument,) = (item.attributes["number"] for item in begun.used)
        if begun.transformation == "branch":
            assert begun.dependencies == ()
        else:
            (dependency,) = begun.dependencies
            assert tasks[dependency.key].transformation == "branch"
            assert tasks[dependency.key].used[0].attributes["number"] == argument // 10
            assert ended.generated[0].attributes == argument


def test_a_cancelled_coroutine_has_failed(memory: Memory) -> None:
    @task
    async def forever() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        with Workflow("w"):
            running = asyncio.create_task(forever())
            await asyncio.sleep(0.001)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(main())
    ((_, ended),) = memory.tasks()
    assert (ended.status, ended.error) == ("failed", "CancelledError")


# Generators


@task
def count_to(limit: int) -> Iterator[int]:
    for number in range(limit):
        add(number)
        yield number


def test_a_generator_is_a_task_from_its_first_step_to_its_last(memory: Memory) -> None:
    with Workflow("w"):
        steps = count_to(2)
        assert memory.of(TaskBegun) == []
        for _ in steps:
            add(100)  # the caller's, not the generator's
    assert callers(memory) == [
        ("count_to", None),
        ("add", "count_to"),
        ("add", None),
        ("add", "count_to"),
        ("add", None),
    ]
    assert [event.status for event in memory.of(TaskEnded)] == ["finished"] * 5


def test_a_generator_that_its_caller_leaves_has_finished(memory: Memory) -> None:
    with Workflow("w"):
        for _ in count_to(5):
            break
    assert [event.status for event in memory.of(TaskEnded)] == ["finished"] * 2


def test_generators_hear_what_is_sent_and_thrown_and_return(memory: Memory) -> None:
    heard: list[Any] = []

    @task
    def listen() -> Any:
        while True:
            try:
                got = yield len(heard)
            except KeyError as error:
                got = error
            if got == "stop":
                return "done"
            heard.append(got)

    with Workflow("w"):
        steps = listen()
        assert next(steps) == 0
        assert steps.send("a") == 1
        error = KeyError("k")
        assert steps.throw(error) == 2
        with pytest.raises(StopIteration, match="done"):
            steps.send("stop")
        other = listen()
        next(other)
        with pytest.raises(ValueError, match="wrong"):
            other.throw(ValueError("wrong"))
    assert heard == ["a", error]
    (_, finished), (_, failed) = memory.tasks()
    assert (finished.status, finished.generated[0].attributes) == ("finished", "done")
    assert (failed.status, failed.error) == ("failed", "ValueError: wrong")


def test_async_generators(memory: Memory) -> None:
    @task
    async def ticks(limit: int, closed: list[int]) -> AsyncIterator[int]:
        try:
            for number in range(limit):
                await asyncio.sleep(0)
                add(number)
                yield number
        finally:
            closed.append(limit)

    async def main() -> None:
        closed: list[int] = []
        with Workflow("w"):
            async for _ in ticks(1, closed):
                add(100)
            left: Any = ticks(5, closed)
            await anext(left)
            await left.aclose()
            broken: Any = ticks(7, closed)
            await anext(broken)
            with pytest.raises(ValueError, match="wrong"):
                await broken.athrow(ValueError("wrong"))
        assert closed == [1, 5, 7]

    asyncio.run(main())
    assert callers(memory) == [
        *[("ticks", None), ("add", "ticks"), ("add", None)],
        *[("ticks", None), ("add", "ticks")],
        *[("ticks", None), ("add", "ticks")],
    ]
    status = [(ended.status, ended.error) for begun, ended in memory.tasks() if begun.transformation == "ticks"]
    assert status == [("finished", ""), ("finished", ""), ("failed", "ValueError: wrong")]


# Threads


def in_thread(target: Callable[[], Any]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


def test_a_thread_knows_its_caller_only_in_a_copied_context(memory: Memory) -> None:
    with Workflow("w"), Task("caller", dependencies=[]):
        in_thread(partial(add, 1))
        assert counts()["no_workflow"] == 1
        in_thread(partial(contextvars.copy_context().run, add, 1))
    assert callers(memory) == [("caller", None), ("add", "caller")]

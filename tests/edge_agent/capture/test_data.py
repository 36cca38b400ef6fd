"""Data: captured at the call, whatever it is, and never more than a row can hold."""

from __future__ import annotations

import copy
import random
import socket
import threading
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.capture import CaptureError, Data, Task, Workflow, counts, use
from edge_agent.capture.data import MOST_ROW_BYTES
from edge_agent.capture.given import MOST_ID
from protocol.events import TaskBegun, TaskEnded
from protocol.wire.batch import MOST_BATCH_BYTES, Header, encode_batch
from protocol.wire.compression import Codec
from protocol.wire.packer import Unserialisable
from protocol.wire.values import ArrayValue
from tests.edge_agent.capture.memory import Memory

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def captured(value: Any) -> Any:
    """The value as the cloud reads it."""
    memory = Memory()
    Task("t", Workflow("w", recorder=memory)).begin(Data("d", "w", value))
    return memory.of(TaskBegun)[0].used[0].attributes


def spoil(value: Any, dice: random.Random) -> None:
    """Change whatever can be changed."""
    for part in list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
        spoil(part, dice)
    if isinstance(value, dict):
        for key in list(value)[: dice.randrange(3)]:
            del value[key]
        value["spoilt"] = dice.random()
    elif isinstance(value, list):
        value[: dice.randrange(3)] = ["spoilt", dice.random()]


@given(st.dictionaries(st.text(), VALUES, max_size=5) | VALUES, st.randoms(use_true_random=False))
def test_what_the_caller_changes_later_changes_nothing(value: Any, dice: random.Random) -> None:
    memory = Memory()
    workflow = Workflow("w", value, recorder=memory)
    expected = copy.deepcopy(value)
    used, early, late = Data("in", "w", value), Data("early", "w", value), Data("late", "w", value)
    workflow.begin()
    task = Task("t", workflow).begin([used])
    task.generate(early)
    spoil(value, dice)
    expected_late = copy.deepcopy(value)
    task.end([late])
    spoil(value, dice)
    used.attributes = None
    workflow.end()
    ((begun, ended),) = memory.tasks()
    assert getattr(memory.events()[0], "attributes", "") == expected
    assert begun.used[0].attributes == expected
    assert [item.attributes for item in ended.generated] == [expected, expected_late]


def test_attributes_are_read_at_the_call_not_before(memory: Memory) -> None:
    attributes = {"loss": 1.0}
    data = Data("d", "w", attributes)
    attributes["loss"] = 0.5
    task = Task("t", Workflow("w")).begin(data)
    attributes["loss"] = 0.25
    task.end(data)
    ((begun, ended),) = memory.tasks()
    assert (begun.used[0].attributes, ended.generated[0].attributes) == ({"loss": 0.5}, {"loss": 0.25})


@dataclass
class Reading:
    celsius: float
    tags: list[str]


class Moody:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("do not ask")


def test_nested_values_and_those_of_numpy() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = captured({"scalar": np.float64(1.5), "count": np.int32(7), "array": array, "deep": [{"x": (1, [2])}]})
    assert (found["scalar"], found["count"], found["deep"]) == (1.5, 7, [{"x": [1, [2]]}])
    assert isinstance(found["array"], ArrayValue)
    assert found["array"].tolist() == array.tolist()
    array[0, 0] = 99
    assert found["array"].tolist() != array.tolist()
    assert captured(np.int64(5)) == 5
    assert captured(Reading(20.5, ["roof"])) == {"celsius": 20.5, "tags": ["roof"]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (deque([1, 2]), [1, 2]),
        (2**100, 2**100),
        ({1: "one", None: 2}, {1: "one", None: 2}),
        (1 + 2j, [1.0, 2.0]),
        ("half \ud800", "half \\ud800"),
        ({}, {}),
    ],
)
def test_odd_values(value: Any, expected: Any) -> None:
    assert captured(value) == expected


@pytest.mark.parametrize("make", [threading.Lock, lambda: print, object, Moody, lambda: int])
def test_what_cannot_be_captured_is_replaced_and_counted(memory: Memory, make: Any) -> None:
    value = make()
    task = Task("t", Workflow("w"))
    task.begin([Data("bad", "w", {"x": value, "y": 1}), Data("worse", "w", value), Data("good", "w", {"z": 2})])
    bad, worse, good = memory.of(TaskBegun)[0].used
    name = type(value).__qualname__
    assert bad.attributes["y"] == 1
    assert bad.attributes["x"]["$unserialisable"].endswith(name)
    assert worse.attributes["$unserialisable"].endswith(name)
    assert good.attributes == {"z": 2}
    assert counts()["replaced"] >= 2


def test_strict_mode_raises_where_a_value_cannot_be_captured() -> None:
    strict = Memory(strict=True)
    use(strict)
    workflow = Workflow("w").begin()
    task = Task("t", workflow)
    with socket.socket() as connection:
        with pytest.raises(Unserialisable, match="socket"):
            task.begin(Data("d", "w", {"connection": connection}))
        task.begin()
        with pytest.raises(Unserialisable):
            task.generate(Data("d", "w", connection))
        with pytest.raises(Unserialisable):
            task.end(Data("d", "w", [connection]))
        with pytest.raises(Unserialisable):
            Workflow("v", {"connection": connection}).begin()
    task.end()
    assert [row[1] for row in strict.rows] == [0, 2, 3]


class Nameless:
    def __str__(self) -> str:
        raise ValueError("no name")


def test_an_id_that_cannot_be_read_is_replaced(memory: Memory) -> None:
    Task(Nameless(), Workflow("w")).begin(Data(Nameless(), "w"))
    (begun,) = memory.of(TaskBegun)
    assert (begun.id, begun.used[0].id) == ("<Nameless>", "<Nameless>")
    assert counts()["id"] == 2
    use(memory, strict=True)
    with pytest.raises(CaptureError, match="Nameless"):
        Data(Nameless(), "w")


def test_long_ids_are_shortened_and_stay_different(memory: Memory) -> None:
    long = "x" * 5000
    task = Task("t", Workflow("w")).begin([Data(long + "1", "w"), Data(long + "2", "w"), Data(long + "1", "w")])
    first, second, third = (item.id for item in memory.of(TaskBegun)[0].used)
    assert first == third != second
    assert len(first) < MOST_ID + 20
    assert first.startswith("x" * MOST_ID)
    task.end()


def noise(count: int) -> bytes:
    return random.Random(count).randbytes(count)


def test_a_row_never_holds_more_than_a_datagram(memory: Memory) -> None:
    workflow = Workflow("w")
    many = [Data(f"d{number}", "w", {"blob": noise(9_000)}) for number in range(12)]
    names = [f"näme-{number:05}" for number in range(5_000)]
    with Task("t", workflow, dependencies=names).begin([Data("wide", "w", derivations=names), *many]) as task:
        for each in many:
            task.generate(each)
    for row in memory.rows:
        batch = encode_batch(Header(1, 7, 0), [row], "car-7", codec=Codec.NONE)
        assert len(batch) < MOST_BATCH_BYTES
    ((begun, ended),) = memory.tasks()
    kept = [item.attributes for item in ended.generated if "blob" in item.attributes]
    assert len(kept) == MOST_ROW_BYTES // 9_100
    assert all(item.attributes["bytes"] > 9_000 for item in ended.generated[len(kept) :])
    assert [item.id for item in ended.generated] == [f"d{number}" for number in range(12)]
    assert begun.used[0].derivations == tuple(names[: len(begun.used[0].derivations)]) != ()
    assert [each.id for each in begun.dependencies] == names[: len(begun.dependencies)] != []
    assert counts()["row_too_large"] > 0
    assert counts()["too_many_links"] == 2


def test_more_data_than_a_row_has_room_for_is_cut(memory: Memory) -> None:
    Task("t", Workflow("w")).begin([Data(f"{number}-{'x' * 500}", "w") for number in range(200)])
    used = memory.of(TaskBegun)[0].used
    assert 50 < len(used) < 100
    assert [item.id.split("-")[0] for item in used] == [str(number) for number in range(len(used))]


def test_the_size_of_a_row_follows_what_it_holds(memory: Memory) -> None:
    workflow = Workflow("w").begin()
    for size in (0, 100, 5_000):
        Task("t", workflow).begin(Data("d", "w", bytes(size))).end(Data("d", "w", bytes(size)))
    empty, small, large = memory.sizes[1::2]
    assert 100 <= small - empty <= 110
    assert 5_000 <= large - empty <= 5_010
    assert memory.of(TaskEnded)[2].generated[0].attributes == bytes(5_000)

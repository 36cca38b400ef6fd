"""Questions about captured tasks, data and workflows, against answers that are found in plain Python."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.filters import is_missing, parse_all, parse_path, path_text, value_at
from collector.store.captured_rows import (
    DataQuery,
    TaskQuery,
    TaskRow,
    WorkflowQuery,
    find_data,
    find_tasks,
    find_workflows,
    tasks_at,
    workflows_at,
)
from collector.store.row_query import MOST_FIELDS, MOST_ORDERS, MOST_ROWS, BadQuery, Query
from tests.collector.store.captures import Told, begun, data, empty_store, ended, tell, workflow_begun, workflow_ended


def training() -> sqlite3.Connection:
    """Two runs of a training, on agents a and b; the second one is still running."""
    db = empty_store()
    told: list[Told] = [
        (1, workflow_begun(0, "training", 100, {"model": "m"})),
        (1, workflow_ended(0, 900, "it broke")),
    ]
    told += [(2, workflow_begun(0, "training", 200, {"model": "n"}))]
    losses: dict[int, list[tuple[float, int, Any]]] = {
        1: [(0.1, 16, 0.9), (0.1, 16, 0.5), (0.2, 16, "nan"), (0.2, 32, 0.4)],
        2: [(0.1, 16, 0.3)],
    }
    for start, epochs in losses.items():
        for key, (rate, batch, loss) in enumerate(epochs, 1):
            used = data(f"in-{key}", {"rate": rate, "batch": batch}), data("model", {"model": "mn"[start - 1]})
            told.append((start, begun(key, f"epoch-{key}", *used, ts=1000 * key)))
            result = data(f"out-{key}", {"epoch": key, "loss": loss, "accuracy": loss}, f"in-{key}")
            told.append((start, ended(key, result, ts=1000 * key + 10 * key)))
    told += [(2, begun(9, "check", ts=50, transformation="test")), (2, ended(8, data("lost"), error="gone"))]
    tell(db, told)
    return db


def test_elapsed_time_and_loss_of_the_latest_epoch_per_hyperparameter_combination() -> None:
    query = TaskQuery(
        transformation="train",
        group_by=("used.rate", "used.batch"),
        greatest="generated.epoch",
        select=("elapsed_ms", "generated.loss"),
        order_by=("used.rate", "used.batch"),
    )
    assert [dict(row.values) for row in find_tasks(training(), query).rows] == [
        {"used.rate": 0.1, "used.batch": 16, "elapsed_ms": 20, "generated.loss": 0.5},
        {"used.rate": 0.2, "used.batch": 16, "elapsed_ms": 30, "generated.loss": "nan"},
        {"used.rate": 0.2, "used.batch": 32, "elapsed_ms": 40, "generated.loss": 0.4},
    ]


def test_hyperparameters_of_the_best_accuracies_of_a_model() -> None:
    query = TaskQuery(
        where=parse_all(["used.model=m"]),
        order_by=("-generated.accuracy",),
        limit=3,
        select=("used.rate", "used.batch", "generated.accuracy"),
    )
    assert [list(row.values.values()) for row in find_tasks(training(), query).rows] == [
        [0.1, 16, 0.9],
        [0.1, 16, 0.5],
        [0.2, 32, 0.4],
    ]


def test_a_row_tells_all_that_is_known_of_a_task() -> None:
    db = training()
    rows = {row.key: row for row in find_tasks(db, TaskQuery(agent="b")).rows}
    start, nonce = 2, 2**64 - 2
    assert rows[1] == TaskRow(
        start, "b", nonce, 1, 1, "epoch-1", "train", 0, "training", 1000, 1010, 10, "finished", None, {}
    )
    assert rows[9] == TaskRow(
        start, "b", nonce, 1, 9, "check", "test", 0, "training", 50, None, None, "running", None, {}
    )
    assert rows[8] == TaskRow(
        start, "b", nonce, 1, 8, None, None, None, None, None, 1, None, "failed", "gone", {}
    )  # fmt: skip
    assert tasks_at(db, [(2, 1), (2, 77), (7, 1), (2, 9)]) == {(2, 1): rows[1], (2, 9): rows[9]}


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        (TaskQuery(agent="a"), [1, 2, 3, 4]),
        (TaskQuery(agent="b", epoch=1), [1, 8, 9]),
        (TaskQuery(agent="b", epoch=0), []),
        (TaskQuery(workflow=(1, 0), name="epoch-2"), [2]),
        (TaskQuery(workflow_name="training", transformation="test"), [9]),
        (TaskQuery(workflow_name="other"), []),
        (TaskQuery(status="running"), [9]),
        (TaskQuery(status="failed"), [8]),
        (TaskQuery(status="finished", agent="b"), [1]),
        (TaskQuery(from_ms=50, to_ms=1000), [1, 1, 9]),
        (TaskQuery(where=parse_all(["workflow.model=n", "generated.loss<1"])), [1]),
        (TaskQuery(where=parse_all(["id=task:b@1:9"])), [9]),
        (TaskQuery(where=parse_all(["workflow=workflow:b@1:0", "status=finished"])), [1]),
        (TaskQuery(where=parse_all(["error~^g"])), [8]),
        (TaskQuery(where=parse_all(["error?"])), [8]),
        (TaskQuery(where=parse_all(['name="9"'])), []),
        (TaskQuery(where=parse_all(['begun_ms="50"'])), []),
        (TaskQuery(where=parse_all(["begun_ms=50", "epoch=1", "agent!=a"])), [9]),
        (TaskQuery(where=parse_all(["elapsed_ms>=30"])), [3, 4]),
        (TaskQuery(where=parse_all(["generated.loss=nan"])), [3]),
    ],
)
def test_filters_of_tasks(query: TaskQuery, keys: list[int]) -> None:
    assert [row.key for row in find_tasks(training(), query).rows] == keys


def test_the_last_data_that_has_an_attribute_counts() -> None:
    db = empty_store()
    tell(db, [(1, begun(1, "t", data("x", {"n": 1, "m": 1}), data("y", {"n": None}), data("z", {"k": 1})))])
    query = TaskQuery(select=("used.n", "used.m", "used.k", "used.none", "generated.n", "used"))
    (row,) = find_tasks(db, query).rows
    assert row.values == {"used.n": None, "used.m": 1, "used.k": 1, "used": {"k": 1}}


def test_data_by_what_is_asked() -> None:
    db = training()

    def found(**asked: Any) -> list[tuple[int, int, str]]:
        return [(row.start, row.task, row.name) for row in find_data(db, DataQuery(**asked)).rows]

    assert found(name="out-4") == [(1, 4, "out-4")]
    assert found(task=(1, 2)) == [(1, 2, "in-2"), (1, 2, "model"), (1, 2, "out-2")]
    assert found(workflow=(2, 0), is_generated=True) == [(2, 1, "out-1")]
    assert found(workflow_name="w", agent="b", is_generated=False) == [(2, 1, "in-1"), (2, 1, "model")]
    assert found(where=parse_all(["loss<0.5"]), order_by=("-loss",)) == [(1, 4, "out-4"), (2, 1, "out-1")]
    assert found(where=parse_all(["attributes.loss<0.5", "role=generated"]), order_by=("attributes.loss",)) == [
        (2, 1, "out-1"),
        (1, 4, "out-4"),
    ]
    assert found(from_ms=4000, where=parse_all(["name~^in"])) == [(1, 4, "in-4")]
    (row,) = find_data(db, DataQuery(name="out-1", agent="a", select=("loss", "task"))).rows
    assert (row.derivations, row.is_generated, row.task_name, row.begun_ms) == (["in-1"], True, "epoch-1", 1000)
    assert row.attributes == {"epoch": 1, "loss": 0.9, "accuracy": 0.9}
    assert row.values == {"loss": 0.9, "task": "task:a@0:1"}


def test_workflows_by_what_is_asked() -> None:
    db = training()

    def found(**asked: Any) -> list[int]:
        return [row.start for row in find_workflows(db, WorkflowQuery(**asked)).rows]

    assert found() == found(name="training") == [1, 2]
    assert found(order_by=("-begun_ms",)) == [2, 1]
    assert found(where=parse_all(["model=n"])) == found(status="running") == found(agent="b") == [2]
    assert found(status="failed", where=parse_all(["error~broke", "elapsed_ms=800"])) == [1]
    assert found(group_by=("name",), least="begun_ms") == [1]
    row = workflows_at(db, [(1, 0)])[1, 0]
    assert (row.name, row.status, row.error, row.attributes) == ("training", "failed", "it broke", {"model": "m"})


def test_a_start_without_an_epoch_is_named_by_its_nonce() -> None:
    db = empty_store()
    tell(db, [(3, begun(1, "t"))])
    (row,) = find_tasks(db, TaskQuery(select=("id", "workflow"))).rows
    assert row.values == {"id": "task:a@~fffffffffffffffd:1", "workflow": "workflow:a@~fffffffffffffffd:0"}


BAD: list[tuple[str, Query]] = [
    ("limit", TaskQuery(limit=0)),
    ("limit", TaskQuery(limit=MOST_ROWS + 1)),
    ("where", TaskQuery(where=parse_all(["loss<1"]))),
    ("where", TaskQuery(where=parse_all(["$=1"]))),
    ("where", TaskQuery(where=parse_all(["0=1"]))),
    ("where", TaskQuery(where=parse_all(["name=1"]) * 21)),
    ("order_by", TaskQuery(order_by=("loss",))),
    ("order_by", TaskQuery(order_by=("",))),
    ("order_by", TaskQuery(order_by=("--name",))),
    ("order_by", TaskQuery(order_by=("name.x",))),
    ("order_by", TaskQuery(order_by=("name",) * (MOST_ORDERS + 1))),
    ("select", TaskQuery(select=("nothing",))),
    ("select", TaskQuery(select=("name",) * (MOST_FIELDS + 1))),
    ("group_by", TaskQuery(group_by=("name",))),
    ("group_by", TaskQuery(group_by=("used.a<",), greatest="name")),
    ("greatest", TaskQuery(greatest="x")),
    ("least", TaskQuery(least="x")),
    ("least", TaskQuery(least="name", greatest="name")),
    ("epoch", TaskQuery(epoch=2**63)),
    ("from_ms", DataQuery(from_ms=-(2**63) - 1)),
    ("task", DataQuery(task=(1, 2**64))),
    ("agent", WorkflowQuery(agent="\ud800")),
    *[
        ("after", TaskQuery(order_by=("name",), after=after))
        for after in (
            (),
            (1, 2),
            ((1, "x"), 1),
            ((1, "x"), 1, 2, 3),
            ((1, 5), 1, 2),
            ((0, "x"), 1, 2),
            ((0, True), 1, 2),
            ((0, 2**64), 1, 2),
            ((2, b"x"), 1, 2),
            ((3, 0), 1, 2),
            ((4, None), 1, 2),
            ((True, "x"), 1, 2),
            ((1, "\ud800"), 1, 2),
            ((1, "x", 2), 1, 2),
            ((1, "x"), 1, "2"),
            ((1, "x"), 1, 2**63),
            ("x", 1, 2),
        )
    ],
]


FIND: dict[type, Callable[..., object]] = {
    TaskQuery: find_tasks,
    DataQuery: find_data,
    WorkflowQuery: find_workflows,
}


@pytest.mark.parametrize(("field", "query"), BAD)
def test_bad_questions_are_refused_and_name_the_field(field: str, query: Query) -> None:
    with pytest.raises(BadQuery) as caught:
        FIND[type(query)](training(), query)
    assert caught.value.field == field


# Against plain Python

VALUES = st.sampled_from(
    [0, 1, -1.5, 1.0, 2**53 + 1, float(2**53), "a", "ab", "nan", True, None, [1], {"x": 1}, "é" * 99]
)
ATTRIBUTES = st.dictionaries(st.sampled_from("pq"), VALUES, max_size=2)
FIELDS = ["used.p", "used.q", "generated.p", "begun_ms", "elapsed_ms", "name", "transformation"]
SOME_FIELDS = st.lists(st.sampled_from(FIELDS), max_size=2, unique=True)
some_examples = settings(max_examples=max(25, settings().max_examples // 4))


@st.composite
def tasks(draw: st.DrawFn) -> list[Told]:
    told: list[Told] = [(start, workflow_begun(0, "w")) for start in (1, 2)]
    for start, key in draw(st.sets(st.tuples(st.integers(1, 2), st.integers(1, 6)), min_size=4, max_size=9)):
        at = draw(st.integers(0, 2))
        used = [data("x", draw(ATTRIBUTES)) for _ in range(draw(st.integers(0, 2)))]
        halves = draw(st.sampled_from(["begun", "ended", "both", "both"]))
        if halves != "ended":
            kind = draw(st.sampled_from(["train", "test"]))
            told.append((start, begun(key, draw(st.sampled_from("tu")), *used, ts=at, transformation=kind)))
        if halves != "begun":
            told.append((start, ended(key, data("y", draw(ATTRIBUTES)), ts=at + draw(st.integers(0, 2)))))
    return told


def _value(db: sqlite3.Connection, row: TaskRow, field: str) -> Any:
    """What a field is, or something missing."""
    root, *path = parse_path(field)
    if root not in ("used", "generated"):
        found = getattr(row, field)
        return value_at({} if found is None else {field: found}, (field,))
    items = db.execute(
        "SELECT attributes FROM data WHERE start=? AND task=? AND generated=? ORDER BY place DESC",
        (row.start, row.key, root == "generated"),
    )
    found = [value_at(json.loads(text), tuple(path)) for (text,) in items]
    return next((each for each in found if not is_missing(each)), value_at({}, ("x",)))


class _Place:
    """Where a value comes in an order."""

    def __init__(self, value: Any, is_descending: bool) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        self.rank = 3 if is_missing(value) else 0 if is_number else 1 if isinstance(value, str) else 2
        self.value = json.dumps(value, sort_keys=True, separators=(",", ":")) if self.rank == 2 else value
        if self.rank in (1, 2):
            self.value = self.value[:80]
        self.is_descending = is_descending

    def __lt__(self, other: _Place) -> bool:
        if self.rank != other.rank or self.rank == 3:
            return self.rank < other.rank
        return bool(self.value > other.value if self.is_descending else self.value < other.value)


def _expected(db: sqlite3.Connection, query: TaskQuery) -> list[tuple[int, int]]:
    """The keys of all rows, in order."""
    rows = list(tasks_at(db, db.execute("SELECT start, key FROM tasks").fetchall()).values())
    for condition in query.where:
        kept = []
        for row in rows:
            found = _value(db, row, path_text(condition.path))
            if not is_missing(found) and replace(condition, path=()).matches(found):
                kept.append(row)
        rows = kept
    best = query.greatest or query.least
    if best is not None:
        groups: dict[str, list[TaskRow]] = {}
        for row in rows:
            if not is_missing(_value(db, row, best)):
                values = [_value(db, row, field) for field in query.group_by]
                of = repr([None if is_missing(each) else _group(each) for each in values])
                groups.setdefault(of, []).append(row)
        rows = []
        for group in groups.values():
            group.sort(key=lambda row: (row.start, row.key), reverse=True)
            rows.append(min(group, key=lambda row: _Place(_value(db, row, best), query.greatest is not None)))
    is_last_descending = bool(query.order_by) and query.order_by[-1].startswith("-")
    rows.sort(key=lambda row: (row.start, row.key), reverse=is_last_descending)
    for field in reversed(query.order_by):
        rows.sort(key=lambda row: _Place(_value(db, row, field.removeprefix("-")), field.startswith("-")))
    return [(row.start, row.key) for row in rows]


def _group(value: Any) -> Any:
    """Equal for what is one group."""
    is_number = isinstance(value, float) and value.is_integer()
    return ("value", int(value) if is_number else value)


@st.composite
def queries(draw: st.DrawFn) -> TaskQuery:
    order = draw(SOME_FIELDS)
    best = draw(st.none() | st.sampled_from(FIELDS))
    is_greatest = draw(st.booleans())
    conditions = ["used.p>0", "used.p!=1", "generated.p?", "name=t", "begun_ms<2", "used.q~a"]
    return TaskQuery(
        where=parse_all(draw(st.lists(st.sampled_from(conditions), max_size=1))),
        order_by=tuple(draw(st.sampled_from(["", "-"])) + field for field in order),
        group_by=tuple(draw(SOME_FIELDS)) if best else (),
        greatest=best if is_greatest else None,
        least=None if is_greatest else best,
        limit=draw(st.integers(1, 4)),
    )


@given(tasks(), queries())
@some_examples
def test_all_pages_together_are_all_rows_in_order(told: list[Told], query: TaskQuery) -> None:
    db = empty_store()
    tell(db, told)
    found: list[tuple[int, int]] = []
    page = find_tasks(db, query)
    while True:
        found += [(row.start, row.key) for row in page.rows]
        if page.next is None:
            break
        assert len(page.rows) == query.limit
        assert len(found) < 12, "there are not so many"
        after = json.loads(json.dumps(page.next))
        page = find_tasks(db, replace(query, after=tuple(after)))
    assert found == _expected(db, query)
    db.close()


@given(tasks(), tasks(), SOME_FIELDS, st.integers(1, 3))
@some_examples
def test_rows_that_are_added_move_no_others(told: list[Told], more: list[Told], order: list[str], limit: int) -> None:
    db = empty_store()
    tell(db, told)
    query = TaskQuery(order_by=tuple(order), limit=limit)
    first = find_tasks(db, query)
    known = _expected(db, query)
    tell(db, [(start + 1, event) for start, event in more if start == 2])  # start 3 is new
    found = [(row.start, row.key) for row in first.rows]
    after = first.next
    while after is not None:
        page = find_tasks(db, replace(query, after=after))
        found += [(row.start, row.key) for row in page.rows]
        assert len(found) <= 18, "there are not so many"
        after = page.next
    assert [key for key in found if key[0] < 3] == known
    assert len(found) == len(set(found))
    db.close()

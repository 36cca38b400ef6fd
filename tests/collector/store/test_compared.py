"""Runs of workflows side by side."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from collector.store.compared import MOST_ATTRIBUTES, MOST_RUNS, Measure, Parameter, RunValue, Transformation, compare
from collector.store.row_query import BadQuery
from tests.collector.store.captures import Told, begun, data, empty_store, ended, tell, workflow_begun, workflow_ended


def value(told: Any) -> RunValue:
    return RunValue("value", told)


def two_runs() -> sqlite3.Connection:
    db = empty_store()
    told: list[Told] = [
        (1, workflow_begun(0, "w", 0, {"model": {"name": "m", "layers": [1, 2]}, "seed": 1})),
        (1, workflow_ended(0, 100)),
        (2, workflow_begun(0, "w", 0, {"model": {"name": "n", "layers": [1.0, 2]}})),
    ]
    for start, rate in ((1, 0.1), (2, 0.2)):
        for key, loss in enumerate((0.5, 0.2, 0.3), 1):
            told.append((start, begun(key, "t", data("in", {"rate": rate, "epoch": key, "kind": "sgd"}), ts=key)))
            # The second one ends last.
            at = {1: 11, 2: 50, 3: 14}[key]
            told.append((start, ended(key, data("out", {"loss": loss, "note": "x", "deep": {"n": key}}), ts=at)))
    told += [(1, begun(7, "broken", ts=5, transformation="test")), (1, ended(7, ts=8, error="no"))]
    told += [(2, begun(8, "going on", data("in", {"kind": "fast"}), transformation="test"))]
    tell(db, told)
    return db


def test_runs_side_by_side() -> None:
    found = compare(two_runs(), [(2, 0), (1, 0)])
    assert [run.workflow.start for run in found.runs] == [2, 1]
    assert [run.workflow.elapsed_ms for run in found.runs] == [None, 100]
    measures = [Measure("loss", 3, 0.2, 0.2, 0.5), Measure("deep.n", 3, 2, 1, 3)]
    train = Transformation("train", 0, 3, 0, 10 + 48 + 11, 23.0, 10, 48, measures)
    assert found.runs[0].transformations == [Transformation("test", 1, 0, 0, None, None, None, None, []), train]
    assert found.runs[1].transformations == [Transformation("test", 0, 0, 1, 3, 3.0, 3, 3, []), train]
    assert not found.is_cut


def test_what_differs_and_what_does_not() -> None:
    found = compare(two_runs(), [(1, 0), (2, 0)])
    assert found.differing == [
        Parameter("workflow", None, "model.name", [value("m"), value("n")]),
        Parameter("workflow", None, "seed", [value(1), RunValue("missing")]),
        Parameter("used", "train", "rate", [value(0.1), value(0.2)]),
        Parameter("used", "test", "kind", [RunValue("missing"), value("fast")]),
    ]
    assert found.same == [
        Parameter("workflow", None, "model.layers", [value([1, 2]), value([1, 2])]),
        Parameter("used", "train", "kind", [value("sgd"), value("sgd")]),
    ]


def test_what_is_constant_in_one_run_only_differs() -> None:
    db = empty_store()
    for start, second in ((1, 1), (2, 2)):
        tell(db, [(start, workflow_begun(0, "w")), (start, begun(1, "t", data("in", {"n": 1})))])
        tell(db, [(start, begun(2, "t", data("in", {"n": second})))])
    assert compare(db, [(1, 0), (2, 0)]).differing == [Parameter("used", "train", "n", [value(1), RunValue("varies")])]
    assert compare(db, [(2, 0)]).differing == compare(db, [(2, 0)]).same == []


def test_true_is_not_one() -> None:
    db = empty_store()
    tell(db, [(1, workflow_begun(0, "w", 0, {"x": True})), (2, workflow_begun(0, "w", 0, {"x": 1}))])
    tell(db, [(1, begun(1, "t")), (1, ended(1, data("out", {"flag": True})))])
    found = compare(db, [(1, 0), (2, 0)])
    assert found.differing == [Parameter("workflow", None, "x", [value(True), value(1)])]
    assert found.runs[0].transformations[0].measures == []


@pytest.mark.parametrize(
    "attributes",
    [{f"a{place}": 1 for place in range(MOST_ATTRIBUTES + 1)}, {"text": "x" * 2_000}],
    ids=["too many", "too large"],
)
def test_it_says_when_something_is_left_out(attributes: Any) -> None:
    db = empty_store()
    tell(db, [(1, workflow_begun(0, "w", 0, attributes))])
    found = compare(db, [(1, 0)])
    assert found.is_cut
    assert len(found.same) == min(MOST_ATTRIBUTES, len(attributes) - 1)


def test_measures_are_bounded() -> None:
    db = empty_store()
    many = {f"a{place}": place for place in range(MOST_ATTRIBUTES + 1)}
    tell(db, [(1, workflow_begun(0, "w")), (1, begun(1, "t")), (1, ended(1, data("out", many)))])
    found = compare(db, [(1, 0)])
    assert found.is_cut
    assert len(found.runs[0].transformations[0].measures) == MOST_ATTRIBUTES


@pytest.mark.parametrize("runs", [[], [(1, 0), (1, 9)], [(1, key) for key in range(MOST_RUNS + 1)]])
def test_bad_runs_are_refused(runs: list[tuple[int, int]]) -> None:
    with pytest.raises(BadQuery) as caught:
        compare(two_runs(), runs)
    assert caught.value.field == "runs"

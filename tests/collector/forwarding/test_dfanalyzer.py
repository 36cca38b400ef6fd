"""DfAnalyzer: messages as its own library sends them, that its server, which takes them into SQL, can keep."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.forwarding.dfanalyzer import MOST_ATTRIBUTES, MOST_ENDED, MOST_TEXT, DfAnalyzer, task_number
from collector.log_view import Entry
from protocol.events import DataItem, Dependency, Event, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded
from protocol.ids import StreamId
from protocol.records import SourcePayload
from protocol.wire.sections import Kind
from tests.collector.forwarding.captured import data, workflow_of

URL = "http://127.0.0.1:22000/"
SQL_NAME = re.compile(r"[a-z][a-z0-9_]*")
FIXED = [["data_id", "TEXT"], ["derived_from", "TEXT"], ["more_attributes", "TEXT"]]


def entries(*events: Event, agent: str = "pi-1", epoch: int = 1) -> list[Entry]:
    return [Entry(Kind.EVENT, agent, 7, seq, event, epoch) for seq, event in enumerate(events)]


def begun(key: int, *used: DataItem, transformation: str = "train", workflow: int = 0) -> TaskBegun:
    return TaskBegun(0, 1_000, key, workflow, f"t{key}", transformation, (), used)


def ended(key: int, *generated: DataItem, error: str | None = None) -> TaskEnded:
    return TaskEnded(0, 3_500, key, "finished" if error is None else "failed", error or "", generated)


def messages(system: DfAnalyzer, told: list[Entry]) -> list[tuple[str, Any]]:
    return [(each.url.removeprefix(URL), json.loads(each.body)) for each in system.requests(told)]


def tasks(system: DfAnalyzer, told: list[Entry]) -> list[Any]:
    return [message for path, message in messages(system, told) if path == "pde/task/json"]


BEGIN = WorkflowBegun(0, 0, 0, "training", None)


def test_a_task_is_running_with_what_it_uses_and_finished_with_what_it_made() -> None:
    system = DfAnalyzer(URL)
    messages(system, entries(BEGIN, begun(0, data("in", {"rate": 0.5})), ended(0, data("out", {"loss": 1}))))
    used, made = data("d1", {"rate": 0.1}), data("d2", {"loss": 3}, "d1")
    event = TaskBegun(0, 1_000, 1, 0, "my task", "train", (Dependency("t0", 0),), (used,))
    running, finished = tasks(system, entries(event, ended(1, made)))
    tag = running["dataflow"]
    assert running == {
        "tag": "train",
        "dataflow": tag,
        "transformation": "train",
        "id": str(task_number("pi-1", 1, 1)),
        "resource": "pi-1",
        "workspace": "task:pi-1@1:1/my%20task",
        "status": "RUNNING",
        "dependency": {"tags": [{"tag": "train"}], "ids": [{"id": str(task_number("pi-1", 1, 0))}]},
        "sets": [{"tag": f"itrain_{tag[-8:]}", "elements": [["d1", "", "", "0.1"]]}],
    }
    assert finished == {
        "tag": "train",
        "dataflow": tag,
        "transformation": "train",
        "id": running["id"],
        "resource": "pi-1",
        "status": "FINISHED",
        "performances": [{"startTime": "1970-01-01 00:00:01.000", "endTime": "1970-01-01 00:00:03.500"}],
        "sets": [{"tag": f"otrain_{tag[-8:]}", "elements": [["d2", '["d1"]', "", "3"]]}],
    }


def test_a_dataflow_is_declared_before_its_tasks_and_once() -> None:
    told = messages(DfAnalyzer(URL), entries(*workflow_of(5)))
    paths = [path for path, _ in told]
    assert paths == ["pde/dataflow/json", "pde/task/json"] * 2 + ["pde/task/json"] * 9
    declared = told[2][1]
    tag = declared["tag"]
    assert tag.startswith("training_")
    assert declared["transformations"] == [
        {
            "tag": "train",
            "sets": [
                {"tag": f"itrain_{tag[-8:]}", "type": "INPUT", "attributes": named(*FIXED, ["size", "NUMERIC"])},
                {
                    "tag": f"otrain_{tag[-8:]}",
                    "type": "OUTPUT",
                    "attributes": named(*FIXED, ["loss", "NUMERIC"], ["note", "TEXT"]),
                },
            ],
        }
    ]


def named(*attributes: list[str]) -> list[dict[str, str]]:
    return [{"name": name, "type": type} for name, type in attributes]


def test_a_new_attribute_makes_a_dataflow_that_has_it_and_no_task_runs_for_ever_in_the_old_one() -> None:
    told = messages(DfAnalyzer(URL), entries(BEGIN, begun(0), ended(0, data("out", {"loss": 1}))))
    assert [path for path, _ in told] == [
        f"pde/{what}/json" for what in ("dataflow", "task", "dataflow", "task", "task")
    ]
    old, running, new, closed, finished = (message for _, message in told)
    assert old["tag"] != new["tag"]
    assert (running["dataflow"], running["status"]) == (old["tag"], "RUNNING")
    assert (closed["dataflow"], closed["status"], "sets" in closed) == (old["tag"], "FINISHED", False)
    assert (finished["dataflow"], finished["status"]) == (new["tag"], "FINISHED")
    assert running["id"] == closed["id"] == finished["id"]


def test_a_column_of_numbers_that_meets_a_text_becomes_one_of_texts() -> None:
    system = DfAnalyzer(URL)
    told = messages(system, entries(BEGIN, begun(0, data("a", {"x": 1})), begun(1, data("b", {"x": "one"}))))
    types = [each["transformations"][0]["sets"][0]["attributes"][-1] for path, each in told if "dataflow" in path]
    assert types == [{"name": "x", "type": "NUMERIC"}, {"name": "x", "type": "TEXT"}]
    (number,) = tasks(system, entries(begun(2, data("c", {"x": 7}))))
    assert number["sets"][0]["elements"] == [["c", "", "", "7"]]


def test_what_a_column_of_numbers_cannot_hold_is_null_and_counted() -> None:
    system = DfAnalyzer(URL)
    items = [data(str(n), {"x": value}) for n, value in enumerate((1.5, float("nan"), float("inf"), None))]
    (task,) = tasks(system, entries(BEGIN, begun(0, *items)))
    assert [each["elements"][0][-1] for each in task["sets"]] == ["1.5", "NULL", "NULL", "NULL"]
    assert system.skipped == {"not_a_number": 2}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("it's", "it''s"),
        ("a\\' b", "a\\\\'' b"),
        ([1, "x"], '[1,"x"]'),
        (True, "true"),
        (b"\x01", '"01"'),
        (2**2000, None),
    ],
)
def test_texts_are_escaped_as_the_server_does_not(value: Any, text: str | None) -> None:
    (task,) = tasks(DfAnalyzer(URL), entries(BEGIN, begun(0, data("a", {"x": value}))))
    assert task["sets"][0]["elements"][0][-1] == (str(value) if text is None else text)


def test_long_texts_are_cut_and_counted() -> None:
    system = DfAnalyzer(URL)
    (task,) = tasks(system, entries(BEGIN, begun(0, data("a", {"x": "y" * (MOST_TEXT + 1)}))))
    assert task["sets"][0]["elements"][0][-1] == "y" * MOST_TEXT
    assert system.skipped == {"text_end": 1}


def test_attributes_beyond_the_bound_are_told_in_one() -> None:
    told = messages(DfAnalyzer(URL), entries(BEGIN, begun(0, data("a", {f"x{n}": n for n in range(300)}))))
    attributes = told[0][1]["transformations"][0]["sets"][0]["attributes"]
    assert len(attributes) == MOST_ATTRIBUTES
    row = told[1][1]["sets"][0]["elements"][0]
    more = json.loads(row[2])
    assert len(row) == MOST_ATTRIBUTES
    assert len(more) == 300 - (MOST_ATTRIBUTES - len(FIXED))
    assert more["x299"] == 299


def test_a_failed_task_is_finished_with_its_error() -> None:
    system = DfAnalyzer(URL)
    told = tasks(system, entries(BEGIN, begun(0), begun(1), ended(0, error="it's broken"), ended(1, error="")))
    assert [(each["status"], each.get("error")) for each in told[2:]] == [
        ("FINISHED", "it''s broken"),
        ("FINISHED", "failed"),
    ]


def test_what_dfanalyzer_has_no_words_for_is_counted() -> None:
    system = DfAnalyzer(URL)
    reading = Entry(Kind.SOURCE, "pi-1", 7, 0, SourcePayload(StreamId("pi-1", 1, "s", 7), 0, 0, 1), 1)
    lost = TaskBegun(0, 0, 4, 0, "t", "f", (Dependency("lost", -1),), ())
    told = messages(system, [reading, *entries(BEGIN, ended(9), lost, WorkflowEnded(0, 0, 0, "finished"))])
    assert "dependency" not in told[-1][1]
    assert system.skipped == {"source": 1, "task_ended": 1, "dependency": 1, "workflow_ended": 1}


def test_what_it_remembers_lets_another_process_go_on() -> None:
    first, second = DfAnalyzer(URL), DfAnalyzer(URL)
    used = begun(1, data("x", {"loss": 2}))
    events = entries(BEGIN, begun(0, data("in", {"rate": 0.5})), ended(0, data("out", {"loss": 1})), used)
    last = entries(ended(1, data("y", {"loss": 3})))
    tasks(first, events)
    second.recall(json.loads(json.dumps(first.memory())))
    assert tasks(second, last) == tasks(first, last)


def test_of_ended_tasks_it_remembers_the_last_for_those_that_depend_on_them() -> None:
    system = DfAnalyzer(URL)
    tasks(system, entries(BEGIN, begun(0)))
    for key in range(1, MOST_ENDED + 2):
        tasks(system, entries(begun(key), ended(key)))
    waiting = [TaskBegun(0, 0, key + 5_000, 0, "", "f", (Dependency("", key),), ()) for key in (0, 1, 2)]
    told = tasks(system, entries(*waiting))
    assert ["dependency" in each for each in told] == [True, False, True], "it runs, it is forgotten, it is known"
    assert told[2]["dependency"]["tags"] == [{"tag": "train"}]
    assert system.skipped == {"dependency": 1}
    memory = system.memory()
    assert (len(memory["running"]), len(memory["ended"])) == (4, MOST_ENDED)
    assert len(json.dumps(memory)) < 50 * MOST_ENDED


NAMES = st.sampled_from(
    ["a", "A", "a b", "a_b", "Order", "order", "id", "0", "", "é", "x" * 40, "data_id", "f_task_id"]
)
VALUES = (
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.booleans() | st.lists(st.integers(), max_size=2)
)
ITEMS = st.lists(
    st.builds(DataItem, NAMES, NAMES, st.just(()), st.dictionaries(NAMES, VALUES, max_size=4) | VALUES), max_size=2
).map(tuple)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), NAMES, NAMES, ITEMS, ITEMS), max_size=8))
def test_whatever_comes_fits_what_was_declared(told: list[tuple[int, str, str, Any, Any]]) -> None:
    """Names that SQL takes, each dataflow declared once and never otherwise, each row as long as its set is wide."""
    events: list[Event] = []
    for key, (agent, workflow, transformation, used, generated) in enumerate(told):
        events.append(WorkflowBegun(0, 0, key, workflow, None))
        events.append(TaskBegun(0, 0, key, key, str(agent), transformation, (), used))
        events.append(TaskEnded(0, 0, key, "finished", "", generated))
    sets: dict[tuple[str, str, str], list[Any]] = {}
    tables: set[str] = set()
    for path, message in messages(DfAnalyzer(URL), entries(*events)):
        if path == "pde/dataflow/json":
            assert not any(dataflow == message["tag"] for dataflow, *_ in sets)
            assert len(message["tag"]) <= 50
            for transformation in message["transformations"]:
                for each in transformation["sets"]:
                    names = [attribute["name"] for attribute in each["attributes"]]
                    assert all(SQL_NAME.fullmatch(name) and len(name) <= 30 for name in names)
                    assert len(set(names)) == len(names)
                    assert SQL_NAME.fullmatch(each["tag"]) and len(each["tag"]) <= 50
                    assert each["tag"] not in tables, "a table of this name is there already"
                    tables.add(each["tag"])
                    sets[message["tag"], transformation["tag"], each["tag"]] = each["attributes"]
            continue
        assert 0 <= int(message["id"]) < 2**31
        for each in message.get("sets", ()):
            attributes = sets[message["dataflow"], message["transformation"], each["tag"]]
            (row,) = each["elements"]
            assert len(row) == len(attributes)
            for value, attribute in zip(row, attributes, strict=True):
                assert isinstance(value, str)
                assert attribute["type"] == "TEXT" or value == "NULL" or float(value) is not None


def test_numbers_of_one_start_never_meet() -> None:
    assert len({task_number("pi-1", 1, key) for key in range(1_000)}) == 1_000
    assert task_number("pi-1", 1, 5) != task_number("pi-1", 2, 5) != task_number("pi-2", 1, 5)

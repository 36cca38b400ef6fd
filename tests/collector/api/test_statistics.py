"""Figures over time are those that one gets by counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.records import BEGINNING, END_OF_TIME
from tests.collector.agents import FakeAgent
from tests.collector.api.rich_store import fill
from tests.collector.api.served import Served
from tests.collector.forwarding.captured import row_of
from tests.collector.store.captures import begun, ended
from tests.collector.store.graphs import graph_batch, tuple_id
from tests.collector.store.rows import AGENT, record_row, register_row

OTHER = FakeAgent("car-1", nonce=5, epoch=1)
FIGURES = ("results", "origins", "open", "incomplete")
results = st.dictionaries(
    st.tuples(st.integers(1, 3), st.integers(0, 9)), st.integers(-50, 50), min_size=1, max_size=12
)


@pytest.fixture(scope="module")
def rich(served: Served) -> Iterator[Served]:
    with served.new_store() as writer:
        fill(writer)
    yield served


@given(results, st.integers(1, 7), st.data())
@settings(max_examples=max(20, settings().max_examples // 5))
def test_every_result_is_in_its_slot(
    other: Served, made: dict[tuple[int, int], int], slots: int, data: st.DataObject
) -> None:
    sinks = {tuple_id(*name): ts for name, ts in made.items()}
    labelled = data.draw(st.sets(st.sampled_from(sorted(sinks))))
    edges = [(each, tuple_id(9, number)) for each in sinks for number in range(each % 3)]
    rows = [
        register_row(1, "alerts"),
        register_row(2, "alerts", of=OTHER, stream_of=OTHER),
        register_row(3, "stops", of=OTHER, stream_of=OTHER),
    ]
    with other.new_store() as writer:
        sources = {source: 0 for _, source in edges}
        writer.write(graph_batch("q", 0, sinks=sinks, sources=sources, edges=edges, sink_labels=labelled, rows=rows))
    asked: dict[str, Any] = {}
    if data.draw(st.booleans()):
        asked["from"], asked["to"] = sorted(data.draw(st.lists(st.integers(-60, 60), min_size=2, max_size=2)))
    found = other.get("/v1/statistics", slots=slots, **asked)
    first, last = asked.get("from", min(sinks.values())), asked.get("to", max(sinks.values()))
    assert (found["from_ms"], found["to_ms"]) == (first, last)
    width = found["width_ms"]
    assert width * slots > last - first >= width * slots - slots - width
    assert found["starts_ms"] == [first + slot * width for slot in range(slots)]
    names = {1: "pump-7/alerts", 2: "car-1/alerts", 3: "car-1/stops"}
    expected: Counter[tuple[str, str, int]] = Counter()
    for each, ts in sinks.items():
        if first <= ts <= last:
            place = names[each >> 36], (ts - first) // width
            expected[place[0], "results", place[1]] += 1
            expected[place[0], "origins", place[1]] += each % 3
            expected[place[0], "open", place[1]] += each not in labelled
    told = Counter(
        {
            (series["stream"], figure, slot): number
            for series in found["streams"]
            for figure in FIGURES
            for slot, number in enumerate(series[figure])
        }
    )
    assert +told == +expected
    assert [series["stream"] for series in found["streams"]] == sorted({name for name, _, _ in +expected})
    assert found["totals"]["sinks"] == len(sinks)


def test_results_of_some_streams(rich: Served) -> None:
    whole = rich.get("/v1/statistics", slots=1)
    assert {each["stream"]: each["results"] for each in whole["streams"]} == {
        "center/alerts": [8],
        "center/far-alerts": [8],
        "depot/checked": [2],
        "depot/visited": [1],
        "hub/reports": [7],
    }
    assert [each["incomplete"] for each in whole["streams"]] == [[0], [0], [0], [1], [0]]
    part = rich.get("/v1/statistics", slots=1, stream="alerts", agent="center")
    assert part["streams"] == [each for each in whole["streams"] if each["stream"] == "center/alerts"]
    assert (part["from_ms"], part["to_ms"]) == (1_000, 8_000)
    assert rich.get("/v1/statistics", agent="depot")["to_ms"] == 2_500


def test_tasks_by_when_they_began(rich: Served) -> None:
    found = rich.get("/v1/statistics", slots=5, from_=1_000, to=5_999)
    assert (found["width_ms"], found["tasks_begun"]) == (1_000, [2, 2, 2, 0, 1])
    assert found["tasks_failed"] == [0, 0, 2, 0, 0]
    found = rich.get("/v1/statistics", slots=5, agent="pi-1")
    assert (found["from_ms"], found["to_ms"]) == (1_000, 3_000), "it has no results"
    assert (sum(found["tasks_begun"]), sum(found["tasks_failed"])) == (3, 1)


def test_of_streams_without_results_there_are_no_times(rich: Served) -> None:
    nothing: dict[str, Any] = {"from_ms": None, "to_ms": None, "starts_ms": [], "streams": [], "tasks_begun": []}
    for stream in ("nothing", "readings", "center/alerts@77"):
        found = rich.get("/v1/statistics", stream=stream)
        assert {name: found[name] for name in nothing} == nothing, stream
    both = rich.get("/v1/statistics", stream=["nothing", "depot/checked"])
    assert (both["from_ms"], both["to_ms"]) == (500, 2_500)
    found = rich.get("/v1/statistics", stream="nothing", from_=0, to=9, slots=2)
    assert (found["starts_ms"], found["streams"]) == ([0, 5], [])


def test_of_nothing_there_is_nothing_to_count(other: Served) -> None:
    other.new_store().close()
    found = other.get("/v1/statistics")
    assert (found["from_ms"], found["starts_ms"], found["streams"], found["totals"]) == (None, [], [], {})
    with other.new_store() as writer:
        writer.write(graph_batch("q", 0, sinks={tuple_id(1, 0): BEGINNING, tuple_id(1, 1): END_OF_TIME}))
    assert other.get("/v1/statistics")["from_ms"] is None, "the ends of time are no times"
    found = other.get("/v1/statistics", from_=100, to=200, slots=2)
    assert (found["streams"], found["starts_ms"], found["tasks_begun"]) == ([], [100, 151], [0, 0])


def test_a_task_that_is_only_known_to_have_ended_is_in_no_slot(other: Served) -> None:
    with other.new_store() as writer:
        events = record_row(row_of(begun(1, "t", ts=5)), row_of(ended(2, ts=9)), of=AGENT)
        writer.write(graph_batch("q", 0, rows=[register_row(1, "x"), events]))
    assert other.get("/v1/statistics", slots=1)["tasks_begun"] == [1]


def test_more_streams_than_can_be_shown(other: Served) -> None:
    with other.new_store() as writer:
        rows = [register_row(number, f"s{number:03}") for number in range(1, 103)]
        writer.write(graph_batch("q", 0, sinks={tuple_id(each, 0): each for each in range(1, 103)}, rows=rows))
    found = other.get("/v1/statistics", slots=1)
    assert len(found["streams"]) == 100
    assert found["truncated"] is True
    assert other.get("/v1/statistics", slots=1, stream="s001")["truncated"] is False

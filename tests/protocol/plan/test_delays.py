"""U: the largest window sum on the ways through a plan and across agents, against walking every path."""

from __future__ import annotations

import time

import pytest
from hypothesis import given

from protocol.plan import (
    Node,
    PlanDocument,
    PlanError,
    count_paths,
    delays,
    delivering_name,
    fleet_delays,
    paths,
    window_ms,
)
from tests.protocol.plan.plans import (
    CHAIN,
    DIAMOND,
    FLEET,
    LENGTHS,
    TWO_SINKS,
    TWO_SOURCES,
    aggregate,
    documents,
    ladder,
    mapped,
    plan,
    receive,
    send,
    sink,
    source,
    tumbling,
    union,
)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(CHAIN, {"in": {"out": 150}}, id="chain"),
        pytest.param(DIAMOND, {"in": {"out": 48}}, id="diamond"),
        pytest.param(TWO_SINKS, {"in": {"plain": 0, "counted": 5}}, id="two sinks"),
        pytest.param(TWO_SOURCES, {"l": {"out": 20}, "r": {"out": 120}}, id="two sources"),
        pytest.param(LENGTHS, {"in": {"out": 7}}, id="length windows count 0"),
        pytest.param(plan(source(), sink("out", "in")), {"in": {"out": 0}}, id="nothing between"),
        pytest.param(
            plan(receive("s", "car"), aggregate("a", "car/s", tumbling(3)), send("t", "a", "hub")),
            {"car/s": {"t": 3}},
            id="receive to send",
        ),
        pytest.param(
            plan(source("x"), source("y"), sink("of-x", "x"), sink("of-y", "y")),
            {"x": {"of-x": 0}, "y": {"of-y": 0}},
            id="unreachable pairs are left out",
        ),
    ],
)
def test_the_largest_window_sum_within_a_plan(document: PlanDocument, expected: dict[str, dict[str, int]]) -> None:
    assert delays(document) == expected


def test_a_send_is_known_by_its_stream_and_a_path_by_its_operators() -> None:
    node = Node("to-hub", "send", ("in",), {"stream": "reports", "to": ["hub"]})
    document = plan(source(), node)
    assert delivering_name(node) == "reports"
    assert delays(document) == {"in": {"reports": 0}}
    assert list(paths(document)) == [(("in", "to-hub"), 0)]


def test_every_path_with_its_window_sum() -> None:
    assert list(paths(DIAMOND)) == [
        (("in", "both", "again", "day", "pair", "all", "out"), 25),
        (("in", "both", "again", "pair", "all", "out"), 1),
        (("in", "both", "two-days", "all", "out"), 48),
    ]


def test_windows_add_up_across_agents() -> None:
    assert fleet_delays(FLEET) == {
        ("car-1", "gps"): {("hub", "log"): 10, ("centre", "board"): 1_110},
        ("car-1", "reports"): {("hub", "log"): 0, ("centre", "board"): 1_100},
        ("car-2", "gps"): {("car-2", "own"): 4, ("hub", "log"): 0, ("centre", "board"): 1_100},
        ("car-2", "raw"): {("hub", "log"): 0, ("centre", "board"): 1_100},
        ("hub", "road"): {("hub", "log"): 0, ("centre", "board"): 1_100},
        ("hub", "alarms"): {("centre", "board"): 1_000},
    }


def test_the_longer_of_two_agents_counts() -> None:
    ways = {
        "car": plan(source(), send("s", "in", "slow", "fast")),
        "fast": plan(receive("s", "car"), send("f", "car/s", "hub")),
        "slow": plan(receive("s", "car"), aggregate("a", "car/s", tumbling(60)), send("w", "a", "hub")),
        "hub": plan(receive("f", "fast"), receive("w", "slow"), union("u", "fast/f", "slow/w"), sink("out", "u")),
    }
    assert fleet_delays(ways)["car", "in"] == {("hub", "out"): 60}
    assert fleet_delays(ways)["car", "s"] == {("hub", "out"): 60}
    assert fleet_delays(ways)["fast", "f"] == {("hub", "out"): 0}


def test_a_stream_that_is_sent_under_the_name_of_another_operator() -> None:
    # "x" is what the hub receives, and also the stream that its operator "on" sends: 5 + 100 on the way, not 5
    agents = {
        "car": plan(source(), send("y", "in", "hub")),
        "hub": plan(
            Node("x", "receive", parameters={"stream": "y", "sender": "car"}),
            aggregate("a", "x", tumbling(100)),
            Node("on", "send", ("a",), {"stream": "x", "to": ["end"]}),
        ),
        "end": plan(receive("x", "hub"), aggregate("b", "hub/x", tumbling(5)), sink("out", "b")),
    }
    assert fleet_delays(agents) == {
        ("car", "in"): {("end", "out"): 105},
        ("car", "y"): {("end", "out"): 105},
        ("hub", "x"): {("end", "out"): 5},
    }


def test_a_send_leads_only_where_it_is_addressed_and_received() -> None:
    sends = {"car": plan(source(), send("s", "in", "hub", "spare"))}
    takes = plan(receive("s", "car"), sink("out", "car/s"))
    nowhere: dict[tuple[str, str], dict[tuple[str, str], int]] = {("car", "in"): {}, ("car", "s"): {}}
    assert fleet_delays(sends) == nowhere
    assert fleet_delays(sends | {"hub": plan(source(), sink("out", "in"))})["car", "s"] == {}
    assert fleet_delays(sends | {"thief": takes}) == nowhere
    assert fleet_delays({"hub": takes}) == {}
    assert fleet_delays(sends | {"hub": takes, "spare": takes})["car", "in"] == {("hub", "out"): 0, ("spare", "out"): 0}


def test_a_bad_plan_in_a_fleet_is_named_with_its_agent() -> None:
    with pytest.raises(PlanError, match=r"operator 'm': agent 'hub': nothing consumes its stream"):
        fleet_delays({**FLEET, "hub": plan(source(), mapped("m", "in"))})


def test_many_ways_cost_no_more_than_few() -> None:
    document = ladder(60)
    began = time.perf_counter()
    assert delays(document) == {"in": {"out": 60 * 61 // 2}}
    assert count_paths(document) == 2**60
    assert len(next(paths(document))[0]) == 2 + 3 * 60
    assert fleet_delays({"a": document}) == {("a", "in"): {("a", "out"): 60 * 61 // 2}}
    assert time.perf_counter() - began < 2


@given(documents())
def test_delays_are_the_maximum_over_all_paths(document: PlanDocument) -> None:
    by_name = {node.name: node for node in document.nodes}
    expected: dict[str, dict[str, int]] = {}
    ways = 0
    for names_on_path, total in paths(document):
        ways += 1
        assert total == sum(window_ms(by_name[name]) for name in names_on_path)
        reached = expected.setdefault(names_on_path[0], {})
        delivering = delivering_name(by_name[names_on_path[-1]])
        reached[delivering] = max(reached.get(delivering, 0), total)
    assert delays(document) == expected
    assert count_paths(document) == ways

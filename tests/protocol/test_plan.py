"""Plans as data: their text, what is refused, and U against walking every path."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.plan import (
    JSON,
    MAX_JSON_BYTES,
    MAX_NODES,
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

JOIN_FUNCTIONS = {"left_key": "app:car", "right_key": "app:car", "combine": "app:pair"}


def source(name: str = "in") -> Node:
    return Node(name, "source", parameters={"ids": "uid", "watermarks": "ordered", "disorder_ms": 0})


def receive(stream: str, sender: str) -> Node:
    return Node(f"{sender}/{stream}", "receive", parameters={"stream": stream, "sender": sender})


def mapped(name: str, upstream: str) -> Node:
    return Node(name, "map", (upstream,), functions={"function": "app:change"})


def aggregate(name: str, upstream: str, window: dict[str, JSON]) -> Node:
    return Node(name, "aggregate", (upstream,), {"window": window, "aggregators": ["Count()"]})


def join(name: str, left: str, right: str, window: dict[str, JSON]) -> Node:
    return Node(name, "join", (left, right), {"window": window}, JOIN_FUNCTIONS)


def union(name: str, *upstream: str) -> Node:
    return Node(name, "union", upstream)


def multiplex(name: str, upstream: str) -> Node:
    return Node(name, "multiplex", (upstream,))


def sink(name: str, upstream: str) -> Node:
    return Node(name, "sink", (upstream,))


def send(stream: str, upstream: str, *to: str) -> Node:
    return Node(stream, "send", (upstream,), {"stream": stream, "to": list(to)})


def tumbling(size_ms: int) -> dict[str, JSON]:
    return {"kind": "time", "size_ms": size_ms, "advance_ms": size_ms, "offset_ms": 0}


def plan(*nodes: Node) -> PlanDocument:
    return PlanDocument("test", "segments", nodes)


WINDOWS = [
    ("aggregate", {"kind": "time", "size_ms": 120, "advance_ms": 30, "offset_ms": -7}, 120),
    ("aggregate", {"kind": "recent", "size_ms": 40}, 40),
    ("aggregate", {"kind": "recent", "size_ms": 0}, 0),
    ("aggregate", {"kind": "length", "count": 4}, 0),
    ("join", {"kind": "band", "distance_ms": 9}, 9),
    ("join", {"kind": "time", "size_ms": 60, "advance_ms": 20, "offset_ms": 0}, 60),
    ("join", {"kind": "recent", "left_ms": 3, "right_ms": 11}, 11),
    ("join", {"kind": "length", "left_count": 5, "right_count": 1}, 0),
]


@pytest.mark.parametrize(("operator", "window", "size_ms"), WINDOWS)
def test_an_operator_reaches_back_as_far_as_its_window(operator: str, window: dict[str, JSON], size_ms: int) -> None:
    node = aggregate("a", "in", window) if operator == "aggregate" else join("a", "in", "in", window)
    assert window_ms(node) == size_ms


def test_what_keeps_nothing_reaches_back_for_nothing() -> None:
    for node in (source(), receive("s", "a"), mapped("m", "in"), union("u", "in", "in"), sink("k", "in")):
        assert window_ms(node) == 0


CHAIN = plan(source(), aggregate("a", "in", tumbling(120)), aggregate("b", "a", tumbling(30)), sink("out", "b"))
#        +-> day (24) -> join (1) -+
#  in ---+                         +-> sink: the longer way counts, max(24 + 1, 48)
#        +-> two days (48) --------+
DIAMOND = plan(
    source(),
    multiplex("both", "in"),
    multiplex("again", "both"),
    aggregate("day", "again", tumbling(24)),
    join("pair", "day", "again", {"kind": "band", "distance_ms": 1}),
    aggregate("two-days", "both", tumbling(48)),
    union("all", "pair", "two-days"),
    sink("out", "all"),
)
TWO_SINKS = plan(
    source(),
    multiplex("both", "in"),
    mapped("m", "both"),
    sink("plain", "m"),
    aggregate("a", "both", tumbling(5)),
    sink("counted", "a"),
)
TWO_SOURCES = plan(
    source("l"),
    source("r"),
    aggregate("sums", "r", tumbling(100)),
    join("pair", "l", "sums", {"kind": "recent", "left_ms": 10, "right_ms": 20}),
    sink("out", "pair"),
)
LENGTHS = plan(
    source(),
    aggregate("last", "in", {"kind": "length", "count": 50}),
    multiplex("twice", "last"),
    join("self", "twice", "twice", {"kind": "length", "left_count": 2, "right_count": 3}),
    aggregate("sum", "self", tumbling(7)),
    sink("out", "sum"),
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


# car-1 --reports--> hub --alarms--> centre
# car-2 --reports----^
FLEET = {
    "car-1": plan(source("gps"), aggregate("a", "gps", tumbling(10)), send("reports", "a", "hub")),
    "car-2": plan(
        source("gps"),
        multiplex("m", "gps"),
        send("raw", "m", "hub"),
        aggregate("b", "m", tumbling(4)),
        sink("own", "b"),
    ),
    "hub": plan(
        receive("reports", "car-1"),
        receive("raw", "car-2"),
        source("road"),
        union("u", "car-1/reports", "car-2/raw", "road"),
        multiplex("m", "u"),
        aggregate("c", "m", tumbling(100)),
        send("alarms", "c", "centre"),
        sink("log", "m"),
    ),
    "centre": plan(receive("alarms", "hub"), aggregate("d", "hub/alarms", tumbling(1_000)), sink("board", "d")),
}


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


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_agents_in_a_circle_are_refused(length: int) -> None:
    agents = [f"agent-{number}" for number in range(length)]
    circle = {
        agent: plan(receive("s", agents[place - 1]), send("s", f"{agents[place - 1]}/s", agents[(place + 1) % length]))
        for place, agent in enumerate(agents)
    }
    after = {"after": plan(receive("s", "agent-0"), sink("out", "agent-0/s"))}
    with pytest.raises(PlanError, match=r"agents agent-\d+ -> .*agent-\d+ send to each other in a circle"):
        fleet_delays(circle | after)


def test_a_bad_plan_in_a_fleet_is_named_with_its_agent() -> None:
    with pytest.raises(PlanError, match=r"operator 'm': agent 'hub': nothing consumes its stream"):
        fleet_delays({**FLEET, "hub": plan(source(), mapped("m", "in"))})


def ladder(rungs: int) -> PlanDocument:
    """A chain of diamonds: 2 ** rungs paths."""
    nodes, last = [source()], "in"
    for rung in range(rungs):
        nodes += [
            multiplex(f"m{rung}", last),
            aggregate(f"a{rung}", f"m{rung}", tumbling(rung + 1)),
            mapped(f"b{rung}", f"m{rung}"),
            union(f"u{rung}", f"a{rung}", f"b{rung}"),
        ]
        last = f"u{rung}"
    return plan(*nodes, sink("out", last))


def test_many_ways_cost_no_more_than_few() -> None:
    document = ladder(60)
    began = time.perf_counter()
    assert delays(document) == {"in": {"out": 60 * 61 // 2}}
    assert count_paths(document) == 2**60
    assert len(next(paths(document))[0]) == 2 + 3 * 60
    assert fleet_delays({"a": document}) == {("a", "in"): {("a", "out"): 60 * 61 // 2}}
    assert time.perf_counter() - began < 2


def test_a_plan_as_long_as_is_allowed() -> None:
    nodes = [source(), *(aggregate(f"n{i + 1}", f"n{i}" if i else "in", tumbling(1)) for i in range(MAX_NODES - 2))]
    document = plan(*nodes[::-1], sink("out", f"n{MAX_NODES - 2}"))
    assert delays(document) == {"in": {"out": MAX_NODES - 2}}
    assert [total for _, total in paths(document)] == [MAX_NODES - 2]
    assert PlanDocument.from_json(document.to_json()) == document
    with pytest.raises(PlanError, match=f"{MAX_NODES + 1} operators, and a plan has at most {MAX_NODES}"):
        plan(*document.nodes, sink("more", "in")).check()


names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=4)
spans = st.integers(0, 2**62 - 1)
lengths = st.integers(1, 2**62 - 1)
times = st.builds(
    lambda size, advance, offset: {"kind": "time", "size_ms": size, "advance_ms": advance, "offset_ms": offset},
    lengths,
    lengths,
    st.integers(1 - 2**62, 2**62 - 1),
)
aggregate_windows = st.one_of(
    times,
    st.builds(lambda size: {"kind": "recent", "size_ms": size}, spans),
    st.builds(lambda count: {"kind": "length", "count": count}, lengths),
)
join_windows = st.one_of(
    times,
    st.builds(lambda distance: {"kind": "band", "distance_ms": distance}, spans),
    st.builds(lambda left, right: {"kind": "recent", "left_ms": left, "right_ms": right}, spans, spans),
    st.builds(lambda left, right: {"kind": "length", "left_count": left, "right_count": right}, lengths, lengths),
)


@st.composite
def documents(draw: st.DrawFn) -> PlanDocument:
    """Any plan that passes `check`, its nodes in any order."""
    fresh = (f"{draw(names)}#{number}" for number in count())
    nodes: list[Node] = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            nodes.append(
                Node(
                    next(fresh),
                    "source",
                    parameters={
                        "ids": draw(st.sampled_from(["uid", "attributes"])),
                        "watermarks": draw(st.sampled_from(["ordered", "bounded", "explicit"])),
                        "disorder_ms": draw(spans),
                    },
                    functions={role: draw(names) for role in draw(st.sets(st.sampled_from(["ts", "items"])))},
                )
            )
        else:
            nodes.append(Node(next(fresh), "receive", parameters={"stream": draw(names), "sender": "other"}))
    for _ in range(draw(st.integers(0, 12))):
        streams = st.sampled_from([node.name for node in nodes])
        name, one, two = next(fresh), draw(streams), draw(streams)
        match draw(st.sampled_from(["map", "flat_map", "filter", "union", "multiplex", "aggregate", "join"])):
            case "union":
                nodes.append(union(name, one, two, *draw(st.lists(streams, max_size=2))))
            case "multiplex":
                nodes.append(multiplex(name, one))
            case "aggregate":
                parameters = {
                    "window": draw(aggregate_windows),
                    "aggregators": draw(st.lists(names, min_size=1, max_size=3)),
                }
                roles = draw(st.sets(st.sampled_from(["key", "into"])))
                nodes.append(Node(name, "aggregate", (one,), parameters, {role: draw(names) for role in roles}))
            case "join":
                nodes.append(join(name, one, two, draw(join_windows)))
            case stateless:
                nodes.append(Node(name, stateless, (one,), functions={"function": draw(names)}))
    used = {name for node in nodes for name in node.inputs}
    for node in list(nodes):
        if node.name not in used or draw(st.booleans()):
            name = next(fresh)
            if draw(st.booleans()):
                nodes.append(sink(name, node.name))
            else:
                agents = draw(st.lists(st.sampled_from(["hub", "car-7", "x" * 23]), min_size=1, unique=True))
                nodes.append(send(name, node.name, *agents))
    provenance = draw(st.sampled_from(["none", "genealog", "segments"]))
    return PlanDocument(draw(names), provenance, tuple(draw(st.permutations(nodes))))


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


@given(documents(), st.randoms(use_true_random=False))
def test_a_plan_survives_its_text_and_the_text_is_always_the_same(document: PlanDocument, random: Any) -> None:
    text = document.to_json()
    assert PlanDocument.from_json(text) == document
    assert PlanDocument.from_json(text.encode()) == document
    assert PlanDocument.from_json(text).to_json() == text

    def shuffled(mapping: Any) -> Any:
        return dict(random.sample(list(mapping.items()), len(mapping)))

    again = PlanDocument(
        document.name,
        document.provenance,
        tuple(
            Node(node.name, node.operator, node.inputs, shuffled(node.parameters), shuffled(node.functions))
            for node in document.nodes
        ),
    )
    assert again.to_json() == text
    assert len({document, again}) == 1


def test_the_text_is_for_people_and_small_links() -> None:
    assert plan(source("in"), sink("aus-\u00fc", "in")).to_json() == (
        '{"name":"test","nodes":[{"name":"in","operator":"source",'
        '"parameters":{"disorder_ms":0,"ids":"uid","watermarks":"ordered"}},'
        '{"inputs":["in"],"name":"aus-\u00fc","operator":"sink"}],"provenance":"segments","version":1}'
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read_or_refuse(text: str | bytes) -> None:
    try:
        document = PlanDocument.from_json(text)
    except PlanError:
        return
    assert PlanDocument.from_json(document.to_json()) == document
    delays(document)


@given(st.text() | st.binary() | values.map(json.dumps))
def test_no_text_raises_anything_but_a_plan_error(text: str | bytes) -> None:
    read_or_refuse(text)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@given(documents(), st.data())
def test_a_plan_changed_anywhere_raises_nothing_but_a_plan_error(document: PlanDocument, data: st.DataObject) -> None:
    changed = json.loads(document.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(changed)))
        match data.draw(st.sampled_from(["replace", "remove", "add", "copy"])):
            case "replace":
                container[key] = data.draw(values)
            case "remove":
                del container[key]
            case "add" if isinstance(container, dict):
                container[data.draw(st.text(max_size=5))] = data.draw(values)
            case _:
                container[key] = json.loads(json.dumps(data.draw(st.sampled_from(places(changed)))[0]))
        if not places(changed):
            break
    read_or_refuse(json.dumps(changed))


@given(documents(), st.data())
def test_a_text_changed_anywhere_raises_nothing_but_a_plan_error(document: PlanDocument, data: st.DataObject) -> None:
    text = bytearray(document.to_json().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        text[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read_or_refuse(bytes(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the text is not JSON"),
        (b"\xff{}", "the text is not JSON"),
        ("[]", "a plan: expected an object, not a list"),
        ("{}", "a plan: 'version' is missing"),
        ("[" * 200_000, "the text is nested too deeply"),
        ('{"a":' * 100_000, "the text is nested too deeply"),
        (" " * (MAX_JSON_BYTES + 1), f"a plan's text has at most {MAX_JSON_BYTES} bytes"),
        ('{"version":NaN}', "NaN is no number"),
        ('{"version":-Infinity}', "-Infinity is no number"),
        ('{"version":1,"version":1}', "an object has a key twice"),
        (f'{{"version":{"9" * 10_000}}}', "the text is not JSON"),
    ],
)
def test_a_text_that_is_no_plan_is_refused_with_a_reason(text: str | bytes, reason: str) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)) as caught:
        PlanDocument.from_json(text)
    assert caught.value.operator is None


def test_reading_is_bounded_by_the_stack_it_has_left() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        else:
            read_or_refuse("[" * 900 + "]" * 900)

    deep(400)


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    """The text of a good plan after one change to its JSON."""
    good = plan(
        source(),
        receive("s", "car"),
        join("pair", "in", "car/s", {"kind": "band", "distance_ms": 5}),
        aggregate("count", "pair", {"kind": "time", "size_ms": 10, "advance_ms": 10, "offset_ms": 0}),
        multiplex("both", "count"),
        sink("out", "both"),
        send("on", "both", "hub"),
    )
    document = json.loads(good.to_json())
    change({"all": document} | {node["name"]: node for node in document["nodes"]})
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "operator", "reason"),
    [
        (lambda d: d["all"].update(version=2), None, "plan version 2, and only version 1 is known"),
        (lambda d: d["all"].update(version=True), None, "plan version true"),
        (lambda d: d["all"].update(extra=1), None, "a plan: 'extra' is unknown"),
        (lambda d: d["all"].update(name=""), None, "the plan's name is empty"),
        (lambda d: d["all"].update(name=["x"]), None, "the plan's name is a text, not a list"),
        (lambda d: d["all"].update(name="\ud800"), None, "a character that cannot be printed"),
        (lambda d: d["all"].update(provenance={}), None, "provenance is one of none, genealog, segments"),
        (lambda d: d["all"].update(nodes={}), None, "nodes is a list, not an object"),
        (lambda d: d["all"].update(nodes=[]), None, "a plan needs a source or a receive"),
        (lambda d: d["all"].update(nodes=[7]), None, "operator number 0: expected an object, not 7"),
        (lambda d: d["all"].update(nodes=[1] * 5_000), None, "5000 operators, and a plan has at most 4096"),
        (lambda d: d["out"].pop("name"), None, "operator number 5: 'name' is missing"),
        (lambda d: d["out"].update(name=3), None, "an operator's name is a text, not 3"),
        (lambda d: d["out"].update(name="x" * 201), None, "201 characters, and at most 200"),
        (lambda d: d["out"].update(name="a\nb"), None, "a character that cannot be printed"),
        (lambda d: d["out"].pop("operator"), "out", "'operator' is missing"),
        (lambda d: d["out"].update(colour="red"), "out", "'colour' is unknown"),
        (lambda d: d["out"].update(operator="drain"), "out", "there is no operator 'drain'"),
        (lambda d: d["out"].update(operator=["sink"]), "out", "there is no operator a list"),
        (lambda d: d["out"].update(inputs="both"), "out", "inputs is a list, not 'both'"),
        (lambda d: d["out"].update(inputs=[["both"]]), "out", "an input is a text, not a list"),
        (lambda d: d["out"].update(inputs=["bath"]), "out", "its input 'bath' is bound to no stream of this plan"),
        (lambda d: d["out"].update(inputs=["on"]), "out", "its input 'on' is a send, which gives no stream"),
        (lambda d: d["out"].update(inputs=["both", "both"]), "out", "a sink has 1 input, not 2"),
        (lambda d: d["out"].update(operator="union"), "out", "a union has at least 2 inputs, not 1"),
        (lambda d: d["out"].update(parameters={"speed": 1}), "out", "'speed' is unknown"),
        (lambda d: d["out"].update(parameters=[]), "out", "expected an object, not a list"),
        (lambda d: d["out"].update(functions={"function": 1}), "out", "function function is a text, not 1"),
        (lambda d: d["out"].update(functions={"then": "a:b"}), "out", "'then' is unknown"),
        (lambda d: d["out"].update(name="in"), "in", "two operators have this name"),
        (lambda d: d["count"].update(inputs=["both"]), "pair", "nothing consumes its stream"),
        (lambda d: d["pair"].update(inputs=["in", "both"]), "car/s", "nothing consumes its stream"),
        (lambda d: d["pair"]["functions"].pop("combine"), "pair", "'combine' is missing"),
        (lambda d: d["pair"].update(inputs=["in"]), "pair", "a join has 2 inputs, not 1"),
        (lambda d: d["pair"]["parameters"].update(window=None), "pair", "window is an object, not null"),
        (
            lambda d: d["pair"]["parameters"].update(window={"kind": "fuzzy"}),
            "pair",
            "the window of a join is one of band, time, recent, length, not 'fuzzy'",
        ),
        (lambda d: d["pair"]["parameters"]["window"].update(kind=[]), "pair", "not a list"),
        (lambda d: d["pair"]["parameters"]["window"].update(distance_ms=-1), "pair", "must not be negative, but is -1"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=0), "count", "size_ms must be positive, but is 0"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=-5), "count", "must be positive, but is -5"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=True), "count", "a whole number, not true"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=1.0), "count", "a whole number, not 1.0"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms="1"), "count", "a whole number, not '1'"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=2**62), "count", "size_ms is out of range"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=10**999), "count", "range: a huge number"),
        (lambda d: d["count"]["parameters"]["window"].update(offset_ms=-(2**62)), "count", "offset_ms is out of range"),
        (lambda d: d["count"]["parameters"]["window"].pop("advance_ms"), "count", "'advance_ms' is missing"),
        (lambda d: d["count"]["parameters"]["window"].update(slack_ms=1), "count", "'slack_ms' is unknown"),
        (lambda d: d["count"]["parameters"].update(aggregators=[]), "count", "aggregators is empty"),
        (
            lambda d: d["count"]["parameters"].update(aggregators=[3]),
            "count",
            "an item of aggregators is a text, not 3",
        ),
        (lambda d: d["count"]["parameters"].update(aggregators="Sum"), "count", "aggregators is a list, not 'Sum'"),
        (lambda d: d["on"]["parameters"].update(to=[]), "on", "to is empty"),
        (lambda d: d["on"]["parameters"].update(to=["hub", "hub"]), "on", "to names an agent twice"),
        (lambda d: d["on"]["parameters"].update(to=["The Hub"]), "on", "'The Hub' is no agent name"),
        (lambda d: d["on"]["parameters"].update(to=[f"a{i}" for i in range(2_000)]), "on", "to has 2000 items"),
        (lambda d: d["on"]["parameters"].update(stream="out"), "on", "its stream is named 'out', as is that of 'out'"),
        (lambda d: d["on"]["parameters"].update(stream="in"), "on", "its stream is named 'in', as is that of 'in'"),
        (lambda d: d["car/s"]["parameters"].update(sender=None), "car/s", "sender null is no agent name"),
        (lambda d: d["in"]["parameters"].update(ids="hash"), "in", "ids is one of uid, attributes, not 'hash'"),
        (lambda d: d["in"]["parameters"].update(disorder_ms=-1), "in", "disorder_ms must not be negative, but is -1"),
        (lambda d: d["in"].update(inputs=["out"]), "in", "a source has no inputs, not 1"),
    ],
)
def test_a_bad_plan_is_refused_with_the_operator_and_the_reason(
    change: Callable[[dict[str, Any]], object], operator: str | None, reason: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)) as caught:
        PlanDocument.from_json(changed(change))
    assert caught.value.operator == operator
    assert operator is None or str(caught.value).startswith(f"operator {operator!r}: ")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("length", [1, 2, 3, 50])
def test_a_stream_that_flows_back_is_refused(length: int) -> None:
    # The circle has a way in and a way out, so that nothing else is wrong with it.
    ring = [union("r0", "in", f"r{length - 1}"), *(mapped(f"r{i}", f"r{i - 1}") for i in range(1, length))]
    with pytest.raises(PlanError, match=r"its result flows back into it: r\d+ -> ") as caught:
        plan(source(), *ring, mapped("after", "r0"), sink("out", "after")).check()
    assert caught.value.operator in {node.name for node in ring}


@pytest.mark.parametrize(
    "bad",
    [
        Node("out", "sink", ["in"]),  # type: ignore[arg-type]
        Node("out", "sink", ("in",), {1: 2}),  # type: ignore[dict-item]
        Node("out", "send", ("in",), {"stream": "s", "to": ("hub",)}),  # type: ignore[dict-item]
        Node("out", "sink", ("in",), functions=None),  # type: ignore[arg-type]
        Node("out", "sink", ("in",), functions={"function": print}),  # type: ignore[dict-item]
        aggregate("out", "in", {"kind": "recent", "size_ms": 10**5_000}),
        None,
    ],
)
def test_a_plan_that_would_not_survive_its_text_is_not_written(bad: Any) -> None:
    with pytest.raises(PlanError):
        plan(source(), bad).to_json()
    with pytest.raises(PlanError):
        PlanDocument("test", "segments", [source(), sink("out", "in")]).to_json()  # type: ignore[arg-type]

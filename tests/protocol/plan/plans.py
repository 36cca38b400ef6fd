"""Plans to test with: short words for operators, a few whole plans, and any plan at all."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from protocol.plan import JSON, Node, PlanDocument

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
# car-1 --reports--> hub --alarms--> centre
# car-2 --raw--------^
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

"""Random queries with random input, for the engine and for the oracle.

A `Case` prints as code: paste what a failing test shows into a regression test. Sources hand out a `Reading`, an int
that remembers its place among its source's items, so that equal tuples can still be told apart by the tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hypothesis import strategies as st

import edge_agent.stream as ts
from protocol.ids import TupleId
from protocol.records import Delivery, Late, Origin, Record, SourcePayload
from tests.support import oracle
from tests.support.oracle import (
    Aggregate,
    Band,
    Cause,
    Filter,
    FlatMap,
    Item,
    Join,
    Length,
    LengthPair,
    Map,
    Mark,
    Node,
    Query,
    Receive,
    Recent,
    RecentPair,
    Row,
    Send,
    Sink,
    Source,
    Time,
    Union,
)

Inputs = Mapping[str, Sequence[Item]]


@dataclass(frozen=True)
class Case:
    query: Query
    inputs: dict[str, list[Item]]


# ---------------------------------------------------------------------- the same query for the engine


class Reading(int):
    """A source's value, and its place among the source's items."""

    number: int

    def __new__(cls, value: int, number: int) -> Reading:
        reading = super().__new__(cls, value)
        reading.number = number
        return reading


def readings(items: Sequence[Item]) -> list[Any]:
    """The items as the engine takes them."""
    return [
        ts.Watermark(item.ts) if isinstance(item, Mark) else (item[0], Reading(item[1], number))
        for number, item in enumerate(items)
    ]


def all_readings(inputs: Inputs) -> dict[str, list[Any]]:
    return {name: readings(items) for name, items in inputs.items()}


AGGREGATORS: dict[str, Any] = {
    "count": ts.Count,
    "sum": ts.Sum,
    "min": ts.Min,
    "max": ts.Max,
    "distinct": ts.Distinct,
    "top 2": lambda: ts.Top(2),
    "first": ts.First,
    "last": ts.Last,
    "collect": ts.Collect,
}


def build(query: Query, provenance: str, *, multiplex: bool = False) -> ts.Plan:
    """The plan of a query; with `multiplex`, streams branch by the operator, otherwise by being used twice."""
    plan = ts.Plan("random", provenance=provenance)
    uses = Counter(name for node in query for name in oracle.inputs_of(node))
    streams: dict[str, Any] = {}
    branches: dict[str, Iterator[Any]] = {}

    def take(name: str) -> Any:
        if multiplex and uses[name] > 1:
            if name not in branches:
                branches[name] = iter(streams[name].multiplex(uses[name]))
            return next(branches[name])
        return streams[name]

    for node in query:
        streams[node.name] = _add(plan, node, take)
    return plan


def _add(plan: ts.Plan, node: Node, take: Any) -> Any:
    match node:
        case Source():
            return plan.source(
                node.name,
                disorder_ms=node.disorder_ms,
                watermarks="explicit" if node.explicit else None,
                ids=node.ids,
            )
        case Receive():
            return plan.receive(node.stream, node.sender, name=node.name)
        case Map():
            return take(node.input).map(oracle.MAPS[node.function], name=node.name)
        case FlatMap():
            return take(node.input).flat_map(oracle.FLAT_MAPS[node.function], name=node.name)
        case Filter():
            return take(node.input).filter(oracle.PREDICATES[node.function], name=node.name)
        case Union():
            first, *others = [take(name) for name in node.inputs]
            return first.union(*others, name=node.name)
        case Aggregate():
            stream = take(node.input)
            if node.key is not None:
                stream = stream.key_by(oracle.KEYS[node.key])
            match node.window:
                case Time(size=size, advance=advance, offset=offset):
                    windowed = stream.window(size, advance, offset)
                case Recent(size=size):
                    windowed = stream.recent(size)
                case Length(count=count):
                    windowed = stream.length_window(count)
            aggregators = [AGGREGATORS[name]() for name in node.aggregators]
            return windowed.aggregate(*aggregators, into=oracle.fold, name=node.name)
        case Join():
            left = take(node.left).key_by(oracle.KEYS[node.left_key])
            right = take(node.right).key_by(oracle.KEYS[node.right_key])
            combine = oracle.COMBINES[node.combine]
            where = None if node.where is None else oracle.WHERES[node.where]
            match node.window:
                case Band(distance=distance):
                    return left.join_band(right, distance, combine, where=where, name=node.name)
                case Time(size=size, advance=advance, offset=offset):
                    return left.join_window(right, size, advance, offset, combine=combine, where=where, name=node.name)
                case RecentPair(left=left_ms, right=right_ms):
                    return left.join_recent(right, left_ms, right_ms, combine, where=where, name=node.name)
                case LengthPair(left=left_count, right=right_count):
                    return left.join_length(right, left_count, right_count, combine, where=where, name=node.name)
        case Send():
            return take(node.input).send(node.name, to=list(node.to))
        case Sink():
            return take(node.input).sink(node.name)


# ---------------------------------------------------------------------- what came out, in the oracle's words


@dataclass
class Told:
    """The records of one run or of several agents' runs, sorted by kind."""

    records: list[Record]

    def __post_init__(self) -> None:
        self.sources: dict[TupleId, SourcePayload] = {}
        self.deliveries: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        self.upstream: dict[TupleId, tuple[Origin, ...]] = {}
        self.late: list[Late] = []
        self._ids: dict[Cause, TupleId] = {}
        for record in self.records:
            match record:
                case SourcePayload():
                    assert record.id not in self.sources, f"{record.id} is told twice"
                    self.sources[record.id] = record
                case Delivery():
                    stream = record.id.stream
                    assert record.id.seq == len(self.deliveries[stream.agent, stream.name])
                    self.deliveries[stream.agent, stream.name].append(record)
                    self.upstream[record.id] = record.origins
                case Late():
                    self.late.append(record)

    def of(self, sink: str, agent: str = "local") -> list[Delivery]:
        return self.deliveries[agent, sink]

    def rows(self, sink: str, attributes: frozenset[str] = frozenset(), agent: str = "local") -> list[Row]:
        """A sink's tuples with their source tuples as the oracle names them; `attributes`: sources with that policy."""
        rows = []
        for delivery in self.of(sink, agent):
            assert [origin.ts for origin in delivery.origins] == sorted(origin.ts for origin in delivery.origins)
            assert len({origin.id for origin in delivery.origins}) == len(delivery.origins)
            sources = oracle.resolve(delivery.origins, self.upstream)
            causes = {self.cause(origin, attributes) for origin in sources}
            rows.append(Row(delivery.ts, delivery.payload, frozenset(causes)))
        return rows

    def cause(self, origin: Origin, attributes: frozenset[str]) -> Cause:
        source = self.sources[origin.id]
        assert source.ts == origin.ts
        stream = source.id.stream
        which = (source.ts, int(source.payload)) if stream.name in attributes else source.payload.number
        cause = Cause(stream.agent, stream.name, which)
        assert self._ids.setdefault(cause, origin.id) == origin.id, "one source tuple has two ids"
        return cause


def by_attributes(query: Query) -> frozenset[str]:
    return frozenset(node.name for node in query if isinstance(node, Source) and node.ids == "attributes")


def in_some_order(rows: Iterable[Row]) -> list[Any]:
    """For streams whose order at equal timestamps is not laid down."""
    return sorted((row.ts, row.value, sorted(row.causes)) for row in rows)


def assert_same_rows(actual: list[Row], expected: list[Row], in_order: bool) -> None:
    assert [row.ts for row in actual] == sorted(row.ts for row in actual), "not in the order of time"
    if in_order:
        assert actual == expected
    else:
        assert in_some_order(actual) == in_some_order(expected)


# ---------------------------------------------------------------------- strategies

_SIZES = st.integers(1, 7)
_MAPS = st.sampled_from(sorted(oracle.MAPS))
_FLAT_MAPS = st.sampled_from(sorted(oracle.FLAT_MAPS))
_PREDICATES = st.sampled_from(sorted(oracle.PREDICATES))
_KEYS = st.sampled_from(sorted(oracle.KEYS))
_COMBINES = st.sampled_from(sorted(oracle.COMBINES))
_WHERES = st.none() | st.sampled_from(sorted(oracle.WHERES))
_ANY_ORDER = sorted(oracle.AGGREGATORS.keys() - oracle.IN_ORDER)
KINDS = ("map", "flat_map", "filter", "union", "window", "recent", "length", "band", "pairs", "recents", "lengths")
_TOTAL = ("map", "flat_map", "union", "window", "recent", "length")
"""Operators that need not lose a tuple: each input is in an output."""
KEEPING = ("length", "lengths", "length", "window", "recent", "union", "band", "pairs", "recents", "map")
"""Length windows, and what may keep their results for a while."""


@st.composite
def sources(draw: st.DrawFn, ids: Sequence[str] = ("uid", "attributes")) -> list[Source]:
    found = []
    for number in range(draw(st.sampled_from((1, 2, 2, 3)))):
        watermarks = draw(st.sampled_from(("ordered", "bounded", "explicit")))
        disorder = draw(st.integers(1, 6)) if watermarks == "bounded" else 0
        found.append(Source(f"s{number}", disorder, watermarks == "explicit", draw(st.sampled_from(ids))))
    return found


@st.composite
def queries(draw: st.DrawFn, *, operators: int = 5, kinds: Sequence[str] = KINDS, replayable: bool = False) -> Query:
    """A query of up to `operators` operators between its sources and sinks, with branches, joins and nesting.

    What depends on the order at equal timestamps (length windows, `first`) only gets streams where that is laid down.
    With `replayable`, nothing is lost any more after the first aggregate (see the replay test).
    """
    nodes: list[Node] = list(draw(sources(("uid",) if replayable else ("uid", "attributes"))))
    folded: set[str] = set()
    for number in range(draw(st.integers(operators // 2, operators))):
        used = {name for node in nodes for name in oracle.inputs_of(node)}
        # What nobody takes yet is taken more often, so that operators come behind one another.
        streams = [node.name for node in reversed(nodes) for _ in range(1 if node.name in used else 3)]
        in_order = oracle.ordered(tuple(nodes))
        name, kind = f"n{number}", draw(st.sampled_from(kinds))
        if replayable:
            if kind == "lengths":
                kind = "length"
            if kind not in _TOTAL:
                streams = [stream for stream in streams if stream not in folded]
        if kind in ("length", "lengths"):
            streams = [stream for stream in streams if stream in in_order]
        node = draw(_nodes(name, kind, streams, in_order))
        if replayable:
            node = _without_loss(node, folded)
            if isinstance(node, Aggregate) or folded.intersection(oracle.inputs_of(node)):
                folded.add(name)
        nodes.append(node)
    streams = [node.name for node in nodes]
    used = {name for node in nodes for name in oracle.inputs_of(node)}
    ends = [name for name in streams if name not in used]
    ends += draw(st.lists(st.sampled_from(streams), max_size=2))
    return (*nodes, *(Sink(f"k{number}", name) for number, name in enumerate(ends)))


def _without_loss(node: Node, folded: set[str]) -> Node:
    """The node so that each of its inputs is in an output, if it is an aggregate or comes after one."""
    match node:
        case Aggregate(window=Time(size=size, advance=advance, offset=offset)):
            return Aggregate(node.name, node.input, Time(size, min(size, advance), offset), node.aggregators, node.key)
        case FlatMap(function="only even") if node.input in folded:
            return FlatMap(node.name, node.input, "twice")
    return node


@st.composite
def _nodes(draw: st.DrawFn, name: str, kind: str, streams: list[str], in_order: set[str]) -> Node:
    stream = st.sampled_from(streams)
    match kind:
        case "map":
            return Map(name, draw(stream), draw(_MAPS))
        case "flat_map":
            return FlatMap(name, draw(stream), draw(_FLAT_MAPS))
        case "filter":
            return Filter(name, draw(stream), draw(_PREDICATES))
        case "union":
            return Union(name, tuple(draw(st.lists(stream, min_size=2, max_size=3))))
        case "window" | "recent" | "length":
            windows: dict[str, st.SearchStrategy[Time | Recent | Length]] = {
                "window": st.builds(Time, _SIZES, _SIZES, st.integers(-3, 9)),
                "recent": st.builds(Recent, st.integers(0, 6)),
                "length": st.builds(Length, st.integers(1, 4)),
            }
            source = draw(stream)
            words = sorted(oracle.AGGREGATORS) if source in in_order else _ANY_ORDER
            aggregators = draw(st.lists(st.sampled_from(words), min_size=1, max_size=3))
            return Aggregate(name, source, draw(windows[kind]), tuple(aggregators), draw(st.none() | _KEYS))
        case _:
            pairs: dict[str, st.SearchStrategy[Band | Time | RecentPair | LengthPair]] = {
                "band": st.builds(Band, st.integers(0, 5)),
                "pairs": st.builds(Time, _SIZES, _SIZES, st.integers(-3, 9)),
                "recents": st.builds(RecentPair, st.integers(0, 5), st.integers(0, 5)),
                "lengths": st.builds(LengthPair, st.integers(1, 3), st.integers(1, 3)),
            }
            return Join(
                name,
                draw(stream),
                draw(stream),
                draw(pairs[kind]),
                draw(_COMBINES),
                draw(_KEYS),
                draw(_KEYS),
                draw(_WHERES),
            )


@st.composite
def inputs_for(draw: st.DrawFn, query: Query, items: int = 10) -> dict[str, list[Item]]:
    """Few timestamps and few values, so that ties and equal tuples are common; some far from 0.

    With wide gaps between bursts, a length window reaches back much further than all time windows together.
    """
    base = draw(st.sampled_from((-4, -1_000, 1_700_000_000_000)))
    gap = draw(st.sampled_from((5, 100)))
    times = st.builds(lambda burst, place: base + gap * burst + place, st.integers(0, 2), st.integers(0, 4))
    pairs = st.tuples(times, st.integers(-2, 5))
    marks = st.builds(Mark, times)
    least = draw(st.sampled_from((0, 4, 4, 7)))
    found: dict[str, list[Item]] = {}
    for node in query:
        if not isinstance(node, Source):
            continue
        if node.explicit:
            found[node.name] = draw(
                st.lists(st.one_of(pairs, pairs, pairs, pairs, marks), min_size=least, max_size=items)
            )
        else:
            drawn = draw(st.lists(pairs, min_size=least, max_size=items))
            # Unsorted, an ordered source loses nearly everything: only now and then.
            in_order = node.disorder_ms == 0 and draw(st.integers(0, 4)) > 0
            found[node.name] = [*sorted(drawn, key=itemgetter(0))] if in_order else [*drawn]
    return found


@st.composite
def cases(draw: st.DrawFn, *, operators: int = 5, kinds: Sequence[str] = KINDS, replayable: bool = False) -> Case:
    query = draw(queries(operators=operators, kinds=kinds, replayable=replayable))
    return Case(query, draw(inputs_for(query)))

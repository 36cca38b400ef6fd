"""The brute-force evaluator: what a query must deliver, computed from whole lists by definition.

A query is a flat tuple of small nodes that name their inputs and, by a word, the functions they use; so its `repr` can
be pasted into a test. Nothing here is shared with the engine, nothing is incremental, and nothing is clever: windows
are enumerated, joins are nested loops, and every tuple carries the full set of the source tuples that it comes from.

At equal timestamps an order is laid down for some streams only (`ordered`): a keyed window, for one, says nothing
about which key comes first. There the order of this module is one of several that are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

# ---------------------------------------------------------------------- what a query is made of


@dataclass(frozen=True)
class Source:
    """Ordered by default; `disorder_ms` bounds the disorder; `explicit`: only a `Mark` moves time."""

    name: str
    disorder_ms: int = 0
    explicit: bool = False
    ids: str = "uid"


@dataclass(frozen=True)
class Receive:
    name: str
    stream: str
    sender: str


@dataclass(frozen=True)
class Map:
    name: str
    input: str
    function: str


@dataclass(frozen=True)
class FlatMap:
    name: str
    input: str
    function: str


@dataclass(frozen=True)
class Filter:
    name: str
    input: str
    function: str


@dataclass(frozen=True)
class Union:
    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Time:
    size: int
    advance: int
    offset: int = 0


@dataclass(frozen=True)
class Recent:
    size: int


@dataclass(frozen=True)
class Length:
    count: int


@dataclass(frozen=True)
class Aggregate:
    name: str
    input: str
    window: Time | Recent | Length
    aggregators: tuple[str, ...]
    key: str | None = None


@dataclass(frozen=True)
class Band:
    distance: int


@dataclass(frozen=True)
class RecentPair:
    left: int
    right: int


@dataclass(frozen=True)
class LengthPair:
    left: int
    right: int


@dataclass(frozen=True)
class Join:
    name: str
    left: str
    right: str
    window: Band | Time | RecentPair | LengthPair
    combine: str
    left_key: str
    right_key: str
    where: str | None = None


@dataclass(frozen=True)
class Send:
    name: str
    input: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class Sink:
    name: str
    input: str


Node = Source | Receive | Map | FlatMap | Filter | Union | Aggregate | Join | Send | Sink


@dataclass(frozen=True)
class Mark:
    """A watermark among the items of a source: all later ones have at least this timestamp."""

    ts: int


Item = tuple[int, int] | Mark
Query = tuple[Node, ...]


def inputs_of(node: Node) -> tuple[str, ...]:
    match node:
        case Source() | Receive():
            return ()
        case Union():
            return node.inputs
        case Join():
            return node.left, node.right
        case _:
            return (node.input,)


# ---------------------------------------------------------------------- the functions, by word


def fold(*parts: Any) -> int:
    """Numbers, however nested, as one small number that depends on each of them and on their order."""
    total = 7
    for part in parts:
        total = (total * 31 + (fold(*part) if isinstance(part, (list, tuple)) else int(part))) % 10_007
    return total


MAPS: dict[str, Callable[[int], int]] = {
    "same": lambda value: value,
    "negated": lambda value: -value,
    "parity": lambda value: value % 2,
    "plus one": lambda value: value + 1,
}
FLAT_MAPS: dict[str, Callable[[int], list[int]]] = {
    "itself": lambda value: [value],
    "twice": lambda value: [value, value],
    "two": lambda value: [value + 1, value],
    "only even": lambda value: [value] if value % 2 == 0 else [],
}
PREDICATES: dict[str, Callable[[int], bool]] = {
    "all": lambda value: True,
    "even": lambda value: value % 2 == 0,
    "positive": lambda value: value > 0,
    "no third": lambda value: value % 3 != 0,
}
KEYS: dict[str, Callable[[int], int]] = {
    "one": lambda value: 0,
    "parity": lambda value: value % 2,
    "third": lambda value: value % 3,
}
COMBINES: dict[str, Callable[[int, int], int]] = {
    "fold": fold,
    "difference": lambda left, right: left - right,
}
WHERES: dict[str, Callable[[int, int], bool]] = {
    "differ": lambda left, right: left != right,
    "less": lambda left, right: left < right,
}
AGGREGATORS: dict[str, Callable[[list[int]], Any]] = {
    "count": len,
    "sum": sum,
    "min": min,
    "max": max,
    "distinct": lambda values: len(set(values)),
    "top 2": lambda values: sorted(values, reverse=True)[:2],
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "collect": list,
}
IN_ORDER = frozenset({"first", "last", "collect"})
"""The aggregators whose result depends on the order of tuples with equal timestamps."""


def ordered(query: Query) -> set[str]:
    """The streams whose order is laid down at equal timestamps too (given that what they need is in order)."""
    names: set[str] = set()
    for node in query:
        match node:
            case Join():
                known = False
            case Aggregate(window=Time() | Recent()):
                known = node.key is None
            case _:
                known = names.issuperset(inputs_of(node))
        if known:
            names.add(node.name)
    return names


# ---------------------------------------------------------------------- evaluation


class Cause(NamedTuple):
    """A source tuple: by its place among the source's items, or, with `ids="attributes"`, by (ts, value)."""

    agent: str
    source: str
    which: int | tuple[int, int]


class Row(NamedTuple):
    ts: int
    value: Any
    causes: frozenset[Cause]


class LateRow(NamedTuple):
    source: str
    ts: int
    number: int
    watermark: int


@dataclass
class Answer:
    """Per sink its rows; and what came too late."""

    sinks: dict[str, list[Row]] = field(default_factory=dict)
    sent: dict[str, list[Row]] = field(default_factory=dict)
    late: list[LateRow] = field(default_factory=list)


def take(source: Source, items: Sequence[Item], agent: str) -> tuple[list[Row], list[LateRow]]:
    """The source's tuples in (ts, arrival) order, and those that broke its promise."""
    watermark: int | None = None
    kept: list[tuple[int, int, int]] = []
    late: list[LateRow] = []
    for number, item in enumerate(items):
        if isinstance(item, Mark):
            promise = item.ts
        else:
            ts, value = item
            if watermark is not None and ts < watermark:
                late.append(LateRow(source.name, ts, number, watermark))
                continue
            kept.append((ts, number, value))
            if source.explicit:
                continue
            promise = ts - source.disorder_ms
        watermark = promise if watermark is None else max(watermark, promise)
    rows = []
    for ts, number, value in sorted(kept):
        which = number if source.ids == "uid" else (ts, value)
        rows.append(Row(ts, value, frozenset({Cause(agent, source.name, which)})))
    return rows, late


def windows(window: Time, low: int, high: int) -> Iterable[tuple[int, int]]:
    """All windows [left, right) with low < right and left <= high, the earliest first."""
    left = window.offset + (low - window.size - window.offset) // window.advance * window.advance
    while left <= high:
        if left + window.size > low:
            yield left, left + window.size
        left += window.advance


def by_time(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.ts)


def aggregate(node: Aggregate, rows: list[Row]) -> list[Row]:
    """Every window of every key; all that is in a window contributes to its result."""

    def result(ts: int, key: int, content: list[Row]) -> Row:
        values = [row.value for row in content]
        results = [AGGREGATORS[name](values) for name in node.aggregators]
        value = fold(*results) if node.key is None else fold(key, *results)
        return Row(ts, value, frozenset().union(*(row.causes for row in content)))

    def key_of(row: Row) -> int:
        return 0 if node.key is None else KEYS[node.key](row.value)

    keys = sorted({key_of(row) for row in rows})
    groups = {key: [row for row in rows if key_of(row) == key] for key in keys}
    out: list[Row] = []
    window = node.window
    if isinstance(window, Time):
        for key, group in groups.items():
            for left, right in windows(window, group[0].ts, group[-1].ts):
                content = [row for row in group if left <= row.ts < right]
                if content:
                    out.append(result(right, key, content))
        return by_time(out)
    for place, row in enumerate(rows):
        key = key_of(row)
        if isinstance(window, Recent):
            content = [other for other in groups[key] if row.ts - window.size <= other.ts <= row.ts]
        else:
            content = [other for other in rows[: place + 1] if key_of(other) == key][-window.count :]
        out.append(result(row.ts, key, content))
    return out


def join(node: Join, lefts: list[Row], rights: list[Row]) -> list[Row]:
    """Every pair of equal keys that the window lets meet."""

    def pair(ts: int, left: Row, right: Row) -> list[Row]:
        if KEYS[node.left_key](left.value) != KEYS[node.right_key](right.value):
            return []
        if node.where is not None and not WHERES[node.where](left.value, right.value):
            return []
        return [Row(ts, COMBINES[node.combine](left.value, right.value), left.causes | right.causes)]

    def last(rows: list[Row], key: int, key_of: Callable[[int], int], count: int) -> list[Row]:
        return [row for row in rows if key_of(row.value) == key][-count:]

    out: list[Row] = []
    match node.window:
        case LengthPair(left=left_count, right=right_count):
            left_key, right_key = KEYS[node.left_key], KEYS[node.right_key]
            for row in lefts:
                before = [other for other in rights if other.ts < row.ts]  # at equal ts the left one comes first
                for other in last(before, left_key(row.value), right_key, right_count):
                    out += pair(row.ts, row, other)
            for row in rights:
                before = [other for other in lefts if other.ts <= row.ts]
                for other in last(before, right_key(row.value), left_key, left_count):
                    out += pair(row.ts, other, row)
        case Time() as window:
            for left in lefts:
                for right in rights:
                    both = windows(window, max(left.ts, right.ts), min(left.ts, right.ts))
                    for _, end in both:
                        out += pair(end, left, right)
        case Band(distance=distance):
            for left in lefts:
                for right in rights:
                    if abs(left.ts - right.ts) <= distance:
                        out += pair(max(left.ts, right.ts), left, right)
        case RecentPair(left=left_ms, right=right_ms):
            for left in lefts:
                for right in rights:
                    if left.ts <= right.ts <= left.ts + left_ms or right.ts <= left.ts <= right.ts + right_ms:
                        out += pair(max(left.ts, right.ts), left, right)
    return by_time(out)


def evaluate(
    query: Query,
    inputs: Mapping[str, Sequence[Item]],
    agent: str = "local",
    received: Mapping[tuple[str, str], list[Row]] | None = None,
) -> Answer:
    """What one agent's query delivers; `received` holds by (sender, stream) what others have sent it."""
    streams: dict[str, list[Row]] = {}
    answer = Answer()
    for node in query:
        match node:
            case Source():
                streams[node.name], late = take(node, inputs[node.name], agent)
                answer.late += late
            case Receive():
                streams[node.name] = (received or {})[node.sender, node.stream]
            case Map():
                streams[node.name] = [row._replace(value=MAPS[node.function](row.value)) for row in streams[node.input]]
            case FlatMap():
                streams[node.name] = [
                    row._replace(value=value)
                    for row in streams[node.input]
                    for value in FLAT_MAPS[node.function](row.value)
                ]
            case Filter():
                streams[node.name] = [row for row in streams[node.input] if PREDICATES[node.function](row.value)]
            case Union():
                streams[node.name] = by_time(row for name in node.inputs for row in streams[name])
            case Aggregate():
                streams[node.name] = aggregate(node, streams[node.input])
            case Join():
                streams[node.name] = join(node, streams[node.left], streams[node.right])
            case Send():
                answer.sent[node.name] = streams[node.input]
            case Sink():
                answer.sinks[node.name] = streams[node.input]
    return answer


def evaluate_fleet(fleet: Mapping[str, Query], inputs: Mapping[str, Mapping[str, Sequence[Item]]]) -> dict[str, Answer]:
    """What each agent delivers; an agent stands after those it receives from."""
    answers: dict[str, Answer] = {}
    sent: dict[tuple[str, str], list[Row]] = {}
    for agent, query in fleet.items():
        answers[agent] = evaluate(query, inputs.get(agent, {}), agent, sent)
        sent |= {(agent, stream): rows for stream, rows in answers[agent].sent.items()}
    return answers


# ---------------------------------------------------------------------- the brute-force MU


def resolve(origins: Iterable[Any], upstream: Mapping[Any, Iterable[Any]]) -> set[Any]:
    """The SOURCE origins behind `origins`: a REMOTE one stands for those of the upstream delivery with its id."""
    found: set[Any] = set()
    for origin in origins:
        if origin.kind.name == "SOURCE":
            found.add(origin)
        else:
            found |= resolve(upstream[origin.id], upstream)
    return found


def split(query: Query, homes: Sequence[int], names: Sequence[str]) -> dict[str, Query]:
    """The same query on several agents: node i runs on agent `homes[i]`, never before its inputs' agents."""
    home = {node.name: names[number] for node, number in zip(query, homes, strict=True)}
    fleet: dict[str, list[Node]] = {name: [] for name in names}
    receivers: dict[str, list[str]] = {}
    for node in query:
        here = home[node.name]
        renamed = {}
        for name in inputs_of(node):
            if home[name] == here:
                continue
            renamed[name] = f"{name}-in"
            if here not in receivers.setdefault(name, []):
                receivers[name].append(here)
                fleet[here].append(Receive(f"{name}-in", f"{name}-out", home[name]))
        fleet[here].append(_renamed(node, renamed))
    for name, to in receivers.items():
        fleet[home[name]].append(Send(f"{name}-out", name, tuple(to)))
    return {agent: tuple(nodes) for agent, nodes in fleet.items() if nodes}


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    match node:
        case Source() | Receive():
            return node
        case Union():
            return replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))
        case Join():
            return replace(node, left=names.get(node.left, node.left), right=names.get(node.right, node.right))
        case _:
            return replace(node, input=names.get(node.input, node.input))

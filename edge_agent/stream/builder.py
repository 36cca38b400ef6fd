"""The fluent builder: declares a plan, operator by operator, and refuses at once what cannot work.

    plan = Plan("hot-rooms")
    readings = plan.source("readings", read_sensors)
    readings.key_by("room").window(minutes(5)).aggregate(Mean("celsius")).filter(is_hot).sink("alerts")

User code is plain functions on plain values. Provenance is a property of the plan, not of that code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from edge_agent.stream.aggregators import Aggregator, aggregator_of
from edge_agent.stream.functions import name_of, reader
from edge_agent.stream.lineage import LINEAGES
from protocol.plan import JSON, Node, PlanDocument, PlanError, check_node

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")

ON_ERROR = ("stop", "skip")

Items = Iterable[Any] | Callable[[], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Step:
    """One declared operator: its node, and the code and data that a node only names."""

    node: Node
    functions: dict[str, Any] = field(default_factory=dict)
    aggregators: tuple[Aggregator, ...] = ()
    skip: bool = False
    items: Items | None = None
    live: bool = False
    branches: int = 1


class Plan:
    """A directed graph of operators, from sources to sinks."""

    def __init__(self, name: str, *, provenance: str = "segments", on_error: str = "stop") -> None:
        if provenance not in LINEAGES:
            raise PlanError(f"plan {name!r}: provenance is one of {', '.join(LINEAGES)}, not {provenance!r}")
        if on_error not in ON_ERROR:
            raise PlanError(f"plan {name!r}: on_error is one of {', '.join(ON_ERROR)}, not {on_error!r}")
        self.name = name
        self.provenance = provenance
        self.on_error = on_error
        self._steps: dict[str, Step] = {}
        self._unnamed: Counter[str] = Counter()

    def source(
        self,
        name: str,
        items: Items | None = None,
        *,
        ts: Callable[[Any], Any] | str | None = None,
        disorder_ms: int = 0,
        watermarks: str | None = None,
        ids: str = "uid",
        live: bool = False,
        on_error: str | None = None,
    ) -> Stream[Any]:
        """Tuples that are born here: pairs (ts_ms, value), or values of which `ts` tells the time.

        `items` is an iterable or a function that returns one when the plan runs; a `live` one may wait
        for its next item and is read by a thread of its own. Timestamps must not decrease, unless
        `disorder_ms` says by how much they may, or `watermarks="explicit"` leaves it to Watermark items.
        """
        if watermarks is None:
            watermarks = "bounded" if disorder_ms else "ordered"
        elif disorder_ms and watermarks in ("ordered", "explicit"):
            raise PlanError(f"disorder_ms has no meaning with {watermarks} watermarks", name)
        parameters: dict[str, JSON] = {"ids": ids, "watermarks": watermarks, "disorder_ms": disorder_ms}
        functions: dict[str, Any] = {} if ts is None else {"ts": reader(ts)}
        named = {"items": items} if callable(items) else {}
        return self._add(
            "source", _named(name), (), parameters, functions | named, on_error=on_error, items=items, live=live
        )

    def receive(self, stream: str, sender: str, *, name: str | None = None) -> Stream[Any]:
        """The tuples that the agent `sender` sends here as `stream`."""
        return self._add("receive", name or f"{sender}/{stream}", (), {"stream": stream, "sender": sender})

    def document(self) -> PlanDocument:
        """The plan as data, checked."""
        document = PlanDocument(self.name, self.provenance, tuple(step.node for step in self.steps()))
        document.check()
        consumers = self._consumers()
        for name, step in self._steps.items():
            if step.node.operator == "multiplex" and consumers[name] < step.branches:
                raise PlanError(f"nothing consumes {step.branches - consumers[name]} of its branches", name)
        return document

    def steps(self) -> list[Step]:
        """All operators, each behind its inputs; a Multiplex stands where a stream has several consumers."""
        consumers = self._consumers()
        branching: dict[str, str] = {}
        for name, step in self._steps.items():
            if consumers[name] > 1 and step.node.operator != "multiplex":
                branching[name] = f"{name}-multiplex"
                while branching[name] in self._steps:
                    branching[name] += "-"
        steps: list[Step] = []
        for step in self._steps.values():
            inputs = tuple(branching.get(name, name) for name in step.node.inputs)
            steps.append(replace(step, node=replace(step.node, inputs=inputs)))
            if step.node.name in branching:
                steps.append(Step(Node(branching[step.node.name], "multiplex", (step.node.name,))))
        return steps

    def _consumers(self) -> Counter[str]:
        """How often each stream is taken."""
        return Counter(name for step in self._steps.values() for name in step.node.inputs)

    def _add(
        self,
        operator: str,
        name: str | None,
        inputs: tuple[Stream[Any], ...],
        parameters: dict[str, JSON] | None = None,
        functions: dict[str, Any] | None = None,
        *,
        aggregators: tuple[Aggregator, ...] = (),
        on_error: str | None = None,
        items: Items | None = None,
        live: bool = False,
        branches: int = 1,
    ) -> Stream[Any]:
        """Declare an operator and return its output."""
        if name is None:
            self._unnamed[operator] += 1
            name = f"{operator}-{self._unnamed[operator]}"
        functions = functions or {}
        for role, function in functions.items():
            if not callable(function):
                raise PlanError(f"{role} must be a function, not {function!r}", name)
        if on_error is not None and on_error not in ON_ERROR:
            raise PlanError(f"on_error is one of {', '.join(ON_ERROR)}, not {on_error!r}", name)
        for stream in inputs:
            if not isinstance(stream, Stream):
                raise PlanError(f"takes streams, not {stream!r}", name)
            if stream.plan is not self:
                raise PlanError(f"{stream.name!r} is a stream of another plan", name)
        if name in self._steps:
            raise PlanError("two operators have this name", name)
        node = Node(
            name,
            operator,
            tuple(stream.name for stream in inputs),
            parameters or {},
            {role: name_of(function) for role, function in functions.items()},
        )
        check_node(node)
        skip = (on_error or self.on_error) == "skip"
        self._steps[name] = Step(node, functions, aggregators, skip, items, live, branches)
        return Stream(self, name)


class Stream(Generic[T]):
    """The output of an operator. Used twice, it branches."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan = plan
        self.name = name

    def map(self, function: Callable[[T], U], *, name: str | None = None, on_error: str | None = None) -> Stream[U]:
        """One new value per value."""
        return self.plan._add("map", name, (self,), functions={"function": function}, on_error=on_error)

    def flat_map(
        self, function: Callable[[T], Iterable[U]], *, name: str | None = None, on_error: str | None = None
    ) -> Stream[U]:
        """Any number of new values per value, none included."""
        return self.plan._add("flat_map", name, (self,), functions={"function": function}, on_error=on_error)

    def filter(
        self, predicate: Callable[[T], Any], *, name: str | None = None, on_error: str | None = None
    ) -> Stream[T]:
        """Only the values for which the predicate holds."""
        return self.plan._add("filter", name, (self,), functions={"function": predicate}, on_error=on_error)

    def union(self, *others: Stream[T], name: str | None = None) -> Stream[T]:
        """This stream and others as one."""
        return self.plan._add("union", name, (self, *others))

    def multiplex(self, branches: int, *, name: str | None = None) -> tuple[Stream[T], ...]:
        """The same stream several times; using a stream more than once does the same."""
        if isinstance(branches, bool) or not isinstance(branches, int) or branches < 1:
            raise PlanError(f"branches must be a positive whole number, not {branches!r}", name or "multiplex")
        stream = self.plan._add("multiplex", name, (self,), branches=branches)
        return (stream,) * branches

    def key_by(self, key: Callable[[T], K] | str) -> KeyedStream[K, T]:
        """Group by a function of the value, or by a field."""
        if not callable(key) and not isinstance(key, str):
            raise PlanError(f"key_by takes a function or a field name, not {key!r}", self.name)
        return KeyedStream(self, reader(key))

    def window(self, size_ms: int, advance_ms: int | None = None, offset_ms: int = 0) -> Windowed[T]:
        """Time windows [left, left + size), one every `advance`; without advance they follow one another."""
        return _time_windows(self, None, size_ms, advance_ms, offset_ms)

    def recent(self, size_ms: int) -> Windowed[T]:
        """For each tuple all that lie at most `size` before it, those at the same time included."""
        return Windowed(self, None, {"kind": "recent", "size_ms": size_ms})

    def length_window(self, count: int) -> Windowed[T]:
        """For each tuple the last `count`, itself included."""
        return Windowed(self, None, {"kind": "length", "count": count})

    def session_window(self, gap_ms: int) -> Windowed[T]:
        """Refused: session windows merge, and what a merged window came from is not defined."""
        raise PlanError("session windows are not supported; use window, recent or length_window", self.name)

    def join_band(self, *args: Any, **kwargs: Any) -> Stream[Any]:
        """Refused: joins need keys."""
        raise PlanError("a join needs keys: call key_by on both streams first", self.name)

    def join_window(self, *args: Any, **kwargs: Any) -> Stream[Any]:
        """Refused: joins need keys."""
        return self.join_band()

    def join_recent(self, *args: Any, **kwargs: Any) -> Stream[Any]:
        """Refused: joins need keys."""
        return self.join_band()

    def join_length(self, *args: Any, **kwargs: Any) -> Stream[Any]:
        """Refused: joins need keys."""
        return self.join_band()

    def sink(self, name: str, function: Callable[[T], Any] | None = None, *, on_error: str | None = None) -> None:
        """Where results leave the plan; the function is called with each of them."""
        functions = {} if function is None else {"function": function}
        self.plan._add("sink", _named(name), (self,), functions=functions, on_error=on_error)

    def send(self, stream: str, to: list[str]) -> None:
        """On to other agents, whose plans `receive` this stream."""
        receivers: Any = list(to) if isinstance(to, tuple) else to
        self.plan._add("send", _named(stream), (self,), {"stream": stream, "to": receivers})


class KeyedStream(Generic[K, T]):
    """A stream with a key: windows are per key, and it can be joined."""

    def __init__(self, stream: Stream[T], key: Callable[[T], K]) -> None:
        self._stream = stream
        self._key = key

    def window(self, size_ms: int, advance_ms: int | None = None, offset_ms: int = 0) -> Windowed[T]:
        """Time windows per key; see Stream.window."""
        return _time_windows(self._stream, self._key, size_ms, advance_ms, offset_ms)

    def recent(self, size_ms: int) -> Windowed[T]:
        """Per key; see Stream.recent."""
        return Windowed(self._stream, self._key, {"kind": "recent", "size_ms": size_ms})

    def length_window(self, count: int) -> Windowed[T]:
        """Per key; see Stream.length_window."""
        return Windowed(self._stream, self._key, {"kind": "length", "count": count})

    def session_window(self, gap_ms: int) -> Windowed[T]:
        """Refused; see Stream.session_window."""
        return self._stream.session_window(gap_ms)

    def join_band(
        self,
        other: KeyedStream[K, U],
        distance_ms: int,
        combine: Callable[[T, U], Any],
        *,
        where: Callable[[T, U], Any] | None = None,
        name: str | None = None,
        on_error: str | None = None,
    ) -> Stream[Any]:
        """GeneaLog's join: pairs at most `distance` apart, ends included; ts is the later one's."""
        return self._join(other, {"kind": "band", "distance_ms": distance_ms}, combine, where, name, on_error)

    def join_window(
        self,
        other: KeyedStream[K, U],
        size_ms: int,
        advance_ms: int | None = None,
        offset_ms: int = 0,
        *,
        combine: Callable[[T, U], Any],
        where: Callable[[T, U], Any] | None = None,
        name: str | None = None,
        on_error: str | None = None,
    ) -> Stream[Any]:
        """Ananke's join: pairs in the same window, once for each window they share; ts is its end."""
        window = _time_window(size_ms, advance_ms, offset_ms)
        return self._join(other, window, combine, where, name, on_error)

    def join_recent(
        self,
        other: KeyedStream[K, U],
        left_ms: int,
        right_ms: int,
        combine: Callable[[T, U], Any],
        *,
        where: Callable[[T, U], Any] | None = None,
        name: str | None = None,
        on_error: str | None = None,
    ) -> Stream[Any]:
        """SAF's time-window join: left tuples wait `left_ms` for a right one, right ones `right_ms` for a left one."""
        window: dict[str, JSON] = {"kind": "recent", "left_ms": left_ms, "right_ms": right_ms}
        return self._join(other, window, combine, where, name, on_error)

    def join_length(
        self,
        other: KeyedStream[K, U],
        left_count: int,
        right_count: int,
        combine: Callable[[T, U], Any],
        *,
        where: Callable[[T, U], Any] | None = None,
        name: str | None = None,
        on_error: str | None = None,
    ) -> Stream[Any]:
        """SAF's length-window join: a tuple meets the last ones of its key on the other side."""
        window: dict[str, JSON] = {"kind": "length", "left_count": left_count, "right_count": right_count}
        return self._join(other, window, combine, where, name, on_error)

    def _join(
        self,
        other: KeyedStream[K, U],
        window: dict[str, JSON],
        combine: Callable[[T, U], Any],
        where: Callable[[T, U], Any] | None,
        name: str | None,
        on_error: str | None,
    ) -> Stream[Any]:
        if not isinstance(other, KeyedStream):
            raise PlanError("a join needs keys: call key_by on both streams first", name or self._stream.name)
        functions: dict[str, Any] = {"left_key": self._key, "right_key": other._key, "combine": combine}
        if where is not None:
            functions["where"] = where
        inputs = (self._stream, other._stream)
        return self._stream.plan._add("join", name, inputs, {"window": window}, functions, on_error=on_error)


class Windowed(Generic[T]):
    """A stream in windows, waiting to be told what to compute over them."""

    def __init__(self, stream: Stream[T], key: Callable[[T], Any] | None, window: dict[str, JSON]) -> None:
        self._stream = stream
        self._key = key
        self._window = window

    def aggregate(
        self,
        *aggregators: Any,
        into: Callable[..., Any] | None = None,
        name: str | None = None,
        on_error: str | None = None,
    ) -> Stream[Any]:
        """One result per window: `into(key, result, ...)`, or `(key, result, ...)`; without key_by no key."""
        operator = name or f"aggregate of {self._stream.name}"
        if not aggregators:
            raise PlanError("an aggregate needs at least one aggregator", operator)
        try:
            chosen = tuple(aggregator_of(each) for each in aggregators)
        except TypeError as error:
            raise PlanError(str(error), operator) from error
        functions: dict[str, Any] = {}
        if self._key is not None:
            functions["key"] = self._key
        if into is not None:
            functions["into"] = into
        parameters: dict[str, JSON] = {"window": self._window, "aggregators": [repr(each) for each in chosen]}
        return self._stream.plan._add(
            "aggregate", name, (self._stream,), parameters, functions, aggregators=chosen, on_error=on_error
        )


def _named(name: Any) -> str:
    """The name of what must have one."""
    if not isinstance(name, str):
        raise PlanError(f"a source, sink or send needs a name, not {name!r}")
    return name


def _time_window(size_ms: int, advance_ms: int | None, offset_ms: int) -> dict[str, JSON]:
    advance = size_ms if advance_ms is None else advance_ms
    return {"kind": "time", "size_ms": size_ms, "advance_ms": advance, "offset_ms": offset_ms}


def _time_windows(
    stream: Stream[T], key: Callable[[T], Any] | None, size_ms: int, advance_ms: int | None, offset_ms: int
) -> Windowed[T]:
    return Windowed(stream, key, _time_window(size_ms, advance_ms, offset_ms))

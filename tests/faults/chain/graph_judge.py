"""The graph in a store against the one that the log says, once everything has ended: nothing missing, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector.log import LogReader
from collector.store import StoreMissing, StoreReader, open_store
from protocol.chunks import SEQ_BITS
from protocol.graph import SinkFlag
from tests.support.told_log import Log
from tests.support.whole_graph import every_edge, every_late, every_sink, every_source
from threadline.graph_check import check_feed

LEVELS = 2
_SHOWN = 3


@dataclass(slots=True)
class Result:
    """A sink vertex with all that belongs to it."""

    id: int
    ts: int
    agent: str
    nonce: int
    stream: str
    said: Any
    is_incomplete: bool
    sources: list[int]
    late: list[int]
    """Sources that had expired: only after a retirement."""
    lost: list[int]

    @property
    def seq(self) -> int:
        """Its number in its stream."""
        return self.id & (1 << SEQ_BITS) - 1


@dataclass(slots=True)
class Graph:
    """What the store holds at the end."""

    results: list[Result] = field(default_factory=list)
    agent_of: dict[int, str] = field(default_factory=dict)
    """Whose reading each source vertex is."""
    readings: dict[int, tuple[int, Any]] = field(default_factory=dict)
    """When each of them was, and what it said, if that was not given up."""

    def of(self, agent: str, *streams: str) -> list[Result]:
        return [each for each in self.results if each.agent == agent and each.stream in streams]

    @property
    def edges(self) -> int:
        return sum(len(each.sources) for each in self.results)

    @property
    def late(self) -> int:
        return sum(len(each.late) for each in self.results)


def read_told(folder: Path) -> Log:
    """All that the log says."""
    reader = LogReader(folder)
    told = Log(LEVELS)
    told.add({shard: list(reader.rows(shard, reader.start(shard), reader.end(shard))) for shard in reader.shards()})
    return told


def read_graph(store: str, told: Log) -> Graph:
    """All that the store says."""
    graph = Graph()
    with closing(open_store(store).reader()) as reader:
        edges: dict[int, list[int]] = {}
        for source, sink in every_edge(reader):
            edges.setdefault(sink, []).append(source)
        sinks = list(every_sink(reader))
        said = reader.payloads([each.id for each in sinks])
        for each in sinks:
            agent, nonce, stream = told.streams[each.id >> SEQ_BITS]
            payload = said[each.id].value if each.id in said else None
            is_incomplete = bool(each.flags & SinkFlag.INCOMPLETE)
            sources, lost = edges.get(each.id, []), reader.lost_of(each.id)
            late = [one.origin for one in reader.late_of(each.id)]
            graph.results.append(
                Result(each.id, each.ts, agent, nonce, stream, payload, is_incomplete, sources, late, lost)
            )
        graph.agent_of = {each.id: told.streams[each.id >> SEQ_BITS][0] for each in every_source(reader)}
        known = reader.payloads(graph.agent_of)
        graph.readings = {each: (payload.ts, payload.value) for each, payload in known.items()}
    return graph


def differences(store: str, told: Log) -> list[str]:
    """How the graph in the store is not what the log says."""
    try:
        with closing(open_store(store).reader()) as reader:
            return list(_differences(reader, told))
    except StoreMissing as error:
        return [str(error)]


def _differences(reader: StoreReader, told: Log) -> Iterator[str]:
    expected = {number: told.resolve(number) for number in told.sink_tuples}
    sinks = {each.id: each for each in every_sink(reader)}
    edges = list(every_edge(reader))
    due = {(origin, sink) for sink, of in expected.items() for origin in of.sources}
    yield from check_feed(reader, all_labelled=True)
    yield from _differ("sinks", sinks, expected)
    yield from _differ("sources", (each.id for each in every_source(reader)), (origin for origin, _ in edges))
    late = [(each.origin, each.sink) for each in every_late(reader)]
    if late and not told.returned:
        yield f"{len(late)} edges are late, and nobody was retired: {late[:_SHOWN]}"
    yield from _differ("edges", [*edges, *late], due)
    for number, resolved in expected.items():
        sink = sinks.get(number)
        if sink is None:
            continue
        name = _named(told, number)
        if resolved.waiting or resolved.deep:
            yield f"{name} has yet to hear of {resolved.waiting}, or is too deep: {resolved.deep}"
        if sink.label_stamp is None:
            yield f"{name} is not labelled"
        if sink.ts != told.deliveries[number].ts:
            yield f"{name} is of {sink.ts}, not of {told.deliveries[number].ts}"
        if bool(sink.flags & SinkFlag.INCOMPLETE) != bool(resolved.lost or resolved.cut):
            yield f"{name} has the flags {sink.flags}; lost: {resolved.lost}, cut: {resolved.cut}"
        yield from _differ(f"lost origins of {name}", reader.lost_of(number), resolved.lost)
    for source in every_source(reader):
        if source.label_stamp is None:
            yield f"{_named(told, source.id)} is not labelled"


def _named(told: Log, number: int) -> str:
    agent, nonce, name = told.streams[number >> SEQ_BITS]
    return f"{agent}/{name}@~{nonce:x}:{number & (1 << SEQ_BITS) - 1}"


def _differ(what: str, found: Iterable[Any], expected: Iterable[Any]) -> Iterator[str]:
    there, due = list(found), set(expected)
    if len(there) != len(set(there)):
        yield f"{what}: {len(there) - len(set(there))} are there twice"
    missing, too_many = due.difference(there), set(there) - due
    if missing or too_many:
        yield (
            f"{what}: {len(missing)} missing {sorted(missing)[:_SHOWN]}, {len(too_many)} too many"
            f" {sorted(too_many)[:_SHOWN]}, of {len(due)}"
        )

"""What a store should do, said with dicts, and histories of graphs as a pipeline might tell them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from collector.store import ChangeKind
from protocol.graph import GraphBatch, Reason
from protocol.records import BEGINNING, END_OF_TIME
from tests.collector.store.graphs import Graph, Pair, graph_batch, tuple_id

Key = TypeVar("Key")
IDS = [tuple_id(stream, seq) for stream in (1, 2, 2**27 - 1) for seq in (0, 1, 4095, 4096, 4097, 2**36 - 1)]
SINK_IDS = [tuple_id(stream, seq) for stream in (7, 8) for seq in (0, 1, 5000)]
TIMES = [BEGINNING, -1000, -1, 0, 1, 1000, 2000, END_OF_TIME]


@dataclass
class Told:
    """A graph, and in which of its batches each part of it is told."""

    batches: int
    sinks: dict[int, tuple[int, int]] = field(default_factory=dict)
    sources: dict[int, tuple[int, int]] = field(default_factory=dict)
    edges: dict[Pair, int] = field(default_factory=dict)
    late: dict[Pair, int] = field(default_factory=dict)
    sink_labels: dict[int, int] = field(default_factory=dict)
    source_labels: dict[int, int] = field(default_factory=dict)

    def written(self, query: str, upto: int | None = None) -> list[GraphBatch]:
        """The batches, or the first of them."""
        return [
            graph_batch(
                query,
                number,
                stamp=number * 10,
                sinks={each: ts for each, (ts, at) in self.sinks.items() if at == number},
                sources={each: ts for each, (ts, at) in self.sources.items() if at == number},
                edges=_at(self.edges, number),
                sink_labels=_at(self.sink_labels, number),
                source_labels=_at(self.source_labels, number),
                late=[(sink, origin, 5, Reason.AFTER_LABEL) for sink, origin in _at(self.late, number)],
            )
            for number in range(self.batches if upto is None else upto)
        ]


def _at(parts: dict[Key, int], number: int) -> list[Key]:
    return [each for each, at in parts.items() if at == number]


class Truth:
    """A graph that several queries tell, each in its own order."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.sinks = {each: chance.choice(TIMES) for each in chance.sample(SINK_IDS, chance.randint(1, len(SINK_IDS)))}
        self.sources = {each: chance.choice(TIMES) for each in chance.sample(IDS, chance.randint(1, 12))}
        pairs = [(sink, source) for sink in self.sinks for source in self.sources]
        self.edges = chance.sample(pairs, chance.randint(0, len(pairs)))

    def told(self) -> Told:
        """In some order: vertices before their edges, labels after them, what is late in place of an edge."""
        chance = self._chance
        told = Told(chance.randint(1, 6))
        last = told.batches - 1
        told.sinks = {each: (ts, chance.randint(0, last)) for each, ts in self.sinks.items()}
        told.sources = {each: (ts, chance.randint(0, last)) for each, ts in self.sources.items()}
        ends_of_sinks = {each: at for each, (_, at) in told.sinks.items()}
        ends_of_sources = {each: at for each, (_, at) in told.sources.items()}
        for sink, source in self.edges:
            at = chance.randint(max(told.sinks[sink][1], told.sources[source][1]), last)
            (told.late if chance.random() < 0.1 else told.edges)[sink, source] = at
            ends_of_sinks[sink] = max(at, ends_of_sinks[sink])
            if (sink, source) in told.edges:
                ends_of_sources[source] = max(at, ends_of_sources[source])
        for labels, ends in ((told.sink_labels, ends_of_sinks), (told.source_labels, ends_of_sources)):
            labels.update({each: chance.randint(at, last) for each, at in ends.items() if chance.random() < 0.8})
        return told


class Model:
    """A store of dicts."""

    def __init__(self) -> None:
        self.graph = Graph({}, {}, set(), set(), set(), set())
        self.feed: list[tuple[ChangeKind, int, int]] = []
        """What was added: kind, id, and the other id of an edge."""
        self._keys: set[tuple[str, int]] = set()

    def write(self, batch: GraphBatch) -> None:
        """One thing after the other, in the order K, S, E, L."""
        if (batch.query, batch.batch) in self._keys:
            return
        self._keys.add((batch.query, batch.batch))
        graph = self.graph
        complete, expired = set(graph.sink_labels), set(graph.source_labels)
        for sink, ts in zip(batch.sinks.id.tolist(), batch.sinks.ts.tolist(), strict=True):
            if sink not in graph.sinks:
                graph.sinks[sink] = ts
                self.feed.append((ChangeKind.SINK, sink, 0))
        for source, ts in zip(batch.sources.id.tolist(), batch.sources.ts.tolist(), strict=True):
            if source not in graph.sources:
                graph.sources[source] = ts
                self.feed.append((ChangeKind.SOURCE, source, 0))
        late: list[Pair] = list(zip(batch.late.sink.tolist(), batch.late.origin.tolist(), strict=True))
        for pair in zip(batch.edges.sink.tolist(), batch.edges.source.tolist(), strict=True):
            if pair[0] in complete or pair in graph.edges | graph.late:
                continue
            if pair[1] in expired:
                late.append(pair)
            else:
                graph.edges.add(pair)
                self.feed.append((ChangeKind.EDGE, *pair))
        for sink in batch.sink_labels.id.tolist():
            if sink not in graph.sink_labels:
                graph.sink_labels.add(sink)
                self.feed.append((ChangeKind.SINK_LABEL, sink, 0))
        for source in batch.source_labels.tolist():
            if source not in graph.source_labels:
                graph.source_labels.add(source)
                self.feed.append((ChangeKind.SOURCE_LABEL, source, 0))
        for pair in late:
            if pair[0] not in complete and pair not in graph.edges | graph.late:
                graph.late.add(pair)
                self.feed.append((ChangeKind.LATE, *pair))

    def retain(self, before_ts: int) -> None:
        """Old sinks that are labelled go with all that is theirs, then old sources that have no sink."""
        graph = self.graph
        for sink in [each for each, ts in graph.sinks.items() if ts < before_ts and each in graph.sink_labels]:
            del graph.sinks[sink]
            graph.sink_labels.discard(sink)
            for pairs in (graph.edges, graph.late):
                pairs -= {pair for pair in pairs if pair[0] == sink}
        used = {source for _, source in graph.edges}
        for source in [each for each, ts in graph.sources.items() if ts < before_ts and each not in used]:
            if source in graph.source_labels:
                del graph.sources[source]
                graph.source_labels.discard(source)

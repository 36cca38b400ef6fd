"""The graph that comes out of the pipeline against the one that the log says (`tests.support.told_log`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from protocol.chunks import SEQ_BITS, DeliveryChunk, read_deliveries
from protocol.graph import EdgeFlag, GraphBatch, Reason, SinkFlag
from protocol.graph_invariants import GraphInvariants
from protocol.row import Row
from protocol.wire.sections import Kind
from tests.support.label_bounds import Bounds
from tests.support.told_log import Log, Resolved

STORED = (Kind.PLAN, Kind.GAP, Kind.END, Kind.STATUS, Kind.EVENT, Kind.REGISTER, Kind.PAYLOAD)
"""Rows that go to the store as they are."""


class GraphOracle:
    """Compares what comes out of the pipeline with what must come out, micro-batch by micro-batch."""

    def __init__(self, levels: int = 2, *, late: bool = False) -> None:
        self.log = Log(levels, late)
        self.findings: list[str] = []
        self.invariants = GraphInvariants()
        self._late = late
        """Whether anything may come late: after a retirement, or after an End that was not the end."""
        self._sources: dict[int, int] = {}
        self._sinks: dict[int, int] = {}
        self._edges: dict[int, dict[int, int]] = {}
        self._late_edges: dict[int, set[int]] = {}
        self._purged: dict[int, set[int]] = {}
        self._lost: dict[int, set[int]] = {}
        self._sink_labels: dict[int, int] = {}
        self._source_labels: set[int] = set()
        self._checked: set[int] = set()
        """Labels that were found to be allowed when they came."""

    def add(self, micro_batch: Mapping[int, Sequence[Row]], graph: GraphBatch) -> list[str]:
        """Take a micro-batch and what came of it; returns what is wrong."""
        before = len(self.findings)
        self.findings += self.invariants.add(graph)
        known = set(self.log.sink_tuples)
        self.log.add(micro_batch)
        self._take(graph)
        self._check_vertices(graph, known)
        resolved = {number: self.log.resolve(number) for number in self.log.sink_tuples}
        for number, each in resolved.items():
            self._check_sink(number, each)
        self._check_source_labels()
        self._check_passed_on(graph)
        return [f"micro-batch {graph.batch}: {finding}" for finding in self.findings[before:]]

    def finish(self) -> list[str]:
        """Everything that is wrong; if all agents have ended, and take nothing again, everything must be labelled."""
        before = len(self.invariants.findings)
        all_labelled = self.log.all_ended and not self.log.may_take_again
        return [*self.findings, *self.invariants.finish(all_labelled)[before:]]

    def named(self, number: int) -> str:
        """A tuple as people write it."""
        agent, nonce, name = self.log.streams.get(number >> SEQ_BITS, ("?", 0, "?"))
        return f"{agent}/{name}@{nonce & 0xFF}:{number & (1 << SEQ_BITS) - 1}"

    def _take(self, graph: GraphBatch) -> None:
        self._sinks |= dict(zip(graph.sinks.id.tolist(), graph.sinks.ts.tolist(), strict=True))
        self._sources |= dict(zip(graph.sources.id.tolist(), graph.sources.ts.tolist(), strict=True))
        edges = graph.edges
        for sink, source, flags in zip(edges.sink.tolist(), edges.source.tolist(), edges.flags.tolist(), strict=True):
            self._edges.setdefault(sink, {})[source] = flags
        late = graph.late
        for sink, origin, reason in zip(late.sink.tolist(), late.origin.tolist(), late.reason.tolist(), strict=True):
            table = self._late_edges if reason == Reason.AFTER_LABEL else self._purged
            table.setdefault(sink, set()).add(origin)
        for sink, origin in zip(graph.lost.sink.tolist(), graph.lost.origin.tolist(), strict=True):
            self._lost.setdefault(sink, set()).add(origin)
        labels = graph.sink_labels
        self._sink_labels |= dict(zip(labels.id.tolist(), labels.flags.tolist(), strict=True))
        self._source_labels |= set(graph.source_labels.tolist())
        if not self._late and len(late.sink):
            pairs = zip(late.sink.tolist(), late.origin.tolist(), late.reason.tolist(), strict=True)
            for sink, origin, reason in pairs:
                if not self.log.went_back(sink, origin):
                    named = f"{self.named(origin)} -> {self.named(sink)}"
                    self._found(f"{named} is late for no reason ({Reason(reason).name})")

    def _check_vertices(self, graph: GraphBatch, known: set[int]) -> None:
        expected = {number: each.ts for number, each in self.log.sink_tuples.items() if number not in known}
        told = dict(zip(graph.sinks.id.tolist(), graph.sinks.ts.tolist(), strict=True))
        if told != expected:
            self._differ("sink vertices", told.items(), expected.items())
        ends = {source for edges in self._edges.values() for source in edges}
        if self._sources.keys() != ends:
            self._differ("source vertices and ends of edges", self._sources, ends)

    def _check_sink(self, number: int, resolved: Resolved) -> None:
        name = self.named(number)
        edges = self._edges.get(number, {})
        late, purged = self._late_edges.get(number, set()), self._purged.get(number, set())
        expected = dict.fromkeys(resolved.sources, 0) | dict.fromkeys(resolved.deep, int(EdgeFlag.TOO_DEEP))
        behind = Resolved()  # what the store finds behind sent tuples that the pipeline had let go of
        for origin in purged:
            if origin in self.log.deliveries:
                self.log.resolve_into(behind, origin, self.log.deliveries[origin].ts, 1)
                resolved.waiting -= behind.waiting  # nobody waits for what is behind it
            elif origin in resolved.lost:  # the pipeline cannot know whether it had it once, and the store does not
                resolved.lost.remove(origin)
                resolved.cut.discard(origin)
            else:
                self._found(f"{name} comes late from {self.named(origin)}, which the log does not have")
        reached = edges.keys() | late | behind.sources.keys() | behind.deep.keys()
        if not resolved.sure <= reached <= expected.keys():
            self._differ(f"origins of {name}", reached, expected)
        for source, flags in edges.items():
            if flags != expected.get(source, flags):
                self._found(f"edge {self.named(source)} -> {name} has the flags {flags}")
        times = resolved.sources | resolved.deep
        for source in edges:
            if source in times and self._sources.get(source) != times[source]:
                self._found(f"source {self.named(source)} has the time {self._sources.get(source)}")
        lost = self._lost.get(number, set()) | behind.lost
        if not resolved.lost <= lost <= resolved.lost | resolved.cut:
            self._differ(f"lost origins of {name}", lost, resolved.lost)
        self._check_sink_label(number, name, resolved, behind)

    def _check_sink_label(self, number: int, name: str, resolved: Resolved, behind: Resolved) -> None:
        """What is lost behind a sent tuple that the pipeline had let go of is found by the store: no flag tells."""
        flags = self._sink_labels.get(number)
        lost = resolved.lost | resolved.cut
        if resolved.waiting:
            if flags is not None:
                waiting = sorted(self.named(each) for each in resolved.waiting)
                self._found(f"sink tuple {name} is labelled, and has yet to hear of {waiting}")
        elif flags is None:
            if not resolved.may_wait:
                self._found(f"sink tuple {name} is not labelled, and nothing more can come")
        elif bool(flags & SinkFlag.INCOMPLETE) not in (bool(lost), bool(lost - behind.lost - behind.cut)):
            self._found(f"sink tuple {name} is labelled with the flags {flags}; lost: {lost}")

    def _check_source_labels(self) -> None:
        required, allowed = Bounds(self.log, required=True), Bounds(self.log, required=False, purged=self._purged)
        for source, ts in self._sources.items():
            number = source >> SEQ_BITS
            if source in self._source_labels:
                if source not in self._checked and not ts < allowed.of(number):
                    self._found(f"source {self.named(source)} of {ts} is labelled before {allowed.of(number)}")
                self._checked.add(source)
            elif ts < required.of(number):
                self._found(f"source {self.named(source)} of {ts} has no label, and {required.of(number)} has passed")

    def _check_passed_on(self, graph: GraphBatch) -> None:
        """Sent tuples, sink tuples that came from such, and other rows for the store are all there, once."""
        told = [each for chunk in graph.deliveries for each in _told(chunk)]
        here = [
            each
            for row in self.log.core_rows
            if row.kind == Kind.DELIVERY
            for each in _told(read_deliveries(row.data))
            if each.sent or each.part or any(remote for _, _, remote in each.origins)
        ]
        if sorted(told) != sorted(here):
            self._found(f"deliveries for the store: {sorted(told)} instead of {sorted(here)}")
        stored = sorted(row for row in graph.rows if row.kind in STORED)
        wanted = sorted(row for row in self.log.core_rows if row.kind in STORED)
        if stored != wanted:
            self._found(f"{len(stored)} rows for the store instead of {len(wanted)}")

    def _found(self, finding: str) -> None:
        self.findings.append(finding)

    def _differ(self, what: str, found: Iterable[Any], expected: Iterable[Any]) -> None:
        def shown(values: set[Any]) -> list[Any]:
            return sorted(
                self.named(each) if isinstance(each, int) else (self.named(each[0]), *each[1:]) for each in values
            )

        too_many, missing = shown(set(found) - set(expected)), shown(set(expected) - set(found))
        self._found(f"{what}: {too_many} too many, {missing} missing")


class _Told(NamedTuple):
    id: int
    ts: int
    part: int
    sent: int
    origins: list[tuple[int, int, int]]


def _told(chunk: DeliveryChunk) -> list[_Told]:
    """The deliveries of a chunk, one by one."""
    origins = list(zip(chunk.origin_id.tolist(), chunk.origin_ts.tolist(), chunk.remote.tolist(), strict=True))
    found: list[_Told] = []
    for number, ts, count, part, sent in zip(
        *(each.tolist() for each in (chunk.id, chunk.ts, chunk.count, chunk.part, chunk.sent)), strict=True
    ):
        found.append(_Told(number, ts, part, sent, origins[:count]))
        del origins[:count]
    return found

"""What must hold of the live forward-provenance graph, whatever made it: checked batch by batch, as it came out.

Every vertex once; an edge once, and after both of its ends; a label once, and last of all that concerns its vertex;
stamps that never go down (the paper's R-V, R-E and R-L). What came too late stands beside the graph and never in it.
Findings are sentences. The idea: a sink whose origins are all told is forgotten but for its name, because anything
about it afterwards is wrong; so only the edges of open sinks are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.graph import EdgeFlag, GraphBatch, Reason, SinkFlag

MOST_FINDINGS = 100
_SHOWN = 5


class GraphInvariants:
    """Takes the batches of one graph in their order."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.vertices = 0
        self.edges = 0
        self.labels = 0
        self.late = 0
        """Rows of the late relation: a store that counts them has the same number."""
        self.lost = 0
        self._untold = 0
        self._last: tuple[int, int] | None = None
        self._keys: set[tuple[str, int]] = set()
        self._open_sinks: dict[int, _OpenSink] = {}
        self._closed_sinks: set[int] = set()
        self._open_sources: dict[int, bool] = {}
        """Source vertices without a label, and whether each is a sent tuple that stands for its sources."""
        self._closed_sources: dict[int, bool] = {}

    def add(self, batch: GraphBatch) -> list[str]:
        """The next batch; returns what is wrong with it."""
        before = len(self.findings)
        name = f"batch {batch.batch}"
        if not self._fits(batch, name):
            return self.findings[before:]
        if (batch.query, batch.batch) in self._keys:
            self._found(f"{name} of query {batch.query} came twice")
        self._keys.add((batch.query, batch.batch))
        if self._last is not None and batch.stamp < self._last[0]:
            self._found(f"{name} is stamped {batch.stamp}, below the {self._last[0]} of batch {self._last[1]}")
        self._last = batch.stamp, batch.batch
        self._add_vertices(batch, name)
        self._add_edges(batch, name)
        self._add_late(batch, name)
        self._add_lost(batch, name)
        self._add_labels(batch, name)
        return self.findings[before:]

    def add_all(self, batches: Iterable[GraphBatch]) -> list[str]:
        """Several batches in a row."""
        return [finding for batch in batches for finding in self.add(batch)]

    def finish(self, all_labelled: bool = True) -> list[str]:
        """Everything that was found. With `all_labelled`, also what never got its label though everything has ended."""
        if all_labelled:
            for what, ids in (("sink", self._open_sinks), ("source", self._open_sources)):
                if ids:
                    self._found(f"{len(ids)} {what} vertices were never labelled: {_few(ids)}")
        if self._untold:
            return [*self.findings, f"... and {self._untold} findings more"]
        return list(self.findings)

    @property
    def unlabelled(self) -> tuple[int, int]:
        """How many sink and source vertices are still without a label."""
        return len(self._open_sinks), len(self._open_sources)

    def _found(self, finding: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)
        else:
            self._untold += 1

    def _fits(self, batch: GraphBatch, name: str) -> bool:
        """Columns that belong together are equally long."""
        parts = {
            "sinks": (batch.sinks.id, batch.sinks.ts),
            "sources": (batch.sources.id, batch.sources.ts, batch.sources.sent),
            "edges": (batch.edges.sink, batch.edges.source, batch.edges.flags),
            "sink labels": (batch.sink_labels.id, batch.sink_labels.flags),
            "late edges": (batch.late.sink, batch.late.origin, batch.late.origin_ts, batch.late.reason),
            "lost origins": (batch.lost.sink, batch.lost.origin),
        }
        torn = [part for part, columns in parts.items() if len({len(column) for column in columns}) > 1]
        for part in torn:
            self._found(f"{name}: the columns of {part} are not equally long")
        return not torn

    def _add_vertices(self, batch: GraphBatch, name: str) -> None:
        self.vertices += len(batch.sinks.id) + len(batch.sources.id)
        for sink in batch.sinks.id.tolist():
            if sink in self._open_sinks or sink in self._closed_sinks:
                self._found(f"{name}: sink vertex {sink} comes a second time")
            elif sink in self._open_sources or sink in self._closed_sources:
                self._found(f"{name}: sink vertex {sink} is a source vertex already")
            else:
                self._open_sinks[sink] = _OpenSink()
        for source, sent in zip(batch.sources.id.tolist(), batch.sources.sent.tolist(), strict=True):
            if source in self._open_sources or source in self._closed_sources:
                self._found(f"{name}: source vertex {source} comes a second time")
            elif source in self._open_sinks or source in self._closed_sinks:
                self._found(f"{name}: source vertex {source} is a sink vertex already")
            else:
                self._open_sources[source] = bool(sent)

    def _add_edges(self, batch: GraphBatch, name: str) -> None:
        self.edges += len(batch.edges.sink)
        columns = (batch.edges.sink.tolist(), batch.edges.source.tolist(), batch.edges.flags.tolist())
        for sink, source, flags in zip(*columns, strict=True):
            known = self._open_sinks.get(sink)
            if known is None:
                closed = sink in self._closed_sinks
                self._found(
                    f"{name}: edge {source} -> {sink}, and that sink {'is labelled' if closed else 'is unknown'}"
                )
            elif source in known.sources:
                self._found(f"{name}: edge {source} -> {sink} comes a second time")
            elif source in known.late:
                self._found(f"{name}: edge {source} -> {sink} is in the late relation already")
            else:
                known.sources.add(source)
            sent = self._open_sources.get(source)
            if sent is None:
                closed = source in self._closed_sources
                self._found(
                    f"{name}: edge {source} -> {sink}, and that source {'is labelled' if closed else 'is unknown'}"
                )
            elif sent != bool(flags & EdgeFlag.TOO_DEEP):
                self._found(f"{name}: edge {source} -> {sink} and its source do not agree on whether it is too deep")

    def _add_late(self, batch: GraphBatch, name: str) -> None:
        """What could have been in the graph is not late."""
        late = batch.late
        self.late += len(late.sink)
        for sink, origin, reason in zip(late.sink.tolist(), late.origin.tolist(), late.reason.tolist(), strict=True):
            known = self._open_sinks.get(sink)
            if known is None:
                closed = sink in self._closed_sinks
                self._found(
                    f"{name}: late edge {origin} -> {sink}, and its sink {'is labelled' if closed else 'is unknown'}"
                )
            elif origin in known.sources:
                self._found(f"{name}: late edge {origin} -> {sink} is in the graph as well")
            elif origin in known.late:
                self._found(f"{name}: late edge {origin} -> {sink} comes a second time")
            else:
                known.late.add(origin)
            if reason == Reason.AFTER_LABEL and origin in self._open_sources:
                self._found(f"{name}: edge {origin} -> {sink} is called late, and its source has no label yet")
            elif reason not in (Reason.AFTER_LABEL, Reason.PURGED):
                self._found(f"{name}: late edge {origin} -> {sink} for the unknown reason {reason}")

    def _add_lost(self, batch: GraphBatch, name: str) -> None:
        self.lost += len(batch.lost.sink)
        for sink, origin in zip(batch.lost.sink.tolist(), batch.lost.origin.tolist(), strict=True):
            known = self._open_sinks.get(sink)
            if known is None:
                closed = sink in self._closed_sinks
                self._found(
                    f"{name}: lost origin {origin} of sink {sink}, and that {'is labelled' if closed else 'is unknown'}"
                )
            else:
                known.lost = True

    def _add_labels(self, batch: GraphBatch, name: str) -> None:
        self.labels += len(batch.sink_labels.id) + len(batch.source_labels)
        for sink, flags in zip(batch.sink_labels.id.tolist(), batch.sink_labels.flags.tolist(), strict=True):
            known = self._open_sinks.pop(sink, None)
            if known is None:
                closed = sink in self._closed_sinks
                self._found(f"{name}: {'a second label' if closed else 'a label without a vertex'} for sink {sink}")
                continue
            self._closed_sinks.add(sink)
            if known.lost and not flags & SinkFlag.INCOMPLETE:
                self._found(f"{name}: sink {sink} has lost origins, and its label does not say so")
        for source in batch.source_labels.tolist():
            if source not in self._open_sources:
                closed = source in self._closed_sources
                self._found(f"{name}: {'a second label' if closed else 'a label without a vertex'} for source {source}")
                continue
            self._closed_sources[source] = self._open_sources.pop(source)


class _OpenSink:
    """What was told of a sink tuple that has no label yet."""

    __slots__ = ("late", "lost", "sources")

    def __init__(self) -> None:
        self.sources: set[int] = set()
        self.late: set[int] = set()
        self.lost = False


def check_graph(batches: Iterable[GraphBatch], all_labelled: bool = True) -> list[str]:
    """All findings about a whole graph."""
    invariants = GraphInvariants()
    invariants.add_all(batches)
    return invariants.finish(all_labelled)


def _few(ids: Iterable[int]) -> str:
    ordered = sorted(ids)
    shown = ", ".join(str(each) for each in ordered[:_SHOWN])
    return shown if len(ordered) <= _SHOWN else f"{shown}, ..."

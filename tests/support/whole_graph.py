"""All that a store's graph has, one after the other: what nobody but a judge asks for."""

from __future__ import annotations

from collections.abc import Iterator

from collector.store.reader import LateOrigin, StoreReader
from collector.store.vertices import SINK, Sink, Source, sink_of
from protocol.graph import Reason


def every_sink(reader: StoreReader) -> Iterator[Sink]:
    """All sinks by id."""
    return map(sink_of, reader._db.execute(f"{SINK} ORDER BY id"))


def every_source(reader: StoreReader) -> Iterator[Source]:
    """All source vertices by id."""
    tables = reader._tables
    for page in tables.sources.pages():
        ids, ts, stamps, sent = tables.sources.page(page)
        labels = tables.labels.find(ids)
        label = dict(zip(labels[0].tolist(), labels[1].tolist(), strict=True))
        for each, *values, is_sent in zip(ids.tolist(), ts.tolist(), stamps.tolist(), sent.tolist(), strict=True):
            yield Source(each, values[0], values[1], label.get(each), bool(is_sent))


def every_edge(reader: StoreReader) -> Iterator[tuple[int, int]]:
    """All edges as (source, sink), by source."""
    forward = reader._tables.forward
    for page in forward.pages():
        source, sink = forward.page(page)
        yield from zip(source.tolist(), sink.tolist(), strict=True)


def every_late(reader: StoreReader) -> Iterator[LateOrigin]:
    """The late relation."""
    for sink, origin, ts, reason, via, stamp in reader._db.execute("SELECT * FROM late"):
        yield LateOrigin(sink, origin, ts, Reason(reason), via, stamp)

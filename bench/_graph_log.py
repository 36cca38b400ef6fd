"""A log as translators would have written it, of agents whose sink tuples have a given number of sources and overlap.

A chain of agents: the first reads a source and sends small windows of it, the last finds alerts in windows of what it
receives, one between them passes on windows of windows. Numbers decide everything, so a log is the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from collector.log import ShardWriter
from protocol.chunks import SEQ_BITS, Numbers, pack, pack_payloads
from protocol.ids import StreamId
from protocol.plan import JSON, Node, PlanDocument
from protocol.records import END_OF_TIME, Declared, Delivery, SourcePayload
from protocol.row import Row
from protocol.topics import shard_of
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, encode_section, pending

U_MS = 10_000  # of the whole chain
_SINK_TUPLES, _TUPLES = 10, 50  # in a batch of an agent
_PACKER = Packer()
_SOURCE: dict[str, JSON] = {"ids": "uid", "watermarks": "ordered", "disorder_ms": 0}


@dataclass(frozen=True)
class Shape:
    """What the graph looks like."""

    size: int = 50
    overlap: float = 0.25
    agents: int = 2

    @property
    def window(self) -> int:
        """Readings in a window of the first agent."""
        return {10: 2, 50: 5, 192: 6}[self.size] if self.agents == 2 else {10: 1, 50: 5, 192: 6}[self.size]

    @property
    def fan(self) -> int:
        """Readings behind a tuple that the last agent receives."""
        return self.window << self.agents - 2

    def __str__(self) -> str:
        return f"{self.size} sources, {self.overlap:.0%} overlap, {self.agents} agents"


class GraphLog:
    """Writes the log of one chain, a stretch of sink tuples at a time."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self._agents = [f"bench-{place}" for place in range(shape.agents)]
        self._writers: dict[int, ShardWriter] = {}
        for agent in self._agents:
            shard = shard_of(agent)
            if shard not in self._writers:
                self._writers[shard] = ShardWriter(folder, shard)
                self._writers[shard].begin(list, [])
        self._next_sink = self._next_reading = 0
        self._seqs = dict.fromkeys(self._agents, 0)
        for place, agent in enumerate(self._agents):
            self._put(agent, [*self._names(place, agent), self._plan(place, agent)])
        self._commit()

    def __enter__(self) -> GraphLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def append(self, edges: int) -> int:
        """Sink tuples with about so many edges, and all that they come from; returns how many edges these are."""
        shape = self.shape
        count = max(1, edges // shape.size)
        last = self._next_sink + count
        first_reading, readings = self._next_reading, self._begin_of(last - 1) + shape.size
        whole = shape.fan * _TUPLES
        self._next_reading = max(first_reading, -(-readings // whole) * whole)
        rows: dict[str, list[Row]] = {agent: [] for agent in self._agents}
        for begin in range(first_reading, self._next_reading, whole):
            self._readings(rows, begin, begin + whole)
        for begin in range(self._next_sink, last, _SINK_TUPLES):
            self._sinks(rows[self._agents[-1]], np.arange(begin, min(begin + _SINK_TUPLES, last)))
        self._next_sink = last
        for agent, made in rows.items():
            self._put(agent, made)
        self._commit()
        return count * shape.size

    def end(self) -> None:
        """All streams promise that nothing more will come."""
        for place, agent in enumerate(self._agents):
            self._put(agent, [self._row(Kind.PROGRESS, agent, _progress(place + 2, END_OF_TIME))])
        self._commit()

    def _begin_of(self, sink: int) -> int:
        """The first reading behind a sink tuple: a multiple of what is sent together."""
        shape = self.shape
        return int(sink * shape.size * (1 - shape.overlap)) // shape.fan * shape.fan

    # Stream 1 is that of the readings, stream n + 2 what agent n delivers.

    def _readings(self, rows: dict[str, list[Row]], begin: int, end: int) -> None:
        shape, first = self.shape, self._agents[0]
        for at in range(begin, end, _TUPLES):
            rows[first] += self._sources(first, at, at + _TUPLES)
        below, width = 1, 1
        for place, agent in enumerate(self._agents[:-1]):
            take = shape.window if place == 0 else 2
            ids = np.arange(begin // (width * take), end // (width * take))
            origins = np.arange(begin // width, end // width)
            rows[agent] += self._delivered(agent, place + 2, ids, width * take, origins, take, below, width)
            below, width = place + 2, width * take

    def _sinks(self, rows: list[Row], ids: Numbers) -> None:
        shape = self.shape
        count = shape.size // shape.fan
        begins = np.array([self._begin_of(each) // shape.fan for each in ids.tolist()], "<i8")
        origins = (begins[:, None] + np.arange(count)).ravel()
        times = begins * shape.fan + shape.size
        agent = self._agents[-1]
        rows += self._rows(agent, shape.agents + 1, ids, times, origins, count, shape.agents, shape.fan, sent=False)

    def _delivered(
        self, agent: str, stream: int, ids: Numbers, width: int, origins: Numbers, take: int, below: int, step: int
    ) -> list[Row]:
        made: list[Row] = []
        for at in range(0, len(ids), _TUPLES):
            some = ids[at : at + _TUPLES]
            of = origins[at * take : (at + len(some)) * take]
            made += self._rows(agent, stream, some, (some + 1) * width, of, take, below, step, sent=True)
        return made

    def _rows(
        self,
        agent: str,
        stream: int,
        ids: Numbers,
        times: Numbers,
        origins: Numbers,
        take: int,
        below: int,
        step: int,
        *,
        sent: bool,
    ) -> list[Row]:
        """A batch of deliveries: `take` origins each, of stream `below`, each of which spans `step` readings."""
        is_remote = below != 1
        origin_times = (origins + 1) * step if is_remote else origins
        columns = [
            np.left_shift(stream, SEQ_BITS) | ids,
            times.astype("<i8"),
            np.full(len(ids), take, "<i4"),
            np.zeros(len(ids), "<i4"),
            np.full(len(ids), sent, "u1"),
            np.left_shift(below, SEQ_BITS) | origins,
            origin_times.astype("<i8"),
            np.full(len(origins), is_remote, "u1"),
        ]
        name = StreamId(agent, 1, f"stream-{stream}", 1)
        told = [
            Delivery(name, seq, ts, {"mean": seq % 97}, ())
            for seq, ts in zip(ids.tolist(), times.tolist(), strict=True)
        ]
        section = bytes(encode_section(Kind.DELIVERY, [pending(each, _PACKER) for each in told], agent, 1, 0))
        return [
            self._row(Kind.DELIVERY, agent, pack(columns)),
            self._row(Kind.PAYLOAD, agent, pack_payloads(Kind.DELIVERY, np.array([stream], "<i8"), section)),
            self._last(Kind.PROGRESS, agent, _progress(stream, int(times[-1]))),
        ]

    def _sources(self, agent: str, begin: int, end: int) -> Iterator[Row]:
        name = StreamId(agent, 1, "stream-1", 1)
        told = [SourcePayload(name, seq, seq, {"value": seq % 89, "unit": "mbar"}) for seq in range(begin, end)]
        section = bytes(encode_section(Kind.SOURCE, [pending(each, _PACKER) for each in told], agent, 1, 0))
        seqs = np.arange(begin, end)
        yield self._row(Kind.SOURCE, agent, pack([np.left_shift(1, SEQ_BITS) | seqs, seqs]))
        yield self._last(Kind.PAYLOAD, agent, pack_payloads(Kind.SOURCE, np.array([1], "<i8"), section))

    def _names(self, place: int, agent: str) -> Iterator[Row]:
        own = [(1, agent), (2, agent)] if place == 0 else [(place + 1, self._agents[place - 1]), (place + 2, agent)]
        for number, whose in own:
            yield self._row(Kind.REGISTER, agent, _PACKER.encode([number, whose, 1, f"stream-{number}", 1]))

    def _plan(self, place: int, agent: str) -> Row:
        is_last = place == len(self._agents) - 1
        size = U_MS - (len(self._agents) - 1) * 100 if is_last else 100
        time: JSON = {"kind": "time", "size_ms": size, "advance_ms": size, "offset_ms": 0}
        if place == 0:
            origin = Node("stream-1", "source", parameters=_SOURCE)
        else:
            stream: dict[str, JSON] = {"sender": self._agents[place - 1], "stream": f"stream-{place + 1}"}
            origin = Node("in", "receive", parameters=stream)
        window = Node("window", "aggregate", (origin.name,), {"window": time, "aggregators": ["bench:mean"]})
        stream_name = f"stream-{place + 2}"
        to: dict[str, JSON] = {"stream": stream_name, "to": list(self._agents[place + 1 : place + 2])}
        last = Node(stream_name, "sink", ("window",)) if is_last else Node("out", "send", ("window",), to)
        plan = Declared(PlanDocument("bench", "segments", (origin, window, last)).to_json())
        return self._last(Kind.PLAN, agent, bytes(encode_section(Kind.PLAN, [pending(plan, _PACKER)], agent, 1, 0)))

    # Rows of one batch have one number.

    def _row(self, kind: Kind, agent: str, data: bytes) -> Row:
        return Row(kind, agent, 1, self._seqs[agent], data)

    def _last(self, kind: Kind, agent: str, data: bytes) -> Row:
        row = self._row(kind, agent, data)
        self._seqs[agent] += 1
        return row

    def _put(self, agent: str, rows: list[Row]) -> None:
        for at in range(0, len(rows), 1_000):
            self._writers[shard_of(agent)].append(rows[at : at + 1_000])

    def _commit(self) -> None:
        """All shards at once, or a query would see some of them first."""
        with ThreadPoolExecutor(len(self._writers)) as pool:
            list(pool.map(ShardWriter.commit, self._writers.values()))


def _progress(stream: int, watermark: int) -> bytes:
    return pack([np.array([each], "<i8") for each in (stream, watermark, END_OF_TIME)])

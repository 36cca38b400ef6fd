"""Stores of a given size, as the Spark job would have written them: a device sends windows of its readings to a center,
whose results have 50 readings each. Every 50 results in a row have one reading in common, so it has 50 results.

Numbers decide everything, so a store of some size is the same each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from collector.store import StoreWriter
from protocol.chunks import SEQ_BITS, DeliveryChunk, Numbers, pack_payloads
from protocol.graph import Edges, GraphBatch, SinkLabels, Sinks, Sources
from protocol.ids import StreamId
from protocol.plan import JSON, Node, PlanDocument
from protocol.records import Declared, Delivery, SourcePayload
from protocol.row import Row
from protocol.topics import SHARDS
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, encode_section, pending

SIZE = 50
"""Readings of a result; as many results have a reading in common."""
DEVICE, CENTER = "bench-device", "bench-center"
READINGS, COMMON, WINDOWS, RESULTS = range(1, 5)
"""The numbers of the streams."""
NAMES = {READINGS: "readings", COMMON: "common", WINDOWS: "windows", RESULTS: "results"}
_OWNERS = {READINGS: DEVICE, COMMON: DEVICE, WINDOWS: DEVICE, RESULTS: CENTER}
_WINDOW = 7  # readings of what is sent; a result has seven of these windows
_STEP = 5  # windows between two results: they overlap by two of seven
_IN_BATCH = 50
_STEP_MS = 10
_PACKER = Packer()


class GraphStore:
    """Writes results to a store, a stretch at a time."""

    def __init__(self, writer: StoreWriter, results: int = 0, batch: int = 0) -> None:
        """`results` and `batch`: how many of them the store has."""
        self._writer = writer
        self.batch = batch
        self._seqs = {DEVICE: results * SIZE, CENTER: results}
        self.results = results
        """So many there are."""

    def begin(self) -> None:
        """The names of the streams, and the plans."""
        rows = [
            Row(Kind.REGISTER, owner, 1, 0, _PACKER.encode([number, owner, 1, NAMES[number], 1]))
            for number, owner in _OWNERS.items()
        ]
        rows += [Row(Kind.PLAN, agent, 1, 0, _plan_section(agent)) for agent in (DEVICE, CENTER)]
        self._write(GraphBatch("bench", 0, 0, rows=rows))

    def append(self, results: int) -> int:
        """So many results more; returns how many edges they have."""
        first, last = self.results, self.results + results
        ids = np.arange(first, last)
        begins = ids[:, None] * _STEP * _WINDOW
        regular = (begins + np.arange(SIZE - 1)).ravel()
        common = ids // SIZE
        sources = np.concatenate([_id(READINGS, regular).reshape(-1, SIZE - 1), _id(COMMON, common)[:, None]], axis=1)
        new = np.arange(self._next_reading(first), self._next_reading(last))
        new_common = np.arange(-(-first // SIZE), -(-last // SIZE))
        times = (begins.ravel() + SIZE) * _STEP_MS
        expired = np.arange(max(0, first - SIZE) * _STEP * _WINDOW, max(0, last - SIZE) * _STEP * _WINDOW)
        batch = GraphBatch(
            "bench",
            self.batch,
            int(times[-1]),
            Sinks(_id(RESULTS, ids), times),
            Sources(
                np.concatenate([_id(READINGS, new), _id(COMMON, new_common)]),
                np.concatenate([new * _STEP_MS, new_common * SIZE * _STEP * _WINDOW * _STEP_MS]),
                np.zeros(len(new) + len(new_common), "u1"),
            ),
            Edges(np.repeat(_id(RESULTS, ids), SIZE), sources.ravel(), np.zeros(len(ids) * SIZE, "u1")),
            SinkLabels(_id(RESULTS, ids), np.zeros(len(ids), "u1")),
            _id(READINGS, expired),
            deliveries=[self._windows(first, last), self._direct(ids, times)],
            rows=[*self._said(READINGS, new), *self._said(COMMON, new_common), *self._said(RESULTS, ids)],
        )
        self._write(batch)
        self.results = last
        return len(ids) * SIZE

    def _next_reading(self, results: int) -> int:
        return ((results - 1) * _STEP + SIZE // _WINDOW) * _WINDOW if results else 0

    def _windows(self, first: int, last: int) -> DeliveryChunk:
        """What the device has sent for these results."""
        ids = np.arange(self._next_reading(first) // _WINDOW, self._next_reading(last) // _WINDOW)
        origins = (ids[:, None] * _WINDOW + np.arange(_WINDOW)).ravel()
        return _deliveries(WINDOWS, ids, _WINDOW, _id(READINGS, origins), origins * _STEP_MS, 0, sent=1)

    def _direct(self, ids: Numbers, times: Numbers) -> DeliveryChunk:
        """The windows that results came from."""
        windows = (ids[:, None] * _STEP + np.arange(SIZE // _WINDOW)).ravel()
        origins = _id(WINDOWS, windows)
        return _deliveries(RESULTS, ids, SIZE // _WINDOW, origins, windows * _WINDOW * _STEP_MS, 1, sent=0)

    def _said(self, stream: int, seqs: Numbers) -> Iterator[Row]:
        owner = _OWNERS[stream]
        name = StreamId(owner, 1, NAMES[stream], 1)
        number = np.array([stream], "<i8")
        kind = Kind.DELIVERY if stream == RESULTS else Kind.SOURCE
        for begin in range(0, len(seqs), _IN_BATCH):
            told = [_record(name, seq) for seq in seqs[begin : begin + _IN_BATCH].tolist()]
            section = bytes(encode_section(kind, [pending(each, _PACKER) for each in told], owner, 1, 0))
            self._seqs[owner] += 1
            yield Row(Kind.PAYLOAD, owner, 1, self._seqs[owner], pack_payloads(kind, number, section))

    def _write(self, batch: GraphBatch) -> None:
        batch.since, batch.upto = (
            json.dumps({shard: [1, row] for shard in range(SHARDS)}) for row in (self.batch, self.batch + 1)
        )
        self._writer.write(batch)
        self.batch += 1


def common_reading(number: int) -> str:
    """A reading that 50 results have in common."""
    return f"{DEVICE}/{NAMES[COMMON]}@1:{number}"


def fill(path: Path, edges: int) -> tuple[int, int]:
    """Make a store with about so many edges; returns how many results and batches it has."""
    with StoreWriter(path) as writer:
        store = GraphStore(writer)
        store.begin()
        while store.results * SIZE < edges:
            store.append(min(2_000, edges // SIZE - store.results))
        return store.results, store.batch


def _record(name: StreamId, seq: int) -> SourcePayload | Delivery:
    if name.name == NAMES[RESULTS]:
        return Delivery(name, seq, seq, {"mean": seq % 97, "level": "high" if seq % 7 else "low"}, ())
    return SourcePayload(name, seq, seq, {"value": seq % 89, "unit": "mbar"})


def _id(stream: int, seqs: Numbers) -> Numbers:
    found: Numbers = np.left_shift(stream, SEQ_BITS) | seqs
    return found


def _deliveries(
    stream: int, ids: Numbers, take: int, origins: Numbers, times: Numbers, remote: int, *, sent: int
) -> DeliveryChunk:
    return DeliveryChunk(
        _id(stream, ids),
        (ids + 1) * _WINDOW * _STEP_MS,
        np.full(len(ids), take, "<i4"),
        np.zeros(len(ids), "<i4"),
        np.full(len(ids), sent, "u1"),
        origins,
        times,
        np.full(len(origins), remote, "u1"),
    )


def _plan_section(agent: str) -> bytes:
    time: JSON = {"kind": "time", "size_ms": 1_000, "advance_ms": 1_000, "offset_ms": 0}
    window: dict[str, JSON] = {"window": time, "aggregators": ["bench:mean"]}
    if agent == DEVICE:
        told: dict[str, JSON] = {"ids": "uid", "watermarks": "ordered", "disorder_ms": 0}
        nodes = (
            Node(NAMES[READINGS], "source", parameters=told),
            Node("w", "aggregate", (NAMES[READINGS],), window),
            Node("out", "send", ("w",), {"stream": NAMES[WINDOWS], "to": [CENTER]}),
        )
    else:
        nodes = (
            Node("in", "receive", parameters={"sender": DEVICE, "stream": NAMES[WINDOWS]}),
            Node("w", "aggregate", ("in",), window),
            Node(NAMES[RESULTS], "sink", ("w",)),
        )
    plan = Declared(PlanDocument("bench", "segments", nodes).to_json())
    return bytes(encode_section(Kind.PLAN, [pending(plan, _PACKER)], agent, 1, 0))

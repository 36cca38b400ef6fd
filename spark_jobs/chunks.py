"""Chunk rows: what flows between the stages of the pipeline.

A row is (kind, bucket, bytes): all records of one kind for one bucket, as packed columns. A stage works on whole
columns and is called once per bucket and micro-batch, so Python costs little per record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import Numbers, pack, unpack
from protocol.row import Row


class Kind(IntEnum):
    """What a chunk row holds. Those below 16 go from stage to stage, those from 16 on to the store."""

    CONTROL = 1
    """Of one shard: plans, names, progress, gaps, ends. Every bucket gets it, in every micro-batch."""
    SENT = 2
    """Deliveries of Sends, by their own ids: (id, ts, part, count; origin id, origin ts, remote)."""
    REFERENCE = 3
    """Sink tuples and the sent tuples that they came from, by the latter's ids: (sink, ts, sent, sent ts,
    whether it is told in parts); from the first stage on also what the sink had promised before."""
    EDGE = 4
    """Sink tuples and the source tuples that they came from, by the latter's ids: (sink, ts, source, source ts,
    whether it is told in parts, flags)."""
    SINK = 5
    """Sink tuples, by their own ids: (sink, ts, how many references, part)."""
    RESOLVED = 6
    """What became of references, by the sink tuple: (sink, ts, how many more or less there are now, flags)."""
    WAITING = 7
    """Which sinks have references that wait in a bucket. Every bucket gets it from every bucket."""
    TOO_LATE = 8
    """Sink tuples and sent tuples that they came from and that were let go of, by the latter's ids: (sink, ts, sent,
    sent ts, whether it is told in parts)."""

    ROWS = 16
    """Rows of the log that only the store wants."""
    DELIVERED = 17
    """Deliveries with their direct origins, for the store: those of Sends, and those of sinks that came from them."""
    NEW_SINK = 18
    NEW_SOURCE = 19
    NEW_EDGE = 20
    SINK_LABEL = 21
    SOURCE_LABEL = 22
    LATE = 23
    LOST = 24
    STAMP = 25
    """How far the sinks have come."""
    FIGURES = 26
    """How much a bucket keeps."""
    FRONTIERS = 27
    """How far each sink has come, for people."""


class Chunk(NamedTuple):
    """One chunk row."""

    kind: int
    bucket: int
    data: bytes


def bucket_of(ids: Numbers, buckets: int) -> Numbers:
    """Where tuples belong: the same for ever, and evenly whatever the ids are."""
    mixed = ids.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    return (mixed % np.uint64(buckets)).astype(np.int64)


def by_bucket(kind: Kind, ids: Numbers, columns: Sequence[NDArray[Any]], buckets: int) -> Iterator[Chunk]:
    """Rows of columns, each to the bucket of its id."""
    if not len(ids):
        return
    of = bucket_of(ids, buckets)
    order = np.argsort(of, kind="stable")
    ends = np.searchsorted(of[order], np.arange(buckets + 1))
    for bucket in range(buckets):
        rows = order[ends[bucket] : ends[bucket + 1]]
        if len(rows):
            yield Chunk(kind, bucket, pack([column[rows] for column in columns]))


def joined(chunks: Iterable[Chunk], kind: Kind) -> list[NDArray[Any]] | None:
    """The columns of all chunks of a kind, one after the other; None if there are no such."""
    parts = [unpack(chunk.data) for chunk in chunks if chunk.kind == kind]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]


def pack_rows(rows: Sequence[Row]) -> bytes:
    """Rows of the log as columns."""
    agents = [row.agent.encode() for row in rows]
    return pack(
        [
            np.array([row.kind for row in rows], "u1"),
            np.array([row.nonce for row in rows], "<u8").view("<i8"),
            np.array([row.seq for row in rows], "<i8"),
            np.array([len(agent) for agent in agents], "<i4"),
            np.array([len(row.data) for row in rows], "<i4"),
            np.frombuffer(b"".join(agents), "u1"),
            np.frombuffer(b"".join([row.data for row in rows]), "u1"),
        ]
    )


def read_rows(data: bytes) -> list[Row]:
    """What `pack_rows` made."""
    kinds, nonces, seqs, agent_bytes, data_bytes, agents, contents = unpack(data)
    names, content = agents.tobytes(), contents.tobytes()
    agent_ends, data_ends = np.cumsum(agent_bytes).tolist(), np.cumsum(data_bytes, dtype="<i8").tolist()
    rows: list[Row] = []
    agent_at = data_at = 0
    for place, (kind, nonce, seq) in enumerate(
        zip(kinds.tolist(), nonces.view("<u8").tolist(), seqs.tolist(), strict=True)
    ):
        agent = names[agent_at : (agent_at := agent_ends[place])].decode()
        rows.append(Row(kind, agent, nonce, seq, content[data_at : (data_at := data_ends[place])]))
    return rows

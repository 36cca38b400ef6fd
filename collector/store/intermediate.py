"""Deliveries with their direct origins: those of Sends, which are the intermediate tuples, and those of sinks that came
from such. Parts of one delivery are told separately.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collector.store.replay import Replay
from collector.store.tables import Tables
from protocol.chunks import DeliveryChunk, is_last_part


def add_deliveries(tables: Tables, chunks: Sequence[DeliveryChunk], query: int, replay: Replay | None) -> int:
    """Keep what is new of these deliveries, those of a chunk being of one shard; returns of how many intermediate
    tuples the last part is among it."""
    if replay:
        chunks = [chunk for chunk in chunks if not replay.are_told(tables.db, chunk.id[:1]).any()]
    if not chunks:
        return 0
    ids = np.concatenate([chunk.id for chunk in chunks])
    ts = np.concatenate([chunk.ts for chunk in chunks])
    part = np.concatenate([chunk.part for chunk in chunks]).astype("<i8")
    counts = np.concatenate([chunk.count for chunk in chunks])
    origins = [
        np.repeat(ids, counts),
        np.concatenate([chunk.origin_id for chunk in chunks]),
        np.concatenate([chunk.origin_ts for chunk in chunks]),
        np.concatenate([chunk.remote for chunk in chunks]).astype("<i8"),
    ]
    sent = np.concatenate([chunk.sent for chunk in chunks]) == 1
    intermediate = [ids[sent], ts[sent], part[sent]]
    for pages, columns in (
        (tables.deliveries, intermediate),
        (tables.origins, origins),
        (tables.derived, [origins[1], origins[0]]),
    ):
        order = np.argsort(columns[0], kind="stable")
        pages.add([column[order] for column in columns], query)
    return int(is_last_part(intermediate[2]).sum())

"""Intermediate tuples: deliveries of Sends, with their direct origins. Parts of one delivery are told separately."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collector.store.pages import Relation
from collector.store.replay import Replay
from collector.store.tables import Tables
from protocol.chunks import DeliveryChunk, Numbers, is_last_part


def add_deliveries(tables: Tables, chunks: Sequence[DeliveryChunk], query: int, replay: Replay | None) -> int:
    """Keep what is new of these deliveries; returns of how many the last part is among it."""
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
    parts = [ids, ts, part]
    if replay:
        known, known_origins = tables.deliveries.find(ids), tables.origins.find(ids)
        removed = ids[ts < replay.removed_before]
        parts = _without(parts, (0, 2), known, removed)
        origins = _without(origins, (0, 1), known_origins, removed)
    for pages, columns in ((tables.deliveries, parts), (tables.origins, origins)):
        order = np.argsort(columns[0], kind="stable")
        pages.add([column[order] for column in columns], query)
    return int(is_last_part(parts[2]).sum())


def _without(columns: Relation, by: tuple[int, int], known: Relation, removed: Numbers) -> Relation:
    """The rows that are not known, by two of their columns, and that were not removed."""
    there = set(zip(*[known[place].tolist() for place in by], strict=True))
    told = zip(*[columns[place].tolist() for place in by], strict=True)
    fresh = np.array([each not in there for each in told], bool) & ~np.isin(columns[0], removed)
    return [column[fresh] for column in columns]

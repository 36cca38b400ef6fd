"""What came too late: origins that the pipeline had let go of are followed to their sources, through the intermediate
tuples that the store keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collector.store.tables import Tables
from protocol.chunks import Numbers
from protocol.graph import LateEdges, Reason

NOT_VIA = 0  # in packed columns; no tuple has it, streams are numbered from 1


@dataclass(slots=True)
class LateRows:
    """Rows of the late relation. `via` is the intermediate tuple that the pipeline named, if it was resolved."""

    sink: Numbers
    origin: Numbers
    origin_ts: Numbers
    reason: Numbers
    via: Numbers

    def __len__(self) -> int:
        return len(self.sink)

    def columns(self) -> list[Numbers]:
        """In the order of the relation."""
        return [self.sink, self.origin, self.origin_ts, self.reason, self.via]


def resolve(tables: Tables, late: LateEdges) -> LateRows:
    """Rows of the late relation, each pair of sink and origin once."""
    rows: dict[tuple[int, int], tuple[int, int, int]] = {}
    waiting: dict[tuple[int, int], tuple[int, int]] = {}  # (sink, intermediate tuple): its ts, via
    for sink, origin, ts, reason in zip(
        late.sink.tolist(), late.origin.tolist(), late.origin_ts.tolist(), late.reason.tolist(), strict=True
    ):
        if reason == Reason.PURGED:
            waiting[sink, origin] = ts, NOT_VIA
        else:
            rows.setdefault((sink, origin), (ts, reason, NOT_VIA))
    seen = set(waiting)
    while waiting:
        direct = _origins_of(tables, {origin for _, origin in waiting})
        further: dict[tuple[int, int], tuple[int, int]] = {}
        for (sink, tuple_id), (ts, via) in waiting.items():
            if tuple_id not in direct:
                rows.setdefault((sink, tuple_id), (ts, Reason.PURGED, via))
                continue
            for origin, origin_ts, remote in direct[tuple_id]:
                if not remote:
                    rows.setdefault((sink, origin), (origin_ts, Reason.PURGED, via or tuple_id))
                elif (sink, origin) not in seen:  # what agents tell of each other may go in circles
                    seen.add((sink, origin))
                    further[sink, origin] = origin_ts, via or tuple_id
        waiting = further
    flat = np.array([(*pair, *values) for pair, values in sorted(rows.items())], "<i8").reshape(-1, 5)
    return LateRows(*np.ascontiguousarray(flat.T))


def _origins_of(tables: Tables, ids: set[int]) -> dict[int, list[tuple[int, int, int]]]:
    """The direct origins of the intermediate tuples that are known."""
    wanted = np.array(sorted(ids), "<i8")
    found: dict[int, list[tuple[int, int, int]]] = {each: [] for each in tables.deliveries.find(wanted)[0].tolist()}
    for tuple_id, *origin in zip(*[column.tolist() for column in tables.origins.find(wanted)], strict=True):
        found.setdefault(tuple_id, []).append((origin[0], origin[1], origin[2]))
    return found

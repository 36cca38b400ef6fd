"""What is told by one query after another has told it, as when a new checkpoint reads the log once more.

Where in the log a thing stands says whether it was told before: a shard that the query reads beyond what others have
read tells only what is new, however old it is by its own time. Micro-batches end where those of others have ended, so
what one of them tells of a shard is either all known or all new.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import SEQ_BITS, Numbers
from protocol.topics import shard_of

_BEGINNING = [1, 0]  # segments are numbered from 1


@dataclass(frozen=True, slots=True)
class Replay:
    """What comes of some shards another query has told: it is here, or was removed. Readings that others have named
    may be here as well, wherever they come from."""

    shards: frozenset[int]
    """Those of which others have read more."""
    removed_before: int
    """Sinks that are older, were told and are not here were removed, and stay so."""

    def is_told(self, agent: str) -> bool:
        """Whether another query has told what an agent says now."""
        return shard_of(agent) in self.shards

    def are_told(self, db: sqlite3.Connection, ids: Numbers) -> NDArray[np.bool_]:
        """The same of tuples, by whose they are."""
        if not self.shards:
            return np.zeros(len(ids), bool)
        streams, which = np.unique(ids >> SEQ_BITS, return_inverse=True)
        query = "SELECT agent FROM streams WHERE number=?"
        agents = [db.execute(query, (each,)).fetchone() for each in streams.tolist()]
        told: NDArray[np.bool_] = np.array([found is not None and self.is_told(found[0]) for found in agents], bool)
        return told[which]


def shards_behind(since: str, others: Iterable[str]) -> frozenset[int]:
    """The shards of which a query that goes on from a position has yet to read what others, which have come to theirs,
    have read. A shard that a position does not name is at its beginning. Those below 0 are no shards of the log."""
    own = _positions(since)
    furthest = [place for other in others for place in _positions(other).items() if place[0] >= 0]
    return frozenset(shard for shard, position in furthest if own.get(shard, _BEGINNING) < position)


def _positions(text: str) -> dict[int, list[int]]:
    return {int(shard): place for shard, place in json.loads(text or "{}").items()}

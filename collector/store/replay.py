"""What is told by one query after another has told it, as when a new checkpoint reads the log once more."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replay:
    """Much of what comes is known."""

    removed_before: int
    """What is older and not here was removed, and stays so."""


def is_behind(upto: str, others: Iterable[str]) -> bool:
    """Whether a query that has read so far has yet to read something that others have read. A position is JSON: of each
    shard, [segment, row]. Shards below 0 are no shards of the log."""
    own = _positions(upto)
    furthest = [place for other in others for place in _positions(other).items() if int(place[0]) >= 0]
    return not own or any(own.get(shard, []) < position for shard, position in furthest)


def _positions(upto: str) -> dict[str, list[int]]:
    return dict(json.loads(upto or "{}"))

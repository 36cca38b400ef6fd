"""Whether everything that was said has gone through, as far as looks can tell while the devices are still there.

Agents tell every few seconds how they are, so a backlog is never still: it is gone when it is as small as it was before
they spoke.
"""

from __future__ import annotations

from collections.abc import Sequence

from threadline.load.watch import Sample

_LOOKS = 4


def is_quiet(samples: Sequence[Sample], before_s: float) -> bool:
    """Whether everything is acknowledged, nothing has become visible for some looks, and Spark catches up with nothing:
    it is as close behind the log as it was when they began to speak."""
    last = samples[-_LOOKS:]
    if len(last) < _LOOKS or len({(each.seen, each.said) for each in last}) > 1 or last[-1].unacknowledged:
        return False
    before = _backlogs([each for each in samples if each.at_s <= before_s][-_LOOKS:])
    now = _backlogs(last)
    if not now:
        return not before  # Spark has stopped to tell, or never did
    return now[-1] >= now[0] and (not before or min(now) <= min(before))


def distance(samples: Sequence[Sample]) -> float:
    """How far it is from that; only its changes mean something."""
    last = samples[-1]
    return last.unacknowledged + next(reversed(_backlogs(samples)), 0.0) - (last.seen or 0)


def _backlogs(samples: Sequence[Sample]) -> list[float]:
    return [backlog for each in samples if (backlog := each.log_backlog) is not None]

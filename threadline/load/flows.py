"""What can be counted on its way from the devices to the graph, in the units of what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from threadline.load.chain import GATEWAY, SPARK, TRANSLATOR
from threadline.load.profiles import Profile
from threadline.load.watch import Sample


@dataclass(frozen=True, slots=True)
class Flow:
    """Something that only ever grows, of one component; a look may not know it."""

    component: str
    what: str
    count: Callable[[Sample], float | None]


PUBLISHES = Flow(GATEWAY, "publishes from devices", lambda each: each.counted(GATEWAY, "publishes_from_devices"))
BATCHES = Flow(TRANSLATOR, "batches", lambda each: each.counted(TRANSLATOR, "batches"))


def logged(profile: Profile) -> Flow:
    """What is in the log. A task is two records, its begin and its end."""
    name = "records" if profile.plan is None else "origins"
    return Flow(TRANSLATOR, name, lambda each: each.counted(TRANSLATOR, name))


def stored(profile: Profile) -> Flow:
    """What is in the graph: an edge for each origin of a result, or the tasks that are visible."""
    if profile.plan is None:
        return Flow(SPARK, "tasks", lambda each: each.seen)
    return Flow(SPARK, "edges", lambda each: each.counted(SPARK, "edges"))

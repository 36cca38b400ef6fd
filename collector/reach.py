"""Where readings can still get to: the plans of all agents say which sinks they reach and how long they matter there
(U), and what the sinks have promised says which of them have passed.

The graph decides whether a reading has expired. This says where the others can still contribute to something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from protocol.plan import PlanDocument, PlanError, fleet_delays
from protocol.records import BEGINNING, END_OF_TIME

Stream = tuple[str, str]
"""An agent, and a stream of it."""
ANYWHERE: Stream = ("*", "*")


class Promise(NamedTuple):
    """What a sink has promised: no later tuple is before the watermark; length windows hold nothing before the hold."""

    watermark: int
    hold: int


class Reached(NamedTuple):
    """Readings of a source from this time on can still contribute to results of a sink."""

    source: Stream
    sink: Stream
    from_ms: int | None
    """None: any of them."""


def still_reached(
    plans: Mapping[str, PlanDocument], promises: Mapping[Stream, Promise], sources: Iterable[Stream]
) -> list[Reached]:
    """Of each source the sinks that may still get something from it: ANYWHERE if nobody can know. A sink without a
    promise may get anything."""
    wanted = sorted(set(sources))
    try:
        delays = fleet_delays(plans)
    except PlanError:
        return [Reached(source, ANYWHERE, None) for source in wanted]
    found: list[Reached] = []
    for source in wanted:
        if source not in delays:
            found.append(Reached(source, ANYWHERE, None))
            continue
        for sink, delay_ms in sorted(delays[source].items()):
            promise = promises.get(sink)
            limit = BEGINNING if promise is None else min(promise.watermark, promise.hold)
            if limit != END_OF_TIME:
                found.append(Reached(source, sink, None if limit == BEGINNING else limit - delay_ms))
    return found

"""Alerts as the tests compare them, and the runs that must give them.

A cause is named by its place in the list of items, found by the identity of the value: standing cars and dark meters
send equal values, and only the right ones will do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from edge_agent.stream import Plan, Results, run

# (timestamp, fields of the alert, places of its causes in the list of items)
Alert = tuple[int, tuple[Any, ...], tuple[int, ...]]
Items = Sequence[tuple[int, Any]]


def ends(ts: int, size_ms: int, advance_ms: int) -> list[int]:
    """The right boundary of every window [left, right) that holds `ts`."""
    last_left = ts // advance_ms * advance_ms
    return [left + size_ms for left in range(last_left, ts - size_ms, -advance_ms)]


def fields(alert: Any) -> tuple[Any, ...]:
    """Floating-point results are compared to a millionth: a mean may be summed up in any order."""
    return tuple(round(value, 6) if isinstance(value, float) else value for value in dataclasses.astuple(alert))


def alerts(results: Results, items: Items, sink: str) -> list[Alert]:
    """What one sink got, sorted."""
    place = {id(value): index for index, (_, value) in enumerate(items)}
    found: list[Alert] = []
    for delivery in results.of(sink):
        causes = results.causes(delivery)
        assert [cause.ts for cause in causes] == [origin.ts for origin in delivery.origins]
        places = sorted(place[id(cause.payload)] for cause in causes)
        found.append((delivery.ts, fields(delivery.payload), tuple(places)))
    return sorted(found)


def delivered(plan: Plan, source: str, items: Items, sink: str) -> list[Alert]:
    results = run(plan, {source: items})
    assert not results.late
    assert not results.skipped
    # Every cause was told once, however many alerts it is in.
    assert len({id(cause.payload) for cause in results.sources.values()}) == len(results.sources)
    return alerts(results, items, sink)


def check(build: Callable[[str], Plan], source: str, sink: str, items: Items, expected: Sequence[Alert]) -> None:
    """The same alerts in all three modes, and the same causes in both that have them."""
    in_order = sorted(expected)
    assert delivered(build("segments"), source, items, sink) == in_order
    assert delivered(build("genealog"), source, items, sink) == in_order
    assert delivered(build("none"), source, items, sink) == [(ts, alert, ()) for ts, alert, _ in in_order]


def check_replay(build: Callable[[str], Plan], source: str, sink: str, items: Items, expected: Sequence[Alert]) -> None:
    """The causes of all alerts, and nothing else, as input: the same alerts with the same causes come out again."""
    kept = sorted({cause for _, _, causes in expected for cause in causes})
    again = {cause: index for index, cause in enumerate(kept)}
    moved = [(ts, alert, tuple(again[cause] for cause in causes)) for ts, alert, causes in expected]
    assert delivered(build("segments"), source, [items[cause] for cause in kept], sink) == sorted(moved)

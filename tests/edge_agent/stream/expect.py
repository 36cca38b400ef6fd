"""Short words for tests with a handful of tuples: run a plan, and compare sink tuples and their provenance."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.stream import Plan, Results, run

MODES = ("none", "genealog", "segments")
every_mode = pytest.mark.parametrize("mode", MODES)
capturing_modes = pytest.mark.parametrize("mode", MODES[1:])

Expected = tuple[int, Any, list[Any]]


def found(results: Results, sink: str = "out") -> list[Expected]:
    """A sink's tuples: ts, payload, and the payloads of the source tuples behind them, oldest first."""
    return [
        (delivery.ts, delivery.payload, [cause.payload for cause in results.causes(delivery)])
        for delivery in results.of(sink)
    ]


def expect(results: Results, mode: str, expected: list[Expected], sink: str = "out") -> None:
    """The sink tuples in every mode; their provenance too in those that capture it."""
    if mode == "none":
        expected = [(ts, payload, []) for ts, payload, _ in expected]
        assert not results.sources
    assert found(results, sink) == expected


def at(text: str) -> list[tuple[int, str]]:
    """Tuples as in the papers: `a@3 b@5`."""
    return [(int(ts), value) for value, ts in (word.split("@") for word in text.split())]


def run_on(plan: Plan, **inputs: str) -> Results:
    return run(plan, {name: at(text) for name, text in inputs.items()})

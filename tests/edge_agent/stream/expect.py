"""Short words for tests with a handful of tuples: run a plan, and compare sink tuples and their provenance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edge_agent.stream import Plan, Results, run
from protocol.records import BEGINNING, END_OF_TIME, Delivery, Origin, Progress, Record

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


def assert_promises_kept(
    records: list[Record],
    bound: Callable[[Progress, Origin], int | None],
    origins: Callable[[Delivery], set[Origin]] = lambda delivery: set(delivery.origins),
) -> None:
    """`bound`: how far below min(watermark, hold) an origin may lie at that stream; None: it cannot get there."""
    promised: dict[Any, Progress] = {}
    for record in records:
        if isinstance(record, Progress):
            before = promised.get(record.stream, Progress(record.stream, BEGINNING, BEGINNING))
            assert record.watermark >= before.watermark, "a watermark went back"
            assert min(record.watermark, record.hold) >= min(before.watermark, before.hold), "a promise was taken back"
            promised[record.stream] = record
        elif isinstance(record, Delivery) and record.id.stream in promised:
            progress = promised[record.id.stream]
            assert record.ts >= progress.watermark
            for origin in origins(record):
                delay = bound(progress, origin)
                assert delay is not None
                assert origin.ts >= min(progress.watermark, progress.hold) - delay, (progress, record, origin)
    for progress in promised.values():
        assert (progress.watermark, progress.hold) == (END_OF_TIME, END_OF_TIME), "the end of the stream is not told"

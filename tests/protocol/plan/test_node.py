"""One operator: how far back its window reaches."""

from __future__ import annotations

import pytest

from protocol.plan import JSON, window_ms
from tests.protocol.plan.plans import aggregate, join, mapped, receive, sink, source, union

WINDOWS = [
    ("aggregate", {"kind": "time", "size_ms": 120, "advance_ms": 30, "offset_ms": -7}, 120),
    ("aggregate", {"kind": "recent", "size_ms": 40}, 40),
    ("aggregate", {"kind": "recent", "size_ms": 0}, 0),
    ("aggregate", {"kind": "length", "count": 4}, 0),
    ("join", {"kind": "band", "distance_ms": 9}, 9),
    ("join", {"kind": "time", "size_ms": 60, "advance_ms": 20, "offset_ms": 0}, 60),
    ("join", {"kind": "recent", "left_ms": 3, "right_ms": 11}, 11),
    ("join", {"kind": "length", "left_count": 5, "right_count": 1}, 0),
]


@pytest.mark.parametrize(("operator", "window", "size_ms"), WINDOWS)
def test_an_operator_reaches_back_as_far_as_its_window(operator: str, window: dict[str, JSON], size_ms: int) -> None:
    node = aggregate("a", "in", window) if operator == "aggregate" else join("a", "in", "in", window)
    assert window_ms(node) == size_ms


def test_what_keeps_nothing_reaches_back_for_nothing() -> None:
    for node in (source(), receive("s", "a"), mapped("m", "in"), union("u", "in", "in"), sink("k", "in")):
        assert window_ms(node) == 0

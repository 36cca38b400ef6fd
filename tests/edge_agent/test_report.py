"""Deliveries as text and as JSON, whatever their payloads are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from edge_agent import report
from edge_agent.stream import Plan, run


class Odd:
    def __repr__(self) -> str:
        return "odd\n\x1b[2J"


class Mute:
    def __repr__(self) -> str:
        raise ValueError


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("payload", "text", "plain"),
    [
        (None, "None", None),
        ("\u00fc\n", "'\u00fc\\n'", "\u00fc\n"),
        (1.5, "1.5", 1.5),
        (float("nan"), "nan", "nan"),
        (2**80, str(2**80), 2**80),
        ({"a": (1, {2})}, "{'a': (1, {2})}", {"a": [1, "{2}"]}),
        ({(1, 2): b"x"}, "{(1, 2): b'x'}", {"(1, 2)": "b'x'"}),
        (Odd(), "odd\\n\\x1b[2J", "odd\\n\\x1b[2J"),
        (Mute(), "<Mute whose repr raised ValueError>", "<Mute whose repr raised ValueError>"),
        ("x" * 600, "'" + "x" * 499 + "... (602 characters)", "x" * 600),
    ],
)
def test_any_payload_can_be_printed(payload: Any, text: str, plain: Any) -> None:
    plan = Plan("p")
    plan.source("s", [(1_700_000_000_123, payload)]).sink("k")
    (delivery,) = run(plan).deliveries
    assert report.text_block(delivery, True) == (
        f"local/k@0:0  at 1700000000123 (2023-11-14 22:13:20.123 UTC)\n  {text}\n  from 1 reading:\n"
        f"    local/s@0:0  at 1700000000123 (2023-11-14 22:13:20.123 UTC)  {text}\n\n"
    )
    line = json.loads(report.json_line(delivery, True))
    assert line["payload"] == line["sources"][0]["payload"] == plain


@dataclass
class Broken:
    field: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "field":
            raise OSError("gone")
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        return "broken"


def test_a_payload_that_json_cannot_take_is_shown_instead() -> None:
    thrice: list[Any] = []
    thrice.extend([thrice, thrice, thrice])
    assert report._plain(thrice) == ["[[...], [...], [...]]"] * 3
    assert "int" in report._plain(10**5000)
    assert report._plain([Broken()]) == ["broken"]
    assert report._plain({1: "a", "1": "b"}) == "{1: 'a', '1': 'b'}"


def test_a_payload_too_deep_for_json_is_cut() -> None:
    line = report._plain(nested(50))
    for _ in range(20):
        (line,) = line
    assert line == repr(nested(30))
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    assert "[[...]]" in json.dumps(report._plain(round_and_round))

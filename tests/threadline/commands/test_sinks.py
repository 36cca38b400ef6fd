"""`threadline sinks`: the right results, newest first, whatever is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.threadline.commands.served import CLOCK, CLOCK_MS, ROUNDS, Api


def ids(api: Api, *options: str) -> list[str]:
    result = api.run("sinks", "--all", *options)
    assert result.exit_code == 0, result.output
    return [line.split("  ")[0] for line in result.stdout.splitlines()[1:]]


def every(api: Api) -> list[dict[str, Any]]:
    vertices: list[dict[str, Any]] = json.loads(api.run("sinks", "--all", "--json").stdout)["vertices"]
    return vertices


def test_a_result_is_shown_with_what_it_says(api: Api) -> None:
    result = api.run("sinks", "--stream", "depot/visited")
    head, line = result.stdout.splitlines()
    assert head.split() == ["ID", "TIME", "STREAM", "STATE", "ORIGINS", "PAYLOAD"]
    assert line.split() == ["depot/visited@1:0", "1500", "ms", "visited", "incomplete", "0", "1500"]
    assert result.stderr == ""


def test_a_time_of_a_clock_is_one_that_can_be_asked_for(api: Api) -> None:
    assert CLOCK in api.run("sinks", "--limit", "1").stdout
    for time in (CLOCK, str(CLOCK_MS), "2026-11-17T08:20:00+01:00"):
        assert ids(api, "--from", time) == ["prankster/al erts?#%2F@1:0"]


@pytest.mark.parametrize(
    ("options", "is_meant"),
    [
        ([], lambda each: True),
        (["--agent", "center"], lambda each: each["agent"] == "center"),
        (["--stream", "alerts", "--stream", "hub/reports"], lambda each: each["stream"] in ("alerts", "reports")),
        (["--from", "2000", "--to", "4000"], lambda each: 2_000 <= each["ts"] <= 4_000),
        (["--state", "open"], lambda each: each["state"] == "open"),
        (["--where", "$>5000", "--where", "$<8000"], lambda each: each["payload"] in (6_000, 7_000)),
        (["--where", "cars=2"], lambda each: each["agent"] == "prankster"),
    ],
)
def test_filters_leave_those_that_are_meant(api: Api, options: list[str], is_meant: Any) -> None:
    meant = [each["id"] for each in every(api) if is_meant(each)]
    assert meant and ids(api, *options) == meant
    assert sorted(ids(api, "--oldest", *options)) == sorted(meant)


def test_the_newest_come_first_or_the_oldest(api: Api) -> None:
    assert ids(api, "--stream", "center/alerts") == [f"center/alerts@1:{number}" for number in range(ROUNDS, -1, -1)]
    assert ids(api, "--stream", "center/alerts", "--oldest")[0] == "center/alerts@1:0"

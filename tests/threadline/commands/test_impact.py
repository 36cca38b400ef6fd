"""`threadline impact`: what readings have touched, and what they can still touch, in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.threadline.commands.served import Api, refused


@pytest.fixture(scope="module")
def readings(api: Api) -> dict[str, list[str]]:
    """Readings of the car by their states."""
    found = json.loads(api.run("export", "impact", "--stream", "car/readings", "--json").stdout)["vertices"]
    return {state: [each["id"] for each in found if each["state"] == state] for state in ("alive", "expired")}


def told(api: Api, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(api.run("impact", "--all", *arguments, "--json").stdout)
    return found


def test_results_and_states_are_said(api: Api, readings: dict[str, list[str]]) -> None:
    alive = readings["alive"][-1]
    result = api.run("impact", alive)
    first, head, *rows = result.stdout.splitlines()
    truth = told(api, alive)
    assert first == f"1 reading touched {truth['results']} results."
    assert head.split()[0] == "ID"
    assert [row.split()[0] for row in rows[: truth["results"]]] == [each["id"] for each in truth["vertices"]]
    assert rows[truth["results"]] == "1 of the readings is alive, 0 have expired."
    assert rows[-1].startswith("Readings of car/readings from ") and "can still contribute to" in rows[-1]
    assert result.exit_code == 0 and result.stderr == ""


def test_readings_of_a_stream_are_meant_by_their_times(api: Api) -> None:
    some = told(api, "--stream", "car/readings", "--from", "1000", "--to", "1900")
    assert some["sources"] == 10
    assert api.run("impact", "--stream", "car/readings", "--from", "1000", "--to", "1900").stdout.startswith(
        f"10 readings touched {some['results']} results."
    )
    later = api.run("impact", "--stream", "car/readings", "--from", "100000")
    assert later.exit_code == 1
    assert later.stdout.splitlines()[0] == "No such reading has touched anything so far."
    assert "can still contribute to center/alerts" in later.stdout


def test_a_reading_that_nobody_knows_has_touched_nothing(api: Api) -> None:
    result = api.run("impact", "car/readings@1:99999")
    assert result.exit_code == 1
    assert result.stdout.startswith("1 reading touched nothing so far: car/readings@1:99999\n")
    assert "nothing more" not in result.stdout  # it may come


def test_expired_readings_can_contribute_to_nothing_more(api: Api, readings: dict[str, list[str]]) -> None:
    expired = readings["expired"][0]
    result = api.run("impact", expired)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2:] == [
        "0 of the readings are alive, 1 has expired.",
        "They can contribute to nothing more.",
    ]


def test_what_is_late_is_said_and_marked(api: Api) -> None:
    first, _, result, late, *_ = api.run("impact", "till/sales@1:0").stdout.splitlines()
    assert first == "1 reading touched 1 result."
    assert result.split()[0] == "office/sold@2:0" and "complete, late" in result
    assert late.startswith("late: told after the readings had been let go of")
    both = api.run("impact", "till/sales@1:0", "car/readings@1:3").stdout
    assert both.startswith(f"2 readings touched {told(api, 'car/readings@1:3')['results'] + 1} results.")
    assert both.count(", late") == 1 and "1 has expired" in both


def test_a_tuple_that_was_sent_on_has_touched_results_too(api: Api) -> None:
    assert api.run("impact", "car/minutes@1:2").stdout.startswith("1 reading touched 11 results.\n")


def test_readings_may_come_from_stdin(api: Api, readings: dict[str, list[str]]) -> None:
    one, other = readings["alive"][0], readings["expired"][0]
    assert api.run("impact", "-", stdin=f"{one}\n\n{other}\n").stdout == api.run("impact", one, other).stdout != ""
    refused(api.run("impact", "-", stdin="\n"), 2, "no readings on stdin")


def test_many_readings_are_asked_about_at_once(api: Api) -> None:
    names = [f"car/readings@1:{number}" for number in range(3_000)]
    assert told(api, *names)["unknown_count"] + told(api, *names)["sources"] == 3_000
    assert api.run("impact", *names[:2], names[0]).stdout.startswith("2 readings touched ")


@pytest.mark.parametrize("command", [["impact", "-"], ["export", "impact", "-", "--json"]])
def test_too_many_readings_are_to_be_split(api: Api, command: list[str]) -> None:
    names = "\n".join(f"car/readings@1:{number}" for number in range(10_001))
    refused(api.run(*command, stdin=names), 2, "10,001 readings", "ask about 10,000 at a time", "split -l 10000")


@pytest.mark.parametrize(
    "arguments",
    [[], ["a/b@1:1", "--stream", "a/b"], ["a/b@1:1", "--from", "5"], ["--from", "5"]],
)
def test_it_has_to_be_said_which_readings(api: Api, arguments: list[str]) -> None:
    refused(api.run("impact", *arguments), 2, "--stream")

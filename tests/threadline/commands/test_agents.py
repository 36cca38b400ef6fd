"""`threadline agents`: who is there, and how they are."""

from __future__ import annotations

from tests.threadline.commands.served import ROUNDS, Api
from threadline.commands.agents import _clock, _spool


def test_all_agents_are_listed_with_how_they_are(api: Api) -> None:
    result = api.run("agents")
    head, *rows = result.stdout.splitlines()
    assert head.split() == [
        *("AGENT", "PRESENCE", "STATE", "EPOCH", "LAST", "SEEN", "CLOCK", "SPOOL", "UNACKNOWLEDGED", "DROPPED")
    ]
    assert [row.split()[0] for row in rows] == [
        *("car", "center", "depot", "hub", "kiosk", "office", "pi-1", "prankster", "till")
    ]
    [pi] = [row for row in rows if row.startswith("pi-1")]
    assert (pi.split()[1:4] == ["unknown", "running", "1"] and " ago " in pi) or " now " in pi
    assert pi.split()[-5:] == ["3", "(4.2", "kB)", "7", "2"]
    assert result.stderr == "presence unknown: the API has no MQTT broker: start `threadline serve` with --mqtt\n"


def test_agents_may_be_asked_for_by_their_streams(api: Api) -> None:
    rows = api.run("agents", "--stream", "alerts", "--stream", "reports").stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["center", "hub"]


def test_one_agent_has_its_starts_streams_and_operators(api: Api) -> None:
    lines = api.run("agents", "center").stdout.splitlines()
    assert [line.split()[0] for line in lines if line] == [
        *("AGENT", "center", "START", "1", "STREAM", "alerts", "far-alerts")
    ]
    [alerts] = [line for line in lines if line.startswith("alerts")]
    assert alerts.split()[1:] == [str(1_000 * (ROUNDS + 1)), "ms"]
    operators = api.run("agents", "pi-1").stdout.splitlines()
    assert [line.split() for line in operators[-2:]] == [
        ["OPERATOR", "IN", "OUT", "LATE", "SKIPPED"],
        ["w", "4", "3", "2", "1"],
    ]


def test_a_clock_that_is_ahead_is_surely_wrong() -> None:
    assert [_clock(None), _clock(0), _clock(-60_000)] == ["", "0 ms", "-60 s"]
    assert _clock(60_000) == ("+60 s", "yellow")


def test_a_spool_is_said_in_batches_and_bytes() -> None:
    assert [_spool(None, None), _spool(0, 0), _spool(1_200, 2_500_000)] == ["", ("empty", "dim"), "1,200 (2.5 MB)"]

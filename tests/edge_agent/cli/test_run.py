"""threadline-agent run: deliveries with their causes, what can be chosen, and the counts at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent import cli
from edge_agent.cli import main
from tests.edge_agent.cli.apps import APP, plan_app

QUERIES = Path(cli.__file__).parent / "queries"


def test_deliveries_are_printed_with_their_causes(
    app: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", app(APP), "--sink", "stops"]) == 0
    out, err = capsys.readouterr()
    first, second, rest = out.split("\n\n")
    assert rest == ""
    assert re.sub(r"@0:\d+", "@0:*", first).splitlines() == [
        "local/stops@0:*  at 4000",
        "  Stop(car='a', reports=2)",
        "  from 2 readings:",
        "    local/reports@0:*  at 0  Report(car='a', speed=0)",
        "    local/reports@0:*  at 2000  Report(car='a', speed=0)",
    ]
    assert second.startswith("local/stops@0:1  at 8000\n")
    assert err == "threadline-agent: taken 8, delivered 6 (2 shown), late 0, skipped 0\n"


def test_deliveries_as_lines_of_json(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", app(APP), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["sink"], line["ts"]) for line in lines if line["sink"] == "stops"] == [
        ("stops", 4_000),
        ("stops", 8_000),
    ]
    (stop, _), moving = (
        [line for line in lines if line["sink"] == "stops"],
        next(line for line in lines if line["sink"] == "moving"),
    )
    assert stop["id"] == "local/stops@0:0"
    assert stop["payload"] == {"car": "a", "reports": 2}
    assert [(source["kind"], source["ts"], source["payload"]) for source in stop["sources"]] == [
        ("source", 0, {"car": "a", "speed": 0}),
        ("source", 2_000, {"car": "a", "speed": 0}),
    ]
    assert moving["payload"] == moving["sources"][0]["payload"] == {"car": "b", "speed": 50}
    assert err == "threadline-agent: taken 8, delivered 6, late 0, skipped 0\n"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("mode", ["none", "genealog", "segments"])
def test_provenance_can_be_chosen(
    app: Callable[[str], str], capsys: pytest.CaptureFixture[str], mode: str, form: str
) -> None:
    assert main(["run", app(APP), "--provenance", mode, "--format", form, "--sink", "stops"]) == 0
    out = capsys.readouterr().out
    assert ("sources" in out or "from 2 readings" in out) == (mode != "none")
    assert ("local/reports@0" in out) == (mode != "none")


def test_a_limit_stops_the_run(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    endless = plan_app("import itertools; plan.source('s', lambda: ((n, n) for n in itertools.count())).sink('k')")
    assert main(["run", app(endless), "--limit", "3", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["payload"] for line in out.splitlines()] == [0, 1, 2]
    assert re.fullmatch(
        r"threadline-agent: stopped after 3 deliveries: taken \d+, delivered 3, late 0, skipped 0\n", err
    )


def test_what_was_left_out_is_counted(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    body = (
        "plan = Plan('p', on_error='skip')\n"
        "    items = [(5, 1), (3, 0), Watermark(9), (8, 0), (10, 0), IDLE, (11, 1)]\n"
        "    plan.source('s', items).map(lambda n: 1 // n).sink('k')"
    )
    assert main(["run", app(plan_app(body))]) == 0
    assert capsys.readouterr().err == (
        "threadline-agent: taken 5, delivered 2, late 2, skipped 1\n"
        "threadline-agent: first late at 's': 0 at 3, when time had reached 5\n"
        "threadline-agent: first skipped at operator 'map-1': traffic_app:build.<locals>.<lambda> on 0: "
        "ZeroDivisionError: integer division or modulo by zero\n"
    )


def test_the_first_late_tuple_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "late.py"
    app.write_text(plan_app("plan.source('s', [(5, 'a'), (3, 'b'), (4, 'c')]).sink('k')"))
    assert main(["run", str(app)]) == 0
    err = capsys.readouterr().err
    assert "late 2" in err
    assert "first late at 's': 'b' at 3, when time had reached 5" in err


@pytest.mark.parametrize("query", sorted(path.name for path in QUERIES.glob("[a-z]*_*_*.py")))
def test_every_cause_is_shown_with_what_it_said(query: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(QUERIES / query), "--format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines
    assert all("payload" in source for line in lines for source in line["sources"])

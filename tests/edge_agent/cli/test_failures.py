"""What cannot be started and what fails while it runs: a line for the user, and a traceback only when asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.cli import main
from tests.edge_agent.cli.apps import APP, plan_app


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (None, [], r"there is no file .*traffic_app\.py"),
        ("def build(:\n", [], r".*traffic_app\.py line 1: invalid syntax"),
        ("1 / 0\n", [], r".*traffic_app\.py line 1: ZeroDivisionError: division by zero"),
        ("x = 1\n", [], r".*traffic_app\.py defines neither build\(\) nor main\(agent\)"),
        ("def main(agent): pass\n", [], r".*defines main\(agent\) only: there is no build\(\) and so no plan"),
        ("def build(): return 3\n", [], r".*build\(\) returned an int, not a Plan"),
        (plan_app("plan.source('s')"), [], r".*operator 's': nothing consumes its stream.*"),
        (plan_app("plan.source('s').sink('k')"), [], r"operator 's': has no items.*"),
        (APP, ["--sink", "stop"], r".*the plan has no sink 'stop', only stops, moving"),
        (
            plan_app("plan.source('s', []).send('x', to=['hub'])"),
            [],
            r".*'x' is a send, and there is no other agent here",
        ),
        (
            plan_app("plan.receive('x', 'hub').sink('k')"),
            [],
            r".*'hub/x' is a receive, and there is no other agent here",
        ),
    ],
)
def test_what_cannot_be_started_is_said_in_one_line(
    app: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    options: list[str],
    reason: str,
) -> None:
    path = app(text) if text is not None else str(tmp_path / "traffic_app.py")
    assert main(["run", path, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"threadline-agent: {reason}\n", err)


def test_the_origin_of_an_error_can_be_shown(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", app("def f():\n    1 / 0\nf()\n"), "--traceback"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "in f\n    1 / 0" in err
    assert err.endswith("line 2: ZeroDivisionError: division by zero\n")


def test_a_failing_function_ends_the_run(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    path = app(plan_app("plan.source('s', [(1, 1), (2, 0)]).map(lambda n: 1 // n, name='divide').sink('k')"))
    assert main(["run", path]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith(
        "threadline-agent: operator 'divide': traffic_app:build.<locals>.<lambda> raised ZeroDivision"
    )
    assert err[1].startswith("threadline-agent: taken 2, delivered ")
    assert len(err) == 2
    assert main(["run", path, "--traceback"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "items",
    [
        "def items():\n    raise OSError('no sensor')\n",
        "def items():\n    yield 0, 0\n    raise OSError('no sensor')\n",
    ],
)
def test_a_failing_source_ends_the_run(
    app: Callable[[str], str], capsys: pytest.CaptureFixture[str], items: str
) -> None:
    assert main(["run", app(items + plan_app("plan.source('s', items).sink('k')"))]) == 1
    assert re.match(r"threadline-agent: operator 's': .*items raised OSError: no sensor", capsys.readouterr().err)


def test_an_app_that_exits_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "leaving.py"
    app.write_text(plan_app("import sys; plan.source('s', [(1, 1)]).map(lambda v: sys.exit(0)).sink('k')"))
    assert main(["run", str(app)]) == 1
    assert "sys.exit(0)" in capsys.readouterr().err

"""The command line itself: wrong arguments, help, and how little is loaded for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edge_agent.cli import main
from tests.edge_agent.cli.processes import ROOT


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["run"], "the following arguments are required: APP.py"),
        (["run", "x.py", "--limit", "0"], "'0' is not a positive whole number"),
        (["run", "x.py", "--limit", "many"], "'many' is not a positive whole number"),
        (["run", "x.py", "--limit", "9" * 5_000], "9' is not a positive whole number"),
        (["run", "x.py", "--provenance", "magic"], "invalid choice: 'magic'"),
        (["plan", "x.py", "--format", "png"], "invalid choice: 'png'"),
        (["send", "--drain", "soon"], "'soon' is no number of seconds"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--help"],
            ["plan", "run", "status", "send", "def build():", "def main(agent):", "--gateway", "exit code", " 141 "],
        ),
        (["plan", "--help"], ["APP.py", "--format", "--output", "svg"]),
        (["run", "--help"], ["APP.py", "--provenance", "--sink", "--limit", "--format", "genealog"]),
        (["send", "--help"], ["--gateway", "--name", "--spool", "--config", "--drain", "siblings"]),
    ],
)
def test_help_helps(capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for word in words:
        assert word in out


def test_the_command_starts_light() -> None:
    code = "import sys; import edge_agent.cli; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"edge_agent.stream", "protocol.plan", "json", "asyncio", "dataclasses", "inspect", "typer"}

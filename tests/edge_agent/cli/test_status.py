"""threadline-agent status: of an agent that runs, of one that does not, and of none."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.cli import main
from edge_agent.status_file import read_status_file
from tests.edge_agent.cli.apps import plan_app
from tests.edge_agent.cli.processes import started
from tests.edge_agent.spooled import NOWHERE
from tests.support.waiting import wait_until

WAITING = plan_app("plan.receive('x', 'car-7').sink('k')")


def told(spool: Path) -> bool:
    """Whether the agent has said how it is."""
    try:
        return bool(read_status_file(str(spool)))
    except (OSError, ValueError):
        return False


def test_running_and_not_running(app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool = tmp_path / "spool"
    command = ("run", app(WAITING), "--gateway", NOWHERE, "--name", "pump-7", "--spool", str(spool), "--drain", "0")
    with started(*command) as process:
        wait_until(lambda: told(spool), "a status", 30)
        assert main(["status", "--spool", str(spool)]) == 0
        running = capsys.readouterr().out
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert main(["status", "--spool", str(spool)]) == 0
    ended = capsys.readouterr().out
    assert running.startswith(f"agent pump-7, epoch 1: running, pid {process.pid}\n")
    assert ended.startswith("agent pump-7, epoch 1: not running\n")
    assert "  receives        car-7/x: 0 messages taken\n" in ended

    assert main(["status", "--spool", str(spool), "--format", "json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["agent"], status["running"], status["pid"]) == ("pump-7", False, None)


def test_a_killed_agent_does_not_run(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = tmp_path / "spool"
    with started("run", app(WAITING), "--gateway", NOWHERE, "--name", "pump-7", "--spool", str(spool)) as process:
        wait_until(lambda: told(spool), "a status", 30)
        process.kill()
        process.communicate(timeout=30)
    assert main(["status", "--spool", str(spool)]) == 0
    assert capsys.readouterr().out.startswith("agent pump-7, epoch 1: not running\n")


def test_an_agent_is_found_by_name_by_file_and_by_environment(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ending = app(plan_app("plan.source('s', [(1, 1)]).sink('k')"))
    with started("run", ending, "--gateway", NOWHERE, "--name", "pump-7", "--drain", "0") as process:
        process.communicate(timeout=30)
    (tmp_path / "agent.toml").write_text('name = "pump-7"\n')
    assert main(["status", "--name", "pump-7"]) == 0
    assert main(["status", "--config", str(tmp_path / "agent.toml")]) == 0
    monkeypatch.setenv("THREADLINE_AGENT", "pump-7")
    assert main(["status"]) == 0
    assert capsys.readouterr().out.count("agent pump-7, epoch 1: not running\n") == 3


def test_no_such_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--spool", str(tmp_path / "spool")]) == 2
    assert capsys.readouterr().err == f"threadline-agent: no agent has its spool in {tmp_path / 'spool'}\n"


def test_a_name_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--name", "Pump 7"]) == 2
    assert "1 to 23 small letters" in capsys.readouterr().err

"""threadline-agent send: what agents that do not run have left gets away without their apps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.cli import main
from edge_agent.siblings import is_open
from protocol.records import Gap
from tests.edge_agent.cli.processes import started
from tests.edge_agent.cloud import Cloud
from tests.edge_agent.spooled import NOWHERE, batches, spooled
from tests.edge_agent.test_siblings import leave
from tests.support.waiting import wait_until


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    running = Cloud()
    with running:
        yield running


def test_the_spool_and_its_siblings_are_sent(tmp_path: Path, cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path / "spool", "pump-7")
    leave(tmp_path / "spool-2", "pump-7-2")
    command = ["send", "--spool", str(tmp_path / "spool"), "--gateway", cloud.address]
    assert main(command) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"threadline-agent: agent pump-7, spool {tmp_path}/spool: ")
    assert second.startswith(f"threadline-agent: agent pump-7-2, spool {tmp_path}/spool-2: ")
    assert first.endswith("nothing left") and second.endswith("nothing left")
    assert cloud.events() == {"pump-7": [0, 1, 2], "pump-7-2": [0, 1, 2]}
    assert main(command) == 0
    assert capsys.readouterr().err.count("nothing to send") == 2


def test_what_could_not_be_sent_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, "pump-7")
    assert main(["send", "--name", "pump-7", "--spool", str(tmp_path), "--gateway", NOWHERE, "--drain", "0"]) == 1
    count = len(batches(tmp_path))
    said = f"threadline-agent: agent pump-7, spool {tmp_path}: 0 batches acknowledged, {count} left\n"
    assert capsys.readouterr().err == said


def test_what_cannot_be_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["send", "--name", "pump-7"]) == 2
    assert capsys.readouterr().err == "threadline-agent: no gateway to send to: give --gateway HOST:PORT\n"
    assert main(["send", "--name", "pump-7", "--gateway", NOWHERE]) == 2
    folder = tmp_path / "threadline" / "pump-7"
    assert capsys.readouterr().err == f"threadline-agent: no agent has its spool in {folder}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_it_cleanly(tmp_path: Path) -> None:
    for suffix in ("", "-2"):
        leave(tmp_path / f"spool{suffix}", f"pump-7{suffix}")
    folder = tmp_path / "spool"
    with started("send", "--spool", str(folder), "--gateway", NOWHERE, "--drain", "600") as process:
        wait_until(lambda: is_open(str(folder)), "it sends", 30)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (143, "")
    said = [line for line in err.splitlines() if "WARNING" not in line]
    assert said[0] == "threadline-agent: stopped by SIGTERM"
    assert f"0 batches acknowledged, {len(batches(folder))} left" in said[1]
    assert len(said) == 2, "the next spool is not begun with"
    leave(folder, "pump-7")
    assert not any(isinstance(each, Gap) for each in spooled(folder, "pump-7")), "it has ended as it should"

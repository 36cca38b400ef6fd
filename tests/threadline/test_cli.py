"""What the commands say when something is wrong: one clear line, at once, and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.collector.agents import FakeAgent, Shard
from threadline.cli import app

AGENT = FakeAgent()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with two starts of one agent, of two batches each."""
    shard = Shard(tmp_path / "log")
    for agent in (AGENT, FakeAgent(nonce=2)):
        shard.take(agent, agent.framed(0), agent.framed(1))
    shard.close()
    return shard.folder


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("threadline: "), result.output
    for word in words:
        assert word in result.stderr, result.output


def test_dumped_records_say_which_start_they_are_of(log: Path) -> None:
    result = run("log", "dump", str(log), "--kind", "event", "--limit", "3")
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["agent"], line["epoch"], line["batch"]) for line in lines] == [
        ("pump-7", 1, 0),
        ("pump-7", 1, 1),
        ("pump-7", 2, 0),
    ]


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_an_output_that_cannot_be_written_is_told(log: Path, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "threadline", "log", command, str(log)],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "threadline: the output cannot be written: No space left on device\n")


def test_verify_says_what_is_wrong_and_goes_on(log: Path) -> None:
    assert run("log", "verify", str(log)).exit_code == 0
    (log / "shard-05" / "position").write_text("foo")
    result = run("log", "verify", str(log))
    assert result.exit_code == 1
    assert "shard 5 segment 1 row 0: no position: " in result.stdout
    assert result.stdout.splitlines()[-1].endswith(": 1 faults")
    refused(run("log", "dump", str(log)), "shard-05/position: not a position")


def test_translate_names_the_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "registry.db").mkdir()
    refused(run("translate", "--log", str(tmp_path)), f"{tmp_path}/registry.db", "cannot be opened for writing")


def test_translate_does_not_replace_a_registry_that_is_gone(log: Path) -> None:
    (log / "registry.db").unlink()
    refused(run("translate", "--log", str(log)), f"{log}/registry.db is not there", "Put it back from a copy")
    assert not (log / "registry.db").exists()


@pytest.mark.parametrize("command", [["gateway", "--listen", "127.0.0.1:0"], ["translate", "--log"]])
@pytest.mark.parametrize("address", ["198.51.100.1:9464", "a..b:1"])
def test_an_address_for_metrics_that_cannot_be_is_told(tmp_path: Path, command: list[str], address: str) -> None:
    folder = [str(tmp_path)] if command[0] == "translate" else []
    refused(run(*command, *folder, "--metrics", address), "--metrics", address, "cannot serve metrics")


def test_a_name_to_listen_on_that_nobody_knows_is_told() -> None:
    refused(run("gateway", "--listen", "nohost.invalid:1884"), "--listen", "nohost.invalid:1884", "cannot listen")

"""`threadline forward` as a process: what it says when something is wrong, and that nothing is lost however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from collector.log_view import entries
from protocol.events import TaskEnded
from protocol.topics import shard_of
from tests.collector.agents import FakeAgent
from tests.collector.forwarding.captured import WrittenLog, in_batches, tuples_of, workflow_of
from tests.collector.forwarding.graphs import expected, told
from tests.collector.forwarding.recording import Received, RecordingServer, UnendingServer
from tests.support.waiting import wait_until
from threadline.commands.forward import forward

PROGRAM = """
import logging, typer
from threadline.commands.forward import forward
logging.basicConfig(level=logging.INFO)
app = typer.Typer()
app.command()(forward)
app()
"""
_BY_SHARD = {shard_of(f"pi-{number}"): f"pi-{number}" for number in range(40)}
AGENTS = [FakeAgent(name, nonce=shard + 1) for shard, name in sorted(_BY_SHARD.items())[:8]]  # so many groups, too


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WrittenLog]:
    with WrittenLog(tmp_path / "log") as made:
        for agent in AGENTS:
            for batch in in_batches(workflow_of(3), 4):
                made.say(agent, *batch)
            made.say(agent, *tuples_of(agent, 4))
        yield made


def run(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(forward)
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})


def arguments(log: WrittenLog, url: str, to: str = "prov-json") -> list[str]:
    position = log.folder.parent / "position"
    return ["--log", str(log.folder), "--to", to, "--url", url, "--position", str(position)]


def start(log: WrittenLog, url: str, *more: str, to: str = "prov-json") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments(log, url, to), *more]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=log.folder.parent, env=environment)


def is_complete(log: WrittenLog, server: RecordingServer) -> bool:
    return told(each.body for each in server.taken) == expected(entries(log.folder))


def wait_for(server: RecordingServer, requests: int) -> None:
    wait_until(lambda: len(server.taken) >= requests, "what is there has arrived")


def test_help_says_what_can_be_said() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for option in ("--to", "--url", "--position", "--log", "--agent", "--once", "--give-up-after", "--metrics"):
        assert option in result.output


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("threadline: "), result.output
    for word in words:
        assert word in result.stderr, result.output


def test_what_is_wrong_from_the_beginning_is_told_in_one_line(log: WrittenLog, tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"
    position = tmp_path / "position"
    common: list[str | Path] = ["--to", "prov-json", "--url", url, "--position", position]
    refused(run(*common, "--log", tmp_path / "none"), "there is no log in", "`threadline translate` makes it")
    refused(run(*arguments(log, url, "prov")), "there is no system 'prov'")
    refused(run(*arguments(log, "nowhere")), "'nowhere' is no URL")
    refused(run(*arguments(log, url), "--metrics", "x"), "--metrics")
    position.write_text("foo")
    refused(run(*arguments(log, url)), f"{position} is no position file", "put it back from a copy")


def test_once_it_forwards_what_is_there_and_ends(log: WrittenLog) -> None:
    with RecordingServer() as server:
        with start(log, server.url, "--once") as process:
            said = process.communicate(timeout=30)[1]
        assert process.returncode == 0, said
        assert is_complete(log, server)
    assert "forwarder stopped records=" in said
    assert "HTTP Request" not in said


@pytest.mark.parametrize("to", ["prov-json", "dfanalyzer"])
def test_killed_at_any_request_it_loses_nothing_and_repeats_one_group_at_most(log: WrittenLog, to: str) -> None:
    """kill -9 when a request was taken, and before that is known."""
    kill_at = 5 if to == "prov-json" else 20
    process: subprocess.Popen[str]

    def answer(count: int, received: Received) -> int:
        if count == kill_at:
            process.send_signal(signal.SIGKILL)
        return 200

    with RecordingServer() as server:
        server.answer = answer
        with start(log, server.url, "--once", to=to) as process:
            process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
        with start(log, server.url, "--once", to=to) as process:
            said = process.communicate(timeout=30)[1]
        assert process.returncode == 0, said
        sent = [each.body for each in server.taken if each.path != "/pde/dataflow/json"]
    if to == "prov-json":
        assert is_complete(log, server)
        assert len(sent) <= len(AGENTS) + 1, "a document per group"
    else:
        with RecordingServer() as undisturbed:
            assert run(*arguments(log, undisturbed.url, to), "--once", "--position", log.folder / "x").exit_code == 0
        wanted = [each.body for each in undisturbed.taken if each.path != "/pde/dataflow/json"]
        assert set(sent) == set(wanted)
        assert len(sent) <= len(wanted) + 7, "seven requests per group: three tasks, one of them learned"


def test_asked_to_end_it_ends_and_goes_on_later(log: WrittenLog) -> None:
    with RecordingServer() as server:
        for round in range(2):
            with start(log, server.url) as process:
                wait_for(server, len(AGENTS) + round)
                process.send_signal(signal.SIGINT if round else signal.SIGTERM)
                said = process.communicate(timeout=30)[1]
            assert process.returncode == 0, said
            if not round:
                log.say(AGENTS[0], *workflow_of(1))
        assert is_complete(log, server)
        documents = [each.body for each in server.received]
        assert len(set(documents)) == len(documents), "nothing came twice"


def test_asked_to_end_it_ends_though_the_other_system_does_not(log: WrittenLog) -> None:
    with UnendingServer(b"HTTP/1.1 200 OK\r\nx-slow: ") as server, start(log, server.url) as process:
        wait_until(lambda: server.asked, "it waits for an answer")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=10)[1]
    assert process.returncode == 0, said
    assert "forwarder stopped records=0" in said


def test_the_class_in_the_documentation_can_be_used(log: WrittenLog) -> None:
    """As it stands there, in a file in the folder from which the command is run."""
    text = (Path(__file__).parents[3] / "docs" / "forwarding.md").read_text()
    (log.folder.parent / "my_system.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    agent = AGENTS[3]
    log.say(agent, TaskEnded(0, 5, 41, "failed", "no such file", ()))
    with RecordingServer() as server:
        with start(log, server.url, "--once", to="my_system:FailedTasks") as process:
            said = process.communicate(timeout=30)[1]
        assert process.returncode == 0, said
        (found,) = server.received
    assert found.path == "/failed"
    assert found.json == {"id": f"task:{agent.name}@{agent.epoch}:41", "error": "no such file"}

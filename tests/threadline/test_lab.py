"""The lab as a user runs it: real processes, which must all be gone when it has ended, however it ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from typer.testing import CliRunner

from collector.store import open_store
from edge_agent.agent_status import read_status
from edge_agent.config import Settings
from tests.deployment.files import compose
from tests.support.waiting import wait_until
from threadline.cli import app
from threadline.lab import find_mosquitto, free_port

START_S = 100.0
STOP_S = 60.0
SMALL = ("--embedded", "--without-spark", "--without-agents")


class RunningLab:
    """`threadline lab` and what it says."""

    def __init__(self, output: Path, *options: str) -> None:
        self._output = output
        command = [sys.executable, "-m", "threadline", "lab", *options]
        with output.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, start_new_session=True,
                env={**os.environ, "THREADLINE_LAB_ROUND_MS": "200"},
            )  # fmt: skip
        self._seen: set[psutil.Process] = set()

    def text(self) -> str:
        return self._output.read_text()

    def says(self, words: str, timeout_s: float = START_S) -> None:
        """Wait for words, but not if it ends without them."""
        wait_until(lambda: words in self.text() or self.process.poll() is not None, words, timeout_s)
        assert words in self.text(), self.text()

    def runs(self) -> RunningLab:
        """Wait until everything does."""
        self.says("Everything runs")
        return self

    def where(self, name: str) -> str:
        """What it says of where something is."""
        found = re.search(rf"^{name} +(\S+)", self.text(), re.MULTILINE)
        assert found is not None, self.text()
        return found[1]

    def part(self, words: str) -> psutil.Process:
        """The process with these words in its command."""
        [found] = [each for each in self.parts() if words in shlex.join(each.cmdline())]
        return found

    def parts(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def note(self) -> None:
        """Remember all that runs now, so that it can be seen to be gone."""
        self._seen.update(psutil.Process(self.process.pid).children(recursive=True))

    def left(self) -> list[str]:
        """What of that still runs. What has ended and nobody has asked for does not."""
        return [" ".join(each.cmdline()) for each in self._seen if _runs(each)]

    def ended(self) -> int:
        """Wait for its end, and for nothing else to be left. Its exit code."""
        code = self.process.wait(STOP_S)
        assert self.left() == []
        return code


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., RunningLab]]:
    """Starts labs, and leaves none behind."""
    labs: list[RunningLab] = []

    def start(*options: str) -> RunningLab:
        labs.append(RunningLab(tmp_path / f"lab-{len(labs)}.out", *options))
        return labs[-1]

    yield start
    for each in labs:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(STOP_S)


def stopped_parts(text: str) -> list[str]:
    """In the order in which they have stopped."""
    return re.findall(r"^\d\d:\d\d:\d\d (\S+) has stopped$", text, re.MULTILINE)


def answer(url: str) -> int:
    try:
        with urlopen(url, timeout=5) as response:
            return int(response.status)
    except HTTPError as error:
        return error.code


def option(process: psutil.Process, name: str) -> str:
    """What an option of a process's command says."""
    command = process.cmdline()
    return command[command.index(name) + 1]


def check_health(lab: RunningLab) -> None:
    """The health checks of the compose file, put to the processes of the lab."""
    programs = {"gateway": "threadline gateway", "translator": "threadline translate", "spark": "threadline spark",
                "collector": "threadline serve", "agent-center": "--name accidents-center",
                "agent-roadside": "--name accidents-roadside"}  # fmt: skip
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name, words in programs.items():
        process = lab.part(words)
        kind, *test = compose()["services"][name]["healthcheck"]["test"]
        if kind == "CMD-SHELL":
            command = ["/bin/sh", "-c", test[0].replace("/var/lib/threadline/spool", option(process, "--spool"))]
        else:
            at, there = ("--listen", "127.0.0.1:8080") if name == "collector" else ("--metrics", "127.0.0.1:9464")
            assert there in test[-1]
            command = [*test[:-1], test[-1].replace(there, option(process, at))]

        def is_healthy(command: list[str] = command) -> bool:
            return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0

        wait_until(is_healthy, f"{name} is healthy")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_everything_runs_until_it_is_told_to_stop(lab: Callable[..., RunningLab]) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")
    all_of_it = lab().runs()
    url, folder = all_of_it.where("API"), Path(all_of_it.where("folder"))
    assert answer(f"{url}/healthz") == 200
    wait_until(lambda: answer(f"{url}/readyz") == 200, "the API has its store", START_S)
    check_health(all_of_it)
    with closing(open_store(all_of_it.where("store")).reader()) as store:
        wait_until(lambda: store.counters().get("sink_labels", 0), "an accident is in the graph", START_S)
        streams = {(stream.agent, stream.name) for stream in store.streams()}
    assert {("accidents-roadside", "reports"), ("accidents-center", "accidents")} <= streams
    assert len(list(folder.glob("*.log"))) == 7
    all_of_it.note()
    all_of_it.process.terminate()
    assert all_of_it.ended() == 0
    assert stopped_parts(all_of_it.text()) == [
        "agent-roadside", "agent-center", "collector", "spark", "translator", "gateway", "mosquitto",
    ]  # fmt: skip
    assert "Everything has stopped. Restarts: none." in all_of_it.text()
    assert not folder.exists()


def test_what_is_killed_comes_back_and_a_ctrl_c_is_for_the_lab_alone(
    lab: Callable[..., RunningLab], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    live = lab("--without-spark", "--folder", str(folder)).runs()
    agent = Settings(spool=str(folder / "accidents-roadside-spool"))
    live.note()
    live.part("threadline gateway").kill()
    live.says("gateway ended by SIGKILL, it is started again in 0.5 s (restart 1); its log ends with\n    ")
    live.says("gateway runs again")
    assert option(live.part("threadline gateway"), "--listen") == live.where("gateway")
    wait_until((Path(agent.spool) / "status").exists, "the agent says how it is")
    before = read_status(agent)["acknowledged"]
    wait_until(lambda: read_status(agent)["acknowledged"] > before + 2, "the agents go on", START_S)
    live.note()
    os.killpg(live.process.pid, signal.SIGINT)
    assert live.ended() == 0
    assert stopped_parts(live.text())[:3] == ["agent-roadside", "agent-center", "collector"]
    assert "Everything has stopped. Restarts: gateway 1." in live.text()
    for name in ("roadside", "center"):
        assert "all acknowledged" in (folder / f"agent-{name}.log").read_text()


def test_a_folder_is_one_lab_s_and_the_next_one_goes_on_with_it(lab: Callable[..., RunningLab], tmp_path: Path) -> None:
    kept = ("--folder", str(tmp_path / "kept"))
    first = lab(*SMALL, *kept).runs()
    first.note()
    second = lab(*SMALL, *kept)
    assert second.process.wait(STOP_S) == 2
    assert f"another lab (pid {first.process.pid}) has {tmp_path / 'kept'}: stop it" in second.text()
    first.process.send_signal(signal.SIGHUP)  # the terminal was closed
    assert first.ended() == 0
    identity = (tmp_path / "kept" / "log" / "id").read_text()
    third = lab(*SMALL, *kept, "--duration", "0.2")
    assert third.process.wait(START_S) == 0
    assert "It stops in 0.2 s." in third.text() and "Everything has stopped." in third.text()
    assert (tmp_path / "kept" / "log" / "id").read_text() == identity


def test_a_port_that_is_taken_ends_the_lab_with_what_the_service_said(lab: Callable[..., RunningLab]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        small = lab(*SMALL, "--api", f"127.0.0.1:{taken.getsockname()[1]}")
        assert small.process.wait(START_S) == 1
    assert re.search(r"^threadline: collector did not start, it ended with code \d:\n.+", small.text(), re.MULTILINE)
    assert stopped_parts(small.text())[-1] == "amqtt"
    assert not Path(small.where("folder")).exists()


def test_a_lab_that_is_killed_leaves_nothing_running(lab: Callable[..., RunningLab], tmp_path: Path) -> None:
    small = lab(*SMALL, "--folder", str(tmp_path / "kept")).runs()
    small.note()
    assert len(small.left()) == 4
    small.process.kill()
    wait_until(lambda: not small.left(), "everything has ended", STOP_S)


def test_a_lab_that_nobody_reads_any_more_stops() -> None:
    command = [sys.executable, "-m", "threadline", "lab", *SMALL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("API")
        process.stdout.close()
        assert process.wait(START_S) == 0, process.stderr.read()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--api", "0.0.0.0:8080"), "--api 0.0.0.0 can be reached by other machines"),
        (("--gateway", "0.0.0.0:1884"), "--gateway 0.0.0.0 can be reached by other machines"),
        (("--api", "8080"), "--api '8080' is not HOST:PORT"),
        (("--gateway", "no-such-host.invalid:1"), "no-such-host.invalid"),
        (("--folder", "/dev/null/lab"), "--folder /dev/null/lab cannot be used: Not a directory"),
    ],
)
def test_what_makes_no_sense_is_told(options: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(app, ("lab", *options))
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("threadline: ") and words in result.stderr


def test_a_port_is_not_given_twice_in_a_row_and_they_do_not_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadline.lab._PORTS", range(20_000, 20_150))
    given = [free_port() for _ in range(300)]
    for place in range(0, 300, 50):
        assert len(set(given[place : place + 100])) == len(given[place : place + 100])

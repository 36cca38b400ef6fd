"""`threadline load` as a user runs it: real agents, a real gateway and broker, a real log; and what it says of them."""

from __future__ import annotations

import inspect
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from collector.log import FIRST, LogReader
from protocol.address import format_address
from protocol.wire.sections import Kind
from tests.support.waiting import wait_until
from threadline.cli import app
from threadline.commands.load import _listening
from threadline.commands.load import load as command
from threadline.lab import GatewayService, TranslatorService, free_port, mqtt_broker
from threadline.load.fleet import _DEVICES_OF_A_PROCESS
from threadline.load.outcome import Outcome
from threadline.load.scrape import scrape

END_S = 60.0


def load(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "threadline", "load", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ended(process: subprocess.Popen[str], code: int) -> str:
    """What it said on stdout, when it has ended as it should."""
    out, error = process.communicate(timeout=END_S)
    assert process.returncode == code, out + error
    assert error == ""
    return out


def figures(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


class Cloud:
    """A chain that runs already: what `--gateway` and its companions are for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        broker = stack.enter_context(mqtt_broker(folder))
        self.gateway = stack.enter_context(GatewayService(folder, broker))
        metrics = f"127.0.0.1:{free_port()}"
        self.translator = stack.enter_context(TranslatorService(folder, broker, "--metrics", metrics))
        self.options = [
            *("--gateway", format_address(*self.gateway.address), "--log", str(self.translator.log_folder)),
            *("--metrics", f"gateway=127.0.0.1:{self.gateway.metrics_port}", "--metrics", f"translator={metrics}"),
            *("--process", f"gateway={self.gateway.pid}", "--process", f"translator={self.translator.pid}"),
        ]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with ExitStack() as stack:
        yield Cloud(tmp_path_factory.mktemp("cloud"), stack)


@pytest.mark.parametrize("profile", ["query", "workflow"])
def test_all_that_devices_say_is_counted_in_the_log(cloud: Cloud, tmp_path: Path, profile: str) -> None:
    told, report = tmp_path / "load.json", tmp_path / "load.html"
    rate = {"query": 2_000, "workflow": 40}[profile]
    options = ["--profile", profile, "--devices", "4", "--rate", str(rate), "--duration", "1.5"]
    out = ended(load(*options, *cloud.options, "--json", str(told), "--report", str(report)), 0)
    found = figures(told)
    assert "4 of 4 devices connected" in out
    assert "loss      none: everything that was said is in the log" in out
    assert found["connected"] == 4
    assert found["losses"] == []
    assert found["checked"] == ["log"]
    assert found["samples"][-1]["acknowledged"] > 0
    assert found["samples"][-1]["dropped"] == 0
    # The machine may be busy, but it is not so slow.
    assert rate / 2 <= found["units"] <= 2 * rate
    said = found["said_with_warm_up"]
    if profile == "query":
        assert said["origins"] == 50 * said["results"]
        assert said["readings"] == 38 * said["results"] + 4 * 12
    else:
        assert said["events"] == 2 * said["tasks"] + 2 * 4
    assert found["caller_us"]["count"] >= found["units"] // 50
    assert set(found["components"]) == {"gateway", "translator", "devices", "load"}
    assert all(each["memory_bytes"] > 0 for each in found["components"].values())
    assert report.read_text().startswith("<!DOCTYPE html>")


def test_what_a_small_spool_gave_up_is_a_loss_that_its_gap_explains(cloud: Cloud, tmp_path: Path) -> None:
    """The gateway stands still while the devices speak, so that they have to keep more than they can."""
    told = tmp_path / "load.json"
    options = ["--devices", "2", "--rate", "12000", "--duration", "3", "--spool-bytes", str(64 << 10)]
    before = _publishes(cloud)
    process = load(*options, *cloud.options, "--json", str(told), "--drain", "20")
    gateway = psutil.Process(cloud.gateway.pid)
    wait_until(lambda: _publishes(cloud) > before + 4, "the devices are at work", END_S)
    gateway.suspend()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
    finally:
        gateway.resume()
    out = ended(process, 1)
    lost = re.findall(r"^LOST +load-\S+: (\d+) of (\d+) results are in the log \((Gap: .+)\)$", out, re.MULTILINE)
    assert lost, out
    for found, said, gap in lost:
        assert int(found) < int(said)
        assert re.search(r"batches \d+ to \d+", gap)
    assert {each["what"] for each in figures(told)["losses"]} == {"results", "origins", "readings"}
    assert figures(told)["samples"][-1]["dropped"] > 0


def _publishes(cloud: Cloud) -> float:
    return scrape("gateway", f"127.0.0.1:{cloud.gateway.metrics_port}").get("publishes_from_devices", 0)


def _has_results(log: Path) -> bool:
    reader = LogReader(log)
    return any(
        row.kind == Kind.DELIVERY for shard in reader.shards() for row in reader.rows(shard, FIRST, reader.end(shard))
    )


def test_a_signal_ends_it_with_what_was_measured(tmp_path: Path) -> None:
    """It starts the chain itself here, and nothing of it is left."""
    told, folder = tmp_path / "load.json", tmp_path / "run"
    options = ["--devices", "2", "--duration", "10m", "--without-spark", "--folder", str(folder)]
    process = load(*options, "--json", str(told))
    wait_until(lambda: (folder / "log").is_dir() and _has_results(folder / "log"), "the devices speak", END_S)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    out = ended(process, 0)
    assert "stopped early, as asked" in out
    assert figures(told)["was_stopped"] is True
    assert figures(told)["losses"] == []
    assert [each for each in children if each.is_running()] == []


def test_a_second_signal_does_not_wait_and_says_what_that_means(tmp_path: Path) -> None:
    told, folder = tmp_path / "load.json", tmp_path / "run"
    options = ["--devices", "2", "--duration", "10m", "--without-spark", "--folder", str(folder)]
    process = load(*options, "--json", str(told))
    wait_until(lambda: (folder / "log").is_dir() and _has_results(folder / "log"), "the devices speak", END_S)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=END_S)
    assert (out, error) == ("", "threadline: stopped at once: what was measured is thrown away\n")
    assert process.returncode == 128 + signal.SIGTERM
    assert not told.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_starts_ends_it_with_nothing(tmp_path: Path, number: int) -> None:
    told, folder = tmp_path / "load.json", tmp_path / "run"
    process = load("--devices", "2", "--folder", str(folder), "--json", str(told))
    wait_until(lambda: list(folder.glob("*.log")), "something has been started", END_S)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, error = process.communicate(timeout=END_S)
    assert (out, error) == ("", "threadline: stopped before anything was measured\n")
    assert process.returncode == 128 + number
    assert not told.exists()
    assert [each for each in children if each.is_running()] == []


@pytest.mark.parametrize(("command", "name"), [("translate", "translator"), ("load.worker", "a process with devices")])
def test_whoever_dies_is_told_with_what_was_measured(tmp_path: Path, command: str, name: str) -> None:
    told, report, folder = tmp_path / "load.json", tmp_path / "load.html", tmp_path / "run"
    options = ["--devices", "2", "--duration", "10m", "--without-spark", "--folder", str(folder)]
    process = load(*options, "--json", str(told), "--report", str(report))
    wait_until(lambda: (folder / "log").is_dir() and _has_results(folder / "log"), "the devices speak", END_S)
    children = psutil.Process(process.pid).children()
    next(each for each in children if command in " ".join(each.cmdline())).kill()
    out = ended(process, 1)
    assert re.search(rf"^FAILED    {name} died at \d+ s: killed by SIGKILL", out, re.MULTILINE)
    assert figures(told)["failure"].startswith(f"{name} died at ")
    assert figures(told)["samples"] != []
    assert f"{name} died at " in report.read_text()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is over at once."""
    monkeypatch.setattr("threadline.load.run.run", lambda options, *_: Outcome(options, connected=options.devices))


@pytest.mark.usefixtures("measured")
def test_what_cannot_be_written_keeps_nothing_else_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadline.load.output_file.try_output", lambda _: None)
    result = CliRunner().invoke(app, ["load", "--json", "/no/such/file", "--report", str(tmp_path / "load.html")])
    assert result.exit_code == 1
    assert "8 of 8 devices connected" in result.output
    assert "threadline: --json /no/such/file cannot be written: No such file or directory\n" in result.output
    assert (tmp_path / "load.html").exists()


@pytest.mark.usefixtures("measured")
def test_files_are_written_though_nothing_can_be_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("threadline.commands.load.print_line", fails)
    files = [tmp_path / "load.json", tmp_path / "load.html"]
    CliRunner().invoke(app, ["load", "--json", str(files[0]), "--report", str(files[1])])
    assert all(file.exists() for file in files)


MEASURED = """
from threadline.load import run
from threadline.load.outcome import Outcome

def measured(options, stop, listener):
    listener.phase("at work")
    assert stop.wait(60)
    return Outcome(options, connected=options.devices, was_stopped=True)

run.run = measured
from threadline.cli import app
app()
"""


def test_a_terminal_that_is_closed_loses_no_figures(tmp_path: Path) -> None:
    """Neither the line that changes nor the summary can be written then."""
    files = [tmp_path / "load.json", tmp_path / "load.html"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURED, "load", "--json", str(files[0]), "--report", str(files[1])],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while b"at work" not in seen:
        seen += os.read(ours, 4096)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(END_S) == 1
    assert figures(files[0])["was_stopped"] is True
    assert files[1].read_text().startswith("<!DOCTYPE html>")


def test_a_terminal_that_is_closed_may_say_so_twice() -> None:
    numbers = [signal.SIGHUP, signal.SIGHUP, signal.SIGTERM]
    with _listening(threading.Event()) as came, pytest.raises(KeyboardInterrupt):
        for each in numbers:
            signal.raise_signal(each)
    assert came == [signal.SIGHUP, signal.SIGTERM], "only the last one does not wait"


def test_further_signals_do_not_disturb_the_cleaning() -> None:
    with _listening(threading.Event()):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("measured")
def test_when_all_is_measured_signals_are_what_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may ever read from a pipe that figures are written to."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(each) for each in numbers]
    found: list[Any] = []
    monkeypatch.setattr(
        "threadline.load.output_file.write_output", lambda *_: found.extend(signal.getsignal(each) for each in numbers)
    )
    assert CliRunner().invoke(app, ["load", "--json", str(tmp_path / "load.json")]).exit_code == 0
    assert found == before


def test_a_gateway_that_is_not_there_is_named() -> None:
    gateway = f"127.0.0.1:{free_port()}"
    process = load("--devices", "1", "--gateway", gateway, "--connect", "1")
    out, error = process.communicate(timeout=END_S)
    assert (process.returncode, out) == (1, "")
    assert error == (
        f"threadline: nobody answers at {gateway}: none of 1 devices was connected within 1 s; on a slow machine or way"
        " they need a longer --connect\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profile", "heavy"], "there is no profile 'heavy', only query, workflow, light"),
        (["--when-full", "explode"], "when_full is drop-oldest or block, not 'explode'"),
        (["--devices", "0"], "--devices"),
        (["--rate", "0"], "--rate"),
        (["--find-max", "--step", "1"], "--step"),
        (["--log", "."], "--log says where a running chain is, and goes with --gateway"),
        (["--gateway", "nowhere"], "--gateway"),
        (["--gateway", "nowhere.invalid:9"], "there is no host nowhere.invalid, or nobody knows its address"),
        (["--gateway", "127.0.0.1:9", "--log", "/no/such/folder"], "--log /no/such/folder is no folder"),
        (["--gateway", "127.0.0.1:9", "--log", "/proc/self/fd"], "--log /proc/self/fd holds no log"),
        (["--gateway", "127.0.0.1:9", "--metrics", "gateway=127.0.0.1:1"], "--metrics gateway: nobody tells metrics"),
        (["--gateway", "127.0.0.1:9", "--store", "what"], "--store"),
        (["--gateway", "127.0.0.1:9", "--api", "127.0.0.1:8080"], "is no address such as http://127.0.0.1:8080"),
        (["--gateway", "127.0.0.1:9", "--metrics", "api=127.0.0.1:9"], "of gateway, translator, spark"),
        (["--gateway", "127.0.0.1:9", "--process", "gateway=x"], "there is no such process"),
        (["--gateway", "127.0.0.1:9", "--users", "3"], "there is no API to ask"),
        (["--without-spark", "--users", "3"], "there is no API to ask"),
        (["--gateway", "127.0.0.1:9", "--find-max"], "--find-max has to know how far Spark is behind"),
        (["--gateway", "127.0.0.1:9", "--find-max", "--metrics", "spark=127.0.0.1:9"], "how far Spark is behind"),
        (["--gateway", "127.0.0.1:9", "--store", "sqlite:////none/x.db"], "--store /none/x.db is not there"),
        (["--gateway", "127.0.0.1:9", "--embedded"], "--embedded says how a chain is started, and goes without"),
        (["--gateway", "127.0.0.1:9", "--without-spark"], "--without-spark says how a chain is started, and goes"),
        (["--gateway", "127.0.0.1:9", "--users", "2", "--api", "http://127.0.0.1:1"], "--api: nobody answers at"),
        (["--rate", "inf"], "--rate"),
        (["--rate", "nan"], "--rate"),
        (["--rate", "1e300"], "--rate"),
        (["--duration", "10x"], "--duration '10x' is no time such as 200ms, 90s, 10m or 2h"),
        (["--duration", "0"], "--duration 0 is not between 0.1 s and 604800 s"),
        (["--drain", "inf"], "--drain 'inf' is no time"),
        (["--connect", "0.5s"], "--connect 0.5s is not between 1 s"),
        (["--report", "/no/such/folder/load.html"], "--report /no/such/folder/load.html cannot be written: No such"),
        (["--report", ""], "--report . cannot be written: Is a directory"),
        (["--json", "/proc/x.json"], "--json /proc/x.json cannot be written"),
        (["--report", "same", "--json", "./same"], "--report and --json are the same file"),
    ],
)
def test_bad_input_is_refused_with_a_reason(options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["load", *options])
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_the_help_tells_how_many_processes_there_are() -> None:
    (option,) = inspect.signature(command, eval_str=True).parameters["processes"].annotation.__metadata__
    assert f"one for every {_DEVICES_OF_A_PROCESS} devices" in option.help


@pytest.mark.parametrize("option", ["--json", "--report", "--folder"])
def test_a_link_to_itself_is_refused(tmp_path: Path, option: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    result = CliRunner().invoke(app, ["load", option, str(link)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"threadline: {option} {link} cannot be ")


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "left").touch()
    result = CliRunner().invoke(app, ["load", "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not empty" in result.output


def test_without_locust_users_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadline.load.questions.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["load", "--users", "2"])
    assert result.exit_code == 2
    assert "locust is not installed" in result.output
    assert "threadline[bench]" in result.output

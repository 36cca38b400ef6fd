"""The commands of the laboratory, when they are asked for something that makes no sense."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from tests.faults import chaos
from tests.faults.chain.run import Outcome
from tests.faults.simulation.__main__ import parse_seeds
from tests.faults.simulation.runs import Summary, remove_left_behind
from tests.faults.simulation.world import temporary_root
from tests.support.waiting import wait_until


@pytest.mark.parametrize(("text", "seeds"), [("7", range(7, 8)), ("0-99", range(100)), ("5-5", range(5, 6))])
def test_seeds(text: str, seeds: range) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a-b", "9-1", "-3", "1-", "1-2-3"])
def test_what_are_no_seeds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not like 0-99"):
        parse_seeds(text)


def test_a_report_that_cannot_be_written_is_known_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "report.json").mkdir(parents=True)
    for place in ("file", "folder"):
        with pytest.raises(SystemExit) as stopped:
            chaos.main(["--report", str(tmp_path / place), "--layer", "simulation", "--duration", "1s"])
        assert stopped.value.code == 2
        assert "--report" in capsys.readouterr().err


def test_each_report_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert chaos.main(["--layer", "simulation", "--seed", "3"]) == 0
    [report] = (tmp_path / "build" / "chaos").glob("*/report.md")
    assert "1 of 1 simulated runs are good" in report.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def interrupted(seed: int) -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr(chaos, "run_seed", interrupted)
    assert chaos.main(["--layer", "simulation", "--seed", "3", "--report", str(tmp_path)]) == 128 + number
    assert (tmp_path / "report.md").exists()


def test_whatever_goes_wrong_there_is_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "play_chain", Mock(side_effect=OSError("no more processes")))
    with pytest.raises(OSError, match="no more processes"):
        chaos.main(["--layer", "chain", "--seed", "3", "--report", str(tmp_path)])
    assert "no run has come to its end" in (tmp_path / "report.md").read_text()


def test_what_nohup_protects_stays_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def goes_on(seed: int) -> Summary:
        os.kill(os.getpid(), signal.SIGHUP)
        return Summary(seed)

    monkeypatch.setattr(chaos, "run_seed", goes_on)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert chaos.main(["--layer", "simulation", "--seed", "3", "--report", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


KILLED = """
import os, subprocess, sys, time
from pathlib import Path
from tests.faults.chaos import Guard

folder = Path(sys.argv[1])
with Guard() as guard:
    guard.watch(folder)
    os.environ["TMPDIR"] = str(folder / "tmp")
    subprocess.run(["sh", "-c", "trap '' TERM HUP; sleep 600 & echo $!; wait"])
"""


def test_if_it_is_killed_nothing_of_its_run_is_left(tmp_path: Path) -> None:
    """Neither what it has started itself, nor what that has started, nor its disks."""
    folder = tmp_path / "a run"
    (folder / "tmp").mkdir(parents=True)
    (folder / "disk").mkdir()
    is_mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder / "disk")], check=False).returncode == 0
    with subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: not folder.exists(), "the guard has cleared up", 20)
    with suppress(psutil.NoSuchProcess):  # nobody may have taken note of its end
        assert psutil.Process(started).status() == psutil.STATUS_ZOMBIE
    disks = [each.mountpoint for each in psutil.disk_partitions(all=True)]
    assert not is_mounted or not any(each.startswith(str(folder)) for each in disks)


def test_a_run_is_where_the_kernel_says_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else its disks would not be found when it has been killed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    watched: list[Path | None] = []
    monkeypatch.setattr(chaos, "run", Mock(side_effect=OSError("no more processes")))
    with pytest.raises(OSError, match="no more processes"):
        chaos.play_chain(3, tmp_path, Mock(watch=watched.append))
    folder, none = watched
    assert none is None
    assert folder is not None and folder.parent == tmp_path / "real"


def simulated(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.simulation", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def workers_of(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    parent = psutil.Process(process.pid)
    wait_until(lambda: len(parent.children()) == count, "all are at work", 20)
    return parent.children()


def clear_up_after(pid: int) -> None:
    """Remove what a killed process has left."""
    for folder in left_by(pid):
        shutil.rmtree(folder)


def left_by(pid: int) -> list[Path]:
    """The folders of a process that simulates."""
    return list(Path(temporary_root() or tempfile.gettempdir()).glob(f"threadline-faults-{pid}-*"))


def test_a_signal_ends_many_simulated_runs_with_what_was_found() -> None:
    process = simulated("--seeds", "0-99999", "--jobs", "1")
    workers = workers_of(process, 1)
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert out.splitlines()[-1].endswith("passed, 0 failed")
    assert error == ""
    assert [each for each in workers if each.is_running()] == []


def test_if_a_process_of_many_runs_is_killed_what_was_found_is_told() -> None:
    process = simulated("--seeds", "7-99999", "--jobs", "1")
    [worker] = workers_of(process, 1)
    worker.kill()
    out, error = process.communicate(timeout=30)
    clear_up_after(worker.pid)
    assert process.returncode == 1
    *_, lost, found = out.splitlines()
    seeds = [int(each) for each in re.findall(r"\d+", lost)]
    assert "a process was killed" in lost
    assert found == f"{seeds[0] - 7} passed, 0 failed"
    assert error == ""


def test_a_signal_ends_a_single_simulated_run_with_nothing_left() -> None:
    process = simulated("--seed", "2271", "--shrink")
    wait_until(lambda: left_by(process.pid), "it is at work", 20)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert not left_by(process.pid)


def test_what_killed_runs_have_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.simulation.runs.temporary_root", lambda: str(tmp_path))
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    mine, others = f"threadline-faults-{os.getpid()}-x", f"threadline-faults-{gone.pid}-x"
    for name in (mine, others, "something-else"):
        (tmp_path / name / "log").mkdir(parents=True)
    remove_left_behind()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["something-else", mine]


def test_if_the_command_is_killed_its_simulated_runs_end() -> None:
    process = simulated("--seeds", "0-99999", "--jobs", "2")
    workers = workers_of(process, 2)
    process.kill()
    process.communicate()
    gone, left = psutil.wait_procs(workers, timeout=10)
    for each in workers:
        clear_up_after(each.pid)
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in left), "nobody may have taken note of its end"
    assert len(gone) + len(left) == 2


def test_what_a_run_has_forgotten_to_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as Spark's Java, if its driver was killed at the wrong moment."""
    forgotten: list[subprocess.Popen[bytes]] = []

    def interrupted(*_: object) -> None:
        forgotten.append(subprocess.Popen(["sleep", "600"]))
        raise chaos.Interrupted(signal.SIGTERM)

    monkeypatch.setattr(chaos, "run", interrupted)
    with pytest.raises(chaos.Interrupted):
        chaos.play_chain(3, tmp_path, Mock())
    assert not psutil.pid_exists(forgotten[0].pid)


def test_what_cannot_be_killed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(psutil.Process, "kill", lambda _: None)
    monkeypatch.setattr(chaos, "_KILLED_S", 0.1)
    folder = tmp_path / "run"
    folder.mkdir()
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "TMPDIR": str(folder / "tmp")}) as process:
        try:
            chaos.clear(folder)
        finally:
            process.kill()
    assert f"cannot be killed: psutil.Process(pid={process.pid}, name='sleep'" in capsys.readouterr().out
    assert not folder.exists()


@pytest.mark.parametrize("former", [None, "/some/where"])
def test_a_run_leaves_the_place_of_temporary_files_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: str | None
) -> None:
    """Also one that ends before it has begun: its folder cannot be made."""
    if former is None:
        monkeypatch.delenv("TMPDIR", raising=False)
    else:
        monkeypatch.setenv("TMPDIR", former)
    folder = tmp_path / "run"
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(folder))
    monkeypatch.setattr(chaos, "run", lambda *_: Outcome(3))
    folder.mkdir()
    chaos.play_chain(3, tmp_path, Mock())
    assert os.environ.get("TMPDIR") == former
    (folder / "tmp").mkdir(parents=True)
    with pytest.raises(FileExistsError):
        chaos.play_chain(3, tmp_path, Mock())
    assert os.environ.get("TMPDIR") == former
    assert not folder.exists()

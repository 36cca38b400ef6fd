"""threadline-agent run --gateway: what is refused before anything starts, how it ends, and what it leaves on disk."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.agent import Agent
from edge_agent.cli import main
from edge_agent.config import Settings
from edge_agent.spool import Spool
from protocol.records import Declared, Delivery, Gap
from tests.edge_agent.cli.apps import APP, plan_app
from tests.edge_agent.cli.processes import ROOT, started
from tests.edge_agent.spooled import NOWHERE, batches, has_ended, spooled

LIVE = plan_app(
    "def items():\n"
    "        for n in range(10**9):\n"
    "            yield n, n\n"
    "            time.sleep(0.01)\n"
    "    plan.source('s', items, live={live}).map(lambda n: n + 1).sink('k')"
)
CAPTURING = """\
from edge_agent.capture import Task, Workflow

def main(agent):
    with Workflow("w"):
        with Task("t"):
            pass
"""


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said when the command does not even start; nothing is printed then."""
    assert main(["run", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("threadline-agent: ")
    return err.removeprefix("threadline-agent: ").rstrip("\n")


def wait_until_it_runs(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    line = process.stderr.readline()
    assert re.match(r"threadline-agent: agent [a-z0-9-]+ epoch \d+, spool .*, gateway ", line), line


# What is refused


@pytest.mark.parametrize("gateway", ["nonsense", "host:0", "host:99999", "host:", ":"])
def test_an_address_that_is_none(app: Callable[[str], str], capsys: pytest.CaptureFixture[str], gateway: str) -> None:
    assert "gateway" in refusal(capsys, app(APP), "--gateway", gateway)


def test_a_name_that_is_none(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, app(APP), "--gateway", NOWHERE, "--name", "Pump 7")
    assert said == "name 'Pump 7': 1 to 23 small letters, digits and dashes are allowed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flush = 3", "there is no setting 'flush', only name, gateway, "),
        ("qos = 'high'", "qos is a whole number, not 'high'"),
        ("qos = 7", "qos is 0, 1 or 2, not 7"),
        ("when_full = 'panic'", "when_full is drop-oldest or block, not 'panic'"),
        ("name =", "Invalid value"),
    ],
)
def test_a_config_file_that_cannot_be_used(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    assert said in refusal(capsys, app(APP), "--gateway", NOWHERE, "--config", str(path))


def test_a_config_file_that_is_not_there(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, app(APP), "--config", "nowhere.toml")
    assert said == "nowhere.toml cannot be read: No such file or directory"


@pytest.mark.parametrize("option", [["--name", "pump-7"], ["--spool", "somewhere"]])
def test_options_of_an_agent_need_a_gateway(
    app: Callable[[str], str], capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    said = refusal(capsys, app(APP), *option)
    assert said == f"{option[0]} is for an agent, and there is no gateway: give --gateway HOST:PORT"


@pytest.mark.parametrize("option", [["--sink", "stops"], ["--limit", "1"], ["--format", "json"]])
def test_options_of_a_run_without_a_gateway(
    app: Callable[[str], str], capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    said = refusal(capsys, app(APP), "--gateway", NOWHERE, *option)
    assert said == f"{option[0]} is for a run without a gateway: with one, nothing is printed"


def test_a_spool_that_somebody_else_uses(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Spool.open(tmp_path / "spool" / "up"):
        said = refusal(capsys, app(APP), "--gateway", NOWHERE, "--spool", str(tmp_path / "spool"))
    assert "spool" in said and "process" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "defines neither build() nor main(agent)"),
        ("def build(): return 3\n", "build() returned an int, not a Plan"),
        ("main = 3\n", "main is an int, not a function"),
    ],
)
def test_an_app_that_is_none(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert said in refusal(capsys, app(text), "--gateway", NOWHERE, "--spool", str(tmp_path / "spool"))
    assert not (tmp_path / "spool").exists()


def test_a_plan_that_sends_to_its_own_agent(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plan_app("plan.source('s', []).send('x', to=['hub'])")
    said = refusal(capsys, app(text), "--gateway", NOWHERE, "--name", "hub", "--spool", str(tmp_path / "spool"))
    assert said == "operator 'x': agent 'hub' cannot send to itself"


# How it ends


def run(path: str, folder: Path, *options: str) -> tuple[int, str]:
    """The exit code and what was said, of a run that ends by itself. Nobody acknowledges anything."""
    command = ("run", path, "--gateway", NOWHERE, "--name", "pump-7", "--spool", str(folder), "--drain", "0", *options)
    with started(*command) as process:
        out, err = process.communicate(timeout=30)
    assert out == ""
    return process.returncode, err


def test_a_plan_that_ends(app: Callable[[str], str], tmp_path: Path) -> None:
    code, err = run(app(APP), tmp_path / "spool")
    assert code == 0
    assert f"agent pump-7 epoch 1, spool {tmp_path / 'spool'}, gateway {NOWHERE}" in err
    count = len(batches(tmp_path / "spool"))
    assert f" {count} not acknowledged yet: they stay in {tmp_path / 'spool'} for the next start" in err
    records = spooled(tmp_path / "spool", "pump-7")
    assert isinstance(records[0], Declared) and has_ended(records)
    assert len([each for each in records if isinstance(each, Delivery)]) == 6


def test_the_next_run_is_the_next_epoch_and_knows_that_the_last_one_has_ended(
    app: Callable[[str], str], tmp_path: Path
) -> None:
    path = app(APP)
    run(path, tmp_path / "spool")
    before = len(batches(tmp_path / "spool"))
    _, err = run(path, tmp_path / "spool")
    count = len(batches(tmp_path / "spool"))
    assert "agent pump-7 epoch 2," in err
    assert count > before and f" {count} not acknowledged yet" in err
    assert not any(isinstance(each, Gap) for each in spooled(tmp_path / "spool", "pump-7"))


def test_an_app_that_only_captures(app: Callable[[str], str], tmp_path: Path) -> None:
    code, _ = run(app(CAPTURING), tmp_path / "spool")
    records = spooled(tmp_path / "spool", "pump-7")
    assert code == 0
    assert len([each for each in records if hasattr(each, "number")]) == 4
    assert has_ended(records) and not isinstance(records[0], Declared)


def test_an_app_with_a_plan_and_a_main(app: Callable[[str], str], tmp_path: Path) -> None:
    code, _ = run(app(APP + CAPTURING), tmp_path / "spool")
    records = spooled(tmp_path / "spool", "pump-7")
    assert code == 0
    assert len([each for each in records if hasattr(each, "number")]) == 4
    assert len([each for each in records if isinstance(each, Delivery)]) == 6
    assert has_ended(records)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (plan_app("plan.source('s', [(1, 0)]).map(lambda n: 1 // n).sink('k')"), 1, "ZeroDivisionError"),
        (plan_app("plan.source('s', lambda: 1 // 0).sink('k')"), 1, "ZeroDivisionError"),
        (plan_app("plan.source('s').sink('k')"), 2, "operator 's': has no items"),
        (plan_app("plan.source('s', [(1, 1)]).sink('k', lambda n: exit(7))"), 1, "the app called sys.exit(7)"),
        ("def main(agent): raise ValueError('no sensor')\n", 1, "the app raised ValueError: no sensor"),
        ("import sys\ndef main(agent): sys.exit(3)\n", 1, "the app called sys.exit(3), which ended the run"),
    ],
    ids=["function", "source", "no items", "exit in a sink", "main", "exit in main"],
)
def test_an_app_that_fails_ends_cleanly_all_the_same(
    app: Callable[[str], str], tmp_path: Path, text: str, code: int, said: str
) -> None:
    found, err = run(app(text), tmp_path / "spool")
    assert found == code
    assert said in err
    assert "not acknowledged yet" in err.splitlines()[-1]
    assert has_ended(spooled(tmp_path / "spool", "pump-7"))


def test_an_error_of_main_is_told_with_its_place_and_all_of_it_if_asked_for(
    app: Callable[[str], str], tmp_path: Path
) -> None:
    path = app("import json\n\ndef read():\n    json.loads('no sensor')\n\ndef main(agent):\n    read()\n")
    _, err = run(path, tmp_path / "spool")
    assert f"threadline-agent: {path}:4: the app raised JSONDecodeError: " in err
    assert "Traceback" not in err
    _, err = run(path, tmp_path / "spool", "--traceback")
    assert "Traceback" in err and f"{path}:4: the app raised JSONDecodeError: " in err


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_records_that_a_full_disk_did_not_take_are_told(
    app: Callable[[str], str], tmp_path: Path, number: signal.Signals | None
) -> None:
    text = (
        "import os, resource, sys, time\n"
        "from edge_agent.capture import Data, Task, Workflow\n"
        "def main(agent):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "    with Workflow('w') as workflow:\n"
        "        for _ in range(500):\n"
        "            Task('t', workflow).begin(Data('d', 'w', os.urandom(300)))\n"
        "    print('captured', flush=True)\n"
        f"    time.sleep({0 if number is None else 3600})\n"
    )
    spool = tmp_path / "spool"
    command = ("run", app(text), "--gateway", NOWHERE, "--name", "pump-7", "--spool", str(spool), "--drain", "0")
    with started(*command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "captured\n"
        if number is not None:
            process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == (1 if number is None else 143)
    found = re.search(r", 0 records dropped, (\d+) records could not be written: they are lost; \d+ not ackn", err)
    assert found is not None, err
    with Agent(Settings(name="pump-7", gateway=NOWHERE, spool=str(spool))) as after:
        after.close(0.0)
    kept = [each for each in spooled(spool, "pump-7") if hasattr(each, "number")]
    assert len(kept) + int(found[1]) == 502


@pytest.mark.parametrize(
    ("number", "code", "text"),
    [
        (signal.SIGTERM, 143, LIVE.format(live=True)),
        (signal.SIGINT, 130, LIVE.format(live=False)),
        (signal.SIGTERM, 143, plan_app("plan.receive('x', 'car-7').sink('k')")),
        (signal.SIGTERM, 143, "import time\ndef main(agent): time.sleep(3600)\n"),
        (signal.SIGINT, 130, LIVE.format(live=True) + "def main(agent): time.sleep(3600)\n"),
    ],
    ids=["live source", "source", "receive", "main", "main and plan"],
)
def test_a_signal_ends_it_cleanly(
    app: Callable[[str], str], tmp_path: Path, number: signal.Signals, code: int, text: str
) -> None:
    command = ("run", app(text), "--gateway", NOWHERE, "--name", "pump-7", "--spool", str(tmp_path / "spool"))
    with started(*command, "--drain", "0.2") as process:
        wait_until_it_runs(process)
        time.sleep(0.2)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    lines = err.splitlines()
    assert f"threadline-agent: stopped by {number.name}" in lines
    assert re.fullmatch(r"threadline-agent: \d+ batch(es)?, 0 records dropped; \d+ not acknowledged yet: .*", lines[-1])
    records = spooled(tmp_path / "spool", "pump-7")
    assert has_ended(records)
    numbers = [each.payload for each in records if isinstance(each, Delivery)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_signal_does_not_cut_a_tuple_off_on_its_way(app: Callable[[str], str], tmp_path: Path) -> None:
    text = plan_app(
        "def items():\n"
        "        yield 1, 1\n"
        "        time.sleep(3600)\n"
        "    def slow(n):\n"
        "        print('in', flush=True)\n"
        "        time.sleep(0.7)\n"
        "        return n\n"
        "    plan.source('s', items, live=True).map(slow).sink('k')"
    )
    command = ("run", app(text), "--gateway", NOWHERE, "--name", "pump-7", "--spool", str(tmp_path / "spool"))
    with started(*command, "--drain", "0") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 143
    records = spooled(tmp_path / "spool", "pump-7")
    assert [each.payload for each in records if isinstance(each, Delivery)] == [1]
    assert has_ended(records)


def test_a_signal_that_comes_while_python_forgets_exceptions_still_ends_it(
    app: Callable[[str], str], tmp_path: Path
) -> None:
    """What a finaliser raises is printed and dropped."""
    text = (
        "import time\n"
        "class Last:\n"
        "    def __del__(self): time.sleep(1.0)\n"
        "def main(agent):\n"
        "    print('now', flush=True)\n"
        "    last = Last()\n"
        "    del last\n"
        "    time.sleep(3600)\n"
    )
    command = ("run", app(text), "--gateway", NOWHERE, "--name", "pump-7", "--spool", str(tmp_path / "spool"))
    with started(*command, "--drain", "0.2") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "Exception ignored" in err and "threadline-agent: stopped by SIGTERM" in err.splitlines()


def test_a_second_signal_does_not_wait_for_acknowledgements(app: Callable[[str], str], tmp_path: Path) -> None:
    command = ("run", app(LIVE.format(live=True)), "--gateway", NOWHERE, "--spool", str(tmp_path / "spool"))
    with started(*command, "--drain", "600") as process:
        wait_until_it_runs(process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "stopped by SIGTERM" not in process.stderr.readline():
            pass
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 143


def test_after_a_kill_the_next_run_says_so(app: Callable[[str], str], tmp_path: Path) -> None:
    path = app(LIVE.format(live=True))
    command = ("run", path, "--gateway", NOWHERE, "--name", "pump-7", "--spool", str(tmp_path / "spool"))
    with started(*command) as process:
        wait_until_it_runs(process)
        time.sleep(0.6)
        process.kill()
        process.communicate(timeout=30)
    (Path(path)).write_text(APP)
    run(path, tmp_path / "spool")
    [gap] = [each for each in spooled(tmp_path / "spool", "pump-7") if isinstance(each, Gap)]
    assert gap.reason.startswith("crash") and gap.epoch == 1
    assert dict(gap.next_seqs)["k"] > 5


def test_the_guides_name_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    codes = re.findall(r"^ {4}(\d+)(?: or (\d+))?  ", capsys.readouterr().out, re.MULTILINE)
    told = {code for line in codes for code in line if code}
    assert told == {"0", "1", "2", "130", "143", "141"}
    for name in ("agents.md", "stream.md"):
        table = re.search(r"^\| exit code \|.*?\n\n", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL)
        assert table is not None, name
        assert set(re.findall(r"\d+", " ".join(re.findall(r"^\| ([\d, ]+) \|", table[0], re.MULTILINE)))) == told


def test_the_guide_names_every_setting_with_its_default() -> None:
    guide = (ROOT / "docs" / "agents.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", guide, re.MULTILINE))
    assert list(told) == list(Settings.__match_args__)
    for name, default in told.items():
        if name not in ("name", "gateway", "spool"):
            assert str(getattr(Settings(), name)).lower() == default.strip('"'), name

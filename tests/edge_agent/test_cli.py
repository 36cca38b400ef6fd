"""The threadline-agent command, as its user meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from edge_agent import app_file, cli, report
from edge_agent.cli import main
from edge_agent.stream import Plan, run
from protocol.plan import PlanDocument
from protocol.plan_picture import to_dot, to_text

APP = """\
from dataclasses import dataclass
from typing import NamedTuple
from edge_agent.stream import Count, Last, Plan

@dataclass
class Report:
    car: str
    speed: int

class Stop(NamedTuple):
    car: str
    reports: int

def reports():
    for second in range(8):
        yield second * 1_000, Report("ab"[second % 2], second % 2 * 50)

def build():
    plan = Plan("stops")
    source = plan.source("reports", reports)
    standing = source.filter(lambda report: report.speed == 0)
    standing.key_by("car").window(4_000).aggregate(Count(), into=Stop).sink("stops")
    source.filter(lambda report: report.speed > 0).sink("moving")
    return plan
"""
QUERIES = Path(cli.__file__).parent / "queries"


@pytest.fixture(autouse=True)
def _nothing_stays_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.setattr(app_file, "_loaded", {})
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def app(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "traffic_app.py"
        path.write_text(text)
        return str(path)

    return write


def plan_app(body: str) -> str:
    """An app file whose build() fills `plan`."""
    return (
        "import time\nfrom edge_agent.stream import *\nfrom edge_agent.stream import IDLE, Watermark\n"
        f"def build():\n    plan = Plan('p')\n    {body}\n    return plan\n"
    )


def test_a_plan_in_every_form(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    path = app(APP)
    assert main(["plan", path]) == 0
    text = capsys.readouterr().out
    assert text.startswith("stops: 7 operators, provenance segments\n")
    assert re.search(r"reports -> stops +4 s \(4000 ms\)", text)
    assert main(["plan", path, "--format", "json"]) == 0
    document = PlanDocument.from_json(capsys.readouterr().out)
    assert document.nodes[0].functions == {"items": "traffic_app:reports"}
    assert to_text(document) == text
    assert main(["plan", path, "--format", "dot"]) == 0
    assert capsys.readouterr().out == to_dot(document)
    assert main(["plan", path, "--format", "svg"]) == 0
    assert ElementTree.fromstring(capsys.readouterr().out).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize(
    ("options", "beginning"),
    [
        (["--output", "plan.txt"], "stops: 7 operators"),
        (["--output", "plan.SVG"], "<svg "),
        (["--output", "plan.dot"], "digraph "),
        (["--output", "plan.json"], '{"name":'),
        (["--output", "plan.svg", "--format", "dot"], "digraph "),
    ],
)
def test_a_plan_into_a_file(
    app: Callable[[str], str],
    options: list[str],
    beginning: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", app(APP), *options]) == 0
    assert Path(options[1]).read_text().startswith(beginning)
    assert capsys.readouterr() == ("", "")


def test_deliveries_are_printed_with_their_causes(
    app: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", app(APP), "--sink", "stops"]) == 0
    out, err = capsys.readouterr()
    first, second, rest = out.split("\n\n")
    assert rest == ""
    assert re.sub(r"@0:\d+", "@0:*", first).splitlines() == [
        "local/stops@0:*  at 4000",
        "  Stop(car='a', reports=2)",
        "  from 2 readings:",
        "    local/reports@0:*  at 0  Report(car='a', speed=0)",
        "    local/reports@0:*  at 2000  Report(car='a', speed=0)",
    ]
    assert second.startswith("local/stops@0:1  at 8000\n")
    assert err == "threadline-agent: taken 8, delivered 6 (2 shown), late 0, skipped 0\n"


def test_deliveries_as_lines_of_json(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", app(APP), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["sink"], line["ts"]) for line in lines if line["sink"] == "stops"] == [
        ("stops", 4_000),
        ("stops", 8_000),
    ]
    (stop, _), moving = (
        [line for line in lines if line["sink"] == "stops"],
        next(line for line in lines if line["sink"] == "moving"),
    )
    assert stop["id"] == "local/stops@0:0"
    assert stop["payload"] == {"car": "a", "reports": 2}
    assert [(source["kind"], source["ts"], source["payload"]) for source in stop["sources"]] == [
        ("source", 0, {"car": "a", "speed": 0}),
        ("source", 2_000, {"car": "a", "speed": 0}),
    ]
    assert moving["payload"] == moving["sources"][0]["payload"] == {"car": "b", "speed": 50}
    assert err == "threadline-agent: taken 8, delivered 6, late 0, skipped 0\n"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("mode", ["none", "genealog", "segments"])
def test_provenance_can_be_chosen(
    app: Callable[[str], str], capsys: pytest.CaptureFixture[str], mode: str, form: str
) -> None:
    assert main(["run", app(APP), "--provenance", mode, "--format", form, "--sink", "stops"]) == 0
    out = capsys.readouterr().out
    assert ("sources" in out or "from 2 readings" in out) == (mode != "none")
    assert ("local/reports@0" in out) == (mode != "none")


def test_a_limit_stops_the_run(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    endless = plan_app("import itertools; plan.source('s', lambda: ((n, n) for n in itertools.count())).sink('k')")
    assert main(["run", app(endless), "--limit", "3", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["payload"] for line in out.splitlines()] == [0, 1, 2]
    assert re.fullmatch(
        r"threadline-agent: stopped after 3 deliveries: taken \d+, delivered 3, late 0, skipped 0\n", err
    )


def test_what_was_left_out_is_counted(app: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    body = (
        "plan = Plan('p', on_error='skip')\n"
        "    items = [(5, 1), (3, 0), Watermark(9), (8, 0), (10, 0), IDLE, (11, 1)]\n"
        "    plan.source('s', items).map(lambda n: 1 // n).sink('k')"
    )
    assert main(["run", app(plan_app(body))]) == 0
    assert capsys.readouterr().err == (
        "threadline-agent: taken 5, delivered 2, late 2, skipped 1\n"
        "threadline-agent: first late at 's': 0 at 3, when time had reached 5\n"
        "threadline-agent: first skipped at operator 'map-1': traffic_app:build.<locals>.<lambda> on 0: "
        "ZeroDivisionError: integer division or modulo by zero\n"
    )


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


def test_a_plan_that_cannot_be_written(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", app(APP), "--output", str(tmp_path / "no" / "where.svg")]) == 2
    assert re.fullmatch(
        r"threadline-agent: .*where\.svg cannot be written: No such file or directory\n", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["run"], "the following arguments are required: APP.py"),
        (["run", "x.py", "--limit", "0"], "'0' is not a positive whole number"),
        (["run", "x.py", "--limit", "many"], "'many' is not a positive whole number"),
        (["run", "x.py", "--provenance", "magic"], "invalid choice: 'magic'"),
        (["plan", "x.py", "--format", "png"], "invalid choice: 'png'"),
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
        (["--help"], ["plan", "run", "def build():", "exit code"]),
        (["plan", "--help"], ["APP.py", "--format", "--output", "svg"]),
        (["run", "--help"], ["APP.py", "--provenance", "--sink", "--limit", "--format", "genealog"]),
    ],
)
def test_help_helps(capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for word in words:
        assert word in out


class Odd:
    def __repr__(self) -> str:
        return "odd\n\x1b[2J"


class Mute:
    def __repr__(self) -> str:
        raise ValueError


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("payload", "text", "plain"),
    [
        (None, "None", None),
        ("\u00fc\n", "'\u00fc\\n'", "\u00fc\n"),
        (1.5, "1.5", 1.5),
        (float("nan"), "nan", "nan"),
        (2**80, str(2**80), 2**80),
        ({"a": (1, {2})}, "{'a': (1, {2})}", {"a": [1, "{2}"]}),
        ({(1, 2): b"x"}, "{(1, 2): b'x'}", {"(1, 2)": "b'x'"}),
        (Odd(), "odd\\n\\x1b[2J", "odd\\n\\x1b[2J"),
        (Mute(), "<Mute whose repr raised ValueError>", "<Mute whose repr raised ValueError>"),
        ("x" * 600, "'" + "x" * 499 + "... (602 characters)", "x" * 600),
    ],
)
def test_any_payload_can_be_printed(payload: Any, text: str, plain: Any) -> None:
    plan = Plan("p")
    plan.source("s", [(1_700_000_000_123, payload)]).sink("k")
    (delivery,) = run(plan).deliveries
    assert report.text_block(delivery, True) == (
        f"local/k@0:0  at 1700000000123 (2023-11-14 22:13:20.123 UTC)\n  {text}\n  from 1 reading:\n"
        f"    local/s@0:0  at 1700000000123 (2023-11-14 22:13:20.123 UTC)  {text}\n\n"
    )
    line = json.loads(report.json_line(delivery, True))
    assert line["payload"] == line["sources"][0]["payload"] == plain


@dataclass
class Broken:
    field: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "field":
            raise OSError("gone")
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        return "broken"


def test_a_payload_that_json_cannot_take_is_shown_instead() -> None:
    thrice: list[Any] = []
    thrice.extend([thrice, thrice, thrice])
    assert report._plain(thrice) == ["[[...], [...], [...]]"] * 3
    assert "int" in report._plain(10**5000)
    assert report._plain([Broken()]) == ["broken"]
    assert report._plain({1: "a", "1": "b"}) == "{1: 'a', '1': 'b'}"


def test_an_app_that_exits_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "leaving.py"
    app.write_text(plan_app("import sys; plan.source('s', [(1, 1)]).map(lambda v: sys.exit(0)).sink('k')"))
    assert main(["run", str(app)]) == 1
    assert "sys.exit(0)" in capsys.readouterr().err


def test_the_first_late_tuple_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "late.py"
    app.write_text(plan_app("plan.source('s', [(5, 'a'), (3, 'b'), (4, 'c')]).sink('k')"))
    assert main(["run", str(app)]) == 0
    err = capsys.readouterr().err
    assert "late 2" in err
    assert "first late at 's': 'b' at 3, when time had reached 5" in err


def test_a_plan_that_cannot_be_written_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tmp_path / "app.py"
    app.write_text(plan_app("plan.source('s', []).sink('k')"))
    picture = tmp_path / "plan.svg"
    picture.write_text("old")

    def full(self: Path, text: str, encoding: str) -> int:
        with self.open("w") as out:
            out.write(text[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        assert main(["plan", str(app), "--output", str(picture)]) == 2
    assert picture.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".pyc") == ["app.py", "plan.svg"]
    assert main(["plan", str(app), "--output", str(picture)]) == 0
    assert picture.read_text().startswith("<svg")


def test_closed_streams_are_no_reason_for_a_traceback(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(plan_app("plan.source('s', [(1, 1)]).sink('k')"))
    command = f"{sys.executable} -m edge_agent.cli run {app} >&-"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, cwd=Path(cli.__file__).parent.parent
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_payload_too_deep_for_json_is_cut() -> None:
    line = report._plain(nested(50))
    for _ in range(20):
        (line,) = line
    assert line == repr(nested(30))
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    assert "[[...]]" in json.dumps(report._plain(round_and_round))


@pytest.mark.parametrize("query", sorted(path.name for path in QUERIES.glob("[a-z]*_*_*.py")))
def test_every_cause_is_shown_with_what_it_said(query: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(QUERIES / query), "--format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines
    assert all("payload" in source for line in lines for source in line["sources"])


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edge_agent.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(cli.__file__).parent.parent,
        env=os.environ | environment,
    )


SLOW = plan_app(
    "def items():\n"
    "        for n in range(10**9):\n"
    "            yield n, n\n"
    "            if n >= 3: time.sleep(3600)\n"
    "    plan.source('s', items, live={live}).sink('k')"
)
BUSY = plan_app("plan.source('s', lambda: ((n, n) for n in range(10**9))).filter(lambda n: n < 4).sink('k')")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("text", [SLOW.format(live=True), BUSY], ids=["waiting", "busy"])
def test_a_signal_stops_cleanly(app: Callable[[str], str], number: signal.Signals, code: int, text: str) -> None:
    with start("run", app(text), "--format", "json") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert [json.loads(line)["payload"] for line in lines] == [0, 1, 2, 3]
    assert out == ""
    assert process.returncode == code
    assert re.fullmatch(
        rf"threadline-agent: stopped by {number.name}: taken \d+, delivered 4, late 0, skipped 0\n", err
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_signal_cuts_no_line(app: Callable[[str], str], unbuffered: str) -> None:
    text = plan_app("plan.source('s', lambda: ((n, 'x' * 9000) for n in range(10**9))).sink('k')")
    with start("run", app(text), "--format", "json", PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)  # it now waits for the pipe to be read, in the middle of a line
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        out = process.stdout.read()
    assert process.returncode == 143
    assert out.endswith("}\n")
    for line in out.splitlines():
        json.loads(line)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_second_signal_does_not_wait_for_the_reader(app: Callable[[str], str], unbuffered: str) -> None:
    text = plan_app("plan.source('s', lambda: ((n, 'x' * 900) for n in range(10**9))).sink('k')")
    with start("run", app(text), PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        process.wait(timeout=30)
    assert process.returncode == 130


def test_a_signal_while_the_app_is_loaded_is_no_traceback(app: Callable[[str], str], tmp_path: Path) -> None:
    text = f"import pathlib, time\npathlib.Path({str(tmp_path / 'loading')!r}).touch()\ntime.sleep(3600)\n"
    with start("plan", app(text)) as process:
        while not (tmp_path / "loading").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(app: Callable[[str], str], command: str, unbuffered: str) -> None:
    # Either way it has more to say than a pipe holds.
    text = plan_app(
        "stream = plan.source('s', lambda: ((n, n) for n in range(10**9)))\n"
        "    for n in range(1000): stream.filter(lambda _: True).sink(f'sink-with-a-long-name-{n}')"
    )
    with start(command, app(text), PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=30)
    assert (process.returncode, err) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_in_one_line(app: Callable[[str], str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "edge_agent.cli", "run", app(APP)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(cli.__file__).parent.parent,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == "threadline-agent: the output cannot be written: No space left on device\n"


def test_any_text_fits_any_terminal(app: Callable[[str], str]) -> None:
    path = app(plan_app("plan.source('s', [(1, '\\u8eca\\ud800')]).sink('\\u00fc')"))
    for form in ("text", "json"):
        with start("run", path, "--format", form, PYTHONIOENCODING="ascii") as process:
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert "\\u8eca" in out
        assert "\\ud800" in out


def test_the_command_starts_light() -> None:
    code = "import sys; import edge_agent.cli; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(cli.__file__).parent.parent,
        check=True,
        timeout=60,
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"edge_agent.stream", "protocol.plan", "json", "asyncio", "dataclasses", "inspect", "typer"}

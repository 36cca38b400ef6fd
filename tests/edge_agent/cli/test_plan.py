"""threadline-agent plan: every form of a plan, to the standard output or into a file."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edge_agent.cli import main
from protocol.plan import PlanDocument
from protocol.plan_picture import to_dot, to_text
from tests.edge_agent.cli.apps import APP
from tests.edge_agent.cli.processes import in_shell


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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/where.svg", "No such file or directory"),
        ("traffic_app.py/where.svg", "Not a directory"),
        ("x" * 300, "File name too long"),
        (".", "Is a directory"),
    ],
)
def test_a_plan_that_cannot_be_written(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    output = tmp_path / name
    assert main(["plan", app(APP), "--output", str(output)]) == 2
    assert capsys.readouterr() == ("", f"threadline-agent: {output} cannot be written: {reason}\n")


def test_a_name_may_be_as_long_as_any(app: Callable[[str], str], tmp_path: Path) -> None:
    picture = tmp_path / ("x" * 251 + ".svg")
    assert main(["plan", app(APP), "--output", str(picture)]) == 0
    assert picture.read_text().startswith("<svg")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_plan_that_does_not_fit_leaves_the_old_file(app: Callable[[str], str], tmp_path: Path) -> None:
    path, picture = app(APP), tmp_path / "plan.svg"
    picture.write_text("old")
    done = in_shell('ulimit -f 0; "$@"', "plan", path, "--output", str(picture), PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 2
    assert done.stderr == f"threadline-agent: {picture} cannot be written: File too large\n"
    assert picture.read_text() == "old"
    assert files(tmp_path) == ["plan.svg", "traffic_app.py"]


def test_a_signal_leaves_the_old_file(
    app: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, picture = app(APP), tmp_path / "plan.svg"
    picture.write_text("old")
    monkeypatch.setattr(Path, "replace", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert main(["plan", path, "--output", str(picture)]) == 143
    assert picture.read_text() == "old"
    assert files(tmp_path) == ["plan.svg", "traffic_app.py"]


@pytest.mark.parametrize("mode", [0o600, 0o666, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode(app: Callable[[str], str], tmp_path: Path, mode: int) -> None:
    picture = tmp_path / "plan.svg"
    picture.touch()
    picture.chmod(mode)
    assert main(["plan", app(APP), "--output", str(picture)]) == 0
    assert picture.read_text().startswith("<svg")
    assert stat.S_IMODE(picture.stat().st_mode) == mode


def test_no_other_file_is_touched(
    app: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = app(APP), tmp_path / "plan.svg"
    others = [tmp_path / ".plan.svg.new", tmp_path / ("." + "00" * 8)]
    for other in others:
        other.write_text("mine")
    assert main(["plan", path, "--output", str(picture)]) == 0
    picture.write_text("old")
    monkeypatch.setattr(os, "urandom", bytes)  # the name of the second one
    assert main(["plan", path, "--output", str(picture)]) == 2
    assert capsys.readouterr().err == f"threadline-agent: {picture} cannot be written: File exists\n"
    assert picture.read_text() == "old"
    assert [other.read_text() for other in others] == ["mine", "mine"]


def test_what_is_no_plain_file_is_written_to(app: Callable[[str], str], tmp_path: Path) -> None:
    link = tmp_path / "link.svg"
    link.symlink_to("plan.svg")
    assert main(["plan", app(APP), "--output", str(link)]) == 0
    assert link.is_symlink()
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")
    done = in_shell('"$@" | cat', "plan", app(APP), "--output", "/dev/stdout")
    assert (done.stdout.splitlines()[0], done.stderr) == ("stops: 7 operators, provenance segments", "")

"""threadline-agent plan: every form of a plan, to the standard output or into a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edge_agent.cli import main
from protocol.plan import PlanDocument
from protocol.plan_picture import to_dot, to_text
from tests.edge_agent.cli.apps import APP, plan_app


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


def test_a_plan_that_cannot_be_written(
    app: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", app(APP), "--output", str(tmp_path / "no" / "where.svg")]) == 2
    assert re.fullmatch(
        r"threadline-agent: .*where\.svg cannot be written: No such file or directory\n", capsys.readouterr().err
    )


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

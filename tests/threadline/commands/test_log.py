"""`threadline log verify` ends with 0 if a log is sound, 1 if it is damaged, 2 if it cannot be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.collector.agents import FakeAgent, Shard
from threadline.cli import app

AGENT = FakeAgent()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two segments."""
    shard = Shard(tmp_path / "log")
    shard.take(AGENT, AGENT.framed(0))
    shard.reopen()
    shard.take(AGENT, AGENT.framed(1))
    shard.close()
    return shard.folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def refused(result: Result, told: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("threadline: ") and result.stderr.count("\n") == 1 and told in result.stderr


def test_a_sound_log(log: Path) -> None:
    result = run("log", "verify", str(log))
    assert result.exit_code == 0 and result.stdout.endswith("bytes: sound\n")


def test_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name in ("none", "file", "folder"):
        refused(run("log", "verify", str(tmp_path / name)), f"{tmp_path / name} is no log")
    refused(run("log", "verify", str(tmp_path / ("x" * 300))), "File name too long")


FILES = [f"shard-05/{name}" for name in ("000000000001.arrows", "000000000002.arrows", "000000000001.end", "position")]


@pytest.mark.parametrize("name", [*FILES, "registry.db", "id"])
@pytest.mark.parametrize("what", ["empty", "folder"])
def test_damage_is_a_line_each(log: Path, name: str, what: str) -> None:
    (log / name).unlink()
    (log / name).mkdir() if what == "folder" else (log / name).touch()
    result = run("log", "verify", str(log))
    assert result.exit_code == 1 and not result.stderr, result.output
    *lines, total = result.stdout.splitlines()
    assert any(str(log / name) in line for line in lines)
    assert total.endswith(": 1 faults")
    if what == "folder" and name in FILES:
        refused(run("log", "dump", str(log)), f"{log / name} cannot be read: Is a directory")


@pytest.mark.parametrize("name", ["registry.db", "id"])
def test_translate_does_not_go_on_with_what_verify_calls_damaged(log: Path, name: str) -> None:
    content = bytearray((log / name).read_bytes())
    content[20] ^= 4
    for changed in (bytes(content), b""):
        (log / name).write_bytes(changed)
        assert run("log", "verify", str(log)).exit_code == 1
        refused(run("translate", "--log", str(log)), str(log / name))

"""`threadline store check` ends with 0 if a store is sound, 1 if it is damaged, 2 if it cannot be looked at."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collector.store import check as store_check
from tests.collector.store.graphs import QuickWriter
from threadline.cli import app


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty store."""
    QuickWriter(tmp_path / "graph.db").close()
    return tmp_path / "graph.db"


def check(path: Path) -> Result:
    return CliRunner().invoke(app, ["store", "check", f"sqlite:///{path}"])


def refused(path: Path, told: str) -> None:
    result = check(path)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("threadline: ") and result.stderr.count("\n") == 1 and told in result.stderr


def test_a_sound_store(store: Path) -> None:
    assert (check(store).exit_code, check(store).stdout) == (0, f"{store} is sound\n")


@pytest.mark.parametrize("at", [0, 16, 8_192])
def test_a_damaged_store(store: Path, at: int) -> None:
    """Also if nothing in it can be read any more."""
    content = store.read_bytes()
    store.write_bytes(content[:at] + b"damage" + content[at + 6 :])
    result = check(store)
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert result.stdout and "is sound" not in result.stdout


def test_what_is_no_store(tmp_path: Path) -> None:
    refused(tmp_path / "none.db", "none.db is not there yet")
    refused(tmp_path / "none" / "graph.db", "graph.db is not there yet")
    (tmp_path / "empty.db").touch()
    refused(tmp_path / "empty.db", "empty.db is empty")
    refused(tmp_path, "is a folder")
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    refused(tmp_path / "other.db", "is a database of something else")


@pytest.mark.parametrize(("version", "told"), [(4, "a writer brings it up to date"), (99, "by a newer version")])
def test_a_store_of_another_version(store: Path, version: int, told: str) -> None:
    with sqlite3.connect(store, isolation_level=None) as db:
        db.execute(f"PRAGMA user_version={version}")
    refused(store, told)


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("it is as it is")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), 2),
        (sqlite_error(sqlite3.SQLITE_LOCKED), 2),
        (sqlite_error(sqlite3.SQLITE_FULL), 2),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), 2),
        (sqlite_error(sqlite3.SQLITE_IOERR_NOMEM), 2),
        (MemoryError(), 2),
        (sqlite_error(sqlite3.SQLITE_IOERR_READ), 1),
        (sqlite_error(sqlite3.SQLITE_CORRUPT), 1),
    ],
)
def test_what_keeps_from_looking_is_no_damage(
    store: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int
) -> None:
    """But what a bad sector has held is gone."""

    def failing(*_: object) -> Iterator[str]:
        raise error

    monkeypatch.setattr(store_check, "wrong_sums", failing)
    result = check(store)
    assert (result.exit_code, bool(result.stdout)) == (exit_code, exit_code == 1)
    assert result.stderr.startswith(f"threadline: {store}: ") == (exit_code == 2)


def test_its_help_says_how_it_ends() -> None:
    told = " ".join(CliRunner().invoke(app, ["store", "check", "--help"]).stdout.split())
    assert "Ends with 0 if it is sound, 1 if it is damaged, 2 if it cannot be looked at" in told

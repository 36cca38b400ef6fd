"""`threadline spark`: what it says when something is wrong, and what it does beside Spark."""

from __future__ import annotations

import errno
import shutil
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collector.log import ShardWriter, log_id
from collector.store import StoreUnavailable, open_store
from protocol.graph import GraphBatch
from spark_jobs.checkpoint import opened
from threadline import spark
from threadline.cli import app
from threadline.spark import PatientWriter, SparkOptions


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("spark", *arguments))


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("threadline: "), result.output
    for word in words:
        assert word in result.stderr, result.output


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    ShardWriter(tmp_path / "log", 0).close()
    return [
        *("--log", str(tmp_path / "log"), "--store", f"sqlite:///{tmp_path / 'graph.db'}"),
        *("--checkpoint", str(tmp_path / "checkpoint")),
    ]


def test_a_log_that_is_not_there_is_told(tmp_path: Path, options: list[str]) -> None:
    refused(run(*options, "--log", str(tmp_path / "none")), "there is no log in", "threadline translate")
    refused(run(*options, "--log", str(tmp_path)), "there is no log in", "threadline translate")


def test_folders_that_may_not_be_entered_are_told(
    tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(path: Path, *_: object, **__: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", deny)
        refused(run(*options), f"the log in {tmp_path / 'log'} cannot be read: Permission denied")
    monkeypatch.setattr(Path, "is_dir", deny)
    refused(run(*options), f"{tmp_path / 'graph.db'}: Permission denied")


def test_a_server_without_spark_says_what_to_install(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in [each for each in sys.modules if each.startswith(("pyspark.", "spark_jobs.", "threadline.spark"))]:
        monkeypatch.delitem(sys.modules, name)
    refused(run(*options), "pyspark", "install threadline[spark]")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--algorithm", "ank-7", "neither ank-1 nor ank-n"),
        ("--trigger", "soon", "'soon' is no time such as 200ms, 90s, 10m or 2h"),
        ("--store", "mysql://x", "there is no store of kind 'mysql'"),
        ("--metrics", "nowhere", "--metrics"),
    ],
)
def test_what_makes_no_sense_is_told(options: list[str], option: str, value: str, words: str) -> None:
    refused(run(*options, option, value), words)


@pytest.mark.parametrize("option", ["--remove-results-after", "--remove-segments-after"])
@pytest.mark.parametrize("hours", ["inf", "nan", "-1"])
def test_hours_are_numbers(options: list[str], option: str, hours: str) -> None:
    result = run(*options, option, hours)
    assert result.exit_code == 2 and f"Invalid value for '{option}'" in result.stderr


def test_a_store_that_somebody_writes_to_is_told(tmp_path: Path, options: list[str]) -> None:
    with open_store(f"sqlite:///{tmp_path / 'graph.db'}").writer():
        refused(run(*options), "is being written by")


def test_a_store_of_another_log_is_told(tmp_path: Path, options: list[str]) -> None:
    with open_store(f"sqlite:///{tmp_path / 'graph.db'}").writer() as store:
        store.made_from({"log": log_id(tmp_path / "log"), "--levels": "3"})
        store.write(GraphBatch("q", 0, 0))
    refused(run(*options), "was made with --levels 3, not 2: take a new store")
    shutil.rmtree(tmp_path / "log")
    ShardWriter(tmp_path / "log", 0).close()
    refused(run(*options, "--levels", "3"), "was made with log", "take a new store")


def test_a_checkpoint_of_other_settings_is_told_before_spark_starts(tmp_path: Path, options: list[str]) -> None:
    settings: dict[str, int | str] = {"log": str(tmp_path / "log"), "algorithm": "ank-1"}
    settings |= {"levels": 2, "buckets": 4, "partitions": 2}
    with opened(tmp_path / "checkpoint", settings, {}):
        pass
    (tmp_path / "checkpoint" / "offsets").mkdir()
    refused(run(*options, "--levels", "3"), "made with --levels 2, not 3", "new --checkpoint", "new --store")
    refused(run(*options, "--algorithm", "ank-n"), "made with --algorithm ank-1, not ank-n")


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1.0), ("200ms", 0.2), ("1m", 60.0), ("5", 5.0)])
def test_a_trigger_is_a_time_as_elsewhere(
    options: list[str], monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    wanted: list[SparkOptions] = []
    monkeypatch.setattr(spark, "run", wanted.append)
    assert run(*options, "--trigger", text).exit_code == 0
    assert [each.trigger_s for each in wanted] == [seconds]


class FullStore:
    """A store whose disk is full for a while."""

    def __init__(self) -> None:
        self.tries = 0

    def write(self, batch: GraphBatch) -> str:
        self.tries += 1
        if self.tries < 3:
            raise StoreUnavailable("disk full")
        return "written"


def test_while_the_store_is_full_the_writer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_RETRY_S", 0.01)
    stopping = threading.Event()
    store = FullStore()
    writer = PatientWriter(store, stopping)  # type: ignore[arg-type]
    assert writer.write(GraphBatch("q", 0, 0)) == "written"
    assert store.tries == 3
    stopping.set()
    with pytest.raises(StoreUnavailable):
        PatientWriter(FullStore(), stopping).write(GraphBatch("q", 0, 0))  # type: ignore[arg-type]

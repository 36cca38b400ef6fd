"""Who may open a store, and what is said to the others."""

from __future__ import annotations

import os
import sqlite3
import stat
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from collector.store import (
    BadStoreUrl,
    StoreInUse,
    StoreMissing,
    StoreReader,
    StoreUnavailable,
    StoreUnusable,
    StoreWriter,
    open_store,
    schema,
)
from tests.collector.store.graphs import graph_batch, tuple_id


def test_a_url_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_store(f"sqlite:///{tmp_path}/a%20b/g.db").path == tmp_path / "a b" / "g.db"
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///sub/g.db")
    with pytest.raises(StoreMissing, match="a writer makes it"):
        store.reader()
    with store.writer() as writer, store.reader() as reader:
        writer.write(graph_batch("q", 0, sinks={tuple_id(1, 1): 1}))
        assert reader.counters()["sinks"] == 1
    assert (tmp_path / "sub" / "g.db").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://host/db", "no store of kind 'postgresql'"),
        ("g.db", "no store of kind ''"),
        ("", "only sqlite:///FILE"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite://host/g.db", "names no file"),
        ("sqlite:///g.db?mode=ro", "names no file"),
        ("sqlite:////", "is a folder"),
    ],
)
def test_other_urls_are_refused(url: str, why: str) -> None:
    with pytest.raises(BadStoreUrl, match=why):
        open_store(url)


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, and long enough to be looked at " * 100)
    for open_it in (StoreWriter, StoreReader):
        with pytest.raises(StoreUnusable, match=r"notes\.txt"):
            open_it(text)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE things (id)")
        db.execute("PRAGMA user_version=1")
    for open_it in (StoreWriter, StoreReader):
        with pytest.raises(StoreUnusable, match="of something else"):
            open_it(other)
    with pytest.raises(StoreUnavailable, match="cannot be made"):
        StoreWriter(text / "g.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IREAD | stat.S_IEXEC)
    with pytest.raises(StoreUnavailable, match="cannot be made"):
        StoreWriter(tmp_path / "g.db")


def test_a_newer_store_is_refused_and_an_older_one_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g.db"
    with StoreWriter(path) as writer:
        writer.write(graph_batch("q", 0, sinks={tuple_id(1, 1): 1}))
    with monkeypatch.context() as patch:
        more = "CREATE TABLE more (id); INSERT INTO more SELECT id FROM sinks"
        steps = (*schema.STEPS, (more, None))
        patch.setattr(schema, "STEPS", steps)
        patch.setattr("collector.store.connection.STEPS", steps)
        with pytest.raises(StoreUnusable, match="a writer brings it up to date"):
            StoreReader(path)
        StoreWriter(path).close()
        with StoreReader(path) as reader:
            assert reader._db.execute("SELECT id FROM more").fetchall() == [(tuple_id(1, 1),)]
    for open_it in (StoreWriter, StoreReader):
        with pytest.raises(StoreUnusable, match=f"written by a newer version: its schema is {len(schema.STEPS) + 1}"):
            open_it(path)


def test_a_damaged_store_is_told_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "g.db"
    with StoreWriter(path) as writer:
        writer.write(graph_batch("q", 0, sinks={tuple_id(5, each): 1 for each in range(5_000)}))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    told = r"g\.db is damaged \(.*\): put back a copy.* new --checkpoint"
    with pytest.raises(StoreUnusable, match=told), StoreReader(path) as reader:
        reader.sinks(limit=10_000)


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "g.db"
    path.touch()
    with pytest.raises(StoreMissing, match="is empty"):
        StoreReader(path)
    with StoreWriter(path) as writer:
        assert writer.write(graph_batch("q", 0)) is not None


def hold(path: Path, told: Connection) -> None:
    with StoreWriter(path):
        told.send("writing")
        told.recv()


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "g.db"
    first = StoreWriter(path)
    with pytest.raises(StoreInUse, match=f"being written by process {os.getpid()}"):
        StoreWriter(path)
    first.close()
    first.close()
    context = get_context("spawn")
    telling, told = context.Pipe()
    other = context.Process(target=hold, args=(path, told))
    other.start()
    assert telling.recv() == "writing"
    with pytest.raises(StoreInUse, match=f"being written by process {other.pid}"):
        StoreWriter(path)
    with StoreReader(path) as reader:
        assert reader.counters() == {}
    other.kill()
    other.join()
    StoreWriter(path).close()


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "g.db"), StoreReader(tmp_path / "g.db") as reader:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._db.execute("DELETE FROM sinks")
        assert reader._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_commit_is_on_disk(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "g.db") as writer:
        assert writer._db.execute("PRAGMA synchronous").fetchone() == (2,)

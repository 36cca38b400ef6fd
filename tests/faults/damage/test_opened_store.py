"""Those who have a damaged store open: a writer, readers, and the API, which looks for damage by itself."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from collector.api import scrub
from collector.api.app import Settings, create_app
from collector.api.readers import Readers
from collector.api.scrub import Scrubber
from collector.api.view import View
from collector.store import StoreReader, StoreUnusable, StoreWriter
from tests.collector.api.served import serving
from tests.faults.damage.harm import flip, put
from tests.faults.damage.rich import Rich
from tests.support.waiting import wait_until


def test_a_writer_refuses_books_that_are_not_as_they_were_written(rich: Rich, tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("UPDATE batches SET batch=batch+1 WHERE number = (SELECT max(number) FROM batches)")
    told = r"is damaged \(batches: rows are not as they were written\).*replays the log"
    with pytest.raises(StoreUnusable, match=told):
        StoreWriter(path)


def test_an_answer_about_a_damaged_vertex_says_so_and_others_are_given(rich: Rich, tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with serving(path) as served:
        sinks = [sink["id"] for sink in served.get("/v1/sinks", limit=3, order="oldest")["vertices"]]
        whole = [served.get(f"/v1/vertices/{sink}/backward") for sink in sinks]
        with sqlite3.connect(path, isolation_level=None) as db:
            number = int(served.get(f"/v1/vertices/{sinks[0]}")["id"].rpartition(":")[2])
            (sink, edges), *_ = db.execute("SELECT id, edges FROM sinks ORDER BY ts, id").fetchall()
            assert sink & (1 << 36) - 1 == number
            db.execute("UPDATE sinks SET edges=? WHERE id=?", (flip(edges, 3, 0).content, sink))
        problem = served.get(f"/v1/vertices/{sinks[0]}/backward", status=503)
        assert f"the edges of tuple {number} of stream {sink >> 36} are not as they were written" in problem["detail"]
        assert [served.get(f"/v1/vertices/{sink}/backward") for sink in sinks[1:]] == whole[1:]


@pytest.mark.parametrize(
    ("question", "nonsense"),
    [
        ("streams", "UPDATE streams SET nonce='x' || nonce"),
        ("plans", "UPDATE starts SET nonce='x' || nonce"),
        ("gaps", "UPDATE gaps SET detail='{'"),
        ("refused", "UPDATE refused SET nonce='x' || nonce"),
        ("kept", "UPDATE kept SET data='x'"),
    ],
)
def test_what_makes_no_sense_is_told_and_every_question_is_one_transaction(
    rich: Rich, tmp_path: Path, question: str, nonsense: str
) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with StoreReader(path) as reader:
        told: list[str] = []
        reader._db.set_trace_callback(told.append)
        assert rich.questions[question](reader) == rich.truth[question]
        assert told.count("BEGIN") == told.count("ROLLBACK") == 1, told
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute(nonsense)
    with StoreReader(path) as reader, pytest.raises(StoreUnusable, match=r"makes no sense|is damaged"):
        rich.questions[question](reader)


def test_a_store_that_the_check_has_found_damaged_is_not_served(rich: Rich, tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with serving(path) as served:
        readers = served.client.app.state.context.readers  # type: ignore[attr-defined]
        assert served.get("/v1/agents")["next"] is None
        readers.refuse(readers.identity(), "gaps: rows are not as they were written")
        problem = served.get("/v1/agents", status=503)
        assert "is damaged (gaps: rows are not as they were written) and not served any more" in problem["detail"]
        assert served.client.get("/readyz").status_code == 503
        path.rename(tmp_path / "damaged.db")
        put(path, rich.content)
        assert served.get("/v1/agents")["next"] is None, "another one in its place is served"


def changed_in_silence(folder: Path, rich: Rich) -> Path:
    """A store with a row that somebody has changed: SQLite finds nothing wrong with it."""
    path = folder / "graph.db"
    put(path, rich.content)
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("UPDATE gaps SET reason='none'")
    return path


def test_the_api_finds_by_itself_what_no_reader_would_notice(
    rich: Rich, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = changed_in_silence(tmp_path, rich)
    with TestClient(create_app(Settings(path, check_every_s=3600.0))) as client:
        wait_until(lambda: client.get("/v1/gaps").status_code == 503, "the check to find it", 30, every_s=0.05)
        assert "gaps: rows are not as they were written" in client.get("/v1/gaps").json()["detail"]
    assert "the store is damaged" in caplog.text


def test_a_copy_that_is_put_back_into_the_file_is_served_once_it_is_found_sound(
    rich: Rich, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cp` keeps the file, and with it what tells one store from another; so may a file system that gives a number of a
    file again."""
    monkeypatch.setattr(scrub, "_LOOK_S", 0.02)
    path = tmp_path / "graph.db"
    damaged = []
    for change in ("UPDATE gaps SET reason='none'", "UPDATE counters SET value=value+1"):
        put(path, rich.content)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:  # who has it open keeps what it knew of it
            db.execute(change)
        damaged.append(path.read_bytes())
    put(path, damaged[0])
    with TestClient(create_app(Settings(path, check_every_s=3600.0))) as client:
        readers = client.app.state.context.readers  # type: ignore[attr-defined]
        wait_until(lambda: client.get("/v1/gaps").status_code == 503, "the check to find it", 60, every_s=0.05)
        assert "put back a copy, without graph.db-wal and -shm" in client.get("/v1/gaps").json()["detail"]
        identity = readers.identity()
        put(path, damaged[1])
        wait_until(lambda: "(counters: " in client.get("/v1/gaps").json()["detail"], "another check", 60, every_s=0.05)
        put(path, rich.content)
        wait_until(lambda: client.get("/v1/gaps").status_code == 200, "the check to find nothing", 60, every_s=0.05)
        assert readers.identity() == identity
        assert {each["reason"] for each in client.get("/v1/gaps").json()["items"]} == {
            gap.reason for gap in rich.truth["gaps"]
        }


def test_nobody_keeps_a_store_open_that_is_refused(rich: Rich, tmp_path: Path) -> None:
    """Who reads it just then does so to the end; whoever comes when it is accepted opens it anew."""
    path = tmp_path / "graph.db"
    put(path, rich.content)
    readers = Readers(path)

    def ask(question: Callable[[View], Any]) -> Any:
        return asyncio.run(readers.ask(question))

    def refuse(view: View) -> View:
        readers.refuse(readers.identity(), "damaged")
        assert view.reader.counters() == rich.truth["counters"]
        return view

    views: list[View] = [readers.quick(), ask(lambda view: view)]
    views.append(ask(refuse))
    assert views[1] is views[2]
    for view in views:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            view.reader.counters()
    readers.accept((0, 0))
    with pytest.raises(StoreUnusable, match="not served any more"):
        readers.quick()
    readers.accept(readers.identity())
    assert readers.quick().reader.counters() == rich.truth["counters"]
    assert ask(lambda view: view.reader.counters()) == rich.truth["counters"]
    readers.close()


@pytest.mark.parametrize(
    "surprise",
    ["", "print('{')", "import os; os.kill(os.getpid(), 9)", "raise SystemExit(75)"],
    ids=["no process", "no JSON", "killed", "gave up"],
)
def test_a_check_that_fails_is_told_and_made_again(
    rich: Rich, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, surprise: str
) -> None:
    for name in ("_LOOK_S", "_RETRY_S"):
        monkeypatch.setattr(scrub, name, 0.02)
    run, tries = asyncio.create_subprocess_exec, itertools.count()

    async def surprising(*command: str, **options: Any) -> asyncio.subprocess.Process:
        if next(tries):
            return await run(*command, **options)
        if not surprise:
            raise BlockingIOError("Resource temporarily unavailable")
        return await run(sys.executable, "-c", surprise, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", surprising)
    path = changed_in_silence(tmp_path, rich)
    with TestClient(create_app(Settings(path, check_every_s=3600.0))) as client:
        wait_until(lambda: client.get("/v1/gaps").status_code == 503, "the second check to find it", 60, every_s=0.05)
    assert caplog.text.count("the store could not be looked through, trying again later") == 1


def test_the_store_is_closed_whatever_has_ended_before(
    rich: Rich, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Scrubber) -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(Scrubber, "run", fail)
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with TestClient(create_app(Settings(path, check_every_s=3600.0))) as client:
        reader = client.app.state.context.readers.quick().reader  # type: ignore[attr-defined]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        reader.counters()
    assert "a surprise" in caplog.text

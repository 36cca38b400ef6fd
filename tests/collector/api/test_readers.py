"""The store comes late, is replaced, is of another version or damaged, or a question takes too long: the API says so,
and goes on as soon as it can."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from collector.api import readers
from collector.api.app import Settings, create_app
from collector.store.schema import STEPS
from protocol.records import Delivery
from tests.collector.api.rich_store import KNOWN, fill
from tests.collector.api.served import Json, Served, serving
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from tests.collector.store.rows import AGENT, payload_row, register_row

RESULT = f"/v1/vertices/{KNOWN.result}"
QUESTIONS = ["/v1/sinks", RESULT, f"{RESULT}/backward", "/v1/agents", "/v1/tasks"]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """An application of which the store is not there yet."""
    with serving(tmp_path / "graph.db") as served:
        yield served


def unavailable(served: Served, path: str, *words: str) -> Json:
    response = served.client.get(path)
    assert response.status_code == 503, response.text
    assert response.headers["content-type"] == "application/problem+json"
    told: Json = response.json()
    assert all(word in told["detail"] for word in words), told
    return told


@contextmanager
def changed(path: Path) -> Iterator[sqlite3.Connection]:
    """The file behind the back of everybody."""
    with closing(sqlite3.connect(path)) as db, db:
        yield db


def test_a_store_that_comes_later(own: Served) -> None:
    for path in QUESTIONS:
        unavailable(own, path, "graph.db is not there yet", "threadline spark")
        assert own.client.get(path).headers["retry-after"] == "1"
    ready = own.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"][0]["ready"] is False
    assert own.client.get("/healthz").json() == {"status": "ok"}
    assert "threadline_store_up 0.0" in own.client.get("/metrics").text
    with own.new_store() as writer:
        assert own.get("/readyz")["checks"][0]["detail"] == "nothing was written yet"
        assert own.get("/v1/sinks")["vertices"] == []
        fill(writer)
        for path in QUESTIONS:
            assert own.client.get(path).status_code == 200
    assert own.get("/readyz")["ready"] is True
    figures = own.client.get("/metrics").text
    assert "threadline_store_up 1.0" in figures
    assert "threadline_store_sinks 26.0" in figures
    assert re.search(r'requests_total\{method="GET",route=".*/sinks",status="503"\} 2.0', figures)


def test_an_empty_file_is_no_store_yet(own: Served) -> None:
    own.path.touch()
    for path in QUESTIONS:
        unavailable(own, path, "is empty")
    with own.new_store() as writer:
        fill(writer)
    assert own.client.get("/v1/sinks").status_code == 200


def test_a_store_that_goes_and_one_that_takes_its_place(own: Served, tmp_path: Path) -> None:
    with own.new_store() as writer:
        fill(writer)
    for path in QUESTIONS:
        assert own.client.get(path).status_code == 200
    move(own.path, tmp_path / "away.db")
    for path in QUESTIONS:
        unavailable(own, path, "is not there yet")
    with QuickWriter(tmp_path / "other.db") as writer:
        writer.write(graph_batch("q", 0, sinks={tuple_id(1, 0): 5}, rows=[register_row(1, "out")]))
    move(tmp_path / "other.db", own.path)
    assert [each["id"] for each in own.get("/v1/sinks")["vertices"]] == ["pump-7/out@3:0"]
    assert own.get("/v1/vertices/pump-7/out@3:0")["ts"] == 5
    own.get(f"/v1/vertices/{KNOWN.result}", 404)
    assert own.get("/v1/tasks")["items"] == []


def move(path: Path, to: Path) -> None:
    """A store and what belongs to it."""
    for suffix in ("-wal", "-shm", ""):
        found = path.with_name(path.name + suffix)
        if found.exists():
            found.rename(to.with_name(to.name + suffix))


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """A store that the application does not see yet."""
    path = tmp_path / "apart.db"
    with QuickWriter(path) as writer:
        fill(writer)
    return path


@pytest.mark.parametrize(
    ("version", "word"), [(len(STEPS) + 1, "newer"), (1, "this version needs")], ids=["newer", "older"]
)
def test_a_store_of_another_version(own: Served, apart: Path, version: int, word: str) -> None:
    with changed(apart) as db:
        db.execute(f"PRAGMA user_version = {version}")
    move(apart, own.path)
    for path in QUESTIONS:
        unavailable(own, path, "the store cannot be read", word)
    assert own.client.get("/readyz").status_code == 503


@pytest.mark.parametrize("content", [b"this is no store\n" * 100, b"SQLite format 3\0" + b"x" * 5_000])
def test_a_file_that_is_no_store(own: Served, content: bytes) -> None:
    own.path.write_bytes(content)
    for path in QUESTIONS:
        unavailable(own, path, "the store cannot be read")
    with own.new_store() as writer:
        fill(writer)
    assert own.client.get("/v1/sinks").status_code == 200


def test_a_database_of_somebody_else(own: Served) -> None:
    with changed(own.path) as db:
        db.execute("CREATE TABLE sinks (id INTEGER)")
    for path in QUESTIONS:
        unavailable(own, path, "the store cannot be read")


def test_a_folder_where_the_store_should_be(own: Served) -> None:
    own.path.mkdir()
    for path in QUESTIONS:
        unavailable(own, path)


@pytest.mark.parametrize("damage", [b"", b"\xff", b"\x00", b"\x01\xff\xff\xff\xff", b"\x02" * 50])
def test_a_payload_that_is_damaged_spoils_only_answers_that_show_it(own: Served, damage: bytes) -> None:
    stream = AGENT.stream("out")
    good, bad = (Delivery(stream, seq, seq, {"said": seq}, ()) for seq in range(2))
    rows = [register_row(1, "out"), payload_row({stream: 1}, [good], seq=1), payload_row({stream: 1}, [bad], seq=2)]
    with own.new_store() as writer:
        writer.write(graph_batch("q", 0, sinks={tuple_id(1, 0): 0, tuple_id(1, 1): 1}, rows=rows))
    with changed(own.path) as db:
        db.execute("UPDATE payloads SET data = ? WHERE number = 2", (damage,))
    unavailable(own, "/v1/vertices/pump-7/out@3:1", "payload 2 cannot be read")
    unavailable(own, "/v1/sinks", "payload 2 cannot be read")
    assert own.get("/v1/vertices/pump-7/out@3:0")["payload"] == {"said": 0}
    assert len(own.get("/v1/sinks", payload=False)["vertices"]) == 2


def test_pages_of_the_file_that_are_damaged(own: Served, apart: Path) -> None:
    whole = bytearray(apart.read_bytes())
    for place in range(8192, len(whole), 8192):
        whole[place : place + 64] = b"\xff" * 64
    apart.write_bytes(whole)
    move(apart, own.path)
    for path in QUESTIONS:
        unavailable(own, path, "the store cannot be read", "is damaged")
    assert own.client.get("/healthz").status_code == 200


# Time


@pytest.fixture
def hasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """An application that has no time, but waits for its threads, however busy the machine is."""
    monkeypatch.setattr(readers, "_WAITED_S", 60.0)
    path = tmp_path / "graph.db"
    with TestClient(create_app(Settings(path, longest_s=0.0)), raise_server_exceptions=False) as client:
        served = Served(client, path)
        with served.new_store() as writer:
            fill(writer)
        yield served


def test_an_answer_that_takes_too_long_is_given_up(hasty: Served) -> None:
    told = unavailable(hasty, "/v1/paths?from=~.*&to=~.*", "takes too long", "smaller limit")
    assert told["instance"] == "/v1/paths"
    unavailable(hasty, f"/v1/vertices/{KNOWN.result}/lineage", "takes too long")
    unavailable(hasty, f"/v1/vertices/{KNOWN.task}/backward", "takes too long")


def test_what_takes_no_time_is_answered_nevertheless(hasty: Served) -> None:
    assert hasty.get(f"/v1/vertices/{KNOWN.result}/backward")["vertices"]
    assert hasty.get("/v1/agents")["items"]
    assert hasty.get(f"/v1/vertices/{KNOWN.result}")["origins"] == 20


def test_readers_are_used_again_after_trouble(hasty: Served) -> None:
    for _ in range(20):
        unavailable(hasty, "/v1/paths?from=~.*&to=~.*", "takes too long")
    assert hasty.get("/v1/agents")["items"]


def test_many_at_a_time_wait_for_one_another(served: Served) -> None:
    """There are more questions than readers."""
    with served.new_store() as writer:
        fill(writer)
    expected = served.get("/v1/sinks")

    def ask(_: int) -> Any:
        return served.get("/v1/sinks")

    with ThreadPoolExecutor(16) as pool:
        assert all(found == expected for found in pool.map(ask, range(64)))

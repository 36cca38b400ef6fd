"""A store whose file has changed: what is packed is never served wrongly, and the check finds everything else."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from collector.api.app import Settings, create_app
from collector.store import StoreError, StoreReader, StoreUnusable, StoreWriter, schema
from collector.store.captured_rows import DataQuery, TaskQuery, WorkflowQuery
from collector.store.check import check
from collector.store.feed import Cursor
from collector.store.packing import pack
from collector.store.seal import SEAL_BYTES
from protocol.wire.sections import Kind
from tests.collector.api import rich_store
from tests.collector.api.served import serving
from tests.collector.store.graphs import QuickWriter, graph_batch, stored_graph, tuple_id
from tests.faults.damage.harm import Harm, flip, harms, put, used
from tests.support.waiting import wait_until
from threadline.cli import app

Question = Callable[[StoreReader], Any]


class Rich(NamedTuple):
    """A store with something of everything, as its file is when nobody has it open."""

    content: bytes
    questions: dict[str, Question]
    truth: dict[str, Any]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Rich:
    path = tmp_path_factory.mktemp("rich") / "graph.db"
    with QuickWriter(path) as writer:
        rich_store.fill(writer)
    with StoreReader(path) as reader:
        sinks = [sink.id for sink in reader.every_sink()]
        sources = [source.id for source in reader.every_source()]
        questions: dict[str, Question] = {
            "sinks": lambda reader: reader.sinks(limit=1_000),
            "figures": lambda reader: (reader.count_sinks(-(10**6), 10**9, 10**6, None), reader.times(None, None)),
            "tuples": lambda reader: reader.tuples([*sinks, *sources]),
            "backward": lambda reader: [reader.backward(each) for each in sinks],
            "forward": lambda reader: [reader.forward(each) for each in sources],
            "origins": lambda reader: reader.origins_of(sinks),
            "derived": lambda reader: reader.derived_of(sources),
            "payloads": lambda reader: reader.payloads([*sinks, *sources]),
            "late": lambda reader: [reader.late_of(each) for each in sinks],
            "lost": lambda reader: [reader.lost_of(each) for each in sinks],
            "changes": lambda reader: list(reader.changes(Cursor(), 100_000)),
            "streams": lambda reader: reader.streams(),
            "agents": lambda reader: reader.agents(),
            "plans": lambda reader: reader.plans(),
            "gaps": lambda reader: reader.gaps(),
            "refused": lambda reader: reader.refused(),
            "kept": lambda reader: reader.kept(Kind.LATE),
            "counters": lambda reader: reader.counters(),
            "tasks": lambda reader: reader.tasks(TaskQuery()),
            "data": lambda reader: reader.data(DataQuery()),
            "workflows": lambda reader: reader.workflows(WorkflowQuery()),
        }
        truth = {name: ask(reader) for name, ask in questions.items()}
    assert not list(check(path))
    return Rich(path.read_bytes(), questions, truth)


def wrong_answers(rich: Rich, path: Path) -> list[str]:
    """The questions that are answered otherwise than before. Those that are refused, in the words of the store, are
    not; any other exception is a failure of the test."""
    try:
        reader = StoreReader(path)
    except StoreError:
        return []
    wrong = []
    with reader:
        for name, ask in rich.questions.items():
            try:
                if ask(reader) != rich.truth[name]:
                    wrong.append(name)
            except StoreError:
                pass
    return wrong


def examine(rich: Rich, path: Path, harm: Harm) -> None:
    """Either every answer is true or refused, or the check finds what no reader notices."""
    put(path, harm.content)
    wrong = wrong_answers(rich, path)
    findings = list(check(path))
    assert not wrong or not all(finding.is_noticed for finding in findings), (str(harm), wrong, findings)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_the_file_is_refused_or_found(rich: Rich, tmp_path: Path, seed: int) -> None:
    for harm in harms(rich.content, seed, 8, used(rich.content)):
        examine(rich, tmp_path / "graph.db", harm)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_happens_to_the_file_is_refused_or_found_many_times(rich: Rich, tmp_path: Path) -> None:
    for harm in harms(rich.content, 77, 2_000, used(rich.content)):
        examine(rich, tmp_path / "graph.db", harm)


PACKED = [
    *[f"{name}_pages" for name in ("source", "label", "forward", "delivery", "origin", "derived")],
    *("payloads", "feed", "sinks"),
]


@pytest.mark.parametrize("table", PACKED)
def test_no_flipped_bit_of_a_packed_value_is_served(rich: Rich, tmp_path: Path, table: str) -> None:
    """Each byte of some values, in the database itself: SQLite has nothing to say against them."""
    path = tmp_path / "graph.db"
    column = "edges" if table == "sinks" else "data"
    put(path, rich.content)
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        (number, value), *_ = db.execute(
            f"SELECT rowid, {column} FROM {table} WHERE length({column}) > {SEAL_BYTES} ORDER BY length({column}) DESC"
        ).fetchall()
        for at in (0, len(value) - SEAL_BYTES - 1, len(value) - 1):
            changed = flip(value, at, at % 8).content
            db.execute(f"UPDATE {table} SET {column}=? WHERE rowid=?", (changed, number))
            assert not wrong_answers(rich, path), f"byte {at}"
        told = [finding.text for finding in check(path)]
        assert told and all(table in text for text in told), told
        assert all("is not as it was written" in text or "are not as they were" in text for text in told), told
        db.execute(f"UPDATE {table} SET {column}=? WHERE rowid=?", (value, number))
    assert not list(check(path))


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("sinks", "ts=ts+1"),
        ("sinks", "label_stamp=NULL"),
        ("sinks", "flags=1-flags"),
        ("sinks", "origins=origins+1"),
        ("sinks", "id=id+100000"),
        ("source_pages", "most=most+1"),
        ("source_pages", "tag=tag+1"),
        ("forward_pages", "first=first-1"),
        ("payloads", "last_ts=0"),
        ("feed", "stamp=stamp+1"),
        ("feed", "number=number+1000000"),
        ("starts", "agent='nobody'"),
        ("starts", "last_seen_ms=0"),
        ("streams", "name='x'"),
        ("gaps", "reason='none'"),
        ("tasks", "status='finished'"),
        ("data", "attributes='{}'"),
        ("counters", "value=value+1"),
        ("batches", "upto='{}'"),
        ("late", "reason=reason+1"),
        ("payload_places", "last=last-1"),
    ],
)
def test_every_value_is_summed_up(rich: Rich, tmp_path: Path, table: str, change: str) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with sqlite3.connect(path, isolation_level=None) as db:
        keys = {"late": "sink", "counters": "name", "tasks": "key", "data": "task", "payload_places": "first"}
        key = keys.get(table, "rowid")
        db.execute(f"UPDATE {table} SET {change} WHERE {key} = (SELECT max({key}) FROM {table})")
    assert [finding.text for finding in check(path) if table in finding.text]


def test_rows_that_are_gone_are_missed(rich: Rich, tmp_path: Path) -> None:
    pages = ("source_pages", "label_pages", "forward_pages", "derived_pages")
    for table in (*pages, "sinks", "payloads", "feed", "starts"):
        put(tmp_path / "graph.db", rich.content)
        with sqlite3.connect(tmp_path / "graph.db", isolation_level=None) as db:
            db.execute(f"DELETE FROM {table} WHERE rowid = (SELECT max(rowid) - 1 FROM {table})")
        assert list(check(tmp_path / "graph.db")), table


def test_a_log_of_changes_that_has_changed_leaves_an_earlier_store(tmp_path: Path) -> None:
    """SQLite goes by the checksums of its own log: what follows a bad one was never there. The Spark job notices that
    the store is behind its checkpoint."""
    path, wal = tmp_path / "graph.db", tmp_path / "graph.db-wal"
    kept: list[bytes] = []
    graphs = []
    with QuickWriter(path) as writer:
        for number in range(8):
            sinks = {tuple_id(2, 10 * number + each): number for each in range(10)}
            sources = {tuple_id(1, number): number}
            edges = [(sink, tuple_id(1, number)) for sink in sinks]
            writer.write(graph_batch("q", number, sinks=sinks, sources=sources, edges=edges, sink_labels=sinks))
            with StoreReader(path) as reader:
                graphs.append(stored_graph(reader))
        kept = [path.read_bytes(), wal.read_bytes()]
    earlier = 0
    for harm in harms(kept[1], 9, 25):
        put(path, kept[0])
        wal.write_bytes(harm.content)
        try:
            with StoreReader(path) as reader:
                found = stored_graph(reader)
        except StoreError:
            continue
        assert found in graphs or not found.sinks, str(harm)
        assert not list(check(path)), str(harm)
        earlier += found != graphs[-1]
    assert earlier > 10


def test_an_older_copy_with_the_log_of_a_newer_store_is_found(tmp_path: Path) -> None:
    """Whoever puts back a copy has to take away what SQLite has left beside the one before."""
    path, wal = tmp_path / "graph.db", tmp_path / "graph.db-wal"

    def write(numbers: range) -> bytes:
        with QuickWriter(path) as writer:
            for number in numbers:
                sinks = {tuple_id(2, 200 * number + each): number for each in range(200)}
                edges = [(sink, tuple_id(1, number)) for sink in sinks]
                sources = {tuple_id(1, number): number}
                writer.write(graph_batch("q", number, sinks=sinks, sources=sources, edges=edges))
            return wal.read_bytes()

    write(range(2))
    older = path.read_bytes()
    write(range(2, 6))
    left = write(range(6, 8))
    put(path, older)
    wal.write_bytes(left)
    assert not all(finding.is_noticed for finding in check(path))


def test_a_store_may_be_checked_while_it_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    stopping = threading.Event()

    def write() -> None:
        with QuickWriter(path) as writer:
            started.set()
            for number in itertools.takewhile(lambda _: not stopping.is_set(), itertools.count()):
                sinks = {tuple_id(2, 50 * number + each): number for each in range(50)}
                edges = [(sink, tuple_id(1, number)) for sink in sinks]
                labels: dict[str, Any] = {"sink_labels": sinks, "source_labels": [tuple_id(1, number)]}
                sources = {tuple_id(1, number): 1}
                writer.write(
                    graph_batch("q", number, sinks=sinks, sources=sources, edges=edges, **labels if number % 2 else {})
                )
                writer.retain(number - 20)

    started = threading.Event()
    thread = threading.Thread(target=write)
    thread.start()
    started.wait()
    try:
        for _ in range(4):
            assert list(check(path)) == []
    finally:
        stopping.set()
        thread.join()
    assert list(check(path)) == []


# Those who open it


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


def test_the_api_finds_by_itself_what_no_reader_would_notice(
    rich: Rich, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("UPDATE gaps SET reason='none'")
    with TestClient(create_app(Settings(path, check_every_s=3600.0))) as client:
        wait_until(lambda: client.get("/v1/gaps").status_code == 503, "the check to find it", 30, every_s=0.05)
        assert "gaps: rows are not as they were written" in client.get("/v1/gaps").json()["detail"]
    assert "the store is damaged" in caplog.text


def test_the_command_names_every_fault(rich: Rich, tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    found = CliRunner().invoke(app, ["store", "check", f"sqlite:///{path}"])
    assert (found.exit_code, found.output) == (0, f"{path} is sound\n")
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("UPDATE gaps SET seq=seq+1")
        db.execute("UPDATE payloads SET seq=seq+1 WHERE number=1")
    found = CliRunner().invoke(app, ["store", "check", f"sqlite:///{path}"])
    assert found.exit_code == 1
    assert found.output.splitlines() == [
        "gaps: rows are not as they were written",
        "payloads: row 1 is not as it was written",
    ]
    found = CliRunner().invoke(app, ["store", "check", f"sqlite:///{tmp_path}/none.db"])
    assert found.exit_code == 1 and "is not there yet" in found.output


# What was written before there were seals


def unseal(path: Path) -> None:
    """Make a store of schema 4 of one of schema 5."""
    with sqlite3.connect(path, isolation_level=None) as db:
        for table in PACKED:
            column = "edges" if table == "sinks" else "data"
            for number, value in db.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
                db.execute(f"UPDATE {table} SET {column}=? WHERE rowid=?", (value[:-SEAL_BYTES], number))
        db.execute("ALTER TABLE sinks DROP COLUMN sum")
        db.execute("DROP TABLE sums")
        db.execute("PRAGMA user_version=4")


def test_a_store_without_seals_gets_them_and_says_the_same(rich: Rich, tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    unseal(path)
    with pytest.raises(StoreUnusable, match="has schema 4, this version needs 5"):
        StoreReader(path)
    StoreWriter(path).close()
    assert not list(check(path))
    with StoreReader(path) as reader:
        assert {name: ask(reader) for name, ask in rich.questions.items()} == rich.truth


def test_a_store_of_the_second_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its origins are turned round before anything has a seal."""
    path = tmp_path / "graph.db"
    ids, origins = np.array([7, 8, 9], "<i8") + (2 << 36), np.array([3, 1, 3], "<i8") + (1 << 36)
    entries = [ids, origins, np.zeros(3, "<i8"), np.ones(3, "<i8")]
    with sqlite3.connect(path, isolation_level=None) as db:
        for statements, _ in schema.STEPS[:2]:
            db.executescript(statements)
        query = "INSERT INTO origin_pages (page, tier, tag, data) VALUES (?,0,1,?)"
        db.execute(query, (int(ids[0]) >> 12, pack(entries)))
        db.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
        db.execute("PRAGMA user_version=2")
    StoreWriter(path).close()
    assert not list(check(path))
    with StoreReader(path) as reader:
        derived = [(each.origin, each.derived) for each in reader.derived_of(origins.tolist())]
        assert derived == sorted(zip(origins.tolist(), ids.tolist(), strict=True))


def test_a_batch_that_is_taken_back_leaves_the_sums_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with QuickWriter(path) as writer:
        writer.write(graph_batch("q", 0, sinks={tuple_id(1, 1): 1}))
        with pytest.raises(AttributeError):
            writer.write(graph_batch("q", 1, sinks={tuple_id(1, 2): 1}, rows=[None]))  # type: ignore[list-item]
        assert not list(check(path))
        writer.write(graph_batch("q", 1, sinks={tuple_id(1, 2): 1}))
    assert not list(check(path))
    with StoreReader(path) as reader:
        assert len(stored_graph(reader).sinks) == 2

"""A store whose file has changed: what is packed is never served wrongly, and the check finds everything else."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import sys
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from collector.store import StoreError, StoreReader, StoreUnusable, StoreWriter, schema
from collector.store import check as store_check
from collector.store.check import GIVEN_UP, MOST_LOG_BYTES, Finding, GivenUp, check
from collector.store.packing import pack
from collector.store.pages import PAGE_BITS
from collector.store.seal import SEAL_BYTES
from protocol.records import Delivery
from protocol.table_sums import wrong_sums
from tests.collector.store.graphs import QuickWriter, graph_batch, stored_graph, tuple_id
from tests.collector.store.rows import AGENT, payload_row, register_row
from tests.faults.damage.harm import Harm, flip, harms, put, used
from tests.faults.damage.rich import Rich
from tests.faults.damage.statements import harmed_statements
from threadline.cli import app


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
    try:
        findings = list(check(path))
    except StoreError:
        findings = []  # as those who read, it sees no store of this version
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


def test_no_flipped_bit_of_a_statement_is_believed(rich: Rich, tmp_path: Path) -> None:
    """Nobody serves the store then: the check finds it, or nobody can open it. Nor does anybody write to it."""
    path = tmp_path / "graph.db"
    for harm in harmed_statements(path, rich.content, 5, 120):
        put(path, harm.content)
        with pytest.raises(StoreUnusable):
            StoreWriter(path).close()
            pytest.fail(str(harm))
        put(path, harm.content)
        findings = list(check(path))
        assert findings, str(harm)
        if all(finding.is_noticed for finding in findings):
            with pytest.raises(StoreUnusable):
                StoreReader(path)


def test_a_table_that_says_something_else_of_its_columns_is_named(rich: Rich, tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content.replace(b"plan_seen_ms INTEGER, status TEXT", b"plan_seen_ms INTEGER, svatus TEXT"))
    assert list(check(path)) == [Finding("starts has other columns", False)]
    with pytest.raises(StoreUnusable, match=r"graph\.db is damaged \(starts has other columns\): put back a copy"):
        StoreWriter(path)


def test_an_index_that_is_gone_is_missed(rich: Rich, tmp_path: Path) -> None:
    """One that somebody has added is nothing to complain of."""
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE INDEX starts_by_status ON starts (status)")
        assert not list(check(path))
        gone = "sql IS NOT NULL AND name <> 'starts_by_status'"
        for name, sql in db.execute(f"SELECT name, sql FROM sqlite_master WHERE type='index' AND {gone}").fetchall():
            db.execute(f"DROP INDEX {name}")
            assert list(check(path)) == [Finding(f"{name} is not there", False)]
            db.execute(sql)
        db.execute("DROP INDEX sinks_by_ts")
    with pytest.raises(StoreUnusable, match=r"is damaged \(sinks_by_ts is not there\)"):
        StoreWriter(path)


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


# How much the check needs


def test_the_check_does_not_hold_all_places_of_payloads(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    stream = AGENT.stream("out")
    count, places = 50, 400
    rows = [register_row(1, "out")]
    for seq in range(count):
        said = [Delivery(stream, (seq * places + each) << PAGE_BITS, 1, {}, ()) for each in range(places)]
        rows.append(payload_row({stream: 1}, said, seq=seq + 1))
    with QuickWriter(path) as writer:
        writer.write(graph_batch("q", 0, rows=rows))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM payload_places").fetchone() == (count * places,)
    tracemalloc.start()
    try:
        assert not list(check(path))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 100 * count * places


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM payload_places WHERE first = (SELECT max(first) FROM payload_places)",
        "UPDATE payload_places SET page = page + 1 WHERE first = (SELECT max(first) FROM payload_places)",
        "UPDATE payload_places SET first = 'x' WHERE first = (SELECT max(first) FROM payload_places)",
        "INSERT INTO payload_places SELECT page, first - 1, payload, last FROM payload_places LIMIT 1",
    ],
)
def test_places_that_do_not_lead_to_payloads_are_found(rich: Rich, tmp_path: Path, change: str) -> None:
    path = tmp_path / "graph.db"
    put(path, rich.content)
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute(change)
    assert "payload_places: they do not lead to all that tuples have said" in [each.text for each in check(path)]


def test_a_check_gives_up_when_the_log_of_changes_grows_because_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wal = tmp_path / "graph.db", tmp_path / "graph.db-wal"
    numbers = itertools.count()

    def write() -> None:
        number = next(numbers)
        sinks = {tuple_id(2, 200 * number + each): number for each in range(200)}
        sources = {tuple_id(1, number): number}
        edges = [(sink, tuple_id(1, number)) for sink in sinks]
        writer.write(graph_batch("q", number, sinks=sinks, sources=sources, edges=edges))

    def written_meanwhile(db: sqlite3.Connection, tables: Iterable[str]) -> Iterator[str]:
        write()
        yield from wrong_sums(db, tables)

    with QuickWriter(path) as writer:
        write()
        assert not list(check(path, 0)), "it was as long before"
        monkeypatch.setattr(store_check, "wrong_sums", written_meanwhile)
        before_bytes = wal.stat().st_size
        assert not list(check(path, 1 << 30)) and not list(check(path)), "nobody minds"
        assert wal.stat().st_size > before_bytes
        with pytest.raises(GivenUp, match=r"graph\.db-wal has grown to"):
            list(check(path, 0))


def test_the_program_lets_others_go_first_and_says_if_it_gave_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds: list[int | None] = []
    nice: list[int] = []

    def giving_up(_: Path, most_log_bytes: int | None) -> Iterator[Finding]:
        bounds.append(most_log_bytes)
        yield Finding("gaps: rows are not as they were written", False)
        raise GivenUp

    monkeypatch.setattr(store_check, "check", giving_up)
    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(sys, "argv", ["check", str(tmp_path / "graph.db")])
    with pytest.raises(SystemExit) as end:
        store_check.main()
    assert end.value.code == GIVEN_UP and bounds == [MOST_LOG_BYTES] and nice == [19]
    assert json.loads(capsys.readouterr().out)["is_noticed"] is False


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


def test_the_program_says_why_it_could_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is no damage: who has started it tries again."""
    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["check", str(tmp_path / "graph.db")])
    with pytest.raises(SystemExit, match=r"graph\.db is not there yet: a writer makes it"):
        store_check.main()
    assert capsys.readouterr().out == ""


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


@pytest.mark.parametrize("version", range(1, len(schema.STEPS)))
def test_a_store_of_any_version_gets_the_statements_of_a_new_one(version: int) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        for statements, _ in schema.STEPS[:version]:
            db.executescript(statements)
        assert list(schema.wrong_tables(db))
        schema.migrate(db, version)
        assert not list(schema.wrong_tables(db))


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

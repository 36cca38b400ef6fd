"""A gateway whose journal has changed does not begin with it: devices would get what was never sent to them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.journal import SqliteJournal, StateUnusable
from broker.session import Outgoing, Session, State, Will
from protocol.mqttsn import RetryPolicy
from tests.faults.damage.harm import harms, put, used
from tests.faults.damage.statements import harmed_statements

POLICY = RetryPolicy()


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gateway")
    journal = SqliteJournal(folder)
    for number in range(6):
        name = f"pump-{number}"
        session = Session(name, (("127.0.0.1", 4000 + number), ()), False, 60, 1.0, State.ASLEEP, sleep_s=90)
        session.will = Will(f"wills/{name}", 1, False, b"gone")
        journal.save_session(session)
        journal.save_topic(name, 1, f"plant/{name}")
        journal.save_subscription(name, f"tl/{number}/{name}/down", 1)
        for seq in range(3):
            journal.save_message(name, Outgoing(seq, f"tl/{number}/{name}/down", b"%d" % seq, 1, False))
        journal.release_message(name, 0)
        journal.save_announcement(name, "asleep")
        journal.save_filter(number + 1, f"tl/{number}/{name}/down")
        journal.save_received(number + 1, bytes([number]))
    journal.commit()
    journal.delete_message("pump-0", 2)
    journal.delete_session("pump-5")
    journal.save_topic("pump-1", 1, "plant/another")  # in the place of the one before
    journal.close()
    return (folder / "gateway.sqlite3").read_bytes()


def told(journal: SqliteJournal) -> list[Any]:
    """All that the journal says."""
    sessions = [
        (each.client_id, each.peer, each.state, each.will, dict(each.subscriptions), repr(each.topics))
        for each in journal.sessions(5.0, POLICY)
    ]
    return [sessions, journal.announcements(), journal.filters(), journal.received(), journal.identity]


def test_whatever_happens_to_the_file_it_is_believed_only_if_it_says_the_same(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "gateway.sqlite3"
    put(path, content)
    journal = SqliteJournal(tmp_path)
    truth = [repr(each) for each in told(journal)]
    journal.close()
    refused = 0
    for harm in harms(content, 4, 60, used(content)):
        put(path, harm.content)
        try:
            with closing(SqliteJournal(tmp_path)) as journal:
                found = [repr(each) for each in told(journal)]
        except StateUnusable as error:
            assert "gateway.sqlite3" in str(error) or "another version" in str(error), error
            refused += 1
            continue
        assert found == truth, str(harm)
    assert refused > 30


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE message SET payload=x'00' WHERE seq=1",
        "UPDATE topic SET name='other'",
        "DELETE FROM subscription",
        "UPDATE filter SET id=id+10",
        "UPDATE identity SET name='another'",
        "UPDATE session SET state='ACTIVE'",
    ],
)
def test_every_value_is_summed_up(content: bytes, tmp_path: Path, change: str) -> None:
    put(tmp_path / "gateway.sqlite3", content)
    with sqlite3.connect(tmp_path / "gateway.sqlite3", isolation_level=None) as db:
        db.execute(change)
    with pytest.raises(StateUnusable, match=r"is damaged \(rows of \w+ are not as they were written\): move it away"):
        SqliteJournal(tmp_path)


def test_no_flipped_bit_of_a_statement_is_believed(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "gateway.sqlite3"
    for harm in harmed_statements(path, content, 5, 120):
        put(path, harm.content)
        with pytest.raises(StateUnusable, match=r"gateway\.sqlite3"):
            SqliteJournal(tmp_path).close()
            pytest.fail(str(harm))


def test_a_table_that_says_something_else_of_its_columns_is_named(content: bytes, tmp_path: Path) -> None:
    put(tmp_path / "gateway.sqlite3", content.replace(b"topic_id INTEGER, name TEXT", b"topic_id INTEGER, nime TEXT"))
    told = r"gateway\.sqlite3 is damaged \(topic has other columns\): move it away to start with no sessions"
    with pytest.raises(StateUnusable, match=told):
        SqliteJournal(tmp_path)


def test_a_journal_without_sums_gets_them(content: bytes, tmp_path: Path) -> None:
    put(tmp_path / "gateway.sqlite3", content)
    with sqlite3.connect(tmp_path / "gateway.sqlite3", isolation_level=None) as db:
        db.execute("DROP TABLE sums")
        db.execute("PRAGMA user_version=1")
    for _ in range(2):
        journal = SqliteJournal(tmp_path)
        journal.save_topic("pump-1", 2, "plant/more")
        journal.close()

"""What survives a crash: the journal by itself (the gateway that comes back from it: `test_restarted_gateway.py`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.journal import SqliteJournal, StateUnusable
from broker.session import Outgoing, Session, State, Will
from protocol.mqttsn import (
    Disconnect,
    RetryPolicy,
)
from tests.support.machine import Machine, at

A, B = at(1), at(2)
POLICY = RetryPolicy()


def only_session(journal: SqliteJournal) -> Session:
    journal.commit()
    (session,) = journal.sessions(5.0, POLICY)
    return session


def test_a_session_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    session = Session("dev", (("::1", 1884, 0, 3), (b"\x00\xff", b"")), False, 60, 1.0, State.ASLEEP, sleep_s=90)
    session.will = Will("wills/dev", 2, True, b"\x00gone")
    journal.save_session(session)
    journal.save_topic("dev", 1, "t/x")
    journal.save_subscription("dev", "t/#", 2)
    journal.save_message("dev", Outgoing(6, "t/y", b"later", 1, False))
    journal.save_message("dev", Outgoing(5, "t/x", b"\x00p", 2, True))
    journal.close()
    journal = SqliteJournal(tmp_path)
    read = only_session(journal)
    assert (read.client_id, read.peer, read.clean, read.state) == ("dev", session.peer, False, State.ASLEEP)
    assert (read.keep_alive_s, read.sleep_s, read.last_heard, read.confirmed) == (60, 90, 5.0, True)
    assert read.will == session.will
    assert read.topics.by_id == {1: "t/x"}
    assert read.topics.told == set()
    assert {name: each.qos for name, each in read.subscriptions.items()} == {"t/#": 2}
    assert read.line is not None
    waiting = [(each.seq, each.topic, each.payload, each.qos, each.retain) for each in read.line.waiting]
    assert waiting == [(5, "t/x", b"\x00p", 2, True), (6, "t/y", b"later", 1, False)]
    assert read.line.next_seq > 7, "ids the client may remember are passed over"
    assert read.line.buffered_bytes == sum(each.size for each in read.line.waiting)
    journal.close()


def test_a_session_without_a_will_and_with_an_empty_will_message_are_told_apart(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    session = Session("dev", at(1), False, 60, 1.0)
    journal.save_session(session)
    assert only_session(journal).will is None
    session.will = Will("w", 0, False, b"")
    journal.save_session(session)
    assert only_session(journal).will == session.will
    journal.close()


def test_what_is_deleted_is_gone_and_the_rest_is_not(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    for client_id in ("one", "two"):
        journal.save_session(Session(client_id, at(1), False, 60, 1.0))
        journal.save_topic(client_id, 1, "t/x")
        journal.save_subscription(client_id, "a/#", 1)
        journal.save_subscription(client_id, "b/#", 1)
        journal.save_message(client_id, Outgoing(0, "t/x", b"0", 1, False))
        journal.save_message(client_id, Outgoing(1, "t/x", b"1", 1, False))
    journal.delete_session("one")
    journal.delete_subscription("two", "a/#")
    journal.delete_message("two", 0)
    session = only_session(journal)
    assert session.client_id == "two"
    assert list(session.subscriptions) == ["b/#"]
    assert session.line is not None
    assert [each.payload for each in session.line.waiting] == [b"1"]
    journal.save_session(Session("one", at(1), False, 60, 1.0))
    journal.commit()
    (again,) = (each for each in journal.sessions(0.0, POLICY) if each.client_id == "one")
    assert (again.topics.by_id, again.subscriptions, again.line) == ({}, {}, None)
    journal.close()


def test_announcements_filters_and_received_ids_are_kept(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    journal.save_announcement("one", "online")
    journal.save_announcement("one", "asleep")
    journal.save_announcement("two", "online")
    journal.delete_announcement("two")
    journal.save_filter(1, "a/#")
    journal.save_filter(2, "b/#")
    journal.save_received(7, b"first")
    journal.save_received(7, b"second")
    journal.delete_filter("b/#")
    name = journal.identity
    journal.close()
    journal = SqliteJournal(tmp_path)
    assert journal.announcements() == {"one": "asleep"}
    assert journal.filters() == {1: "a/#"}
    assert journal.received() == {7: b"second"}
    assert journal.identity == name
    assert journal.last_filter_id() == 2, "a number is never given to another filter"
    journal.close()


def test_two_gateways_have_two_names(tmp_path: Path) -> None:
    one, two = SqliteJournal(tmp_path / "one"), SqliteJournal(tmp_path / "two")
    assert one.identity != two.identity
    one.close()
    two.close()


def test_only_what_is_committed_outlives_a_crash(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "state")
    journal.save_announcement("one", "online")
    journal.commit()
    journal.save_announcement("two", "online")
    assert journal.has_news
    reader = sqlite3.connect(tmp_path / "state" / "gateway.sqlite3")
    assert reader.execute("SELECT client_id FROM announcement").fetchall() == [("one",)]
    assert journal.commit()
    assert not journal.has_news
    assert len(reader.execute("SELECT client_id FROM announcement").fetchall()) == 2
    reader.close()
    journal.close()


def test_a_commit_without_changes_does_nothing(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    assert journal.commit()
    assert journal.commit()
    assert not journal.has_news
    journal.close()


@contextmanager
def taking_nothing(folder: Path, journal: SqliteJournal) -> Iterator[None]:
    """No commit succeeds: somebody else is writing."""
    journal._db.execute("PRAGMA busy_timeout=0")
    with closing(sqlite3.connect(folder / "gateway.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def test_what_is_noted_again_while_nothing_can_be_written_takes_no_more_memory(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    assert isinstance(machine.journal, SqliteJournal)
    with taking_nothing(tmp_path, machine.journal):
        for _ in range(500):
            machine.send(A, Disconnect(600))
        assert not machine.journal.commit()
        assert 0 < machine.journal.unwritten < 5
    assert machine.journal.commit()
    assert machine.journal.unwritten == 0
    machine = machine.restarted()
    assert machine.state("dev") is State.ASLEEP
    machine.close()


CHANGES = st.one_of(
    st.builds(lambda name, state: ("save_announcement", name, state), st.sampled_from("ab"), st.sampled_from("xy")),
    st.builds(lambda name: ("delete_announcement", name), st.sampled_from("ab")),
    st.builds(
        lambda name, number, topic: ("save_topic", name, number, topic),
        st.sampled_from("ab"), st.integers(1, 2), st.sampled_from("xy"),
    ),
    st.builds(
        lambda name, topic, qos: ("save_subscription", name, topic, qos),
        *[st.sampled_from("ab")] * 2, st.integers(0, 2),
    ),
    st.builds(lambda name, topic: ("delete_subscription", name, topic), *[st.sampled_from("ab")] * 2),
    st.builds(
        lambda name, seq, payload: ("save_message", name, Outgoing(seq, "t", payload, 1, False)),
        st.sampled_from("ab"), st.integers(0, 2), st.sampled_from((b"x", b"y")),
    ),
    st.builds(lambda name, seq: ("release_message", name, seq), st.sampled_from("ab"), st.integers(0, 2)),
    st.builds(lambda name, seq: ("delete_message", name, seq), st.sampled_from("ab"), st.integers(0, 2)),
    st.builds(lambda name: ("delete_session", name), st.sampled_from("ab")),
    st.builds(lambda number, topic: ("save_filter", number, topic), st.integers(1, 3), st.sampled_from("ab")),
    st.builds(lambda topic: ("delete_filter", topic), st.sampled_from("ab")),
    st.builds(lambda mid, digest: ("save_received", mid, digest), st.integers(1, 2), st.sampled_from((b"x", b"y"))),
    st.just(("forget_received",)),
)  # fmt: skip


@given(st.lists(CHANGES, max_size=30))
@settings(max_examples=60, deadline=None)
def test_changes_written_all_at_once_leave_what_they_leave_one_by_one(changes: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder:
        each, at_once = SqliteJournal(Path(folder, "each")), SqliteJournal(Path(folder, "at-once"))
        for name, *values in changes:
            getattr(each, name)(*values)
            assert each.commit()
            getattr(at_once, name)(*values)
        assert at_once.commit()
        assert content(each) == content(at_once)
        each.close()
        at_once.close()


def content(journal: SqliteJournal) -> dict[str, list[tuple[Any, ...]]]:
    tables = ("session", "topic", "subscription", "message", "announcement", "filter", "inbox", "sqlite_sequence")
    return {table: sorted(journal._read(f"SELECT * FROM {table}")) for table in tables}


def test_a_second_gateway_on_the_same_folder_is_told_so(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    with pytest.raises(StateUnusable, match="another gateway is using it"):
        SqliteJournal(tmp_path)
    journal.close()
    SqliteJournal(tmp_path).close()


def test_a_file_that_is_no_database_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "gateway.sqlite3").write_bytes(b"this is not a database, whatever its name says" * 100)
    with pytest.raises(StateUnusable, match=r"gateway\.sqlite3: file is not a database; .*move the file away"):
        SqliteJournal(tmp_path)


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    SqliteJournal(tmp_path).close()
    database = sqlite3.connect(tmp_path / "gateway.sqlite3")
    database.execute("PRAGMA user_version=99")
    database.commit()
    database.close()
    with pytest.raises(StateUnusable, match=r"another version \(99\)"):
        SqliteJournal(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnusable, match="Not a directory"):
        SqliteJournal(tmp_path / "file" / "state")


def test_a_refused_folder_can_be_used_once_the_fault_is_mended(tmp_path: Path) -> None:
    (tmp_path / "gateway.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(StateUnusable):
        SqliteJournal(tmp_path)
    (tmp_path / "gateway.sqlite3").unlink()
    SqliteJournal(tmp_path).close()

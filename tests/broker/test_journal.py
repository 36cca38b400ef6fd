"""What survives a crash: the journal by itself, and the gateway that comes back from it."""

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
from broker.outputs import MqttSubscribe
from broker.session import Outgoing, Session, State, Will
from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    RetryPolicy,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    WillTopicUpd,
    short_topic_id,
)
from tests.support.machine import ACCEPTED, NORMAL, SHORT, Machine, at

A, B = at(1), at(2)
POLICY = RetryPolicy()


def only_session(journal: SqliteJournal) -> Session:
    journal.commit()
    (session,) = journal.sessions(5.0, POLICY)
    return session


# The file


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


# The gateway that comes back


def test_connected_clients_are_told_to_connect_again_and_find_their_session(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    topic_id = machine.register(A, "t/x")
    machine.subscribe(A, "t/#")
    machine = machine.restarted()
    assert machine.take(A) == [Disconnect()]
    assert machine.state("dev") is State.RETURNING
    assert machine.subscribes == [MqttSubscribe("t/#", 1, retained=False)]
    assert machine.send(A, PingReq()) == [Disconnect()]
    machine.connect(A, "dev", clean=False)
    machine.send(A, Publish(NORMAL, topic_id, 1, b"p", 0))
    assert [each.topic for each in machine.published] == ["t/x"]
    assert machine.register(A, "t/x") == topic_id
    assert machine.register(A, "t/y") != topic_id
    machine.close()


def test_a_message_that_was_waiting_comes_with_the_same_id_and_dup(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab", 2)
    for number in range(3):
        machine.publish_from_broker("ab", b"%d" % number)
    sent = machine.take(A)
    machine = machine.restarted()
    machine.publish_from_broker("ab", b"3")
    machine.take(A)
    answers = machine.send(A, Connect("dev", 60, clean=False))
    assert answers[0] == ConnAck(ACCEPTED)
    again = [each for each in answers if isinstance(each, Publish)]
    assert [(each.msg_id, each.payload) for each in again[:3]] == [
        (each.msg_id, each.payload) for each in sent if isinstance(each, Publish)
    ]
    assert [each.dup for each in again] == [True, True, True, False]
    assert again[3].payload == b"3"
    assert len({each.msg_id for each in again}) == 4
    machine.check_bounds()
    machine.close()


def test_an_acknowledged_message_does_not_come_again_after_a_restart(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab", 1)
    machine.publish_from_broker("ab", b"1")
    machine.publish_from_broker("ab", b"2")
    machine.take(A)
    machine.send(A, PubAck(short_topic_id("ab"), 1, ACCEPTED))
    machine = machine.restarted()
    answers = machine.send(A, Connect("dev", 60, clean=False))
    assert [each.payload for each in answers if isinstance(each, Publish)] == [b"2"]
    machine.close()


def test_a_released_message_is_not_published_again_after_a_crash(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab", 2)
    machine.publish_from_broker("ab", b"p")
    machine.take(A)
    assert machine.send(A, PubRec(1)) == [PubRel(1)]
    machine = machine.restarted()
    machine.take(A)
    assert machine.send(A, Connect("dev", 60, clean=False)) == [ConnAck(ACCEPTED), PubRel(1)]
    machine.send(A, PubComp(1))
    assert machine.gateway.buffered_bytes == 0
    machine.close()


def test_a_pubrec_that_comes_before_the_message_is_sent_again_is_remembered(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    topic_id = machine.subscribe(A, "t/x", 2)
    machine.publish_from_broker("t/x", b"p")
    machine = machine.restarted()
    machine.take(A)
    _, register = machine.send(A, Connect("dev", 60, clean=False))
    assert isinstance(register, Register)
    assert machine.send(A, PubRec(1)) == [PubRel(1)]
    machine.send(A, PubComp(1))
    assert machine.send(A, RegAck(topic_id, register.msg_id, ACCEPTED)) == []
    assert machine.gateway.buffered_bytes == 0
    machine.close()


def test_what_a_client_asks_again_is_noted_again_because_the_journal_may_have_failed_the_first_time(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.register(A, "t/x")
    machine.subscribe(A, "ab", 2)
    machine.publish_from_broker("ab", b"p")
    machine.take(A)
    machine.send(A, PubRec(1))
    for repeated in (Register(0, 1, "t/x"), PubRec(1)):
        assert machine.send(A, repeated) != []
        assert machine.had_news
    machine.close()


def test_a_sleeping_client_does_not_notice_the_restart(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab")
    machine.send(A, Disconnect(600))
    machine.publish_from_broker("ab", b"1")
    machine = machine.restarted()
    assert machine.take(A) == []
    assert machine.state("dev") is State.ASLEEP
    machine.publish_from_broker("ab", b"2")
    came = machine.send(A, PingReq("dev"))
    assert [each.payload for each in came if isinstance(each, Publish)] == [b"1", b"2"]
    first, second = (each.msg_id for each in came if isinstance(each, Publish))
    machine.send(A, PubAck(short_topic_id("ab"), first, ACCEPTED))
    assert machine.send(A, PubAck(short_topic_id("ab"), second, ACCEPTED)) == [PingResp()]
    machine.close()


def test_a_client_that_was_awake_at_the_crash_can_ping_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab")
    machine.send(A, Disconnect(600))
    machine.publish_from_broker("ab", b"1")
    machine.send(A, PingReq("dev"))
    machine = machine.restarted()
    came = machine.send(A, PingReq("dev"))
    assert [each.payload for each in came if isinstance(each, Publish)] == [b"1"]
    machine.close()


def test_a_client_behind_forwarders_is_found_again(tmp_path: Path) -> None:
    node = at(1, b"\x01\xff", b"outer")
    machine = Machine(tmp_path)
    machine.connect(node, "dev", clean=False)
    machine.subscribe(node, "ab")
    machine.send(node, Disconnect(600))
    machine = machine.restarted()
    assert machine.send(node, PingReq("dev")) == [PingResp()]
    machine.close()


def test_a_will_is_published_for_a_client_that_does_not_come_back_after_the_crash(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.send(A, Connect("dev", 60, clean=False, will=True)) == [WillTopicReq()]
    assert machine.send(A, WillTopic("wills/dev", 1)) == [WillMsgReq()]
    assert machine.send(A, WillMsg(b"gone")) == [ConnAck(ACCEPTED)]
    machine.send(A, WillTopicUpd("wills/new", 1))
    machine = machine.restarted()
    machine.advance(89)
    assert machine.published == []
    machine.advance(2)
    assert [(each.topic, each.payload) for each in machine.published] == [("wills/new", b"gone")]
    machine.close()


def test_the_will_is_not_published_if_the_client_comes_back_in_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.send(A, Connect("dev", 60, clean=False, will=True))
    machine.send(A, WillTopic("wills/dev", 1))
    machine.send(A, WillMsg(b"gone"))
    machine = machine.restarted()
    machine.advance(60)
    machine.connect(B, "dev", clean=False)
    machine.advance(60)
    assert machine.published == []
    machine.close()


def test_states_that_are_no_longer_true_are_corrected(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(at(1), "persistent", clean=False)
    machine.connect(at(2), "clean")
    machine.connect(at(3), "sleeper", clean=False)
    machine.connect(at(4), "clean-sleeper")
    machine.connect(at(5), "left", clean=False)
    for number in range(1, 6):
        machine.send(at(number), PingReq())
    machine.send(at(3), Disconnect(600))
    machine.send(at(4), Disconnect(600))
    machine.send(at(5), Disconnect())
    machine = machine.restarted()
    assert sorted(machine.announced) == [("clean", "offline"), ("clean-sleeper", "offline"), ("persistent", "offline")]
    machine.announced.clear()
    machine.connect(at(1), "persistent", clean=False)
    assert machine.announced == [("persistent", "online")]
    machine.close()


def test_the_states_of_departed_clients_are_kept_up_to_the_limit_after_a_crash_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, max_departed=3)
    for number in range(10):
        machine.connect(at(number), f"dev-{number}")
        machine.send(at(number), PingReq())
    machine = machine.restarted()
    machine.check_bounds()
    assert sorted(dict(machine.announced).values()) == [""] * 7 + ["offline"] * 3
    machine.close()


def test_states_are_corrected_once_the_broker_is_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.send(A, PingReq())
    machine = machine.restarted(broker=False)
    assert machine.announced == []
    machine.broker_up()
    assert machine.announced == [("dev", "offline")]
    machine = machine.restarted()
    assert machine.announced == []
    machine.close()


def test_a_clean_session_does_not_come_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=True)
    machine.register(A, "t/x")
    machine.subscribe(A, "t/#")
    machine.publish_from_broker("t/x", b"p", through="t/#")
    machine = machine.restarted()
    assert machine.state("dev") is None
    assert machine.subscribes == []
    assert machine.send(A, PingReq()) == [Disconnect()]
    machine.close()


def test_a_clean_session_leaves_nothing_in_the_journal(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=True)
    machine.register(A, "t/x")
    machine.subscribe(A, "ab", 2)
    machine.publish_from_broker("ab", b"p")
    machine.send(A, PubRec(1))
    machine.send(A, Disconnect(600))
    machine.close()
    database = sqlite3.connect(tmp_path / "gateway.sqlite3")
    for table in ("session", "topic", "subscription", "message"):
        assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    database.close()


def test_a_client_that_never_spoke_after_connect_does_not_come_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "ghost", clean=False)
    machine = machine.restarted()
    assert machine.state("ghost") is None
    machine.close()


def test_what_was_unsubscribed_stays_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "a/#")
    machine.subscribe(A, "b/#")
    machine.send(A, Unsubscribe(NORMAL, "a/#", 3))
    machine = machine.restarted()
    assert [each.topic_filter for each in machine.subscribes] == ["b/#"]
    machine.close()


def test_a_session_thrown_away_by_a_clean_connect_stays_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab")
    machine.publish_from_broker("ab", b"p")
    machine.advance(10)
    machine.connect(A, "dev", clean=True)
    machine.send(A, PingReq())
    machine = machine.restarted()
    assert machine.state("dev") is None
    assert machine.gateway.buffered_bytes == 0
    machine.close()


def test_an_expired_session_stays_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path, session_expiry_s=100)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab")
    machine.send(A, Disconnect())
    machine.advance(101)
    machine = machine.restarted()
    assert machine.state("dev") is None
    machine.close()


def test_dropped_messages_do_not_come_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path, max_buffered_messages=2)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab")
    machine.send(A, Disconnect(600))
    for number in range(5):
        machine.publish_from_broker("ab", b"%d" % number)
    machine = machine.restarted()
    came = machine.send(A, PingReq("dev"))
    assert [each.payload for each in came if isinstance(each, Publish)] == [b"3", b"4"]
    machine.close()


def test_a_topic_told_by_the_gateway_has_the_same_id_after_a_restart(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "t/#")
    machine.publish_from_broker("t/x", b"1", through="t/#")
    (first,) = machine.take(A)
    assert isinstance(first, Register)
    machine = machine.restarted()
    answers = machine.send(A, Connect("dev", 60, clean=False))
    (second,) = [each for each in answers if isinstance(each, Register)]
    assert (second.topic_id, second.topic) == (first.topic_id, "t/x")
    (publish,) = machine.send(A, RegAck(second.topic_id, second.msg_id, ACCEPTED))
    assert isinstance(publish, Publish)
    assert (publish.topic_type, publish.payload) == (NORMAL, b"1")
    machine.close()


def test_a_client_that_moved_is_found_at_its_last_address(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab")
    machine.send(A, Disconnect(600))
    machine.send(B, PingReq("dev"))
    machine = machine.restarted()
    assert machine.send(B, PingReq("dev")) == [PingResp()]
    assert machine.counted("rebound") == 0
    machine.close()


def test_an_orderly_stop_is_like_a_crash_for_those_who_stay(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "ab")
    machine.stop()
    machine = Machine(tmp_path, now=machine.now + 1)
    assert machine.state("dev") is State.RETURNING
    machine.publish_from_broker("ab", b"p")
    answers = machine.send(A, Connect("dev", 60, clean=False))
    assert answers[-1] == Publish(SHORT, short_topic_id("ab"), 1, b"p", 1)
    machine.close()


def test_a_displaced_sleeper_does_not_take_its_old_address_back_by_a_restart(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for client_id in ("a-one", "b-two", "c-three", "b-two"):
        machine.connect(A, client_id, clean=False)
        machine.subscribe(A, "ab")
        machine.send(A, Disconnect(600))
    machine = machine.restarted()
    machine.check_bounds()
    machine.publish_from_broker("ab", b"p")
    (message,) = machine.send(A, PingReq("b-two"))
    assert isinstance(message, Publish)
    assert machine.state("b-two") is State.AWAKE
    machine.close()


def test_two_sleepers_that_a_crash_left_at_one_address_do_not_share_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "a-first", clean=False)
    machine.send(A, Disconnect(600))
    # The first one moves, but its handshake is not finished, so the journal still has it asleep at A.
    assert machine.send(B, Connect("a-first", 60, clean=False, will=True)) == [WillTopicReq()]
    machine.connect(A, "b-second", clean=False)
    machine.send(A, Disconnect(600))
    machine = machine.restarted()
    machine.check_bounds()
    machine.close()

"""The gateway that comes back after a crash, from what its journal kept."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from broker.outputs import MqttSubscribe
from broker.session import State
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

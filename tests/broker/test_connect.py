"""CONNECT and its copies, strangers, takeover, silence: what ties a client to a session and unties it."""

from __future__ import annotations

import pytest

from broker.session import State
from protocol.mqttsn import (
    AnyMessage,
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
    SubAck,
    Subscribe,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillMsgResp,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
)
from tests.support.machine import (
    ACCEPTED,
    CONGESTION,
    NORMAL,
    NOT_SUPPORTED,
    Machine,
    at,
)

A, B, C = at(1), at(2), at(3)


def test_a_client_connects_and_is_announced_online() -> None:
    machine = Machine()
    assert machine.send(A, Connect("dev", 60)) == [ConnAck(ACCEPTED)]
    assert machine.state("dev") is State.ACTIVE
    assert machine.announced == [("dev", "online")]


def test_a_client_that_disconnects_is_announced_offline() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.send(A, PingReq())
    assert machine.send(A, Disconnect()) == [Disconnect()]
    assert machine.announced == [("dev", "online"), ("dev", "offline")]


def test_a_clean_session_ends_with_its_connection() -> None:
    machine = Machine()
    machine.connect(A, "dev", clean=True)
    machine.register(A, "t/x")
    machine.send(A, Disconnect())
    assert machine.state("dev") is None
    machine.connect(A, "dev", clean=False)
    assert machine.session("dev").topics.by_id == {}


def test_a_persistent_session_waits_for_its_client() -> None:
    machine = Machine()
    machine.connect(A, "dev", clean=False)
    topic_id = machine.register(A, "t/x")
    machine.subscribe(A, "down/#")
    machine.send(A, Disconnect())
    assert machine.state("dev") is State.OFFLINE
    machine.publish_from_broker("down/1", b"kept", through="down/#")
    assert machine.send(B, Connect("dev", 60, clean=False))[0] == ConnAck(ACCEPTED)
    assert machine.register(B, "t/x") == topic_id
    assert list(machine.session("dev").subscriptions) == ["down/#"]


def test_a_topic_id_of_a_resumed_session_can_be_published_to_at_once() -> None:
    machine = Machine()
    machine.connect(A, "dev", clean=False)
    topic_id = machine.register(A, "t/x")
    machine.send(A, Disconnect())
    machine.connect(A, "dev", clean=False)
    machine.send(A, Publish(NORMAL, topic_id, 1, b"p", 1))
    assert machine.payloads() == [b"p"]


def test_a_clean_connect_throws_the_persistent_session_away() -> None:
    machine = Machine()
    machine.connect(A, "dev", clean=False)
    machine.register(A, "t/x")
    machine.subscribe(A, "down/#")
    machine.send(A, Disconnect())
    machine.connect(A, "dev", clean=True)
    session = machine.session("dev")
    assert (session.topics.by_id, session.subscriptions) == ({}, {})
    assert machine.unsubscribes == ["down/#"]
    machine.check_bounds()


def test_a_persistent_connect_after_a_clean_session_starts_afresh() -> None:
    machine = Machine()
    machine.connect(A, "dev", clean=True)
    machine.register(A, "t/x")
    machine.advance(10)
    machine.connect(A, "dev", clean=False)
    assert machine.session("dev").topics.by_id == {}


@pytest.mark.parametrize(
    "message", [Connect("dev", 60, protocol_id=2), Connect("x" * 65, 60), Connect("a\nb", 60), Connect("a\0b", 60)]
)
def test_a_connect_the_gateway_cannot_serve_is_refused(message: Connect) -> None:
    machine = Machine()
    assert machine.send(A, message) == [ConnAck(NOT_SUPPORTED)]
    assert sum(machine.gateway.sessions_by_state().values()) == 0


def test_a_client_id_may_be_as_long_as_the_limit_in_octets() -> None:
    machine = Machine(max_client_id_bytes=8)
    assert machine.send(A, Connect("ä" * 4, 60)) == [ConnAck(ACCEPTED)]
    assert machine.send(B, Connect("ä" * 4 + "a", 60)) == [ConnAck(NOT_SUPPORTED)]


def test_a_strange_client_id_is_announced_on_a_single_topic_level() -> None:
    machine = Machine()
    machine.connect(A, "a/+#b")
    assert machine.announced == [("a/+#b", "online")]


def test_connect_is_answered_with_congestion_while_the_broker_is_away() -> None:
    machine = Machine(broker=False)
    assert machine.send(A, Connect("dev", 60)) == [ConnAck(CONGESTION)]
    assert machine.state("dev") is None
    machine.broker_up()
    assert machine.send(A, Connect("dev", 60)) == [ConnAck(ACCEPTED)]


def test_a_gateway_full_of_sessions_answers_with_congestion_but_lets_its_own_clients_back_in() -> None:
    machine = Machine(max_sessions=2)
    machine.connect(A, "one")
    machine.connect(B, "two", clean=False)
    assert machine.send(C, Connect("three", 60)) == [ConnAck(CONGESTION)]
    machine.send(B, Disconnect())
    assert machine.send(C, Connect("three", 60)) == [ConnAck(CONGESTION)]
    assert machine.send(B, Connect("two", 60, clean=False)) == [ConnAck(ACCEPTED)]
    machine.send(A, Disconnect())
    assert machine.send(C, Connect("three", 60)) == [ConnAck(ACCEPTED)]


def test_a_copy_of_connect_starts_nothing_anew() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    topic_id = machine.register(A, "t/x")
    machine.advance(1)
    assert machine.send(A, Connect("dev", 60)) == [ConnAck(ACCEPTED)]
    machine.send(A, Publish(NORMAL, topic_id, 1, b"p", 1))
    assert machine.payloads() == [b"p"]
    assert machine.announced == [("dev", "online")]


def test_the_same_connect_much_later_is_a_new_start() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.register(A, "t/x")
    machine.advance(3.1)
    assert machine.send(A, Connect("dev", 60)) == [ConnAck(ACCEPTED)]
    assert machine.session("dev").topics.by_id == {}


def test_another_connect_at_once_is_a_new_start() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.register(A, "t/x")
    assert machine.send(A, Connect("dev", 61)) == [ConnAck(ACCEPTED)]
    assert machine.session("dev").topics.by_id == {}
    assert machine.session("dev").keep_alive_s == 61


def test_a_copy_of_connect_in_the_will_handshake_is_answered_with_the_question_that_is_open() -> None:
    machine = Machine()
    connect = Connect("dev", 60, will=True)
    assert machine.send(A, connect) == [WillTopicReq()]
    assert machine.send(A, connect) == [WillTopicReq()]
    assert machine.send(A, WillTopic("w")) == [WillMsgReq()]
    assert machine.send(A, connect) == [WillMsgReq()]
    assert machine.send(A, WillMsg(b"gone")) == [ConnAck(ACCEPTED)]
    assert machine.send(A, connect) == [ConnAck(ACCEPTED)]


def test_a_client_that_connects_from_a_new_address_takes_its_session_along() -> None:
    machine = Machine()
    machine.connect(A, "dev", clean=False)
    topic_id = machine.register(A, "t/x")
    machine.connect(B, "dev", clean=False)
    assert machine.take(A) == [Disconnect()]
    machine.send(B, Publish(NORMAL, topic_id, 1, b"p", 0))
    assert machine.payloads() == [b"p"]
    assert machine.send(A, PingReq()) == [Disconnect()]
    machine.check_bounds()


def test_a_second_client_at_an_address_does_not_get_what_is_for_the_first() -> None:
    machine = Machine()
    machine.connect(A, "one", clean=False)
    machine.subscribe(A, "ab")
    machine.connect(A, "two")
    machine.publish_from_broker("ab", b"for one")
    assert machine.take(A) == []
    answers = machine.send(B, Connect("one", 60, clean=False))
    assert [message.payload for message in answers if isinstance(message, Publish)] == [b"for one"]
    machine.check_bounds()


@pytest.mark.parametrize(
    "message",
    [
        Publish(NORMAL, 1, 1, b"p", 0),
        Publish(NORMAL, 1, 1, b"p", 1),
        Publish(NORMAL, 1, 1, b"p", 2),
        PubAck(1, 1, 0),
        PubRec(1),
        PubRel(1),
        PubComp(1),
        Register(0, 1, "t/x"),
        RegAck(1, 1, 0),
        Subscribe(NORMAL, "t/x", 1, 1),
        Unsubscribe(NORMAL, "t/x", 1),
        PingReq(),
        PingReq("nobody"),
        WillTopic("w"),
        WillMsg(b"m"),
        WillTopicUpd("w"),
        WillMsgUpd(b"m"),
        Disconnect(10),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_packet_before_connect_is_answered_with_disconnect(message: AnyMessage) -> None:
    machine = Machine()
    assert machine.send(A, message) == [Disconnect()]
    assert machine.published == []
    assert machine.counted("refused", "no session") == 1


def test_a_goodbye_whose_answer_was_lost_is_answered_again_for_a_while() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    assert machine.send(A, Disconnect()) == [Disconnect()]
    machine.advance(1)
    assert machine.send(A, Disconnect()) == [Disconnect()]
    machine.advance(60)
    assert machine.send(A, Disconnect()) == []


def test_two_gateways_do_not_answer_each_other_for_ever() -> None:
    one, two = Machine(), Machine()
    pending = one.send(A, PubRel(1))
    assert pending == [Disconnect()]
    for _ in range(10):
        pending = [answer for message in pending for answer in two.send(B, message)]
        one, two = two, one
    assert pending == []


@pytest.mark.parametrize(
    "message",
    [ConnAck(0), WillTopicReq(), WillMsgReq(), SubAck(1, 1, 0), PingResp(), WillTopicResp(0), WillMsgResp(0)],
    ids=lambda message: type(message).__name__,
)
def test_a_packet_only_a_gateway_sends_is_not_answered(message: AnyMessage) -> None:
    machine = Machine()
    assert machine.send(A, message) == []
    machine.connect(A, "dev")
    assert machine.send(A, message) == []
    assert machine.counted("refused", "not for a gateway") == 2


@pytest.mark.parametrize(
    "message", [PingReq(), Register(0, 1, "t"), Publish(NORMAL, 1, 1, b"p", 1), Subscribe(NORMAL, "t", 1)]
)
def test_nothing_is_taken_from_a_client_that_owes_its_will(message: AnyMessage) -> None:
    machine = Machine()
    machine.send(A, Connect("dev", 60, will=True))
    assert machine.send(A, message) == []
    assert machine.counted("refused", "connect not finished") == 1
    assert machine.state("dev") is State.WILL_TOPIC


def test_a_will_handshake_that_is_not_finished_ends_the_session() -> None:
    machine = Machine()
    machine.send(A, Connect("dev", 60, will=True))
    machine.send(A, WillTopic("w"))
    machine.advance(59)
    assert machine.state("dev") is State.WILL_MSG
    machine.advance(2)
    assert machine.state("dev") is None
    assert machine.published == []
    assert ("dev", "online") not in machine.announced


def test_a_client_may_leave_in_the_middle_of_the_will_handshake() -> None:
    machine = Machine()
    machine.send(A, Connect("dev", 60, will=True))
    assert machine.send(A, Disconnect()) == [Disconnect()]
    assert machine.state("dev") is None


def test_a_client_without_keep_alive_may_be_silent_until_the_idle_limit() -> None:
    machine = Machine(idle_limit_s=1_000)
    machine.connect(A, "dev", keep_alive_s=0)
    machine.advance(999)
    assert machine.state("dev") is State.ACTIVE
    machine.advance(2)
    assert machine.state("dev") is None
    assert machine.take(A) == [Disconnect()]


def test_a_lost_persistent_client_is_kept_until_its_session_expires_and_then_taken_back() -> None:
    machine = Machine(session_expiry_s=1_000)
    machine.connect(A, "dev", clean=False)
    machine.subscribe(A, "down/#")
    machine.advance(91)
    assert machine.state("dev") is State.OFFLINE
    machine.advance(998)
    assert machine.state("dev") is State.OFFLINE
    machine.advance(2)
    assert machine.state("dev") is None
    assert machine.unsubscribes == ["down/#"]
    assert machine.announced == [("dev", "online"), ("dev", "offline"), ("dev", "")]


def test_a_session_that_is_used_again_does_not_expire() -> None:
    machine = Machine(session_expiry_s=1_000)
    machine.connect(A, "dev", clean=False)
    machine.send(A, Disconnect())
    machine.advance(900)
    machine.connect(A, "dev", clean=False)
    machine.send(A, Disconnect())
    machine.advance(900)
    assert machine.state("dev") is State.OFFLINE


def test_a_plain_ping_is_answered() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    assert machine.send(A, PingReq()) == [PingResp()]

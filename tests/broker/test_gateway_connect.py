"""Connecting, wills, copies, takeover, leaving: everything that ties a client to a session or unties it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.outputs import MqttPublish
from broker.session import State
from protocol.mqttsn import (
    AnyMessage,
    ConnAck,
    Connect,
    Disconnect,
    GwInfo,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    SearchGw,
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
    encapsulate,
    encode,
)
from tests.support.machine import (
    ACCEPTED,
    CONGESTION,
    INVALID_TOPIC,
    NORMAL,
    NOT_SUPPORTED,
    Machine,
    at,
)

A, B, C = at(1), at(2), at(3)


def connect_with_will(
    machine: Machine, client_id: str = "dev", topic: str = "wills/dev", qos: int = 1, retain: bool = False, **rest: bool
) -> None:
    assert machine.send(A, Connect(client_id, 60, will=True, **rest)) == [WillTopicReq()]
    assert machine.send(A, WillTopic(topic, qos, retain)) == [WillMsgReq()]
    assert machine.send(A, WillMsg(b"gone")) == [ConnAck(ACCEPTED)]


# CONNECT


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


# Copies of CONNECT


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


def test_the_will_is_not_published_when_the_client_itself_connects_from_elsewhere() -> None:
    machine = Machine()
    connect_with_will(machine, clean=False)
    machine.connect(B, "dev", clean=False)
    assert machine.published == []


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


# Strangers and unfinished handshakes


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


# Wills


def test_the_will_is_published_when_the_client_falls_silent() -> None:
    machine = Machine()
    connect_with_will(machine, topic="wills/dev", qos=2, retain=True)
    machine.advance(89)
    assert machine.published == []
    machine.advance(2)
    assert machine.published == [MqttPublish("wills/dev", b"gone", 2, True)]
    assert machine.take(A) == [Disconnect()]
    assert machine.announced[-1] == ("dev", "offline")


def test_a_will_waits_for_a_broker_that_is_away_and_is_given_to_it_at_qos_1() -> None:
    machine = Machine()
    connect_with_will(machine, qos=0)
    machine.broker_down()
    machine.advance(91)
    assert machine.published == []
    machine.broker_up()
    machine.advance(2)
    assert machine.published == [MqttPublish("wills/dev", b"gone", 1, False)]


def test_the_will_is_published_once() -> None:
    machine = Machine()
    connect_with_will(machine, clean=False)
    machine.advance(91)
    machine.advance(8 * 24 * 3600)
    assert len(machine.published) == 1


def test_any_packet_of_the_client_puts_the_will_off() -> None:
    machine = Machine()
    connect_with_will(machine)
    for _ in range(10):
        machine.advance(80)
        machine.send(A, PingReq())
    assert machine.published == []


def test_the_will_is_not_published_after_a_proper_goodbye() -> None:
    machine = Machine()
    connect_with_will(machine, clean=False)
    machine.send(A, Disconnect())
    machine.advance(3600)
    assert machine.published == []


def test_an_empty_will_topic_means_no_will() -> None:
    machine = Machine()
    machine.send(A, Connect("dev", 60, will=True))
    assert machine.send(A, WillTopic("")) == [ConnAck(ACCEPTED)]
    machine.advance(91)
    assert machine.published == []
    assert machine.state("dev") is None


def test_an_impossible_will_topic_is_refused_and_ends_the_connection() -> None:
    machine = Machine()
    machine.send(A, Connect("dev", 60, will=True))
    assert machine.send(A, WillTopic("a/#")) == [ConnAck(INVALID_TOPIC)]
    assert machine.state("dev") is None


def test_a_repeated_will_topic_is_asked_for_its_message_again_and_the_last_one_counts() -> None:
    machine = Machine()
    machine.send(A, Connect("dev", 60, will=True))
    assert machine.send(A, WillTopic("first")) == [WillMsgReq()]
    assert machine.send(A, WillTopic("second", 1)) == [WillMsgReq()]
    machine.send(A, WillMsg(b"gone"))
    machine.advance(91)
    assert machine.published == [MqttPublish("second", b"gone", 1, False)]


def test_a_will_message_whose_connack_was_lost_is_answered_again() -> None:
    machine = Machine()
    connect_with_will(machine)
    assert machine.send(A, WillMsg(b"gone")) == [ConnAck(ACCEPTED)]
    assert machine.counted("duplicates", "will") == 1


def test_will_messages_nobody_asked_for_are_not_answered() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    assert machine.send(A, WillTopic("w")) == []
    assert machine.send(A, WillMsg(b"m")) == []
    assert machine.counted("refused", "will not asked for") == 2
    machine.advance(91)
    assert machine.published == []


def test_topic_and_message_of_a_will_can_be_changed_one_by_one() -> None:
    machine = Machine()
    connect_with_will(machine)
    assert machine.send(A, WillTopicUpd("wills/new", 2, True)) == [WillTopicResp(ACCEPTED)]
    assert machine.send(A, WillMsgUpd(b"changed")) == [WillMsgResp(ACCEPTED)]
    machine.advance(91)
    assert machine.published == [MqttPublish("wills/new", b"changed", 2, True)]


def test_a_new_will_topic_keeps_the_message() -> None:
    machine = Machine()
    connect_with_will(machine)
    machine.send(A, WillTopicUpd("wills/new", 1))
    machine.advance(91)
    assert machine.published == [MqttPublish("wills/new", b"gone", 1, False)]


def test_an_empty_will_topic_update_deletes_the_will() -> None:
    machine = Machine()
    connect_with_will(machine)
    assert machine.send(A, WillTopicUpd("")) == [WillTopicResp(ACCEPTED)]
    assert machine.send(A, WillMsgUpd(b"changed")) == [WillMsgResp(NOT_SUPPORTED)]
    machine.advance(91)
    assert machine.published == []


def test_a_client_without_a_will_can_be_given_one_later() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.send(A, WillTopicUpd("wills/dev", 1))
    machine.send(A, WillMsgUpd(b"gone"))
    machine.advance(91)
    assert machine.published == [MqttPublish("wills/dev", b"gone", 1, False)]


def test_an_impossible_will_topic_update_is_refused_and_changes_nothing() -> None:
    machine = Machine()
    connect_with_will(machine)
    assert machine.send(A, WillTopicUpd("a/+")) == [WillTopicResp(INVALID_TOPIC)]
    machine.advance(91)
    assert machine.published == [MqttPublish("wills/dev", b"gone", 1, False)]


def test_a_resumed_session_keeps_its_will_and_a_clean_one_does_not() -> None:
    for clean, wills in ((False, 1), (True, 0)):
        machine = Machine()
        connect_with_will(machine, clean=False)
        machine.send(A, Disconnect())
        machine.connect(A, "dev", clean=clean)
        machine.advance(91)
        assert len(machine.published) == wills


def test_an_empty_will_topic_whose_connack_was_lost_is_answered_again() -> None:
    machine = Machine()
    assert machine.send(A, Connect("dev", 60, will=True)) == [WillTopicReq()]
    assert machine.send(A, WillTopic("")) == [ConnAck(ACCEPTED)]
    assert machine.send(A, WillTopic("")) == [ConnAck(ACCEPTED)]


# Silence


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


# States told to the world


def test_states_that_could_not_be_told_are_told_when_the_broker_is_back() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.send(A, PingReq())
    machine.broker_down()
    machine.announced.clear()
    machine.send(A, Disconnect(60))
    machine.send(A, Disconnect())
    assert machine.announced == []
    machine.broker_up()
    assert machine.announced == [("dev", "offline")]


def test_a_client_that_connects_again_is_not_announced_again() -> None:
    machine = Machine()
    for keep_alive_s in (60, 61, 62):
        machine.connect(A, "dev", keep_alive_s=keep_alive_s)
        machine.send(A, PingReq())
    assert machine.announced == [("dev", "online")]


def test_the_states_of_departed_clients_are_kept_up_to_a_limit_and_then_taken_back() -> None:
    machine = Machine(max_departed=3)
    for number in range(5):
        machine.connect(at(number), f"dev-{number}")
        machine.send(at(number), PingReq())
        machine.send(at(number), Disconnect())
    told = dict(machine.announced)
    assert told == {"dev-0": "", "dev-1": "", "dev-2": "offline", "dev-3": "offline", "dev-4": "offline"}
    machine.check_bounds()


def test_a_departed_client_that_comes_back_is_not_taken_back() -> None:
    machine = Machine(max_departed=1)
    for client_id in ("one", "two"):
        machine.connect(A, client_id)
        machine.send(A, PingReq())
        machine.send(A, Disconnect())
        machine.connect(B, "one")
        machine.send(B, PingReq())
    assert dict(machine.announced)["one"] == "online"


def test_connected_clients_are_told_when_the_gateway_stops(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev")
    machine.connect(B, "sleeper", clean=False)
    machine.send(B, Disconnect(60))
    machine.stop()
    assert machine.take(A) == [Disconnect()]
    assert machine.take(B) == []
    assert machine.announced[-1] == ("dev", "offline")
    assert ("sleeper", "offline") not in machine.announced
    machine.close()


def test_a_sleeper_that_ends_with_the_gateway_is_told_of_as_offline() -> None:
    machine = Machine()
    machine.connect(A, "sleeper", clean=False)
    machine.send(A, Disconnect(60))
    machine.stop()
    assert machine.announced[-1] == ("sleeper", "offline")


# Looking for a gateway


def test_a_search_is_answered_to_the_one_who_searches() -> None:
    machine = Machine(gateway_id=9)
    assert machine.send(A, SearchGw(1)) == [GwInfo(9)]
    machine.connect(A, "dev")
    assert machine.send(A, SearchGw(1)) == [GwInfo(9)]
    assert dict(machine.mail) == {}


def test_other_gateways_are_heard_and_not_answered() -> None:
    machine = Machine()
    assert machine.send(A, GwInfo(3)) == []
    assert machine.counted("other gateways heard") == 1


def test_the_gateway_advertises_itself_again_and_again() -> None:
    machine = Machine(gateway_id=9, advertise_every_s=900)
    machine.advance(0)
    assert len(machine.broadcasts) == 1
    machine.advance(899)
    assert len(machine.broadcasts) == 1
    machine.advance(1 + 1800)
    assert len(machine.broadcasts) == 4
    assert encode(machine.broadcasts[0]) == bytes.fromhex("05 00 09 0384")


def test_the_gateway_does_not_advertise_unless_asked_to() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.advance(3600)
    assert machine.broadcasts == []


# Forwarders


def test_an_answer_goes_back_through_the_forwarders_it_came_through() -> None:
    machine = Machine()
    node = at(1, b"inner", b"outer")
    wire = encapsulate(encapsulate(encode(Connect("dev", 60)), b"inner"), b"outer")
    machine.gateway.receive(wire, node[0], machine.now)
    ((answer, address),) = machine.gateway.outputs.datagrams
    assert address == node[0]
    assert answer == encapsulate(encapsulate(encode(ConnAck(ACCEPTED)), b"inner"), b"outer")


def test_two_nodes_behind_one_forwarder_are_two_clients() -> None:
    machine = Machine()
    one, two, direct = at(1, b"\x01"), at(1, b"\x02"), at(1)
    machine.connect(one, "one")
    machine.connect(two, "two")
    machine.connect(direct, "forwarder")
    first, second = machine.register(one, "t/one"), machine.register(two, "t/two")
    machine.send(one, Publish(NORMAL, first, 1, b"1", 1))
    machine.send(two, Publish(NORMAL, second, 1, b"2", 1))
    machine.acknowledge()
    assert [(each.topic, each.payload) for each in machine.published] == [("t/one", b"1"), ("t/two", b"2")]
    assert machine.take(one) == [PubAck(first, 1, ACCEPTED)]
    assert machine.take(two) == [PubAck(second, 1, ACCEPTED)]
    assert machine.take(direct) == []


def test_a_message_for_a_node_behind_a_forwarder_is_wrapped_for_it() -> None:
    machine = Machine()
    node = at(1, b"\x01")
    machine.connect(node, "dev")
    machine.subscribe(node, "ab", qos=0)
    machine.publish_from_broker("ab", b"down")
    assert [message.payload for message in machine.take(node) if isinstance(message, Publish)] == [b"down"]
    assert dict(machine.mail) == {}


def test_more_forwarders_than_anybody_has_are_refused() -> None:
    machine = Machine()
    assert machine.send(at(1, *[b"n"] * 4), Connect("dev", 60)) == [ConnAck(ACCEPTED)]
    assert machine.send(at(1, *[b"n"] * 5), Connect("other", 60)) == []
    assert machine.counted("malformed", "too many forwarders") == 1


@pytest.mark.parametrize("octets", ["05 fe 00 abcd", "05 fe 00 abcd 02", "05 fe 00 abcd 03 16", "05fe00abcd 05fe00"])
def test_a_broken_packet_behind_a_forwarder_is_counted_and_dropped(octets: str) -> None:
    machine = Machine()
    machine.receive(bytes.fromhex(octets), A)
    assert sum(n for (what, _), n in machine.gateway.outputs.counters.items() if what == "malformed") == 1
    assert dict(machine.mail) == {}


# Floods


def test_a_flood_of_connects_with_fresh_ids_and_addresses_stays_in_bounds() -> None:
    machine = Machine(max_unconfirmed=64, max_departed=50)
    machine.connect(A, "honest", clean=False)
    topic_id = machine.register(A, "t/x")
    gateway = machine.gateway
    for number in range(100_000):
        packet = encode(Connect(f"flood-{number}", number % 65_536, clean=number % 2 == 0, will=number % 3 == 0))
        gateway.receive(packet, at(100 + number)[0], machine.now)
        gateway.outputs.datagrams.clear()
        if number % 10_000 == 0:
            machine.advance(0.5)
            machine.check_bounds()
            assert len(gateway._by_client) <= 65
            assert len(gateway._by_peer) <= 65
    machine._collect()
    machine.check_bounds()
    assert machine.counted("sessions ended", "never spoke after connect") == 100_000 - 64
    machine.send(A, Publish(NORMAL, topic_id, 1, b"still here", 1))
    assert machine.payloads() == [b"still here"]
    told = dict(machine.announced)
    lasting = [client_id for client_id, state in told.items() if state]
    assert len(machine.announced) <= 2_000, "the world is not told of every stranger"
    assert len(lasting) <= 65
    assert told["honest"] == "online"


def test_a_flood_does_not_pile_up_timers() -> None:
    machine = Machine(max_unconfirmed=16)
    for number in range(5_000):
        machine.gateway.receive(encode(Connect(f"flood-{number}", 65_535)), at(10 + number)[0], machine.now)
        machine.gateway.outputs.datagrams.clear()
    assert len(machine.gateway._timers) < 500


def test_a_client_that_never_spoke_leaves_no_trace_in_the_announcements() -> None:
    machine = Machine()
    machine.connect(A, "ghost")
    machine.advance(91)
    assert machine.announced == [("ghost", "online"), ("ghost", "")]


def test_a_client_that_spoke_is_not_evicted_by_those_who_did_not() -> None:
    machine = Machine(max_unconfirmed=4)
    machine.connect(A, "dev")
    machine.send(A, PingReq())
    for number in range(10, 30):
        machine.connect(at(number), f"ghost-{number}")
    assert machine.state("dev") is State.ACTIVE
    assert sum(machine.gateway.sessions_by_state().values()) == 5


def test_a_gateway_that_hears_its_own_goodbyes_does_not_answer_them_for_ever() -> None:
    """A forged CONNECT and DISCONNECT with the gateway's own address as the sender."""
    machine = Machine()
    machine.connect(A, "forged")
    machine.send(A, PingReq())
    pending = machine.send(A, Disconnect())
    for _ in range(10):
        pending = [answer for message in pending for answer in machine.send(A, message)]
    assert pending == []

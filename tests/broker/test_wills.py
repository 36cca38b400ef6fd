"""Wills: asked for when a client connects, changed later, published when it is lost."""

from __future__ import annotations

from broker.outputs import MqttPublish
from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
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
    INVALID_TOPIC,
    NOT_SUPPORTED,
    Machine,
    at,
)

A, B = at(1), at(2)


def connect_with_will(
    machine: Machine, client_id: str = "dev", topic: str = "wills/dev", qos: int = 1, retain: bool = False, **rest: bool
) -> None:
    assert machine.send(A, Connect(client_id, 60, will=True, **rest)) == [WillTopicReq()]
    assert machine.send(A, WillTopic(topic, qos, retain)) == [WillMsgReq()]
    assert machine.send(A, WillMsg(b"gone")) == [ConnAck(ACCEPTED)]


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


def test_the_will_is_not_published_when_the_client_itself_connects_from_elsewhere() -> None:
    machine = Machine()
    connect_with_will(machine, clean=False)
    machine.connect(B, "dev", clean=False)
    assert machine.published == []

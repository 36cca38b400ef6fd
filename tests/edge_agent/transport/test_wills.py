"""The will: with CONNECT, changed later, taken away."""

from __future__ import annotations

import pytest

from edge_agent.transport import DeliveryFailed, Refused, State, Will
from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    ReturnCode,
    WillMsg,
    WillMsgReq,
    WillMsgResp,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
)
from tests.edge_agent.transport.machine import Machine, kinds

WILL = Will("cars/7/state", b"gone", qos=1, retain=True)
OTHER = Will("cars/7/state", b"lost")


def connected(machine: Machine) -> Machine:
    machine.session.connect(machine.now)
    machine.sent()
    machine.hear(WillTopicReq())
    machine.hear(WillMsgReq())
    machine.hear(ConnAck(0))
    assert machine.is_in(State.CONNECTED)
    return machine


def test_the_will_is_handed_over_while_connecting() -> None:
    machine = Machine(will=WILL)
    machine.session.connect(machine.now)
    assert machine.sent() == [Connect("car-7", 60, clean=False, will=True)]
    assert machine.hear(WillTopicReq()) == [WillTopic("cars/7/state", 1, True)]
    assert machine.hear(WillMsgReq()) == [WillMsg(b"gone")]
    machine.hear(ConnAck(0))
    assert machine.is_in(State.CONNECTED)


def test_every_leg_of_the_handshake_is_repeated_until_answered() -> None:
    machine = Machine(will=WILL)
    machine.session.connect(machine.now)
    assert set(kinds(machine.wait(2))) == {"CONNECT"}
    machine.hear(WillTopicReq())
    assert machine.until(WillTopic, 10) == WillTopic("cars/7/state", 1, True)
    machine.hear(WillMsgReq())
    assert machine.until(WillMsg, 10) == WillMsg(b"gone")
    assert machine.hear(WillTopicReq()) == [WillTopic("cars/7/state", 1, True)]
    machine.hear(ConnAck(0))
    assert machine.is_in(State.CONNECTED)


def test_a_will_is_changed_in_two_steps() -> None:
    machine = connected(Machine(will=WILL))
    pending = machine.set_will(OTHER)
    assert machine.sent() == [WillTopicUpd("cars/7/state", 0, False)]
    assert machine.hear(WillTopicResp(0)) == [WillMsgUpd(b"lost")]
    assert not pending.done()
    machine.hear(WillMsgResp(0))
    assert pending.result(0) is None


def test_a_will_is_taken_away_with_an_empty_topic() -> None:
    machine = connected(Machine(will=WILL))
    pending = machine.set_will(None)
    assert machine.sent() == [WillTopicUpd("")]
    machine.hear(WillTopicResp(0))
    assert pending.result(0) is None
    machine.hear(Disconnect())
    assert not machine.until(Connect).will


def test_steps_are_repeated_and_copies_of_answers_ignored() -> None:
    machine = connected(Machine(will=WILL))
    pending = machine.set_will(OTHER)
    assert set(kinds(machine.wait(1))) == {"WILLTOPICUPD"}
    machine.hear(WillTopicResp(0), WillTopicResp(0))
    assert set(kinds(machine.wait(1))) == {"WILLMSGUPD"}
    machine.hear(WillMsgResp(0), WillMsgResp(0))
    assert pending.result(0) is None


def test_a_reconnect_hands_over_the_new_will_and_ends_the_change() -> None:
    machine = connected(Machine(will=WILL))
    pending = machine.set_will(OTHER)
    machine.sent()
    machine.hear(Disconnect())
    assert machine.until(Connect).will
    assert machine.hear(WillTopicReq()) == [WillTopic("cars/7/state", 0, False)]
    assert machine.hear(WillMsgReq()) == [WillMsg(b"lost")]
    assert machine.hear(ConnAck(0)) == []
    assert pending.result(0) is None


def test_taking_the_will_away_is_asked_again_after_a_reconnect() -> None:
    machine = connected(Machine(will=WILL))
    pending = machine.set_will(None)
    machine.sent()
    machine.hear(Disconnect())
    machine.until(Connect)
    assert machine.hear(ConnAck(0)) == [WillTopicUpd("")]
    machine.hear(WillTopicResp(0))
    assert pending.result(0) is None


def test_a_will_changed_in_the_middle_of_connecting_is_updated_afterwards() -> None:
    machine = Machine(will=WILL)
    machine.session.connect(machine.now)
    machine.sent()
    pending = machine.set_will(OTHER)
    assert machine.hear(WillTopicReq()) == [WillTopic("cars/7/state", 1, True)]
    assert machine.hear(WillMsgReq()) == [WillMsg(b"gone")]
    assert kinds(machine.hear(ConnAck(0))) == ["WILLTOPICUPD"]
    machine.hear(WillTopicResp(0))
    machine.hear(WillMsgResp(0))
    assert pending.result(0) is None


def test_of_several_changes_the_last_one_counts() -> None:
    machine = connected(Machine(will=WILL))
    first = machine.set_will(OTHER)
    machine.sent()
    second = machine.set_will(WILL)
    third = machine.set_will(None)
    assert isinstance(second.exception(0), DeliveryFailed)
    machine.hear(WillTopicResp(0))
    assert machine.hear(WillMsgResp(0)) == [WillTopicUpd("")]
    assert first.result(0) is None
    machine.hear(WillTopicResp(0))
    assert third.result(0) is None


def test_a_refused_change_fails_and_a_congested_one_is_repeated() -> None:
    machine = connected(Machine(will=WILL))
    refused = machine.set_will(OTHER)
    machine.sent()
    machine.hear(WillTopicResp(ReturnCode.NOT_SUPPORTED))
    assert isinstance(refused.exception(0), Refused)
    congested = machine.set_will(OTHER)
    machine.sent()
    assert machine.hear(WillTopicResp(ReturnCode.CONGESTION)) == []
    machine.until(WillTopicUpd)
    machine.hear(WillTopicResp(0))
    machine.hear(WillMsgResp(0))
    assert congested.result(0) is None


def test_a_gateway_silent_to_a_change_is_left() -> None:
    machine = connected(Machine(will=WILL))
    machine.set_will(OTHER)
    machine.until(Connect)


@pytest.mark.parametrize(
    ("topic", "payload", "qos"), [("", b"", 0), ("a/#", b"", 0), ("a", b"", -1), ("a", bytes(65_504), 0)]
)
def test_a_will_that_cannot_be_is_refused(topic: str, payload: bytes, qos: int) -> None:
    with pytest.raises(ValueError):
        Will(topic, payload, qos)

"""Subscriptions, registrations by the gateway, and the way of a message to the callbacks."""

from __future__ import annotations

import pytest

from edge_agent.transport import Message, Refused
from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicType,
    UnsubAck,
    Unsubscribe,
    short_topic_id,
)
from tests.edge_agent.transport.machine import Machine, kinds


def subscribed(machine: Machine, topic: str | int, topic_id: int = 0, qos: int = 1) -> Subscribe:
    pending = machine.subscribe(topic, qos)
    (packet,) = machine.sent()
    assert isinstance(packet, Subscribe)
    machine.hear(SubAck(topic_id, packet.msg_id, 0, qos))
    assert pending.result(0) == qos
    return packet


def test_the_result_of_subscribing_is_the_granted_qos() -> None:
    machine = Machine().connected()
    pending = machine.subscribe("a/b", qos=2)
    (packet,) = machine.sent()
    assert isinstance(packet, Subscribe)
    assert packet == Subscribe(TopicType.NORMAL, "a/b", packet.msg_id, 2)
    machine.hear(SubAck(5, packet.msg_id, 0, qos=1))
    assert pending.result(0) == 1


@pytest.mark.parametrize(
    ("topic", "kind", "field"),
    [
        ("a/b", TopicType.NORMAL, "a/b"),
        ("a/#", TopicType.NORMAL, "a/#"),
        ("+/", TopicType.NORMAL, "+/"),
        ("ab", TopicType.SHORT, "ab"),
        (7, TopicType.PREDEFINED, 7),
        ("known", TopicType.PREDEFINED, 3),
    ],
)
def test_every_kind_of_topic_can_be_subscribed_to_and_unsubscribed_from(
    topic: str | int, kind: TopicType, field: str | int
) -> None:
    machine = Machine(predefined={"known": 3}).connected()
    packet = subscribed(machine, topic)
    assert (packet.topic_type, packet.topic) == (kind, field)
    pending = machine.unsubscribe(topic)
    (undo,) = machine.sent()
    assert isinstance(undo, Unsubscribe) and (undo.topic_type, undo.topic) == (kind, field)
    machine.hear(UnsubAck(undo.msg_id))
    assert pending.result(0) is None


@pytest.mark.parametrize("topic", ["", "a/#/b", "a+", 0, 70_000])
def test_what_is_no_filter_is_refused_at_the_call(topic: str | int) -> None:
    with pytest.raises(ValueError):
        Machine().subscribe(topic)


def test_a_subscription_has_qos_0_to_2() -> None:
    with pytest.raises(ValueError, match="QoS"):
        Machine().subscribe("a/b", qos=-1)


def test_subscribe_is_repeated_with_dup() -> None:
    machine = Machine().connected()
    machine.subscribe("a/b")
    packets = [packet for packet in machine.wait(1) if isinstance(packet, Subscribe)]
    assert len(packets) > 2 and [packet.dup for packet in packets] == [False] + [True] * (len(packets) - 1)
    assert len({packet.msg_id for packet in packets}) == 1


def test_a_message_reaches_the_callback_and_is_acknowledged() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/b", topic_id=5)
    assert machine.hear(Publish(0, 5, 99, b"hello", 1, retain=True)) == [PubAck(5, 99, 0)]
    assert machine.received == [Message("a/b", b"hello", 1, True)]


def test_an_id_given_to_a_wildcard_means_nothing() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/+", topic_id=7)
    assert machine.hear(Publish(0, 7, 1, b"1", 1)) == [PubAck(7, 1, ReturnCode.INVALID_TOPIC)]


def test_names_under_a_wildcard_are_announced_by_the_gateway() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/+")
    assert machine.hear(Register(8, 50, "a/x")) == [RegAck(8, 50, 0)]
    machine.hear(Publish(0, 8, 0, b"1", 0))
    assert machine.received == [Message("a/x", b"1", 0, False)]


def test_short_and_predefined_topics_arrive_by_their_own_ids() -> None:
    machine = Machine(predefined={"known": 3}).connected()
    for topic in ("ab", 7, "known"):
        subscribed(machine, topic)
    machine.hear(
        Publish(TopicType.SHORT, short_topic_id("ab"), 0, b"1", 0),
        Publish(TopicType.PREDEFINED, 7, 0, b"2", 0),
        Publish(TopicType.PREDEFINED, 3, 0, b"3", 0),
    )
    assert [(m.topic, m.payload) for m in machine.received] == [("ab", b"1"), (7, b"2"), ("known", b"3")]


def test_a_message_goes_to_every_subscription_that_covers_it() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/b", topic_id=5)
    subscribed(machine, "a/#")
    subscribed(machine, "c/#")
    machine.hear(Publish(0, 5, 0, b"1", 0))
    assert len(machine.received) == 2


def test_an_id_nobody_announced_is_answered_so_that_the_gateway_announces_it() -> None:
    machine = Machine().connected()
    assert machine.hear(Publish(0, 9, 33, b"1", 1)) == [PubAck(9, 33, ReturnCode.INVALID_TOPIC)]
    assert machine.hear(Publish(0, 9, 33, b"1", 2)) == [PubAck(9, 33, ReturnCode.INVALID_TOPIC)]
    assert machine.received == []


@pytest.mark.parametrize(("topic_id", "name"), [(0, "a/b"), (0xFFFF, "a/b"), (5, "a/#"), (5, "a\0")])
def test_a_senseless_announcement_is_refused(topic_id: int, name: str) -> None:
    machine = Machine().connected()
    assert machine.hear(Register(topic_id, 1, name)) == [RegAck(topic_id, 1, ReturnCode.INVALID_TOPIC)]


def test_a_gateway_that_announces_without_end_fills_no_memory() -> None:
    machine = Machine(max_topics=10).connected()
    subscribed(machine, "a/#")
    for number in range(1, 1_000):
        machine.hear(Register(number, 1, f"a/{number}"))
    assert len(machine.session._book._names) == 10
    assert machine.hear(Publish(0, 1, 7, b"", 1)) == [PubAck(1, 7, ReturnCode.INVALID_TOPIC)]
    machine.hear(Register(1, 2, "a/1"), Publish(0, 1, 7, b"back", 1))
    assert machine.received == [Message("a/1", b"back", 1, False)]


def test_publishing_to_many_names_fills_no_memory() -> None:
    machine = Machine(max_topics=10).connected()
    machine.registered(*(f"a/{number}" for number in range(50)))
    assert len(machine.session._book._ids) == 10


def test_a_refused_subscription_fails_and_is_not_tried_again() -> None:
    machine = Machine().connected()
    pending = machine.subscribe("a/b")
    (packet,) = machine.sent()
    machine.hear(SubAck(0, packet.msg_id, ReturnCode.NOT_SUPPORTED))  # type: ignore[union-attr]
    with pytest.raises(Refused, match="a subscription to a/b"):
        pending.result(0)
    machine.hear(Disconnect())
    machine.until(Connect)
    assert machine.hear(ConnAck(0)) == []


def test_a_congested_subscription_is_repeated_after_a_pause() -> None:
    machine = Machine().connected()
    pending = machine.subscribe("a/b")
    (packet,) = machine.sent()
    assert machine.hear(SubAck(0, packet.msg_id, ReturnCode.CONGESTION)) == []  # type: ignore[union-attr]
    again = machine.until(Subscribe)
    machine.hear(SubAck(4, again.msg_id, 0, 1))
    assert pending.result(0) == 1


def test_subscriptions_are_made_again_after_every_reconnect() -> None:
    machine = Machine().connected()
    for number in range(20):
        subscribed(machine, f"a/{number}", topic_id=number + 1)
    machine.hear(Disconnect())
    machine.until(Connect)
    renewed = set()
    packets = machine.hear(ConnAck(0))
    while packets:
        packet = packets.pop(0)
        assert isinstance(packet, Subscribe)
        renewed.add(packet.topic)
        packets += machine.hear(SubAck(1, packet.msg_id, 0, 1))
    assert renewed == {f"a/{number}" for number in range(20)}


def test_a_subscription_is_renewed_even_while_its_name_is_being_registered() -> None:
    machine = Machine(clean=True).connected()
    subscribed(machine, "a/b", topic_id=5)
    machine.publish("a/b")
    (register,) = machine.sent()
    assert isinstance(register, Register)
    machine.hear(ConnAck(0))
    assert "SUBSCRIBE" in kinds(machine.hear(RegAck(5, register.msg_id, 0)))


def test_a_subscription_asked_for_while_disconnected_is_made_once_connected() -> None:
    machine = Machine()
    pending = machine.subscribe("a/b")
    assert kinds(machine.sent()) == ["CONNECT"]
    (packet,) = machine.hear(ConnAck(0))
    machine.hear(SubAck(1, packet.msg_id, 0, 1))  # type: ignore[union-attr]
    assert pending.result(0) == 1


def test_unsubscribing_waits_for_the_subscribing_before_it() -> None:
    machine = Machine().connected()
    machine.subscribe("a/b")
    machine.unsubscribe("a/b")
    machine.subscribe("c/d")
    packets = machine.wait(0.1)
    assert kinds(packets) == ["SUBSCRIBE"]
    rest = machine.hear(SubAck(1, packets[0].msg_id, 0, 1))  # type: ignore[union-attr]
    assert kinds(rest) == ["UNSUBSCRIBE", "SUBSCRIBE"]


def test_after_unsubscribing_messages_are_answered_but_not_delivered() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/b", topic_id=5)
    machine.unsubscribe("a/b")
    machine.sent()
    assert machine.hear(Publish(0, 5, 9, b"late", 1)) == [PubAck(5, 9, 0)]
    assert machine.received == []
    assert machine.session.stats().unexpected == {"publish without a subscription": 1}


def test_an_unsubscribing_that_met_a_reconnect_is_asked_again() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/b", topic_id=5)
    pending = machine.unsubscribe("a/b")
    machine.sent()
    machine.hear(Disconnect())
    machine.until(Connect)
    (packet,) = machine.hear(ConnAck(0))
    assert isinstance(packet, Unsubscribe)
    machine.hear(UnsubAck(packet.msg_id))
    assert pending.result(0) is None

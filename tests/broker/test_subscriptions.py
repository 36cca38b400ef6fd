"""Filters of many clients over one MQTT session: who asked, who is answered, who gets what."""

from __future__ import annotations

import pytest

from broker.config import PredefinedTopics
from broker.outputs import MqttSubscribe, Peer
from protocol.mqttsn import (
    AnyMessage,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    short_topic_id,
)
from tests.support.machine import (
    ACCEPTED,
    CONGESTION,
    INVALID_TOPIC,
    NORMAL,
    NOT_SUPPORTED,
    PREDEFINED,
    SHORT,
    Machine,
    at,
)

A, B = at(1), at(2)


def two_clients(**settings: object) -> Machine:
    machine = Machine(**settings)  # type: ignore[arg-type]
    machine.connect(A, "one", clean=False, keep_alive_s=6_000)
    machine.connect(B, "two", keep_alive_s=6_000)
    return machine


def payloads(machine: Machine, peer: Peer) -> list[bytes]:
    return [message.payload for message in machine.take(peer) if isinstance(message, Publish)]


# SUBSCRIBE and its answer


def test_a_subscription_is_acknowledged_when_the_broker_has_acknowledged_it_and_not_before() -> None:
    machine = two_clients()
    assert machine.send(A, Subscribe(NORMAL, "t/x", 5, 1)) == []
    assert machine.subscribes == [MqttSubscribe("t/x", 1, retained=True)]
    machine.broker_subscribed("t/x")
    (answer,) = machine.take(A)
    assert isinstance(answer, SubAck)
    assert answer.topic_id > 0
    assert (answer.msg_id, answer.return_code, answer.qos) == (5, ACCEPTED, 1)


@pytest.mark.parametrize("topic_filter", ["#", "+", "a/+/b", "a/#"])
def test_a_wildcard_has_no_topic_id(topic_filter: str) -> None:
    machine = two_clients()
    assert machine.subscribe(A, topic_filter) == 0


def test_a_short_topic_has_no_topic_id_and_a_predefined_one_keeps_its_own() -> None:
    machine = two_clients(predefined=PredefinedTopics({9: "plant/9"}))
    machine.send(A, Subscribe(SHORT, "ab", 1, 1))
    machine.send(A, Subscribe(PREDEFINED, 9, 2, 2))
    machine.broker_subscribed("ab")
    machine.broker_subscribed("plant/9")
    assert machine.take(A) == [SubAck(0, 1, ACCEPTED, 1), SubAck(9, 2, ACCEPTED, 2)]
    machine.publish_from_broker("ab", b"1", qos=0)
    machine.publish_from_broker("plant/9", b"2", qos=0)
    assert machine.take(A) == [
        Publish(SHORT, short_topic_id("ab"), 0, b"1", 0),
        Publish(PREDEFINED, 9, 0, b"2", 0),
    ]


@pytest.mark.parametrize(
    "message",
    [
        Subscribe(NORMAL, "a/#/b", 5),
        Subscribe(NORMAL, "a+", 5),
        Subscribe(NORMAL, "a\0b", 5),
        Subscribe(SHORT, "a#", 5),
        Subscribe(PREDEFINED, 77, 5),
    ],
)
def test_an_impossible_filter_is_refused_without_asking_the_broker(message: Subscribe) -> None:
    machine = two_clients()
    assert machine.send(A, message) == [SubAck(0, 5, INVALID_TOPIC)]
    assert machine.subscribes == []


@pytest.mark.parametrize("topic_filter", ["$share", "$share/group", "$share/group/t"])
def test_a_shared_subscription_is_refused_because_to_the_broker_all_clients_are_one(topic_filter: str) -> None:
    machine = two_clients()
    assert machine.send(A, Subscribe(NORMAL, topic_filter, 5, 1)) == [SubAck(0, 5, INVALID_TOPIC)]
    assert machine.subscribes == []


def test_what_the_broker_refuses_is_refused_to_the_client() -> None:
    machine = two_clients()
    machine.send(A, Subscribe(NORMAL, "secret/#", 5, 1))
    machine.broker_subscribed("secret/#", accepted=False)
    (answer,) = machine.take(A)
    assert isinstance(answer, SubAck)
    assert (answer.msg_id, answer.return_code) == (5, NOT_SUPPORTED)
    machine.publish_from_broker("secret/1", b"p", through="secret/#")
    assert machine.take(A) == []
    machine.check_bounds()


def test_a_repeated_subscribe_asks_the_broker_once_and_is_answered_once_with_the_last_id() -> None:
    machine = two_clients()
    machine.send(A, Subscribe(NORMAL, "t/#", 5, 1))
    machine.send(A, Subscribe(NORMAL, "t/#", 6, 1, dup=True))
    assert len(machine.subscribes) == 1
    machine.broker_subscribed("t/#")
    assert machine.take(A) == [SubAck(0, 6, ACCEPTED, 1)]


def test_while_the_broker_is_away_subscribe_is_answered_with_congestion() -> None:
    machine = two_clients()
    machine.broker_down()
    assert machine.send(A, Subscribe(NORMAL, "t/#", 5, 1)) == [SubAck(0, 5, CONGESTION)]
    assert machine.subscribes == []


def test_those_who_wait_for_the_broker_are_told_when_it_leaves() -> None:
    machine = two_clients()
    machine.send(A, Subscribe(NORMAL, "t/#", 5, 1))
    machine.send(B, Subscribe(NORMAL, "t/#", 6, 1))
    machine.broker_down()
    assert machine.take(A) == [SubAck(0, 5, CONGESTION)]
    assert machine.take(B) == [SubAck(0, 6, CONGESTION)]
    assert machine.unsubscribes == ["t/#"], "the broker may have subscribed it, and nobody wants it now"
    machine.broker_up()
    machine.broker_subscribed("t/#")
    assert machine.take(A) == []
    machine.check_bounds()


def test_every_filter_is_subscribed_to_again_when_the_broker_is_back_without_its_retained_messages() -> None:
    machine = two_clients()
    machine.subscribe(A, "t/1", 2)
    machine.subscribe(B, "t/2", 0)
    machine.broker_down()
    machine.subscribes.clear()
    machine.broker_up()
    assert machine.subscribes == [
        MqttSubscribe("t/1", 1, retained=False),
        MqttSubscribe("t/2", 0, retained=False),
    ]
    machine.broker_subscribed("t/1")
    assert machine.take(A) == [], "nobody asked, so nobody is answered"


def test_a_client_has_a_limited_number_of_subscriptions() -> None:
    machine = two_clients(max_subscriptions_per_session=2)
    machine.subscribe(A, "t/1")
    machine.subscribe(A, "t/2/#")
    assert machine.send(A, Subscribe(NORMAL, "t/3", 9, 1)) == [SubAck(0, 9, CONGESTION)]
    machine.subscribe(A, "t/1", qos=2)
    machine.send(A, Unsubscribe(NORMAL, "t/1", 8))
    machine.subscribe(A, "t/3")
    machine.check_bounds()


def test_subscriptions_that_wait_for_the_broker_count() -> None:
    machine = two_clients(max_subscriptions_per_session=2)
    for number in (1, 2):
        assert machine.send(A, Subscribe(NORMAL, f"t{number}/#", number, 1)) == []
    assert machine.send(A, Subscribe(NORMAL, "t3/#", 3, 1)) == [SubAck(0, 3, CONGESTION)]
    assert machine.send(A, Subscribe(NORMAL, "t2/#", 4, 1)) == []


def test_a_subscription_raised_while_it_waits_is_raised_at_the_broker_too() -> None:
    machine = two_clients()
    machine.send(A, Subscribe(NORMAL, "t/#", 1, 0))
    machine.send(A, Subscribe(NORMAL, "t/#", 2, 1))
    assert machine.subscribes[-1].qos == 1
    machine.broker_subscribed("t/#")
    assert machine.take(A) == [SubAck(0, 2, ACCEPTED, 1)]


def test_a_subscription_to_a_name_needs_a_topic_id() -> None:
    machine = two_clients(max_topics_per_session=1)
    machine.subscribe(A, "t/1")
    assert machine.send(A, Subscribe(NORMAL, "t/2", 9, 1)) == [SubAck(0, 9, CONGESTION)]
    machine.subscribe(A, "t/#")


# Two clients


def test_two_clients_on_one_filter_get_a_copy_each_at_their_own_qos() -> None:
    machine = two_clients()
    first = machine.subscribe(A, "t/x", 2)
    second = machine.subscribe(B, "t/x", 0)
    machine.publish_from_broker("t/x", b"p")
    assert machine.take(A) == [Publish(NORMAL, first, 1, b"p", 2)]
    assert machine.take(B) == [Publish(NORMAL, second, 0, b"p", 0)]


def test_the_broker_is_asked_for_the_highest_qos_anybody_wants_but_never_for_2() -> None:
    machine = two_clients()
    machine.subscribe(A, "t/x", 0)
    machine.subscribe(B, "t/x", 2)
    assert [each.qos for each in machine.subscribes] == [0, 1]


def test_two_clients_who_wait_for_the_same_filter_are_both_answered() -> None:
    machine = two_clients()
    machine.send(A, Subscribe(NORMAL, "t/#", 5, 1))
    machine.send(B, Subscribe(NORMAL, "t/#", 6, 2))
    machine.broker_subscribed("t/#")
    assert machine.take(A) == [SubAck(0, 5, ACCEPTED, 1)]
    assert machine.take(B) == [SubAck(0, 6, ACCEPTED, 2)]


def test_a_filter_is_given_up_at_the_broker_when_its_last_client_has_left() -> None:
    machine = two_clients()
    machine.subscribe(A, "t/#")
    machine.subscribe(B, "t/#")
    assert machine.send(A, Unsubscribe(NORMAL, "t/#", 7)) == [UnsubAck(7)]
    assert machine.unsubscribes == []
    machine.publish_from_broker("ab", b"p", through="t/#")
    assert payloads(machine, A) == []
    assert payloads(machine, B) == [b"p"]
    machine.send(B, Disconnect())
    assert machine.unsubscribes == ["t/#"]
    machine.check_bounds()


def test_a_message_reaches_only_those_who_subscribed_to_the_filter_it_came_through() -> None:
    machine = two_clients()
    machine.subscribe(A, "ab")
    machine.subscribe(B, "#")
    machine.publish_from_broker("ab", b"p", through="#")
    assert payloads(machine, A) == []
    assert payloads(machine, B) == [b"p"]


def test_a_message_through_a_filter_nobody_has_any_more_goes_nowhere() -> None:
    machine = two_clients()
    machine.publish_from_broker("t/x", b"p")
    assert dict(machine.mail) == {}


# UNSUBSCRIBE


@pytest.mark.parametrize(
    ("subscribe", "unsubscribe", "topic_filter"),
    [
        (Subscribe(NORMAL, "t/x", 1, 1), Unsubscribe(NORMAL, "t/x", 2), "t/x"),
        (Subscribe(SHORT, "ab", 1, 1), Unsubscribe(SHORT, "ab", 2), "ab"),
        (Subscribe(PREDEFINED, 9, 1, 1), Unsubscribe(PREDEFINED, 9, 2), "plant/9"),
        (Subscribe(PREDEFINED, 9, 1, 1), Unsubscribe(NORMAL, "plant/9", 2), "plant/9"),
    ],
)
def test_after_unsubscribe_nothing_comes(subscribe: AnyMessage, unsubscribe: AnyMessage, topic_filter: str) -> None:
    machine = two_clients(predefined=PredefinedTopics({9: "plant/9"}))
    machine.send(A, subscribe)
    machine.broker_subscribed(topic_filter)
    machine.take(A)
    assert machine.send(A, unsubscribe) == [UnsubAck(2)]
    assert machine.unsubscribes == [topic_filter]
    machine.publish_from_broker(topic_filter, b"p")
    assert machine.take(A) == []


@pytest.mark.parametrize("message", [Unsubscribe(NORMAL, "t/x", 2), Unsubscribe(NORMAL, "a+", 2), Unsubscribe(1, 7, 2)])
def test_an_unsubscribe_from_nothing_is_answered(message: AnyMessage) -> None:
    machine = two_clients()
    assert machine.send(A, message) == [UnsubAck(2)]
    assert machine.unsubscribes == []


def test_an_unsubscribe_overtakes_the_brokers_answer() -> None:
    machine = two_clients()
    machine.send(A, Subscribe(NORMAL, "t/#", 1, 1))
    assert machine.send(A, Unsubscribe(NORMAL, "t/#", 2)) == [UnsubAck(2)]
    machine.broker_subscribed("t/#")
    assert machine.take(A) == []
    machine.publish_from_broker("ab", b"p", through="t/#")
    assert machine.take(A) == []
    assert machine.unsubscribes == ["t/#"]
    machine.check_bounds()


def test_a_session_that_ends_while_it_waits_for_the_broker_is_not_answered() -> None:
    machine = two_clients()
    machine.send(B, Subscribe(NORMAL, "t/#", 1, 1))
    machine.send(B, Disconnect())
    machine.take(B)
    machine.broker_subscribed("t/#")
    assert machine.take(B) == []
    machine.check_bounds()


def test_a_subscription_of_an_offline_client_is_kept() -> None:
    machine = two_clients()
    machine.subscribe(A, "ab")
    machine.send(A, Disconnect())
    machine.publish_from_broker("ab", b"p")
    answers = machine.send(A, Connect("one", 60, clean=False))
    assert [each.payload for each in answers if isinstance(each, Publish)] == [b"p"]


# Retained messages


def test_retained_messages_go_to_the_new_subscriber_alone() -> None:
    machine = two_clients()
    machine.subscribe(A, "ab")
    machine.advance(60)
    machine.subscribe(B, "ab")
    assert machine.subscribes[-1] == MqttSubscribe("ab", 1, retained=True)
    machine.publish_from_broker("ab", b"kept", retained=True)
    assert payloads(machine, A) == []
    assert payloads(machine, B) == [b"kept"]


def test_a_retained_message_goes_to_the_new_subscriber_only_once() -> None:
    machine = two_clients()
    machine.subscribe(A, "ab", 0)
    machine.publish_from_broker("ab", b"kept", 0, retained=True)
    machine.advance(1)
    machine.subscribe(B, "ab", 0)
    machine.publish_from_broker("ab", b"kept", 0, retained=True)
    assert payloads(machine, A) == [b"kept"]
    assert payloads(machine, B) == [b"kept"]


def test_each_retained_name_behind_a_wildcard_comes_once() -> None:
    machine = two_clients()
    machine.subscribe(A, "#", 0)
    for name in ("aa", "bb", "aa", "cc", "bb"):
        machine.publish_from_broker(name, name.encode(), 0, through="#", retained=True)
    assert payloads(machine, A) == [b"aa", b"bb", b"cc"]


def test_a_retained_message_older_than_what_the_subscriber_has_just_got_is_not_sent_after_it() -> None:
    machine = two_clients()
    machine.subscribe(A, "ab", 0)
    machine.publish_from_broker("ab", b"new", 0)
    machine.publish_from_broker("ab", b"old", 0, retained=True)
    assert payloads(machine, A) == [b"new"]


def test_live_messages_are_not_held_back_by_those_that_came_before() -> None:
    machine = two_clients()
    machine.subscribe(A, "ab", 0)
    for payload in (b"1", b"2", b"3"):
        machine.publish_from_broker("ab", payload, 0)
    assert payloads(machine, A) == [b"1", b"2", b"3"]


def test_who_subscribes_again_later_gets_the_retained_message_again() -> None:
    machine = two_clients()
    machine.subscribe(A, "ab", 0)
    machine.publish_from_broker("ab", b"kept", 0, retained=True)
    machine.advance(60)
    machine.publish_from_broker("ab", b"live", 0)
    assert payloads(machine, A) == [b"kept", b"live"]
    machine.subscribe(A, "ab", 0)
    machine.publish_from_broker("ab", b"kept", 0, retained=True)
    assert payloads(machine, A) == [b"kept"]


def test_who_subscribes_again_gets_the_retained_message_even_if_nothing_came_in_between() -> None:
    machine = two_clients()
    for _ in range(2):
        machine.subscribe(A, "ab", 0)
        machine.publish_from_broker("ab", b"kept", 0, retained=True)
        assert payloads(machine, A) == [b"kept"]
        machine.advance(60)


def test_what_the_broker_sends_before_it_answers_is_not_lost() -> None:
    """MQTT 3.8.4 allows it, and retained messages may come that way."""
    machine = two_clients()
    machine.send(A, Subscribe(SHORT, "ab", 1, 1))
    machine.publish_from_broker("ab", b"kept", retained=True)
    machine.broker_subscribed("ab")
    machine.publish_from_broker("ab", b"kept", retained=True)
    assert payloads(machine, A) == [b"kept"]


def test_after_the_window_a_retained_message_is_for_somebody_else() -> None:
    machine = two_clients(retained_window_s=10)
    machine.subscribe(A, "ab", 0)
    machine.advance(11)
    machine.publish_from_broker("ab", b"kept", 0, retained=True)
    assert payloads(machine, A) == []


def test_a_subscription_renewed_in_vain_does_not_get_the_retained_messages_of_others_ever_after() -> None:
    machine = Machine()
    machine.connect(A, "one", keep_alive_s=6_000)
    machine.connect(B, "two", keep_alive_s=6_000)
    machine.subscribe(A, "ab", 0)
    machine.advance(60)
    machine.publish_from_broker("cd", b"live", 0, through="ab")
    machine.send(A, Subscribe(NORMAL, "ab", 2, 0))
    machine.broker_down()
    machine.broker_up()
    machine.take(A)
    machine.advance(600)
    machine.subscribe(B, "ab", 0)
    machine.publish_from_broker("ab", b"kept", 0, retained=True)
    assert machine.take(A) == []
    assert len(machine.take(B)) == 1


def test_a_refused_change_of_qos_leaves_the_subscription_as_it_was() -> None:
    machine = Machine()
    machine.connect(A, "one")
    machine.subscribe(A, "ab", 1)
    machine.send(A, Subscribe(NORMAL, "ab", 2, 0))
    machine.broker_subscribed("ab", accepted=False)
    machine.take(A)
    machine.publish_from_broker("ab", b"p", 1)
    (message,) = machine.take(A)
    assert isinstance(message, Publish)
    assert message.qos == 1


def test_a_client_with_overlapping_filters_gets_a_message_once_at_the_highest_qos() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    for topic_filter, qos in (("ov/#", 1), ("ov/+", 2), ("ov/x", 0)):
        machine.subscribe(A, topic_filter, qos)
    for topic_filter in ("ov/#", "ov/+", "ov/x"):
        machine.publish_from_broker("ov/x", b"p", 1, through=topic_filter)
    (message,) = machine.take(A)
    assert isinstance(message, Publish)
    assert (message.payload, message.qos) == (b"p", 2)

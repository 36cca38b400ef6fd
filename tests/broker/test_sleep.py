"""Sleeping clients: what is kept for them, how they fetch it, and what happens when they do not."""

from __future__ import annotations

import pytest

from broker.outputs import Peer
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
    RetryPolicy,
    WillMsg,
    WillTopic,
    short_topic_id,
)
from tests.support.machine import ACCEPTED, NORMAL, Machine, at

A, B = at(1), at(2)
FAST = RetryPolicy(first_s=1.0, least_s=0.2, most_s=8.0, attempts=4)


def asleep(topic: str = "t/#", qos: int = 1, clean: bool = True, sleep_s: int = 600, **settings: object) -> Machine:
    """A machine with the client "dev" at A, subscribed and asleep."""
    machine = Machine(**settings)  # type: ignore[arg-type]
    machine.connect(A, "dev", clean=clean)
    machine.subscribe(A, topic, qos)
    assert machine.send(A, Disconnect(sleep_s)) == [Disconnect()]
    assert machine.state("dev") is State.ASLEEP
    return machine


def fetch(machine: Machine, peer: Peer = A) -> list[AnyMessage]:
    """Wake up, answer everything as a client should, until PINGRESP; returns all that came."""
    pending, came = machine.send(peer, PingReq("dev")), []
    while pending:
        message = pending.pop(0)
        came.append(message)
        if isinstance(message, Register):
            pending += machine.send(peer, RegAck(message.topic_id, message.msg_id, ACCEPTED))
        elif isinstance(message, Publish) and message.qos == 1:
            pending += machine.send(peer, PubAck(message.topic_id, message.msg_id, ACCEPTED))
        elif isinstance(message, Publish) and message.qos == 2:
            pending += machine.send(peer, PubRec(message.msg_id))
        elif isinstance(message, PubRel):
            pending += machine.send(peer, PubComp(message.msg_id))
    return came


def payloads(messages: list[AnyMessage]) -> list[bytes]:
    return [message.payload for message in messages if isinstance(message, Publish)]


def test_a_client_that_goes_to_sleep_is_announced_asleep() -> None:
    machine = asleep()
    assert machine.announced[-1] == ("dev", "asleep")


def test_nothing_is_sent_to_a_sleeping_client() -> None:
    machine = asleep()
    for qos in (0, 1):
        machine.publish_from_broker("t/x", b"p", qos, through="t/#")
    machine.advance(500)
    assert machine.take(A) == []


def test_a_ping_with_nothing_kept_is_answered_at_once() -> None:
    machine = asleep()
    assert machine.send(A, PingReq("dev")) == [PingResp()]
    assert machine.state("dev") is State.ASLEEP


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_waking_client_gets_all_that_was_kept_in_order_and_then_pingresp(qos: int) -> None:
    machine = asleep(qos=qos, in_flight_per_client=2)
    sent = [b"%d" % number for number in range(10)]
    for number, payload in enumerate(sent):
        machine.publish_from_broker(f"t/{number % 3}", payload, through="t/#")
    came = fetch(machine)
    assert payloads(came) == sent
    assert [type(message) for message in came].count(Register) == 3
    assert came[-1] == PingResp()
    assert came.count(PingResp()) == 1
    assert machine.state("dev") is State.ASLEEP
    assert machine.gateway.buffered_bytes == 0


def test_qos_0_and_1_are_kept_in_the_order_they_came() -> None:
    machine = asleep(topic="ab", qos=1)
    for number in range(6):
        machine.publish_from_broker("ab", b"%d" % number, qos=number % 2)
    assert payloads(fetch(machine)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_message_that_comes_while_the_client_is_awake_is_delivered_before_pingresp() -> None:
    machine = asleep(topic="ab")
    machine.publish_from_broker("ab", b"1")
    assert payloads(machine.send(A, PingReq("dev"))) == [b"1"]
    machine.publish_from_broker("ab", b"2")
    assert payloads(machine.take(A)) == [b"2"]
    assert machine.send(A, PubAck(short_topic_id("ab"), 1, ACCEPTED)) == []
    assert machine.send(A, PubAck(short_topic_id("ab"), 2, ACCEPTED)) == [PingResp()]


def test_a_message_after_pingresp_is_kept_again() -> None:
    machine = asleep(topic="ab", qos=0)
    assert fetch(machine) == [PingResp()]
    machine.publish_from_broker("ab", b"p")
    assert machine.take(A) == []
    assert payloads(fetch(machine)) == [b"p"]


def test_a_ping_whose_answer_was_lost_is_answered_again() -> None:
    machine = asleep(topic="ab")
    machine.publish_from_broker("ab", b"p")
    assert fetch(machine)[-1] == PingResp()
    assert fetch(machine) == [PingResp()]


def test_a_repeated_ping_while_messages_are_under_way_does_not_send_the_client_to_sleep() -> None:
    machine = asleep(topic="ab")
    machine.publish_from_broker("ab", b"p")
    assert len(machine.send(A, PingReq("dev"))) == 1
    assert machine.send(A, PingReq("dev")) == []
    assert machine.send(A, PubAck(short_topic_id("ab"), 1, ACCEPTED)) == [PingResp()]


def test_a_lost_message_is_sent_again_while_the_client_is_awake() -> None:
    machine = asleep(topic="ab", retry=FAST)
    machine.publish_from_broker("ab", b"p")
    machine.send(A, PingReq("dev"))
    machine.advance(1.5)
    (again,) = machine.take(A)
    assert again == Publish(2, short_topic_id("ab"), 1, b"p", 1, dup=True)


def test_a_client_that_wakes_and_does_not_answer_is_left_to_sleep_and_loses_nothing() -> None:
    machine = asleep(topic="ab", retry=FAST)
    machine.publish_from_broker("ab", b"1")
    machine.publish_from_broker("ab", b"2")
    machine.send(A, PingReq("dev"))
    machine.advance(60)
    assert PingResp() not in machine.take(A)
    assert machine.state("dev") is State.ASLEEP
    assert machine.counted("sleepers that went back to sleep undrained") == 1
    came = fetch(machine)
    assert payloads(came) == [b"1", b"2"]
    assert [(each.msg_id, each.dup) for each in came if isinstance(each, Publish)] == [(1, True), (2, True)]


def test_a_ping_without_the_clients_id_does_not_wake_it() -> None:
    machine = asleep(topic="ab")
    machine.publish_from_broker("ab", b"p")
    assert machine.send(A, PingReq()) == [PingResp()]
    assert machine.state("dev") is State.ASLEEP


def test_a_client_that_wakes_at_a_new_address_is_served_there_from_then_on() -> None:
    machine = asleep(topic="ab", clean=False)
    machine.publish_from_broker("ab", b"1")
    assert payloads(fetch(machine, B)) == [b"1"]
    assert machine.take(A) == []
    machine.publish_from_broker("ab", b"2")
    assert payloads(fetch(machine, B)) == [b"2"]
    assert machine.send(A, PingReq()) == [Disconnect()]
    assert machine.counted("rebound") == 1
    machine.check_bounds()


def test_a_connected_client_that_pings_from_a_new_address_is_served_there() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    topic_id = machine.subscribe(A, "t/x")
    assert machine.send(B, PingReq("dev")) == [PingResp()]
    machine.publish_from_broker("t/x", b"p")
    assert machine.take(B) == [Publish(NORMAL, topic_id, 1, b"p", 1)]


def test_an_offline_client_that_only_pings_is_told_to_connect() -> None:
    machine = Machine()
    machine.connect(A, "dev", clean=False)
    machine.send(A, PingReq())
    machine.send(A, Disconnect())
    for peer in (A, B):
        assert machine.send(peer, PingReq("dev")) == [Disconnect()]
    assert machine.state("dev") is State.OFFLINE


def test_a_sleeping_client_that_connects_gets_what_was_kept() -> None:
    machine = asleep(topic="ab", clean=False)
    machine.publish_from_broker("ab", b"p")
    answers = machine.send(A, Connect("dev", 60, clean=False))
    assert answers[0] == ConnAck(ACCEPTED)
    assert payloads(answers) == [b"p"]
    assert machine.state("dev") is State.ACTIVE
    assert machine.announced[-1] == ("dev", "online")


def test_what_was_in_flight_when_the_client_fell_asleep_comes_first_with_its_id_and_dup() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    topic_id = machine.subscribe(A, "t/x", 2)
    machine.publish_from_broker("t/x", b"1")
    machine.take(A)
    machine.send(A, Disconnect(60))
    machine.publish_from_broker("t/x", b"2")
    came = machine.send(A, PingReq("dev"))
    assert came == [Publish(NORMAL, topic_id, 1, b"1", 2, dup=True), Publish(NORMAL, topic_id, 2, b"2", 2)]


def test_a_half_done_qos_2_delivery_goes_on_where_it_was() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.subscribe(A, "t/x", 2)
    machine.publish_from_broker("t/x", b"1")
    machine.take(A)
    assert machine.send(A, PubRec(1)) == [PubRel(1)]
    machine.send(A, Disconnect(60))
    assert fetch(machine) == [PubRel(1), PingResp()]


def connected(qos: int) -> tuple[Machine, int]:
    """A machine with the client "dev" at A, to which a message is on its way."""
    machine = Machine()
    machine.connect(A, "dev")
    topic_id = machine.subscribe(A, "t/x", qos)
    machine.publish_from_broker("t/x", b"p")
    assert payloads(machine.take(A)) == [b"p"]
    return machine, topic_id


def test_a_pubrec_that_comes_after_the_client_fell_asleep_is_remembered() -> None:
    machine, _ = connected(qos=2)
    machine.send(A, Disconnect(60))
    machine.send(A, PubRec(1))
    assert fetch(machine) == [PubRel(1), PingResp()]


def test_a_pubcomp_that_comes_after_the_client_fell_asleep_ends_the_exchange() -> None:
    machine, _ = connected(qos=2)
    machine.send(A, PubRec(1))
    machine.send(A, Disconnect(60))
    machine.send(A, PubComp(1))
    assert fetch(machine) == [PingResp()]
    assert machine.gateway.buffered_bytes == 0


def test_a_puback_that_comes_after_the_client_fell_asleep_ends_the_delivery() -> None:
    machine, topic_id = connected(qos=1)
    machine.send(A, Disconnect(60))
    machine.send(A, PubAck(topic_id, 1, ACCEPTED))
    assert fetch(machine) == [PingResp()]
    assert machine.gateway.buffered_bytes == 0


def test_a_sleeper_is_found_by_its_id_even_at_an_address_that_is_now_another_clients() -> None:
    machine = asleep(topic="ab")
    machine.connect(B, "other")
    machine.publish_from_broker("ab", b"p")
    assert payloads(fetch(machine, B)) == [b"p"]
    machine.check_bounds()


# How much is kept


def test_the_oldest_messages_are_dropped_and_counted_when_too_many_are_kept() -> None:
    machine = asleep(topic="ab", max_buffered_messages=100)
    for number in range(1_000):
        machine.publish_from_broker("ab", b"%d" % number)
        machine.check_bounds()
    assert machine.counted("dropped", "buffer full, client asleep") == 900
    assert payloads(fetch(machine)) == [b"%d" % number for number in range(900, 1_000)]


def test_the_oldest_messages_are_dropped_when_too_many_bytes_are_kept() -> None:
    machine = asleep(topic="ab", max_buffered_bytes=10_000)
    for number in range(100):
        machine.publish_from_broker("ab", b"%03d" % number + bytes(995))
        assert machine.gateway.buffered_bytes <= 10_000
    assert [payload[:3] for payload in payloads(fetch(machine))] == [b"%03d" % number for number in range(90, 100)]
    assert machine.counted("dropped", "buffer full, client asleep") == 90


def test_many_small_messages_are_kept_for_a_sleeper() -> None:
    machine = asleep(topic="ab")
    for number in range(500):
        machine.publish_from_broker("ab", b"%d" % number)
    came = fetch(machine)
    assert len(payloads(came)) == 500
    assert came[-1] == PingResp()


# Oversleeping


def test_a_client_that_oversleeps_is_lost_and_its_will_published() -> None:
    machine = Machine()
    machine.send(A, Connect("dev", 60, clean=False, will=True))
    machine.send(A, WillTopic("wills/dev", 1))
    machine.send(A, WillMsg(b"gone"))
    machine.send(A, Disconnect(600))
    machine.advance(899)
    assert machine.state("dev") is State.ASLEEP
    assert machine.published == []
    machine.advance(2)
    assert machine.state("dev") is State.OFFLINE
    assert machine.payloads() == [b"gone"]
    assert machine.announced[-1] == ("dev", "offline")


def test_each_ping_starts_the_sleep_anew() -> None:
    machine = asleep(sleep_s=600)
    for _ in range(5):
        machine.advance(800)
        assert machine.send(A, PingReq("dev")) == [PingResp()]
    assert machine.state("dev") is State.ASLEEP


def test_a_sleeping_client_may_change_how_long_it_sleeps() -> None:
    machine = asleep(sleep_s=600)
    assert machine.send(A, Disconnect(6_000)) == [Disconnect()]
    machine.advance(8_000)
    assert machine.state("dev") is State.ASLEEP


def test_the_keep_alive_does_not_apply_to_a_sleeper_and_the_sleep_not_to_a_connected_client() -> None:
    machine = asleep(sleep_s=6_000)
    machine.advance(5_000)
    assert machine.state("dev") is State.ASLEEP
    machine.connect(A, "dev")
    machine.advance(91)
    assert machine.state("dev") is None


def test_a_sleeper_that_says_goodbye_is_gone_without_its_will() -> None:
    machine = Machine()
    machine.send(A, Connect("dev", 60, will=True))
    machine.send(A, WillTopic("wills/dev", 1))
    machine.send(A, WillMsg(b"gone"))
    machine.send(A, Disconnect(600))
    assert machine.send(A, Disconnect()) == [Disconnect()]
    assert machine.state("dev") is None
    assert machine.published == []


def test_a_sleep_of_no_seconds_is_a_goodbye() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    assert machine.send(A, Disconnect(0)) == [Disconnect()]
    assert machine.state("dev") is None


def test_a_sleeping_client_may_publish() -> None:
    machine = asleep(topic="ab")
    machine.send(A, Publish(2, short_topic_id("up"), 5, b"p", 1))
    machine.acknowledge()
    assert machine.take(A) == [PubAck(short_topic_id("up"), 5, ACCEPTED)]
    assert machine.state("dev") is State.ASLEEP

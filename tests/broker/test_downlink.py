"""From the broker to the device: registration on the way, order, retransmission, giving up."""

from __future__ import annotations

from random import Random

import pytest

from broker.config import GatewayConfig, PredefinedTopics
from broker.gateway import Gateway
from broker.journal import Journal
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
    RoundTrip,
    Subscribe,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
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
FAST = RetryPolicy(first_s=1.0, least_s=0.2, most_s=8.0, attempts=4)


class NoJitter(Random):
    def random(self) -> float:
        return 0.0


NO_JITTER = NoJitter()


def subscribed(qos: int = 1, topic: str = "t/x", clean: bool = False, **settings: object) -> tuple[Machine, int]:
    """A machine with the client "dev" at A subscribed to a topic, and the id of the topic."""
    machine = Machine(**settings)  # type: ignore[arg-type]
    machine.connect(A, "dev", clean=clean, keep_alive_s=6_000)
    return machine, machine.subscribe(A, topic, qos)


def payloads(messages: list[AnyMessage]) -> list[bytes]:
    return [message.payload for message in messages if isinstance(message, Publish)]


def pass_on(machine: Machine, messages: list[AnyMessage]) -> list[bytes]:
    """Answer as a client should until nothing comes any more; returns the payloads in order."""
    got = []
    while messages:
        message = messages.pop(0)
        if isinstance(message, Register):
            messages += machine.send(A, RegAck(message.topic_id, message.msg_id, ACCEPTED))
        elif isinstance(message, Publish):
            got.append(message.payload)
            if message.qos == 1:
                messages += machine.send(A, PubAck(message.topic_id, message.msg_id, ACCEPTED))
            elif message.qos == 2:
                messages += machine.send(A, PubRec(message.msg_id))
        elif isinstance(message, PubRel):
            messages += machine.send(A, PubComp(message.msg_id))
    return got


# The way of one message


def test_qos_0_is_sent_once_and_forgotten() -> None:
    machine, topic_id = subscribed(qos=0)
    machine.publish_from_broker("t/x", b"p")
    assert machine.take(A) == [Publish(NORMAL, topic_id, 0, b"p", 0)]
    machine.advance(600)
    assert machine.take(A) == []
    assert machine.gateway.buffered_bytes == 0


def test_qos_1_is_done_with_its_puback() -> None:
    machine, topic_id = subscribed(qos=1)
    machine.publish_from_broker("t/x", b"p")
    assert machine.take(A) == [Publish(NORMAL, topic_id, 1, b"p", 1)]
    assert machine.send(A, PubAck(topic_id, 1, ACCEPTED)) == []
    machine.advance(600)
    assert machine.take(A) == []
    assert machine.gateway.buffered_bytes == 0


def test_qos_2_is_done_with_its_pubcomp() -> None:
    machine, topic_id = subscribed(qos=2)
    machine.publish_from_broker("t/x", b"p")
    assert machine.take(A) == [Publish(NORMAL, topic_id, 1, b"p", 2)]
    assert machine.send(A, PubRec(1)) == [PubRel(1)]
    assert machine.send(A, PubComp(1)) == []
    machine.advance(600)
    assert machine.take(A) == []
    assert machine.gateway.buffered_bytes == 0


@pytest.mark.parametrize(("asked", "sent", "got"), [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 0, 0), (2, 1, 2)])
def test_a_message_comes_at_the_qos_asked_for_unless_it_was_published_at_qos_0(asked: int, sent: int, got: int) -> None:
    machine, _ = subscribed(qos=asked)
    machine.publish_from_broker("t/x", b"p", sent)
    (message,) = machine.take(A)
    assert isinstance(message, Publish)
    assert message.qos == got


def test_a_retained_message_is_marked_as_such() -> None:
    machine, topic_id = subscribed()
    machine.publish_from_broker("t/x", b"p", retained=True)
    assert machine.take(A) == [Publish(NORMAL, topic_id, 1, b"p", 1, retain=True)]


# Topics


def test_a_name_that_came_with_the_subscription_is_used_at_once() -> None:
    machine, topic_id = subscribed()
    assert topic_id > 0
    machine.publish_from_broker("t/x", b"p")
    assert isinstance(machine.take(A)[0], Publish)


def test_a_name_behind_a_wildcard_is_registered_first() -> None:
    machine, topic_id = subscribed(topic="t/#")
    assert topic_id == 0
    machine.publish_from_broker("t/x", b"p", through="t/#")
    (register,) = machine.take(A)
    assert isinstance(register, Register)
    assert register.topic == "t/x"
    answer = machine.send(A, RegAck(register.topic_id, register.msg_id, ACCEPTED))
    assert answer == [Publish(NORMAL, register.topic_id, 1, b"p", 1)]
    machine.publish_from_broker("t/x", b"q", through="t/#")
    assert machine.take(A) == [Publish(NORMAL, register.topic_id, 2, b"q", 1)]


def test_a_name_the_client_registered_itself_is_not_registered_again() -> None:
    machine, _ = subscribed(topic="t/#")
    topic_id = machine.register(A, "t/x")
    machine.publish_from_broker("t/x", b"p", through="t/#")
    assert machine.take(A) == [Publish(NORMAL, topic_id, 1, b"p", 1)]


def test_messages_keep_their_order_while_a_name_is_registered() -> None:
    machine, _ = subscribed(topic="t/#")
    machine.register(A, "t/known")
    machine.publish_from_broker("t/new", b"1", through="t/#")
    machine.publish_from_broker("t/known", b"2", through="t/#")
    machine.publish_from_broker("t/other", b"3", through="t/#")
    machine.publish_from_broker("t/known", b"4", qos=0, through="t/#")
    assert pass_on(machine, machine.take(A)) == [b"1", b"2", b"3", b"4"]
    assert machine.gateway.buffered_bytes == 0


def test_predefined_and_short_names_are_used_without_registration() -> None:
    machine, _ = subscribed(topic="#", predefined=PredefinedTopics({5: "plant/5"}))
    machine.publish_from_broker("plant/5", b"1", through="#")
    machine.publish_from_broker("ab", b"2", through="#")
    assert machine.take(A) == [
        Publish(PREDEFINED, 5, 1, b"1", 1),
        Publish(SHORT, short_topic_id("ab"), 2, b"2", 1),
    ]


def test_a_name_of_one_character_and_two_octets_is_not_a_short_one() -> None:
    machine, _ = subscribed(topic="#")
    machine.publish_from_broker("ä", b"p", through="#")
    (register,) = machine.take(A)
    assert isinstance(register, Register)


def test_a_register_is_sent_again_until_it_is_answered() -> None:
    machine, _ = subscribed(topic="t/#", retry=FAST)
    machine.publish_from_broker("t/x", b"p", through="t/#")
    (first,) = machine.take(A)
    machine.advance(2)
    assert machine.take(A) == [first]
    assert machine.counted("retransmitted", "register") == 1


def test_a_client_that_will_not_have_a_topic_does_not_get_its_messages() -> None:
    machine, _ = subscribed(topic="t/#")
    machine.publish_from_broker("t/bad", b"1", through="t/#")
    machine.publish_from_broker("ab", b"2", through="t/#")
    machine.publish_from_broker("t/bad", b"3", through="t/#")
    (register,) = machine.take(A)
    assert isinstance(register, Register)
    answer = machine.send(A, RegAck(register.topic_id, register.msg_id, NOT_SUPPORTED))
    assert payloads(answer) == [b"2"]
    assert machine.counted("dropped", "client refused the topic") == 2
    machine.check_bounds()


def test_a_client_that_is_busy_is_asked_to_register_again_later() -> None:
    machine, _ = subscribed(topic="t/#", retry=FAST)
    machine.publish_from_broker("t/x", b"p", through="t/#")
    (register,) = machine.take(A)
    assert isinstance(register, Register)
    assert machine.send(A, RegAck(register.topic_id, register.msg_id, CONGESTION)) == []
    machine.advance(2)
    assert machine.take(A) == [register]
    assert payloads(machine.send(A, RegAck(register.topic_id, register.msg_id, ACCEPTED))) == [b"p"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_has_forgotten_a_topic_is_told_of_it_again(qos: int) -> None:
    machine, topic_id = subscribed(qos=qos)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    (register,) = machine.send(A, PubAck(topic_id, 1, INVALID_TOPIC))
    assert isinstance(register, Register)
    assert (register.topic_id, register.topic) == (topic_id, "t/x")
    answer = machine.send(A, RegAck(topic_id, register.msg_id, ACCEPTED))
    assert answer == [Publish(NORMAL, topic_id, 1, b"p", qos, dup=True)]


def test_a_client_that_always_claims_not_to_know_the_topic_is_not_tried_for_ever() -> None:
    machine, topic_id = subscribed(retry=FAST)
    machine.publish_from_broker("t/x", b"p")
    messages = machine.take(A)
    sent = 0
    while messages:
        message = messages.pop()
        if isinstance(message, Publish):
            sent += 1
            messages += machine.send(A, PubAck(topic_id, message.msg_id, INVALID_TOPIC))
        elif isinstance(message, Register):
            messages += machine.send(A, RegAck(topic_id, message.msg_id, ACCEPTED))
    assert sent == FAST.attempts
    assert machine.counted("dropped", "client refused the topic") == 1
    assert machine.gateway.buffered_bytes == 0


def test_after_an_invalid_topic_at_qos_0_the_next_message_is_preceded_by_a_register() -> None:
    machine, topic_id = subscribed(qos=0)
    machine.publish_from_broker("t/x", b"1")
    machine.take(A)
    assert machine.send(A, PubAck(topic_id, 0, INVALID_TOPIC)) == []
    machine.publish_from_broker("t/x", b"2")
    assert isinstance(machine.mail[A][0], Register)
    assert pass_on(machine, machine.take(A)) == [b"2"]


def test_a_topic_refused_at_qos_0_while_a_message_of_it_is_in_flight_is_told_again_before_the_message() -> None:
    machine, topic_id = subscribed()
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    (register,) = machine.send(A, PubAck(topic_id, 0, INVALID_TOPIC))
    assert isinstance(register, Register)
    machine.advance(5)
    assert set(map(type, machine.take(A))) == {Register}
    answer = machine.send(A, RegAck(topic_id, register.msg_id, ACCEPTED))
    assert answer == [Publish(NORMAL, topic_id, 1, b"p", 1, dup=True)]


def test_a_client_with_all_its_topic_ids_in_use_loses_messages_to_new_names_and_that_is_counted() -> None:
    machine, _ = subscribed(topic="t/#", max_topics_per_session=1)
    machine.publish_from_broker("t/1", b"1", through="t/#")
    assert pass_on(machine, machine.take(A)) == [b"1"]
    machine.publish_from_broker("t/2", b"2", through="t/#")
    machine.publish_from_broker("t/1", b"3", through="t/#")
    assert pass_on(machine, machine.take(A)) == [b"3"]
    assert machine.counted("dropped", "client has too many topics") == 1


# Retransmission


def test_an_unanswered_publish_is_sent_again_with_dup_and_the_same_id_after_ever_longer_waits() -> None:
    machine, topic_id = subscribed(qos=1, retry=FAST)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    start, times = machine.now, []
    while machine.state("dev") is State.ACTIVE:
        machine.advance(0.05)
        for message in machine.take(A):
            if message != Disconnect():
                assert message == Publish(NORMAL, topic_id, 1, b"p", 1, dup=True)
                times.append(machine.now - start)
    waits = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert len(waits) == FAST.attempts - 1
    for attempt, wait in enumerate(waits, start=1):
        least = RoundTrip(FAST).wait_s(attempt, NO_JITTER)
        assert least <= wait <= least * 1.25 + 0.1
    assert waits == sorted(waits)


def test_an_unanswered_pubrel_is_sent_again_and_not_the_publish() -> None:
    machine, _ = subscribed(qos=2, retry=FAST)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    machine.send(A, PubRec(1))
    machine.advance(0.3)
    assert machine.take(A) == [PubRel(1)]
    assert machine.counted("retransmitted", "pubrel") == 1


def test_an_answered_message_is_not_sent_again() -> None:
    machine, topic_id = subscribed(retry=FAST)
    machine.publish_from_broker("t/x", b"1")
    machine.publish_from_broker("t/x", b"2")
    machine.take(A)
    machine.send(A, PubAck(topic_id, 2, ACCEPTED))
    machine.advance(2)
    assert set(payloads(machine.take(A))) == {b"1"}


def test_the_wait_follows_the_measured_round_trip() -> None:
    machine, topic_id = subscribed(qos=1)
    for msg_id in range(1, 20):
        machine.publish_from_broker("t/x", b"p")
        machine.take(A)
        machine.advance(0.05)
        machine.send(A, PubAck(topic_id, msg_id, ACCEPTED))
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    machine.advance(0.3)
    assert len(machine.take(A)) == 1, "repaired within a fraction of a second, not after one"


def test_a_client_that_does_not_answer_is_given_up_and_its_will_published() -> None:
    machine = Machine(retry=FAST)
    assert machine.send(A, Connect("dev", 6_000, clean=False, will=True)) == [WillTopicReq()]
    assert machine.send(A, WillTopic("wills/dev", 1)) == [WillMsgReq()]
    assert machine.send(A, WillMsg(b"gone")) == [ConnAck(ACCEPTED)]
    machine.subscribe(A, "t/x")
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    machine.advance(60)
    assert machine.take(A)[-1] == Disconnect()
    assert machine.state("dev") is State.OFFLINE
    assert machine.counted("sessions lost", "no answer") == 1
    assert [each.topic for each in machine.published] == ["wills/dev"]


def test_a_client_given_up_gets_the_message_when_it_connects_again_with_the_same_id() -> None:
    machine, topic_id = subscribed(retry=FAST)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    machine.advance(60)
    machine.take(A)
    answers = machine.send(A, Connect("dev", 60, clean=False))
    assert answers[0] == ConnAck(ACCEPTED)
    assert isinstance(answers[1], Register), "topic ids are told anew with each connection"
    assert machine.send(A, RegAck(topic_id, answers[1].msg_id, ACCEPTED)) == [
        Publish(NORMAL, topic_id, 1, b"p", 1, dup=True)
    ]


def test_a_released_qos_2_message_is_released_again_after_a_reconnect_and_not_published_again() -> None:
    machine, _ = subscribed(qos=2)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    machine.send(A, PubRec(1))
    machine.send(A, Disconnect())
    answers = machine.send(B, Connect("dev", 60, clean=False))
    assert answers == [ConnAck(ACCEPTED), PubRel(1)]
    machine.send(B, PubComp(1))
    assert machine.gateway.buffered_bytes == 0


def test_messages_in_flight_keep_their_order_over_a_reconnect() -> None:
    machine, _ = subscribed(topic="ab", in_flight_per_client=4)
    for number in range(10):
        machine.publish_from_broker("ab", b"%d" % number)
    assert len(machine.take(A)) == 4
    machine.send(A, PubAck(short_topic_id("ab"), 2, ACCEPTED))
    machine.send(A, Disconnect())
    answers = machine.send(A, Connect("dev", 60, clean=False))
    assert pass_on(machine, answers) == [b"0", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"]


# Answers that do not fit


def test_answers_to_nothing_are_counted_and_change_nothing() -> None:
    machine, topic_id = subscribed(qos=1)
    assert machine.send(A, PubAck(topic_id, 9, ACCEPTED)) == []
    assert machine.send(A, PubComp(9)) == []
    assert machine.send(A, RegAck(topic_id, 9, ACCEPTED)) == []
    for why in ("puback for nothing", "pubcomp for nothing", "regack for nothing"):
        assert machine.counted("refused", why) == 1


def test_a_pubrec_for_nothing_is_answered_so_that_the_client_can_finish() -> None:
    machine, _ = subscribed()
    assert machine.send(A, PubRec(9)) == [PubRel(9)]


def test_a_puback_does_not_end_a_qos_2_delivery() -> None:
    machine, topic_id = subscribed(qos=2)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    machine.send(A, PubAck(topic_id, 1, ACCEPTED))
    machine.advance(3)
    assert b"p" in payloads(machine.take(A))


def test_a_pubcomp_before_pubrec_does_not_end_a_delivery() -> None:
    machine, _ = subscribed(qos=2)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    machine.send(A, PubComp(1))
    machine.advance(3)
    assert b"p" in payloads(machine.take(A))


def test_a_client_that_is_busy_gets_the_message_again_later() -> None:
    machine, topic_id = subscribed(retry=FAST)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    assert machine.send(A, PubAck(topic_id, 1, CONGESTION)) == []
    machine.advance(2)
    assert payloads(machine.take(A)) == [b"p"]
    assert machine.counted("congestion from a client") == 1


def test_a_message_the_client_refuses_is_dropped_and_the_next_one_sent() -> None:
    machine, topic_id = subscribed(in_flight_per_client=1)
    machine.publish_from_broker("t/x", b"1")
    machine.publish_from_broker("t/x", b"2")
    assert payloads(machine.take(A)) == [b"1"]
    assert payloads(machine.send(A, PubAck(topic_id, 1, NOT_SUPPORTED))) == [b"2"]
    assert machine.counted("dropped", "client refused the message") == 1


def test_a_pubrec_does_not_end_a_qos_1_delivery() -> None:
    machine, _ = subscribed(qos=1)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    assert machine.send(A, PubRec(1)) == [PubRel(1)]
    assert machine.send(A, PubComp(1)) == []
    machine.advance(3)
    assert b"p" in payloads(machine.take(A))


def test_a_regack_with_another_id_is_not_the_answer() -> None:
    machine, _ = subscribed(topic="t/#")
    machine.publish_from_broker("t/x", b"p", through="t/#")
    (register,) = machine.take(A)
    assert isinstance(register, Register)
    assert machine.send(A, RegAck(register.topic_id, register.msg_id + 1, ACCEPTED)) == []
    assert payloads(machine.send(A, RegAck(register.topic_id, register.msg_id, ACCEPTED))) == [b"p"]


def test_a_repeated_pubrec_is_answered_with_pubrel_again() -> None:
    machine, _ = subscribed(qos=2)
    machine.publish_from_broker("t/x", b"p")
    machine.take(A)
    assert machine.send(A, PubRec(1)) == [PubRel(1)]
    assert machine.send(A, PubRec(1)) == [PubRel(1)]
    assert machine.send(A, PubComp(1)) == []


# Limits


def test_only_so_many_messages_are_in_flight_at_once() -> None:
    machine, _ = subscribed(topic="ab", in_flight_per_client=3)
    for number in range(5):
        machine.publish_from_broker("ab", b"%d" % number)
    assert payloads(machine.take(A)) == [b"0", b"1", b"2"]
    assert payloads(machine.send(A, PubAck(short_topic_id("ab"), 2, ACCEPTED))) == [b"3"]


def test_a_slow_client_loses_its_oldest_waiting_messages_and_that_is_counted() -> None:
    machine, _ = subscribed(topic="ab", in_flight_per_client=1, max_buffered_messages=3)
    for number in range(6):
        machine.publish_from_broker("ab", b"%d" % number)
    assert pass_on(machine, machine.take(A)) == [b"0", b"3", b"4", b"5"]
    assert machine.counted("dropped", "buffer full, client active") == 2
    machine.check_bounds()


def test_all_clients_together_have_a_limited_number_of_bytes_waiting() -> None:
    machine = Machine(max_buffered_bytes_total=1_000)
    for number in range(10):
        machine.connect(at(number), f"dev-{number}")
        machine.send(at(number), Subscribe(SHORT, "ab", 1, 1))
    machine.broker_subscribed("ab")
    for number in range(10):
        machine.send(at(number), Disconnect(60))
    machine.publish_from_broker("ab", bytes(400))
    assert machine.gateway.buffered_bytes <= 1_000
    assert machine.counted("dropped", "all buffers full") == 8
    machine.check_bounds()


def test_a_message_too_large_for_a_udp_datagram_is_dropped_and_counted() -> None:
    machine, _ = subscribed(topic="ab")
    machine.publish_from_broker("ab", bytes(65_507 - 9 + 1))
    assert machine.take(A) == []
    assert machine.counted("dropped", "larger than a datagram") == 1
    assert machine.gateway.buffered_bytes == 0
    machine.publish_from_broker("ab", bytes(65_507 - 9))
    assert len(machine.take(A)) == 1


def test_the_headers_for_forwarders_have_to_fit_in_the_datagram_too() -> None:
    machine = Machine()
    node = at(1, b"12345678")
    machine.connect(node, "dev")
    machine.subscribe(node, "ab")
    machine.publish_from_broker("ab", bytes(65_507 - 9 - 10))
    assert machine.take(node) == []
    machine.publish_from_broker("ab", bytes(65_507 - 9 - 11))
    assert len(machine.take(node)) == 1


def test_qos_0_is_not_kept_for_a_client_that_is_offline_and_qos_1_is() -> None:
    machine, _ = subscribed(topic="ab")
    machine.send(A, Disconnect())
    machine.publish_from_broker("ab", b"0", qos=0)
    machine.publish_from_broker("ab", b"1", qos=1)
    assert machine.counted("dropped", "qos 0 to an offline client") == 1
    assert pass_on(machine, machine.send(A, Connect("dev", 60, clean=False))) == [b"1"]


def test_what_a_session_leaves_behind_is_counted_when_it_ends() -> None:
    machine, _ = subscribed(clean=True, topic="ab", in_flight_per_client=1)
    for number in range(3):
        machine.publish_from_broker("ab", b"%d" % number)
    machine.send(A, Disconnect())
    assert machine.counted("dropped", "session ended") == 3
    assert machine.gateway.buffered_bytes == 0
    machine.check_bounds()


def test_message_ids_start_over_after_the_last_one_and_never_are_zero() -> None:
    machine, _ = subscribed(topic="ab")
    machine.session("dev").open_line(machine.config.retry, 0xFFFF - 1)
    for _ in range(3):
        machine.publish_from_broker("ab", b"p")
    assert [message.msg_id for message in machine.take(A) if isinstance(message, Publish)] == [0xFFFF, 1, 2]


def test_a_message_id_that_is_in_flight_is_not_given_again() -> None:
    machine, _ = subscribed(topic="ab")
    machine.publish_from_broker("ab", b"first")
    machine.take(A)
    machine.session("dev").open_line(machine.config.retry, 0).next_seq += 0xFFFF - 1
    machine.publish_from_broker("ab", b"last")
    assert machine.take(A) == []
    assert payloads(machine.send(A, PubAck(short_topic_id("ab"), 1, ACCEPTED))) == [b"last"]
    machine.check_bounds()


def test_messages_do_not_pile_up_timers() -> None:
    machine, _ = subscribed(topic="ab")
    for number in range(2_000):
        machine.publish_from_broker("ab", b"p")
        machine.send(A, PubAck(short_topic_id("ab"), 1 + number, ACCEPTED))
        machine.advance(2)
    assert len(machine.gateway._timers) < 500


def test_a_client_that_is_being_sent_messages_may_do_other_things_meanwhile() -> None:
    machine, _ = subscribed(topic="ab")
    machine.publish_from_broker("ab", b"p")
    machine.take(A)
    assert machine.send(A, PingReq()) == [PingResp()]
    topic_id = machine.register(A, "t/y")
    machine.send(A, Publish(NORMAL, topic_id, 1, b"up", 1))
    machine.acknowledge()
    assert machine.take(A) == [PubAck(topic_id, 1, ACCEPTED)], "ids of the two directions do not meet"
    machine.advance(2)
    assert payloads(machine.take(A)) == [b"p"]


def test_two_processes_do_not_begin_with_the_same_message_id() -> None:
    first = {Gateway(GatewayConfig(), Journal(), Random(seed))._downlink.first_seq for seed in range(20)}
    assert len(first) > 15

"""Messages on their way out: order, window, limits, retransmission, the answers of the gateway."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from edge_agent.transport import ClientSession, DeliveryFailed, QueueFull, Refused, SessionConfig, State
from protocol.mqttsn import (
    AnyMessage,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    TopicType,
    short_topic_id,
)
from tests.edge_agent.transport.machine import Machine, kinds


def published(packets: list[object]) -> list[Publish]:
    return [packet for packet in packets if isinstance(packet, Publish)]


def the_publish(machine: Machine) -> Publish:
    (packet,) = machine.sent()
    assert isinstance(packet, Publish)
    return packet


def reconnect(machine: Machine) -> None:
    machine.hear(Disconnect())
    machine.until(Connect)


# Topics and kinds of messages


def test_a_name_is_registered_once_and_then_published_to_by_its_id() -> None:
    machine = Machine().connected()
    machine.publish("cars/7", b"1")
    machine.publish("cars/7", b"2")
    (register,) = machine.sent()
    assert isinstance(register, Register) and register.topic == "cars/7" and register.topic_id == 0
    packets = machine.hear(RegAck(5, register.msg_id, 0))
    assert [(p.topic_type, p.topic_id, p.payload) for p in published([*packets])] == [
        (TopicType.NORMAL, 5, b"1"),
        (TopicType.NORMAL, 5, b"2"),
    ]
    machine.publish("cars/7", b"3")
    assert the_publish(machine).topic_id == 5


def test_a_two_octet_name_needs_no_registration() -> None:
    machine = Machine().connected()
    machine.publish("ab", b"1", retain=True)
    packet = the_publish(machine)
    assert (packet.topic_type, packet.topic_id, packet.retain) == (TopicType.SHORT, short_topic_id("ab"), True)


def test_predefined_ids_are_used_by_number_and_by_name() -> None:
    machine = Machine(predefined={"cars/7/speed": 3}).connected()
    machine.publish("cars/7/speed")
    machine.publish(3)
    machine.publish(4)
    ids = [(p.topic_type, p.topic_id) for p in published([*machine.sent()])]
    assert ids == [(TopicType.PREDEFINED, 3), (TopicType.PREDEFINED, 3), (TopicType.PREDEFINED, 4)]


def test_qos_0_is_done_when_it_is_sent() -> None:
    machine = Machine().connected()
    delivery = machine.publish("ab", qos=0)
    assert not delivery.done()
    assert the_publish(machine).msg_id == 0
    assert delivery.result(0) is None
    assert machine.wait(10) == []


def test_qos_1_is_done_when_it_is_acknowledged() -> None:
    machine = Machine().connected()
    delivery = machine.publish("ab", qos=1)
    packet = the_publish(machine)
    assert not delivery.done()
    machine.hear(PubAck(packet.topic_id, packet.msg_id, 0))
    assert delivery.result(0) is None
    assert machine.wait(10) == []


def test_qos_2_is_done_when_both_legs_are() -> None:
    machine = Machine().connected()
    delivery = machine.publish("ab", qos=2)
    packet = the_publish(machine)
    assert machine.hear(PubRec(packet.msg_id)) == [PubRel(packet.msg_id)]
    assert not delivery.done()
    assert machine.hear(PubComp(packet.msg_id)) == []
    assert delivery.result(0) is None
    assert machine.wait(10) == []


def test_qos_minus_1_goes_out_without_a_connection() -> None:
    machine = Machine(predefined={"cars/7": 3})
    deliveries = [machine.publish("ab", b"1", qos=-1), machine.publish("cars/7", b"2", qos=-1)]
    packets = published([*machine.sent()])
    assert [(p.qos, p.payload) for p in packets] == [(-1, b"1"), (-1, b"2")]
    assert all(delivery.done() for delivery in deliveries)
    assert machine.is_in(State.IDLE)


def test_the_first_message_of_an_unconnected_client_makes_it_connect() -> None:
    machine = Machine()
    machine.publish("ab")
    assert kinds(machine.sent()) == ["CONNECT"]


@pytest.mark.parametrize(
    ("topic", "payload", "qos", "complaint"),
    [
        ("cars/7", b"", -1, "QoS -1 needs a short or predefined topic"),
        ("cars/#", b"", 1, "no topic name"),
        ("", b"", 1, "no topic name"),
        ("a\0b", b"", 1, "no topic name"),
        (0, b"", 1, "predefined topic id is 1 to 65534"),
        (65_535, b"", 1, "predefined topic id is 1 to 65534"),
        ("ab", b"", 3, "QoS is -1, 0, 1 or 2"),
        ("ab", bytes(65_499), 1, "at most 65498"),
    ],
)
def test_what_can_never_be_sent_is_refused_at_the_call(
    topic: str | int, payload: bytes, qos: int, complaint: str
) -> None:
    machine = Machine().connected()
    with pytest.raises(ValueError, match=complaint):
        machine.publish(topic, payload, qos)
    assert machine.session.idle


def test_the_largest_message_fits_in_the_largest_udp_datagram() -> None:
    machine = Machine().connected()
    machine.publish("ab", bytes(65_498))
    machine.session.tick(machine.now)
    assert len(machine.session.datagrams[0]) == 65_507


# Order, window and limits


def test_no_more_than_a_window_of_messages_is_in_flight() -> None:
    machine = Machine(window=3).connected()
    for number in range(5):
        machine.publish("ab", bytes([number]))
    first = published([*machine.sent()])
    assert [p.payload for p in first] == [b"\0", b"\1", b"\2"]
    (fourth,) = machine.hear(PubAck(0, first[1].msg_id, 0))
    assert isinstance(fourth, Publish) and fourth.payload == b"\3"
    assert machine.session.stats().in_flight == 3 and machine.session.stats().queued == 4


def test_the_order_of_publishing_is_kept_across_topics_and_qualities() -> None:
    machine = Machine().connected()
    machine.publish("a/b", b"1", qos=1)
    machine.publish("ab", b"2", qos=0)
    machine.publish("c/d", b"3", qos=2)
    machine.publish("ab", b"4", qos=1)
    registers = machine.sent()
    assert kinds(registers) == ["REGISTER", "REGISTER"]
    packets = []
    for number, register in enumerate(registers, 1):
        assert isinstance(register, Register)
        packets += machine.hear(RegAck(number, register.msg_id, 0))
    assert [p.payload for p in published([*packets])] == [b"1", b"2", b"3", b"4"]


def test_a_burst_leaves_time_to_read_answers() -> None:
    machine = Machine().connected()
    for _ in range(200):
        machine.publish("ab", qos=0)
    machine.session.tick(machine.now)
    assert len(machine.session.datagrams) == 64
    assert machine.session.backlog
    assert len(machine.sent()) == 200
    assert not machine.session.backlog


def test_a_full_queue_refuses_and_takes_again_when_there_is_room() -> None:
    machine = Machine(max_queued=2).connected()
    machine.publish("ab")
    machine.publish("ab")
    with pytest.raises(QueueFull, match="2 messages"):
        machine.publish("ab")
    first = published([*machine.sent()])[0]
    machine.hear(PubAck(0, first.msg_id, 0))
    machine.publish("ab")


def test_the_queue_is_bounded_in_bytes() -> None:
    machine = Machine(max_queued_bytes=1_000).connected()
    machine.publish("ab", bytes(600))
    with pytest.raises(QueueFull, match="602 bytes"):
        machine.publish("ab", bytes(600))
    with pytest.raises(ValueError, match="max_queued_bytes"):
        machine.publish("ab", bytes(1_001))
    machine.publish("ab", bytes(300))
    assert machine.session.stats().queued_bytes == 904


def test_message_ids_in_use_are_not_given_again() -> None:
    machine = Machine(window=32_768, max_queued=70_000).connected()
    for _ in range(2_000):
        machine.publish("ab", b"")
    stuck = {p.msg_id for p in published([*machine.sent()])}
    assert len(stuck) == 2_000 and 0 not in stuck
    wire = machine.session._wire
    given = [wire.next_id() for _ in range(70_000)]
    assert not stuck & set(given) and 0 not in given and max(given) <= 0xFFFF


def test_two_processes_do_not_begin_with_the_same_message_id() -> None:
    first = {ClientSession(SessionConfig("a"), Random(seed))._wire.next_id() for seed in range(20)}
    assert len(first) > 15


# Retransmission


def test_a_publish_without_answer_is_repeated_with_dup_and_the_same_id() -> None:
    machine = Machine().connected()
    machine.publish("ab", qos=1)
    times = [(at, p) for at, p in machine.timeline(3) if isinstance(p, Publish)]
    again = len(times) - 1
    assert again >= 3 and [p.dup for _, p in times] == [False] + [True] * again
    assert len({p.msg_id for _, p in times}) == 1
    pauses = [b - a for (a, _), (b, _) in pairwise(times)]
    assert pauses == sorted(pauses)
    assert machine.session.stats().resent == again


def test_the_legs_of_qos_2_have_attempts_of_their_own() -> None:
    machine = Machine(keep_alive_s=1000).connected()
    attempts = machine.session.config.retry.attempts
    machine.publish("ab", qos=2)
    for _ in range(attempts - 1):
        packet = machine.until(Publish)
    machine.hear(PubRec(packet.msg_id))
    for _ in range(attempts - 1):
        machine.until(PubRel)
    machine.hear(PubComp(packet.msg_id))
    assert machine.session.idle and machine.session.stats().reconnects == 0


def test_a_gateway_that_answers_nothing_is_left_and_the_message_kept() -> None:
    machine = Machine(gateways=2).connected()
    delivery = machine.publish("ab", b"1")
    packet = the_publish(machine)
    for _ in range(machine.session.config.retry.attempts - 1):
        assert machine.until(Publish).msg_id == packet.msg_id
    machine.until(Connect)
    assert machine.gateways == [0, 1]
    (again,) = machine.hear(ConnAck(0))
    assert isinstance(again, Publish) and again.dup and again.msg_id == packet.msg_id
    machine.hear(PubAck(0, again.msg_id, 0))
    assert delivery.result(0) is None


def test_a_gateway_that_answers_others_is_not_left_for_one_unlucky_message() -> None:
    machine = Machine().connected()
    machine.publish("ab", b"unlucky")
    unlucky = the_publish(machine)
    for _ in range(30):
        machine.publish("ab", b"other")
        for packet in machine.wait(0.5):
            assert isinstance(packet, Publish)
            if packet.payload == b"other":
                machine.hear(PubAck(0, packet.msg_id, 0))
    assert machine.session.stats().reconnects == 0
    machine.hear(PubAck(0, unlucky.msg_id, 0))
    assert machine.session.idle


def test_a_loss_on_a_working_link_is_repaired_sooner_than_a_silent_one() -> None:
    def repeated(heard: bool) -> int:
        machine = Machine().connected()
        machine.publish("ab", b"lost")
        packets = []
        for _ in range(30):
            packets += machine.wait(0.1)
            if heard:
                machine.hear(PubAck(0, 0, 0))
        return len(packets)

    assert repeated(heard=True) > repeated(heard=False)


def test_a_message_that_later_ones_overtook_is_repeated_early() -> None:
    machine = Machine(window=64).connected()
    for _ in range(50):  # a round trip of 50 ms, well known
        machine.publish("ab")
        packet = the_publish(machine)
        machine.now += 0.05
        machine.hear(PubAck(0, packet.msg_id, 0))
    machine.publish("ab", b"lost")
    machine.sent()
    sent_at = machine.now
    again: list[AnyMessage] = []
    for _ in range(3):
        assert again == []
        machine.now += 0.001
        machine.publish("ab", b"later")
        packet = the_publish(machine)
        machine.now += 0.05
        again = machine.hear(PubAck(0, packet.msg_id, 0))
    assert [packet.payload for packet in published([*again])] == [b"lost"]
    assert machine.now - sent_at < 0.2


def test_qos_2_past_pubrec_sends_only_pubrel_after_a_reconnect() -> None:
    machine = Machine(clean=True).connected()
    delivery = machine.publish("ab", qos=2)
    packet = the_publish(machine)
    machine.hear(PubRec(packet.msg_id))
    reconnect(machine)
    assert machine.hear(ConnAck(0)) == [PubRel(packet.msg_id)]
    assert kinds(machine.wait(3))[0] == "PUBREL"
    machine.hear(PubComp(packet.msg_id))
    assert delivery.result(0) is None
    assert "PUBLISH" not in kinds(machine.wait(20))


def test_qos_2_before_pubrec_is_published_again_with_the_same_id_after_a_reconnect() -> None:
    machine = Machine(clean=True).connected()
    machine.publish("ab", qos=2)
    packet = the_publish(machine)
    reconnect(machine)
    (again,) = machine.hear(ConnAck(0))
    assert isinstance(again, Publish) and again.dup and again.msg_id == packet.msg_id


def test_all_topics_in_flight_are_registered_at_once_after_a_reconnect() -> None:
    machine = Machine().connected().registered("a/b", "c/d")
    machine.publish("a/b")
    machine.publish("c/d")
    machine.sent()
    reconnect(machine)
    assert kinds(machine.hear(ConnAck(0))) == ["REGISTER", "REGISTER"]


def test_an_acknowledgement_that_comes_while_disconnected_counts() -> None:
    machine = Machine().connected()
    done = machine.publish("ab", b"1", qos=1)
    half = machine.publish("ab", b"2", qos=2)
    first, second = published([*machine.sent()])
    machine.hear(Disconnect())
    assert machine.hear(PubAck(0, first.msg_id, 0), PubRec(second.msg_id)) == []
    assert done.result(0) is None
    machine.until(Connect)
    assert machine.hear(ConnAck(0)) == [PubRel(second.msg_id)]
    machine.hear(PubComp(second.msg_id))
    assert half.result(0) is None


# Return codes


@pytest.mark.parametrize("qos", [1, 2])
def test_congestion_pauses_new_messages_and_repeats_the_refused_one(qos: int) -> None:
    machine = Machine().connected()
    delivery = machine.publish("ab", b"1", qos=qos)
    packet = the_publish(machine)
    machine.hear(PubAck(packet.topic_id, packet.msg_id, ReturnCode.CONGESTION))
    machine.publish("ab", b"2")
    assert machine.sent() == []
    refused = machine.now
    again = machine.until(Publish)
    assert 0.5 <= machine.now - refused <= 0.625
    assert again.dup and again.msg_id == packet.msg_id
    assert not delivery.done() and machine.session.stats().congestion == 1


def test_congestion_again_and_again_lengthens_the_pause_up_to_a_limit_and_success_resets_it() -> None:
    machine = Machine().connected()
    machine.publish("ab")
    packet = the_publish(machine)
    pauses = []
    for _ in range(8):
        machine.hear(PubAck(0, packet.msg_id, ReturnCode.CONGESTION))
        refused = machine.now
        machine.until(Publish)
        pauses.append(machine.now - refused)
    for pause, least in zip(pauses, [0.5, 1, 2, 4, 8, 10, 10, 10], strict=True):
        assert least <= pause <= least * 1.25
    machine.hear(PubAck(0, packet.msg_id, 0))
    machine.publish("ab")
    packet = the_publish(machine)
    machine.hear(PubAck(0, packet.msg_id, ReturnCode.CONGESTION))
    refused = machine.now
    machine.until(Publish)
    assert machine.now - refused <= 0.625


def test_a_whole_window_refused_counts_as_one_pause_and_is_repeated_in_order() -> None:
    machine = Machine(window=4).connected()
    for number in range(6):
        machine.publish("ab", bytes([number]))
    first = published([*machine.sent()])
    for packet in reversed(first):
        machine.hear(PubAck(0, packet.msg_id, ReturnCode.CONGESTION))
    refused = machine.now
    machine.now += 0.7
    again = published([*machine.sent()])
    assert [p.msg_id for p in again] == [p.msg_id for p in first]
    assert machine.now - refused < 1


def test_congestion_for_qos_0_pauses_too() -> None:
    machine = Machine().connected()
    machine.publish("ab", qos=0)
    machine.sent()
    machine.hear(PubAck(0, 0, ReturnCode.CONGESTION))
    machine.publish("ab", qos=0)
    assert machine.sent() == []
    machine.until(Publish, seconds=1)


def test_an_unknown_topic_id_is_registered_anew_and_the_message_repeated_with_the_new_id() -> None:
    machine = Machine().connected().registered("a/b")
    delivery = machine.publish("a/b", qos=2)
    packet = the_publish(machine)
    (register,) = machine.hear(PubAck(packet.topic_id, packet.msg_id, ReturnCode.INVALID_TOPIC))
    assert isinstance(register, Register)
    (again,) = machine.hear(RegAck(77, register.msg_id, 0))
    assert again == Publish(TopicType.NORMAL, 77, packet.msg_id, b"x", 2, False, dup=True)
    machine.hear(PubRec(packet.msg_id), PubComp(packet.msg_id))
    assert delivery.result(0) is None


def test_an_unknown_topic_id_reported_for_qos_0_helps_the_next_message() -> None:
    machine = Machine().connected().registered("a/b")
    machine.hear(PubAck(1, 0, ReturnCode.INVALID_TOPIC))
    machine.publish("a/b", qos=0)
    assert kinds(machine.sent()) == ["REGISTER"]


def test_a_topic_id_that_never_gets_known_fails_the_message() -> None:
    machine = Machine().connected().registered("a/b")
    delivery = machine.publish("a/b")
    packet = the_publish(machine)
    for _ in range(20):
        for answer in machine.hear(PubAck(1, packet.msg_id, ReturnCode.INVALID_TOPIC)):
            assert isinstance(answer, Register)
            machine.hear(RegAck(1, answer.msg_id, 0))
    error = delivery.exception(0)
    assert isinstance(error, Refused) and error.code == ReturnCode.INVALID_TOPIC
    assert machine.session.idle


@pytest.mark.parametrize("topic", ["ab", 9])
def test_an_invalid_short_or_predefined_topic_fails_the_message(topic: str | int) -> None:
    machine = Machine().connected()
    delivery = machine.publish(topic)
    packet = the_publish(machine)
    machine.hear(PubAck(packet.topic_id, packet.msg_id, ReturnCode.INVALID_TOPIC))
    with pytest.raises(Refused, match="invalid topic"):
        delivery.result(0)


def test_not_supported_fails_the_message_with_the_reason() -> None:
    machine = Machine().connected().registered("a/b")
    delivery = machine.publish("a/b")
    packet = the_publish(machine)
    machine.hear(PubAck(1, packet.msg_id, ReturnCode.NOT_SUPPORTED))
    error = delivery.exception(0)
    assert isinstance(error, DeliveryFailed)
    assert str(error) == "the gateway refused a message to a/b: not supported"


def test_a_refused_registration_fails_every_message_to_that_topic_and_no_other() -> None:
    machine = Machine().connected()
    bad = [machine.publish("a/b") for _ in range(3)]
    good = machine.publish("ab")
    (register,) = machine.sent()
    assert isinstance(register, Register)
    (packet,) = machine.hear(RegAck(0, register.msg_id, ReturnCode.NOT_SUPPORTED))
    assert isinstance(packet, Publish)
    assert all(isinstance(pending.exception(0), Refused) for pending in bad)
    machine.hear(PubAck(0, packet.msg_id, 0))
    assert good.result(0) is None


def test_a_congested_registration_is_repeated_after_a_pause() -> None:
    machine = Machine().connected()
    machine.publish("a/b")
    (register,) = machine.sent()
    assert isinstance(register, Register)
    assert machine.hear(RegAck(0, register.msg_id, ReturnCode.CONGESTION)) == []
    again = machine.until(Register)
    machine.hear(RegAck(3, again.msg_id, 0))
    assert machine.session.stats().in_flight == 1


# Answers nobody waits for


def test_late_and_doubled_answers_change_nothing() -> None:
    machine = Machine().connected()
    one, two = machine.publish("ab", qos=1), machine.publish("ab", qos=2)
    first, second = published([*machine.sent()])
    ack = PubAck(0, first.msg_id, 0)
    machine.hear(ack, ack, PubAck(0, first.msg_id, ReturnCode.CONGESTION))
    assert machine.hear(PubRec(second.msg_id), PubRec(second.msg_id)) == [PubRel(second.msg_id)]
    machine.hear(PubAck(0, second.msg_id, ReturnCode.CONGESTION))
    machine.hear(PubComp(second.msg_id), PubComp(second.msg_id))
    assert one.result(0) is None and two.result(0) is None
    assert machine.session.stats().duplicates == 5
    assert machine.wait(10) == []


def test_a_pubrec_of_a_message_already_done_is_released_again() -> None:
    machine = Machine().connected()
    assert machine.hear(PubRec(4_711)) == [PubRel(4_711)]


def test_answers_of_the_wrong_kind_are_counted_and_ignored() -> None:
    machine = Machine().connected()
    machine.publish("ab", qos=1)
    machine.publish("ab", qos=2)
    first, second = published([*machine.sent()])
    assert machine.hear(PubRec(first.msg_id), PubComp(first.msg_id), PubAck(0, second.msg_id, 0)) == []
    assert machine.session.stats().queued == 2
    assert sum(machine.session.stats().unexpected.values()) == 3


def test_callbacks_of_a_delivery_run_when_it_is_done() -> None:
    machine = Machine().connected()
    delivery = machine.publish("ab")
    seen: list[object] = []
    delivery.add_done_callback(seen.append)
    packet = the_publish(machine)
    machine.hear(PubAck(0, packet.msg_id, 0))
    assert seen == [delivery]
    delivery.add_done_callback(seen.append)
    assert seen == [delivery, delivery]

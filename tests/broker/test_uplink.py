"""From the device to the broker: acknowledged only when the broker has it, and passed on once."""

from __future__ import annotations

import pytest

from broker.config import PredefinedTopics
from broker.outputs import MqttPublish
from protocol.mqttsn import (
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
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


def connected(**settings: object) -> tuple[Machine, int]:
    """A machine with the client "dev" at A, and the id of its topic t/x."""
    machine = Machine(**settings)  # type: ignore[arg-type]
    machine.connect(A, "dev", clean=False)
    return machine, machine.register(A, "t/x")


# Topics


def test_a_name_gets_the_same_id_again_and_another_name_another() -> None:
    machine, topic_id = connected()
    assert machine.register(A, "t/x") == topic_id
    assert machine.register(A, "t/y") != topic_id


def test_topic_ids_belong_to_one_client() -> None:
    machine, topic_id = connected()
    machine.connect(B, "other")
    assert machine.send(B, Publish(NORMAL, topic_id, 1, b"p", 1)) == [PubAck(topic_id, 1, INVALID_TOPIC)]


@pytest.mark.parametrize("name", ["a/#", "+", "a\0b", "$SYS/x", "x" * 1025])
def test_a_name_nobody_may_publish_to_is_not_registered(name: str) -> None:
    machine, _ = connected()
    assert machine.send(A, Register(0, 5, name)) == [RegAck(0, 5, INVALID_TOPIC)]


def test_a_client_has_a_limited_number_of_topics() -> None:
    machine, _ = connected(max_topics_per_session=3)
    machine.register(A, "t/2")
    last = machine.register(A, "t/3")
    assert machine.send(A, Register(0, 9, "t/4")) == [RegAck(0, 9, CONGESTION)]
    assert machine.register(A, "t/3") == last


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_unknown_topic_is_answered_with_invalid_topic(qos: int) -> None:
    machine, _ = connected()
    msg_id = 7 if qos else 0
    for topic_type in (NORMAL, PREDEFINED):
        message = Publish(topic_type, 99, msg_id, b"p", qos)
        assert machine.send(A, message) == [PubAck(99, msg_id, INVALID_TOPIC)]
    for name in ("a+", "#a", "a\0", "$x"):
        number = short_topic_id(name)
        assert machine.send(A, Publish(SHORT, number, msg_id, b"p", qos)) == [PubAck(number, msg_id, INVALID_TOPIC)]
    assert machine.send(A, Publish(SHORT, 0xFFFF, msg_id, b"p", qos)) == [PubAck(0xFFFF, msg_id, INVALID_TOPIC)]
    assert machine.published == []


def test_predefined_and_short_topics_need_no_registration() -> None:
    machine, _ = connected(predefined=PredefinedTopics({5: "plant/5"}, {"dev": {6: "plant/dev"}}))
    machine.send(A, Publish(PREDEFINED, 5, 0, b"1", 0))
    machine.send(A, Publish(PREDEFINED, 6, 0, b"2", 0))
    machine.send(A, Publish(SHORT, short_topic_id("ab"), 0, b"3", 0))
    assert [each.topic for each in machine.published] == ["plant/5", "plant/dev", "ab"]


def test_the_predefined_topics_of_one_client_are_not_those_of_another() -> None:
    machine, _ = connected(predefined=PredefinedTopics({}, {"dev": {6: "plant/dev"}}))
    machine.connect(B, "other")
    assert machine.send(B, Publish(PREDEFINED, 6, 1, b"p", 1)) == [PubAck(6, 1, INVALID_TOPIC)]


# QoS 0 and -1


def test_qos_0_is_passed_on_and_not_answered() -> None:
    machine, topic_id = connected()
    assert machine.send(A, Publish(NORMAL, topic_id, 0, b"p", 0, retain=True)) == []
    assert machine.published == [MqttPublish("t/x", b"p", 0, True)]


def test_qos_0_while_the_broker_is_away_is_answered_with_congestion() -> None:
    machine, topic_id = connected()
    machine.broker_down()
    assert machine.send(A, Publish(NORMAL, topic_id, 0, b"p", 0)) == [PubAck(topic_id, 0, CONGESTION)]
    assert machine.published == []


def test_qos_minus_1_needs_no_connection() -> None:
    machine = Machine(predefined=PredefinedTopics({5: "plant/5"}))
    assert machine.send(A, Publish(PREDEFINED, 5, 0, b"1", -1)) == []
    assert machine.send(A, Publish(SHORT, short_topic_id("ab"), 0, b"2", -1)) == []
    assert machine.published == [MqttPublish("plant/5", b"1", 0, False), MqttPublish("ab", b"2", 0, False)]


def test_qos_minus_1_works_for_a_connected_client_too() -> None:
    machine, _ = connected()
    assert machine.send(A, Publish(SHORT, short_topic_id("ab"), 0, b"p", -1)) == []
    assert machine.payloads() == [b"p"]


def test_qos_minus_1_to_an_unknown_topic_is_counted_and_not_answered() -> None:
    machine = Machine()
    assert machine.send(A, Publish(NORMAL, 1, 0, b"p", -1)) == []
    assert machine.send(A, Publish(PREDEFINED, 1, 0, b"p", -1)) == []
    assert machine.counted("dropped", "unknown topic at qos -1") == 2


def test_qos_minus_1_while_the_broker_is_away_is_dropped_and_counted() -> None:
    machine = Machine(broker=False)
    assert machine.send(A, Publish(SHORT, short_topic_id("ab"), 0, b"p", -1)) == []
    assert machine.published == []
    assert machine.counted("dropped", "broker away at qos 0 or -1") == 1


# QoS 1 and 2


def test_qos_1_is_acknowledged_when_the_broker_has_acknowledged_it_and_not_before() -> None:
    machine, topic_id = connected()
    assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 1)) == []
    machine.advance(5)
    assert machine.take(A) == []
    assert [(each.topic, each.payload, each.qos) for each in machine.published] == [("t/x", b"p", 1)]
    machine.acknowledge()
    assert machine.take(A) == [PubAck(topic_id, 7, ACCEPTED)]


def test_qos_2_is_received_when_the_broker_has_acknowledged_it_and_not_before() -> None:
    machine, topic_id = connected()
    assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2, retain=True)) == []
    machine.advance(5)
    assert machine.take(A) == []
    assert [(each.qos, each.retain) for each in machine.published] == [(2, True)]
    machine.acknowledge()
    assert machine.take(A) == [PubRec(7)]
    assert machine.send(A, PubRel(7)) == [PubComp(7)]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_broker_refuses_is_refused_to_the_client(qos: int) -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", qos))
    machine.acknowledge(accepted=False)
    assert machine.take(A) == [PubAck(topic_id, 7, NOT_SUPPORTED)]
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", qos))
    assert len(machine.published) == 2, "it may be tried again"


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_without_a_message_id_is_refused(qos: int) -> None:
    machine, topic_id = connected()
    assert machine.send(A, Publish(NORMAL, topic_id, 0, b"p", qos)) == [PubAck(topic_id, 0, NOT_SUPPORTED)]
    assert machine.published == []


@pytest.mark.parametrize("qos", [1, 2])
def test_while_the_broker_is_away_a_publish_is_answered_with_congestion(qos: int) -> None:
    machine, topic_id = connected()
    machine.broker_down()
    assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", qos)) == [PubAck(topic_id, 7, CONGESTION)]
    assert machine.published == []
    machine.broker_up()
    assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", qos, dup=True)) == []
    assert machine.payloads() == [b"p"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_was_on_its_way_when_the_broker_left_is_acknowledged_when_it_is_back(qos: int) -> None:
    machine, topic_id = connected()
    publish = Publish(NORMAL, topic_id, 7, b"p", qos)
    machine.send(A, publish)
    machine.broker_down()
    assert machine.send(A, publish) == [PubAck(topic_id, 7, CONGESTION)]
    machine.broker_up()
    assert machine.send(A, publish) == []
    machine.acknowledge()
    assert machine.take(A) == [PubRec(7) if qos == 2 else PubAck(topic_id, 7, ACCEPTED)]
    assert machine.payloads() == [b"p"], "it is given to the broker once"


# Copies


@pytest.mark.parametrize("qos", [1, 2])
def test_a_copy_of_a_publish_in_flight_is_not_published_again(qos: int) -> None:
    machine, topic_id = connected()
    for dup in (False, True, False):
        assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", qos, dup=dup)) == []
    machine.acknowledge()
    assert machine.payloads() == [b"p"]
    assert len(machine.take(A)) == 1
    assert machine.counted("duplicates", f"qos {qos} publish") == 2


def test_a_copy_after_pubrec_is_answered_with_pubrec() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    machine.acknowledge()
    machine.take(A)
    assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2, dup=True)) == [PubRec(7)]
    machine.broker_down()
    assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2, dup=True)) == [PubRec(7)]
    assert machine.payloads() == [b"p"]


def test_a_delayed_copy_of_a_finished_qos_2_publish_is_not_published_again() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    machine.acknowledge()
    machine.send(A, PubRel(7))
    machine.advance(9)
    assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2)) == [PubRec(7)]
    assert machine.send(A, PubRel(7)) == [PubComp(7)]
    assert machine.payloads() == [b"p"]
    assert machine.counted("duplicates", "finished qos 2 publish") == 1


def test_a_delayed_copy_is_recognised_even_after_a_reconnect() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    machine.acknowledge()
    machine.send(A, PubRel(7))
    machine.send(A, Disconnect())
    machine.connect(A, "dev", clean=False)
    assert machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2)) == [PubRec(7)]
    assert machine.payloads() == [b"p"]


def test_the_same_message_with_the_same_id_is_a_new_one_when_the_memory_has_run_out() -> None:
    machine, topic_id = connected(exchange_memory_s=10)
    for _ in range(2):
        machine.send(A, Publish(NORMAL, topic_id, 7, b"21.5", 2))
        machine.acknowledge()
        assert machine.send(A, PubRel(7))[-1] == PubComp(7)
        machine.advance(11)
    assert machine.payloads() == [b"21.5", b"21.5"]


@pytest.mark.parametrize("other", [(b"q", 2), (b"p", 1)])
def test_a_message_id_used_again_with_another_content_is_a_new_message(other: tuple[bytes, int]) -> None:
    machine, topic_id = connected()
    payload, qos = other
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    machine.acknowledge()
    machine.send(A, PubRel(7))
    assert machine.send(A, Publish(NORMAL, topic_id, 7, payload, qos)) == []
    assert machine.payloads() == [b"p", payload]


def test_a_message_id_used_again_for_another_topic_is_a_new_message() -> None:
    machine, topic_id = connected()
    other = machine.register(A, "t/y")
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    machine.acknowledge()
    machine.send(A, PubRel(7))
    machine.send(A, Publish(NORMAL, other, 7, b"p", 2))
    assert [each.topic for each in machine.published] == ["t/x", "t/y"]


def test_the_acknowledgement_of_a_message_whose_id_was_used_again_is_not_passed_on() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 1))
    first = machine.uploads.pop()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"q", 1))
    machine.gateway.broker_published(first, True)
    machine._collect()
    assert machine.take(A) == []
    machine.acknowledge()
    assert machine.take(A) == [PubAck(topic_id, 7, ACCEPTED)]
    machine.check_bounds()


def test_a_qos_1_message_may_be_repeated_as_a_new_one_once_it_is_acknowledged() -> None:
    machine, topic_id = connected()
    for _ in range(2):
        machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 1))
        machine.acknowledge()
    assert machine.payloads() == [b"p", b"p"]


def test_only_so_many_finished_exchanges_are_remembered() -> None:
    machine, topic_id = connected(exchange_memory_count=4)
    for msg_id in range(1, 8):
        machine.send(A, Publish(NORMAL, topic_id, msg_id, b"p", 2))
        machine.acknowledge()
        machine.send(A, PubRel(msg_id))
    assert list(machine.session("dev").finished) == [4, 5, 6, 7]


def test_an_id_used_again_counts_as_remembered_last() -> None:
    machine, topic_id = connected(exchange_memory_count=2)
    for msg_id, payload in ((1, b"p"), (2, b"p"), (1, b"q"), (3, b"p")):
        machine.send(A, Publish(NORMAL, topic_id, msg_id, payload, 2))
        machine.acknowledge()
        machine.send(A, PubRel(msg_id))
    assert list(machine.session("dev").finished) == [1, 3]


def test_finished_exchanges_are_not_remembered_for_longer_than_they_are_of_use() -> None:
    machine, topic_id = connected(exchange_memory_s=10)
    for msg_id in (1, 2, 3):
        machine.send(A, Publish(NORMAL, topic_id, msg_id, b"p", 2))
        machine.acknowledge()
        machine.send(A, PubRel(msg_id))
        machine.advance(6)
    assert list(machine.session("dev").finished) == [2, 3]


# PUBREL


def test_a_repeated_pubrel_is_answered_again() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    machine.acknowledge()
    machine.take(A)
    assert machine.send(A, PubRel(7)) == [PubComp(7)]
    assert machine.send(A, PubRel(7)) == [PubComp(7)]


def test_a_pubrel_for_nothing_is_answered_so_that_the_client_can_go_on() -> None:
    machine, _ = connected()
    assert machine.send(A, PubRel(7)) == [PubComp(7)]


def test_a_pubrel_before_pubrec_ends_nothing() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    assert machine.send(A, PubRel(7)) == []
    machine.acknowledge()
    assert machine.take(A) == [PubRec(7)]


# Connections that come and go meanwhile


def test_the_acknowledgement_goes_to_where_the_client_is_now() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    machine.connect(B, "dev", clean=False)
    machine.take(A)
    machine.acknowledge()
    assert machine.take(A) == []
    assert machine.take(B) == [PubRec(7)]


def test_an_acknowledgement_is_not_sent_to_another_client_that_has_taken_the_address() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"1", 1))
    machine.connect(A, "other")
    number = short_topic_id("ab")
    machine.send(A, Publish(SHORT, number, 7, b"2", 1))
    machine.gateway.broker_published(machine.uploads.pop(0), True)
    machine._collect()
    assert machine.take(A) == [], "to the other client it would be the acknowledgement of its own message"
    machine.acknowledge()
    assert machine.take(A) == [PubAck(number, 7, ACCEPTED)]


def test_an_acknowledgement_for_a_client_that_left_is_not_sent_to_its_successor() -> None:
    machine, topic_id = connected()
    machine.send(A, Publish(NORMAL, topic_id, 7, b"1", 1))
    machine.send(A, Disconnect())
    machine.connect(A, "other")
    machine.acknowledge()
    assert machine.take(A) == []


def test_the_acknowledgement_of_a_former_clean_session_is_not_passed_on() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    topic_id = machine.register(A, "t/x")
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 1))
    machine.advance(5)
    machine.send(A, Connect("dev", 60))
    machine.acknowledge()
    assert machine.take(A) == []
    assert machine.counted("acknowledgements nobody waits for") == 1
    machine.check_bounds()


# Limits


def test_a_client_has_a_limited_number_of_publishes_under_way() -> None:
    machine, topic_id = connected(max_uploads_per_session=3)
    for msg_id in (1, 2, 3):
        assert machine.send(A, Publish(NORMAL, topic_id, msg_id, b"p", 1)) == []
    assert machine.send(A, Publish(NORMAL, topic_id, 4, b"p", 1)) == [PubAck(topic_id, 4, CONGESTION)]
    machine.connect(B, "other")
    other = machine.register(B, "t/x")
    assert machine.send(B, Publish(NORMAL, other, 1, b"p", 1)) == [], "others are not slowed down by it"
    machine.acknowledge()
    machine.take(A)
    assert machine.send(A, Publish(NORMAL, topic_id, 4, b"p", 1)) == []


def test_a_message_id_used_again_takes_the_place_of_its_former_message() -> None:
    machine, topic_id = connected(max_uploads_per_session=1)
    machine.send(A, Publish(NORMAL, topic_id, 1, b"p", 1))
    assert machine.send(A, Publish(NORMAL, topic_id, 1, b"q", 1)) == []
    assert machine.payloads() == [b"p", b"q"]
    machine.check_bounds()


def test_exchanges_a_client_never_releases_make_room_after_a_while() -> None:
    machine, topic_id = connected(max_uploads_per_session=2)
    for msg_id in (1, 2):
        machine.send(A, Publish(NORMAL, topic_id, msg_id, b"p", 2))
    machine.acknowledge()
    machine.take(A)
    assert machine.send(A, Publish(NORMAL, topic_id, 3, b"p", 2)) == [PubAck(topic_id, 3, CONGESTION)]
    machine.advance(61)
    assert machine.send(A, Publish(NORMAL, topic_id, 3, b"p", 2)) == []
    assert machine.counted("dropped", "unreleased qos 2 exchange") == 1
    machine.check_bounds()


def test_all_clients_together_have_a_limited_number_of_publishes_under_way() -> None:
    machine, topic_id = connected(max_pending_publishes=2)
    machine.connect(B, "other")
    other = machine.register(B, "t/x")
    machine.send(A, Publish(NORMAL, topic_id, 1, b"p", 1))
    machine.send(B, Publish(NORMAL, other, 1, b"p", 1))
    assert machine.send(B, Publish(NORMAL, other, 2, b"p", 1)) == [PubAck(other, 2, CONGESTION)]
    machine.acknowledge()
    machine.take(B)
    assert machine.send(B, Publish(NORMAL, other, 2, b"p", 1)) == []
    machine.check_bounds()


def test_all_clients_together_have_a_limited_number_of_bytes_under_way() -> None:
    machine, topic_id = connected(max_pending_bytes=1_000)
    assert machine.send(A, Publish(NORMAL, topic_id, 1, bytes(1_000), 1)) == []
    assert machine.send(A, Publish(NORMAL, topic_id, 2, b"p", 1)) == [PubAck(topic_id, 2, CONGESTION)]
    machine.acknowledge()
    machine.take(A)
    assert machine.send(A, Publish(NORMAL, topic_id, 2, b"p", 1)) == []


def test_room_is_found_again_when_sessions_end_before_their_acknowledgements() -> None:
    machine, topic_id = connected(max_pending_publishes=1)
    machine.connect(B, "other")
    other = machine.register(B, "t/x")
    machine.send(B, Publish(NORMAL, other, 1, b"p", 1))
    machine.send(B, Disconnect())
    assert machine.send(A, Publish(NORMAL, topic_id, 1, b"p", 1)) == [PubAck(topic_id, 1, CONGESTION)]
    machine.acknowledge()
    assert machine.send(A, Publish(NORMAL, topic_id, 1, b"p", 1)) == []
    machine.check_bounds()


def test_a_publish_larger_than_a_short_header_arrives_byte_for_byte() -> None:
    machine, topic_id = connected()
    payload = bytes(range(256)) * 200
    machine.send(A, Publish(NORMAL, topic_id, 1, payload, 1))
    assert machine.payloads() == [payload]


def test_the_message_ids_of_two_clients_do_not_meet() -> None:
    machine, topic_id = connected()
    machine.connect(B, "other")
    other = machine.register(B, "t/x")
    machine.send(A, Publish(NORMAL, topic_id, 7, b"p", 2))
    machine.send(B, Publish(NORMAL, other, 7, b"p", 2))
    machine.acknowledge()
    assert machine.take(A) == machine.take(B) == [PubRec(7)]
    assert machine.payloads() == [b"p", b"p"]

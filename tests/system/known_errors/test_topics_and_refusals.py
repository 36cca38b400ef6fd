"""Gateways in the field lack QoS -1, predefined topics, GWINFO to the one who asks and proper refusals."""

from __future__ import annotations

import pytest

from protocol.mqttsn import (
    GwInfo,
    PubAck,
    Publish,
    ReturnCode,
    SearchGw,
    SubAck,
    Subscribe,
    TopicType,
    short_topic_id,
)
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


def test_qos_minus_one_needs_no_connection_with_predefined_and_short_topics(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "plant/alarm", "al")
    stranger = device(gateway)
    stranger.publish(1, b"predefined", qos=-1, topic_type=TopicType.PREDEFINED)
    stranger.publish(short_topic_id("al"), b"short", qos=-1, topic_type=TopicType.SHORT)
    recording.wait_for_message("plant/alarm", b"predefined")
    recording.wait_for_message("al", b"short")
    dropped = scrape(gateway).value("messages_dropped", reason="unknown topic at qos -1")
    stranger.publish(99, b"nobody knows this id", qos=-1, topic_type=TopicType.PREDEFINED)
    stranger.publish(1, b"nobody registered this id", qos=-1)
    stranger.send(SearchGw())
    stranger.expect(GwInfo)
    assert scrape(gateway).value("messages_dropped", reason="unknown topic at qos -1") == dropped + 2
    assert len(recording.received) == 2


def test_topics_of_the_predefined_file_work_in_both_directions_and_per_client(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "plant/#")
    pump = device(gateway, "pump-7").connect()
    pump.predefined = {1: "plant/alarm", 2: "plant/level", 3: "plant/pumps/7"}
    pump.publish(2, b"for all clients", qos=1, topic_type=TopicType.PREDEFINED)
    recording.wait_for_message("plant/level", b"for all clients")
    pump.publish(3, b"for this client", qos=2, topic_type=TopicType.PREDEFINED)
    recording.wait_for_message("plant/pumps/7", b"for this client")
    assert pump.subscribe(3, qos=1).topic_id == 3
    recording.publish("plant/pumps/7", b"down")
    assert pump.expect(Publish).topic_type == TopicType.PREDEFINED

    other = device(gateway).connect()
    other.send(Publish(TopicType.PREDEFINED, 3, 1, b"not mine", 1))
    assert other.expect(PubAck) == PubAck(3, 1, ReturnCode.INVALID_TOPIC)
    other.send(Subscribe(TopicType.PREDEFINED, 3, 2, 1))
    assert other.expect(SubAck).return_code == ReturnCode.INVALID_TOPIC


def test_short_topic_names_work_in_both_directions(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "up")
    one = device(gateway).connect()
    one.publish(short_topic_id("up"), b"short", qos=1, topic_type=TopicType.SHORT)
    recording.wait_for_message("up", b"short")
    one.subscribe("dn", qos=1, topic_type=TopicType.SHORT)
    recording.publish("dn", b"down")
    assert one.deliver()[:2] == ("dn", b"down")


def test_searchgw_is_answered_to_the_one_who_asks(gateway: GatewayService, device: NewDevice) -> None:
    stranger = device(gateway)
    stranger.send(SearchGw(radius=1))
    assert stranger.expect(GwInfo) == GwInfo(1, b"")
    connected = device(gateway).connect()
    connected.send(SearchGw())
    assert connected.expect(GwInfo) == GwInfo(1, b"")


@pytest.mark.parametrize("topic_type", [TopicType.NORMAL, TopicType.PREDEFINED])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_to_an_unknown_topic_is_answered_invalid_topic(
    qos: int, topic_type: TopicType, gateway: GatewayService, device: NewDevice
) -> None:
    one = device(gateway).connect()
    msg_id = 77 if qos else 0
    one.send(Publish(topic_type, 500, msg_id, b"where to?", qos))
    assert one.expect(PubAck) == PubAck(500, msg_id, ReturnCode.INVALID_TOPIC)

"""Gateways in the field damage packets with the three-octet length header."""

from __future__ import annotations

from random import Random

import pytest

from protocol.mqttsn import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReturnCode,
    TopicType,
)
from tests.support.peers import Delivered
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto

SIZES = (*range(248, 261), 300, 1_000, 10_000, 60_000)
"""Around the largest packet with a one-octet length (a payload of 248), and far beyond."""


def payload_of(name: str, size: int) -> bytes:
    """Bytes that no other device and no other size has."""
    return Random(f"{name} {size}").randbytes(size)


def test_large_payloads_of_interleaved_devices_reach_mqtt_byte_for_byte(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "large/up/#")
    devices = [device(gateway).connect() for _ in range(3)]
    ids = [each.register(f"large/up/{each.client_id}") for each in devices]
    for number, size in enumerate(SIZES, start=1):
        for qos, (each, topic_id) in enumerate(zip(devices, ids, strict=True)):
            msg_id = number if qos else 0
            each.send(Publish(TopicType.NORMAL, topic_id, msg_id, payload_of(each.client_id, size), qos))
        assert devices[1].expect(PubAck) == PubAck(ids[1], number, ReturnCode.ACCEPTED)
        assert devices[2].expect(PubRec) == PubRec(number)
        devices[2].send(PubRel(number))
        assert devices[2].expect(PubComp) == PubComp(number)
    recording.wait_for_count(3 * len(SIZES))
    for each in devices:
        expected = [payload_of(each.client_id, size) for size in SIZES]
        assert recording.payloads(f"large/up/{each.client_id}") == expected


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_large_payloads_from_mqtt_reach_each_device_byte_for_byte(
    qos: int, gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    devices = [device(gateway).connect() for _ in range(3)]
    for each in devices:
        each.subscribe(f"large/down/{each.client_id}", qos)
    for size in SIZES:
        for each in devices:
            sender.publish(f"large/down/{each.client_id}", payload_of(each.client_id, size), qos=max(qos, 1))
        for each in devices:
            came = each.deliver()
            assert came == Delivered(
                f"large/down/{each.client_id}", payload_of(each.client_id, size), qos, retain=False, dup=False
            )


def test_a_topic_name_that_needs_the_long_header_works_in_both_directions(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    topic = "long/" + "x" * 700
    recording = recorder(mosquitto, "long/#")
    one = device(gateway).connect()
    one.publish(one.register(topic), b"up", qos=1)
    recording.wait_for_message(topic, b"up")

    wildcard = device(gateway).connect()
    wildcard.subscribe("long/+", qos=1)
    recording.publish(topic, b"down")
    assert wildcard.deliver()[:2] == (topic, b"down")


def test_a_message_larger_than_a_datagram_is_dropped_and_what_comes_after_it_is_delivered(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    one = device(gateway).connect()
    one.subscribe("too/large", qos=1)
    before = scrape(gateway).value("messages_dropped", reason="larger than a datagram")
    for size in (65_500, 65_520, 70_000):
        sender.publish("too/large", bytes(size))
    sender.publish("too/large", b"small")
    assert one.deliver().payload == b"small"
    assert scrape(gateway).value("messages_dropped", reason="larger than a datagram") == before + 3
